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
//! It is exact while nothing changes, with two exceptions. A page that mremap has moved away is
//! asked for at its new address only, and the spaces of another family that map a page of an object
//! count as many maps as they have tables. If the heap is exhausted, shared tables may count as
//! one map.
//!
//! Cost: for each 2 MiB a walk for each space of the family. Where a table is shared, one more walk
//! for each page.

use alloc::vec::Vec;

use machine::{Frame, Step, VirtAddr};

use crate::{
    huge::HUGE,
    mappings::{Family, Visit},
    shared::Shared,
};

/// A table that spaces share.
struct SharedTable {
    table: Frame,
    spaces: u32,
    /// One of the spaces.
    one: Shared<dyn Visit>,
}

/// The tables that the spaces of a family have at an address.
pub(crate) struct Kin<'a, S: Step> {
    /// `None`: the tables were never shared.
    family: Option<&'a Family>,
    step: &'a S,
    /// The address, in units of 2 MiB.
    block: Option<u64>,
    tables: Vec<SharedTable>,
}

impl<'a, S: Step> Kin<'a, S> {
    pub(crate) fn new(family: Option<&'a Family>, step: &'a S) -> Self {
        Kin { family, step, block: None, tables: Vec::new() }
    }

    /// How many maps a page at this address has beside one for each entry that leads to it.
    pub(crate) fn more_maps(&mut self, at: VirtAddr, frame: Frame) -> u32 {
        let Some(family) = self.family else { return 0 };
        let block = at.get() / HUGE as u64;
        if self.block != Some(block) {
            self.block = Some(block);
            self.find_tables(family, at);
        }
        let leads = |shared: &&SharedTable| shared.one.frame_at(at) == Some(frame);
        let more = self.tables.iter().filter(leads).map(|shared| shared.spaces - 1);
        more.fold(0, u32::saturating_add)
    }

    fn find_tables(&mut self, family: &Family, at: VirtAddr) {
        self.tables.clear();
        family.visit(self.step, |one| {
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
