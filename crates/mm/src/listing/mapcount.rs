//! The maps of a page in tables that a fork shares.
//!
//! A frame counts one reference for each entry that leads to it. An entry of a table that several
//! spaces share is one entry, and a map in each of them. So the number of maps is the number of
//! entries, and for each entry one less than the number of spaces that reach it.
//!
//! A fork copies no counts, so the spaces of the family are asked. Each says which table decides
//! about an address, and those that name one table share it. A table has the same addresses in all
//! of them: nothing moves a table that is shared.
//!
//! It is exact while nothing changes, with two exceptions. A page that another space has moved is
//! not found there; and the spaces of another family that map a page of an object have as many maps
//! as tables. If the heap is exhausted, shared tables may count as one map.
//!
//! Cost: for each 2 MiB a walk for each space of the family. Where a table is shared, one more walk
//! for each page.

use alloc::vec::Vec;

use machine::{Frame, Step, VirtAddr};

use crate::{
    addresses::HUGE,
    object::mappings::{Family, Visit},
    space::shared::Shared,
};

/// A table that spaces share.
struct SharedTable {
    table: Frame,
    spaces: u32,
    /// One of the spaces.
    one: Shared<dyn Visit>,
}

/// The tables that spaces share within 2 MiB.
#[derive(Default)]
struct Block {
    /// The address, in units of 2 MiB.
    number: Option<u64>,
    tables: Vec<SharedTable>,
}

/// The tables that the spaces of a family share.
pub(crate) struct MapCount<'a, S: Step> {
    /// `None`: the tables were never shared.
    family: Option<&'a Family>,
    step: &'a S,
    /// Where the page is, and where it came from.
    blocks: [Block; 2],
}

impl<'a, S: Step> MapCount<'a, S> {
    pub(crate) fn new(family: Option<&'a Family>, step: &'a S) -> Self {
        MapCount { family, step, blocks: Default::default() }
    }

    /// How many maps a page has in addition to one for each entry that leads to it: at its address
    /// here, and at the one where it came to be, if that is another one.
    pub(crate) fn more_maps(&mut self, at: VirtAddr, origin: VirtAddr, frame: Frame) -> u32 {
        let Some(family) = self.family else { return 0 };
        let moved = (origin != at).then_some(origin);
        let mut more = 0_u32;
        for (at, block) in [Some(at), moved].into_iter().zip(&mut self.blocks) {
            let Some(at) = at else { continue };
            let number = at.get() / HUGE as u64;
            if block.number != Some(number) {
                block.number = Some(number);
                block.find_tables(family, self.step, at);
            }
            let leads = |shared: &&SharedTable| shared.one.frame_at(at) == Some(frame);
            let here = block.tables.iter().filter(leads).map(|shared| shared.spaces - 1);
            more = here.fold(more, u32::saturating_add);
        }
        more
    }
}

impl Block {
    fn find_tables(&mut self, family: &Family, step: &impl Step, at: VirtAddr) {
        self.tables.clear();
        family.visit(step, |one| {
            let Some(table) = one.table_at(at) else { return };
            if let Some(known) = self.tables.iter_mut().find(|known| known.table == table) {
                known.spaces = known.spaces.saturating_add(1);
            } else if self.tables.try_reserve(1).is_ok() {
                self.tables.push(SharedTable { table, spaces: 1, one });
            }
        });
        self.tables.retain(|table| table.spaces > 1);
    }
}
