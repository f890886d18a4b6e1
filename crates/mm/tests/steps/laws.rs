//! Rules of the manual pages that an order of steps must keep.
//!
//! Sequential `mm` is the specification of concurrent `mm`, so it cannot show its own faults. These
//! rules are short, and hold after every step.

use crate::{
    apply::Hand,
    ops::*,
    out::{Failed, OpResult},
    world::{HALF, World},
};
use mm::*;

/// The words of an object, one for each half of a page.
type Words = Vec<u64>;

pub(crate) struct Laws<'w> {
    world: &'w World,
    /// The words of the memfd when it was sealed against writes.
    sealed: Option<Words>,
    /// The state before the step.
    words: Words,
    size: u64,
    has_seal: bool,
    places: Vec<Option<(usize, u64)>>,
    has_monitored_hole: bool,
    broken: Option<String>,
}

/// Whether a law is about this operation.
pub(crate) fn is_subject(op: Op) -> bool {
    match op {
        Op::SetSize(Which::File, _) | Op::Seal(_) | Op::Settle(..) => true,
        Op::Map(What::Memfd, .., prot, _) => prot == 1,
        Op::Advise(.., advice) => advice == Advice::Collapse,
        _ => false,
    }
}

/// Whether the bytes of objects stay. Operations that bring pages in, or take them away, are among
/// these.
fn writes_nothing(op: Op) -> bool {
    match op {
        Op::Sync(..) | Op::Evict(_) | Op::Msync(..) | Op::MsyncInvalidate(..) | Op::Unpin => true,
        Op::Unmap(..) | Op::Protect(..) | Op::Settle(..) | Op::Fork | Op::Listing => true,
        Op::Load(_) | Op::LoadTail(_) | Op::Read(..) | Op::PinRead(_) | Op::PinnedLoad => true,
        Op::Mincore(..) | Op::Lock(..) | Op::Unlock(..) | Op::Reclaim(_) | Op::Exec => true,
        Op::Advise(.., advice) => advice != Advice::Remove,
        _ => false,
    }
}

impl<'w> Laws<'w> {
    pub(crate) fn new(world: &'w World) -> Self {
        Laws {
            world,
            sealed: None,
            words: Words::new(),
            size: 0,
            has_seal: false,
            places: Vec::new(),
            has_monitored_hole: false,
            broken: None,
        }
    }

    /// The first law that was broken.
    pub(crate) fn broken(self) -> Option<String> {
        self.broken
    }

    fn words(&self, of: Which) -> Words {
        let read = |half: u64, into: &mut [u8; 8]| match of {
            Which::Memfd => self.world.memfd.object.read(half * HALF, into),
            Which::File => self.world.file.object.read(half * HALF, into).unwrap_or(0),
        };
        (0..16)
            .map_while(|half| {
                let mut word = [0; 8];
                (read(half, &mut word) == 8).then(|| u64::from_le_bytes(word))
            })
            .collect()
    }

    /// The words of all objects.
    fn all_words(&self) -> Words {
        if self.world.kind.has_object() {
            [self.words(Which::Memfd), self.words(Which::File)].concat()
        } else {
            Words::new()
        }
    }

    fn places(hand: &Hand<'_>) -> Vec<Option<(usize, u64)>> {
        (0..8).map(|page| hand.space().shared_place(at(page))).collect()
    }

    pub(crate) fn before(&mut self, hand: &Hand<'_>, op: Op) {
        self.words = self.all_words();
        match op {
            Op::SetSize(Which::File, _) => self.size = self.world.file.object.size(),
            Op::Map(What::Memfd, ..) => {
                self.has_seal = self.world.memfd.object.seals().intersects(Seals::WRITE);
            }
            Op::Settle(..) => self.places = Self::places(hand),
            Op::Advise(page, pages, Advice::Collapse) => {
                let mut missing = false;
                hand.space().for_each_vma(|range, flags| {
                    let within = range.start <= at(page) && end(page + pages - 1) <= range.end;
                    missing |= within && flags.contains(vma::VmFlags::UFFD_MISSING);
                });
                let pages = at(page)..end(page + pages - 1);
                let whole = pages.len() >> 12;
                let resident = hand.space().resident(pages);
                self.has_monitored_hole = missing && (1..whole).contains(&resident);
            }
            _ => {}
        }
    }

    /// Looks at the state after a step.
    pub(crate) fn after(&mut self, hand: &Hand<'_>, op: Op, out: &OpResult) {
        if self.broken.is_none() {
            self.broken = self.look(hand, op, out).map(|law| format!("{law}, after {op:?}: {out}"));
        }
    }

    fn look(&mut self, hand: &Hand<'_>, op: Op, out: &OpResult) -> Option<&'static str> {
        match op {
            // A memfd shows what maps have written beyond its end, in Linux, too.
            Op::SetSize(Which::File, _) if out.error.is_none() => {
                let words = self.words(Which::File);
                let from = self.size.div_ceil(HALF) as usize;
                if words.iter().skip(from).any(|word| *word != 0) {
                    return Some("an object that grows shows zeros");
                }
            }
            Op::Seal(seals) if out.error.is_none() && Seals(seals).intersects(Seals::WRITE) => {
                self.sealed = Some(self.words(Which::Memfd));
            }
            Op::Map(What::Memfd, _, _, 1, _)
                if self.has_seal && out.error == Some(Failed::Errno(1)) =>
            {
                return Some("a sealed memfd can be mapped shared for reading");
            }
            Op::Settle(..) if self.places != Self::places(hand) => {
                return Some("a settled VMA maps what its parts have mapped");
            }
            Op::Advise(_, _, Advice::Collapse)
                if self.has_monitored_hole && out.error != Some(Failed::Errno(16)) =>
            {
                return Some("MADV_COLLAPSE leaves holes to the monitor: EBUSY");
            }
            _ => {}
        }
        if self.sealed.is_some() {
            let now = Some(self.words(Which::Memfd));
            if matches!(op, Op::SetSize(Which::Memfd, _)) {
                self.sealed = now;
            } else if self.sealed != now {
                return Some("the bytes of a sealed memfd stay");
            }
        }
        let lost = writes_nothing(op) && self.words != self.all_words();
        lost.then_some("a call that writes nothing leaves the bytes of objects as they are")
    }
}
