//! The search for the peak of resident memory.
//!
//! Resident memory shrinks only by calls that the tracer sees, by exits, and by reclaim. So the
//! tracer looks before calls that may release memory: as soon as those since the last look may have
//! released a 64th of the peak so far, and else every 2 ms. The kernel counts the highest peak,
//! too, but does not say when it was. Reports have both, so they show how close the moment is.
//!
//! A look reads statm, some microseconds. The whole moment is read if more is resident than ever
//! before: by a 16th, or by any amount while these readings take less than a tenth of the run.
//! While a program grows to n pages, they cost as much as 17 scans of n pages.

use std::time::{Duration, Instant};

use super::{
    calls::{self, Kind},
    follower::Follower,
    image,
    sys::{Tid, pages},
    table::Call,
    usage,
};
use crate::{
    observer::Event,
    record::{MmId, Op},
    report::Moment,
};

/// The time after which a look is due at the next call.
const BETWEEN: Duration = Duration::from_millis(2);
/// Less is not worth a look, in bytes.
const LEAST: usize = 256 << 10;

/// The peak so far, over all address spaces.
pub(super) struct Peak {
    /// In bytes, as statm has it.
    highest: usize,
    /// The time that moments took.
    spent: Duration,
    begun: Instant,
}

impl Peak {
    pub(super) fn new() -> Peak {
        Peak { highest: 0, spent: Duration::ZERO, begun: Instant::now() }
    }

    /// Whether so many bytes, released since the last look, are worth one.
    fn is_worth_a_look(&self, released: usize) -> bool {
        released >= LEAST.max(self.highest / 64)
    }

    /// Whether a moment with so many resident bytes, after this time, is worth its reading.
    fn is_worth_a_moment(&self, bytes: usize, elapsed: Duration) -> bool {
        let more = bytes.saturating_sub(self.highest);
        more > self.highest / 16 + LEAST || more > 0 && self.spent * 10 < elapsed
    }
}

/// The most bytes that a call may make non-resident.
fn released(call: &Call, brk: usize) -> usize {
    match call.kind {
        Kind::Exec | Kind::Memory(Op::Shmdt | Op::ProcessMadvise) => usize::MAX,
        Kind::Memory(op @ (Op::Munmap | Op::Madvise | Op::Brk | Op::Mremap | Op::Mmap)) => {
            let places = calls::places(op, &call.args, brk).into_iter().flatten();
            places.map(|place| place.end - place.start).fold(0, usize::saturating_add)
        }
        _ => 0,
    }
}

impl Follower<'_> {
    /// Reports the resident bytes of an address space before a call of `tid`, and the moment if it
    /// is a peak.
    pub(super) fn tell_resident(&mut self, mm: MmId, tid: Tid, call: &Call) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        space.released = space.released.saturating_add(released(call, space.brk));
        let due = space.looked.is_none_or(|looked| looked.elapsed() >= BETWEEN);
        if !due && !self.peak.is_worth_a_look(space.released) {
            return;
        }
        (space.looked, space.released) = (Some(Instant::now()), 0);
        let statm = image::proc_text(tid, "statm").unwrap_or_default();
        if let Some(bytes) = usage::resident_in(&statm) {
            self.observer.event(Event::Resident { mm, bytes });
            self.tell_peak(mm, tid, bytes, None);
        }
    }

    /// Reports a moment with so many resident bytes if it is a peak. `smaps` is its text, if it was
    /// read already.
    pub(super) fn tell_peak(&mut self, mm: MmId, tid: Tid, bytes: usize, smaps: Option<&str>) {
        let begun = Instant::now();
        if !self.peak.is_worth_a_moment(bytes, self.peak.begun.elapsed())
            || !self.opens_pagemap(mm, tid)
        {
            return;
        }
        let pagemap = self.spaces.get(&mm).and_then(|space| space.pagemap.as_ref()?.as_ref());
        let scanned = pagemap.filter(|_| self.facilities.scan).map(pages::scan_resident);
        let resident = scanned.and_then(Result::ok);
        let read = if smaps.is_none() { image::smaps(tid).ok() } else { None };
        // Both are empty if the thread was killed meanwhile.
        let Some(smaps) = smaps.or(read.as_deref()).filter(|smaps| !smaps.is_empty()) else {
            return;
        };
        let moment = Moment::new(bytes, resident, usage::residency(smaps));
        self.observer.event(Event::Peak { mm, moment });
        self.peak.highest = bytes;
        self.peak.spent += begun.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn call(kind: Kind, args: [usize; 6]) -> Call {
        Call { kind, args }
    }

    #[test]
    fn calls_that_release_memory_are_known() {
        let of = |op, args| released(&call(Kind::Memory(op), args), 7 * MIB);
        assert_eq!(of(Op::Munmap, [MIB, 3 * MIB, 0, 0, 0, 0]), 3 * MIB);
        assert_eq!(of(Op::Brk, [4 * MIB, 0, 0, 0, 0, 0]), 3 * MIB);
        assert_eq!(of(Op::Mmap, [0, 5 * MIB, 3, 0x22, 0, 0]), 0);
        assert_eq!(of(Op::Mmap, [MIB, 5 * MIB, 3, 0x32, 0, 0]), 5 * MIB);
        assert_eq!(of(Op::Mprotect, [MIB, MIB, 0, 0, 0, 0]), 0);
        assert_eq!(of(Op::Munmap, [0, usize::MAX, 0, 0, 0, 0]), usize::MAX & !4095);
        assert_eq!(released(&call(Kind::Exec, [0; 6]), 0), usize::MAX);
    }

    #[test]
    fn a_moment_is_read_for_a_16th_or_while_there_is_time() {
        let peak = |spent| Peak {
            highest: 160 * MIB,
            spent: Duration::from_millis(spent),
            begun: Instant::now(),
        };
        let after = Duration::from_millis(100);
        assert!(peak(1).is_worth_a_moment(160 * MIB + 1, after));
        assert!(!peak(1).is_worth_a_moment(160 * MIB, after));
        assert!(!peak(10).is_worth_a_moment(169 * MIB, after));
        assert!(peak(10).is_worth_a_moment(171 * MIB, after));
        assert!(peak(0).is_worth_a_look(160 * MIB / 64) && !peak(0).is_worth_a_look(2 * MIB));
    }
}
