//! The entries that may lead to a frame.
//!
//! A frame that is freed must not be reachable from any page table. To search all tables at each
//! free would take as long as there are tables. So the machine remembers, for each frame, the
//! entries into which its address was ever stored since the frame was last freed. Only if one of
//! them still holds it, all tables are searched.
//!
//! Correctness: the code under test changes entries through [`machine::Entry`], whose step comes
//! before the store. So an entry that leads to the frame has been remembered. An entry may be
//! remembered that no longer leads there; that costs a look. A frame that many entries lead to,
//! such as one of zeros that all programs share, is searched for when it is freed.
//!
//! Cost: a lock and a lookup for each change of an entry.

use crate::lock::locked;
use crate::tables::Tables;
use machine::{EntryOp, Frame, PageSize};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The most entries that are remembered for a frame.
const MOST: usize = 32;

/// By frame: the entries that may lead to it; empty if they were too many.
#[derive(Default)]
pub(crate) struct ReverseMap(Mutex<BTreeMap<Frame, Vec<(Frame, usize)>>>);

impl ReverseMap {
    /// Called before code changes an entry.
    pub(crate) fn note(&self, tables: Tables<'_>, table: Frame, index: usize, op: EntryOp) {
        let (arena, format, address) = (tables.arena, tables.format, tables.format.address_bits());
        let word = || arena.load(table, index).unwrap_or(0);
        let value = match op {
            EntryOp::Load => return,
            EntryOp::Store(value) | EntryOp::Swap(value) | EntryOp::CompareExchange(_, value) => {
                value
            }
            EntryOp::And(mask) if mask & address == address => return,
            EntryOp::Or(mask) if mask & address == 0 => return,
            EntryOp::And(mask) => word() & mask,
            EntryOp::Or(mask) => word() | mask,
        };
        let place = (table, index);
        let places = &mut *locked(&self.0);
        for frame in format.targets(value, index).filter(|frame| arena.index(*frame).is_some()) {
            let places = places.entry(frame).or_insert_with(|| vec![place]);
            if places.len() >= MOST {
                places.clear();
            } else if !places.is_empty() && !places.contains(&place) {
                places.push(place);
            }
        }
    }

    /// Whether an entry may lead into a block of frames.
    pub(crate) fn may_lead_to(&self, tables: Tables<'_>, frame: Frame, order: u8) -> bool {
        let (first, format) = (frame.number(), tables.format);
        let places = &*locked(&self.0);
        let leads = |frame: Option<Frame>, large: bool| {
            let Some((frame, places)) = frame.and_then(|frame| places.get_key_value(&frame)) else {
                return false;
            };
            let holds = |&(table, index): &(Frame, usize)| {
                tables.arena.load(table, index).is_some_and(|word| {
                    (if large { format.may_be_large(word) } else { format.is_present(word) })
                        && format.targets(word, index).any(|at| at == *frame)
                })
            };
            places.is_empty() || places.iter().any(holds)
        };
        // A page of several frames begins at a multiple of its size.
        let sizes = format.sizes().filter(|size| *size != PageSize::Size4K);
        let mut heads = sizes.map(|size| first & !(size.frames() - 1));
        (first..first + (1 << order)).any(|number| leads(Frame::new(number), false))
            || heads.any(|number| leads(Frame::new(number), true))
    }

    /// Called when a block of frames is freed.
    pub(crate) fn forget(&self, frame: Frame, order: u8) {
        let places = &mut *locked(&self.0);
        let frames = frame.number()..frame.number() + (1 << order);
        frames.filter_map(Frame::new).for_each(|frame| drop(places.remove(&frame)));
    }
}
