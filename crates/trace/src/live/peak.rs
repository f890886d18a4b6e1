//! The search for the peak of resident memory.
//!
//! Resident memory shrinks mostly by calls that the tracer sees, and by exits. So a peak is right
//! before such a call, and the tracer looks there: as soon as the calls since the last such look
//! may have released a 64th of the peak so far, but at least 256 KiB. Every 2 ms it looks before
//! any call, for the timeline. The kernel counts the highest peak, too, but does not say when it
//! was. Reports have both, so they show how close the moment is.
//!
//! A look reads statm, some microseconds. The whole moment is read before a release if more is
//! resident than ever before: by a 16th and 256 KiB, or by any amount while these readings take
//! less than a tenth of the run. Memory may also shrink by no call: by reclaim, or because a file
//! is cut. So before other calls it is read for a 16th and 256 KiB while these readings take less
//! than a 50th of the run, and in any case for four times as much as at the last moment. A program
//! that only grows to n pages pays about 2 scans of n pages beyond that, and one that releases a
//! little again and again 17.

use std::time::{Duration, Instant};

use super::{
    calls::{self, CallKind},
    follower::Follower,
    image,
    sys::{Tid, pages},
    tasks::PendingCall,
    usage,
};
use crate::{
    observer::Event,
    record::{MmId, Op},
    report::{Residency, ResidentSet, VmaKind},
};

/// The time after which a look is due at the next call.
const BETWEEN: Duration = Duration::from_millis(2);
/// Less is not worth a look, in bytes.
const LEAST: usize = 256 << 10;

/// The peak so far, over all address spaces.
pub(super) struct Peak {
    /// The bytes of the newest moment, as statm has them.
    highest: usize,
    /// The most bytes of any look.
    seen: usize,
    /// The time that moments took.
    spent: Duration,
    begun: Instant,
}

impl Peak {
    pub(super) fn new() -> Peak {
        Peak { highest: 0, seen: 0, spent: Duration::ZERO, begun: Instant::now() }
    }

    /// Whether so many bytes, released since the last look, are worth one.
    fn is_worth_a_look(&self, released: usize) -> bool {
        released >= LEAST.max(self.seen / 64)
    }

    /// Whether a moment with so many resident bytes, after this time, is worth its reading.
    fn is_worth_a_moment(&self, bytes: usize, next: Outlook, elapsed: Duration) -> bool {
        let more = bytes.saturating_sub(self.highest);
        match next {
            Outlook::Keeps => {
                let far = more > self.highest / 16 + LEAST;
                more > 3 * self.highest + LEAST || far && self.spent * 50 < elapsed
            }
            Outlook::Releases => {
                more > self.highest / 16 + LEAST || more > 0 && self.spent * 10 < elapsed
            }
        }
    }
}

/// The effect on resident memory of the event after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// A call that releases little, if anything.
    Keeps,
    /// Memory is released: by a call, or at the end.
    Releases,
}

/// The most bytes that a call may make non-resident.
fn released(call: &PendingCall, brk: usize) -> usize {
    match call.kind {
        CallKind::Exec | CallKind::Memory(Op::Shmdt | Op::ProcessMadvise) => usize::MAX,
        CallKind::Memory(
            op @ (Op::Munmap
            | Op::Madvise
            | Op::Brk
            | Op::Mremap
            | Op::Mmap
            | Op::Shmat
            | Op::RemapFilePages),
        ) => {
            let places = calls::places(op, &call.args, brk).into_iter().flatten();
            places.map(|place| place.end - place.start).fold(0, usize::saturating_add)
        }
        _ => 0,
    }
}

impl Follower<'_> {
    /// Reports the resident bytes of an address space before a call of `tid`, and the moment if it
    /// is a peak.
    pub(super) fn tell_resident(&mut self, mm: MmId, tid: Tid, call: &PendingCall) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        space.released = space.released.saturating_add(released(call, space.brk));
        let next = if self.peak.is_worth_a_look(space.released) {
            space.released = 0;
            Outlook::Releases
        } else {
            Outlook::Keeps
        };
        let due = space.looked.is_none_or(|looked| looked.elapsed() >= BETWEEN);
        if !due && next == Outlook::Keeps {
            return;
        }
        space.looked = Some(Instant::now());
        let statm = image::proc_text(tid, "statm").unwrap_or_default();
        if let Some(bytes) = usage::resident_in(&statm) {
            self.observer.event(Event::Resident { mm, bytes });
            self.tell_peak(mm, tid, bytes, next, None);
        }
    }

    /// Reports a moment with so many resident bytes if it is a peak. `vmas` is what is
    /// resident of each, if it was read already.
    pub(super) fn tell_peak(
        &mut self,
        mm: MmId,
        tid: Tid,
        bytes: usize,
        next: Outlook,
        vmas: Option<&[(VmaKind, Residency)]>,
    ) {
        let begun = Instant::now();
        self.peak.seen = self.peak.seen.max(bytes);
        if !self.peak.is_worth_a_moment(bytes, next, self.peak.begun.elapsed())
            || !self.opens_pagemap(mm, tid)
        {
            return;
        }
        let pagemap = self.spaces.get(&mm).and_then(|space| space.pagemap.as_ref()?.as_ref());
        let scanned = pagemap.filter(|_| self.facilities.scan).map(pages::scan_resident);
        let resident = scanned.and_then(Result::ok);
        let read = || image::smaps(tid).map_or_else(|_| Vec::new(), |text| usage::residency(&text));
        let vmas = vmas.map_or_else(read, <[_]>::to_vec);
        // There are none if the thread was killed meanwhile.
        if vmas.is_empty() {
            return;
        }
        let moment = ResidentSet::new(bytes, resident, vmas);
        self.observer.event(Event::Peak { mm, moment });
        self.peak.highest = bytes;
        self.peak.spent += begun.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn call(kind: CallKind, args: [usize; 6]) -> PendingCall {
        PendingCall { kind, args }
    }

    #[test]
    fn calls_that_release_memory_are_known() {
        let of = |op, args| released(&call(CallKind::Memory(op), args), 7 * MIB);
        assert_eq!(of(Op::Munmap, [MIB, 3 * MIB, 0, 0, 0, 0]), 3 * MIB);
        assert_eq!(of(Op::Brk, [4 * MIB, 0, 0, 0, 0, 0]), 3 * MIB);
        assert_eq!(of(Op::Mmap, [0, 5 * MIB, 3, 0x22, 0, 0]), 0);
        assert_eq!(of(Op::Mmap, [MIB, 5 * MIB, 3, 0x32, 0, 0]), 5 * MIB);
        assert_eq!(of(Op::RemapFilePages, [MIB, 5 * MIB, 0, 0, 0, 0]), 5 * MIB);
        assert_eq!(of(Op::Shmat, [1, MIB, 0, 0, 0, 0]), 0);
        assert!(of(Op::Shmat, [1, MIB, libc::SHM_REMAP as usize, 0, 0, 0]) > 1 << 40);
        assert_eq!(of(Op::Mprotect, [MIB, MIB, 0, 0, 0, 0]), 0);
        assert_eq!(of(Op::Munmap, [0, usize::MAX, 0, 0, 0, 0]), usize::MAX & !4095);
        assert_eq!(released(&call(CallKind::Exec, [0; 6]), 0), usize::MAX);
    }

    #[test]
    fn a_moment_is_read_for_a_16th_or_while_there_is_time() {
        let peak = |spent| Peak {
            highest: 160 * MIB,
            seen: 160 * MIB,
            spent: Duration::from_millis(spent),
            begun: Instant::now(),
        };
        let after = Duration::from_millis(100);
        let before = |next, spent, bytes| peak(spent).is_worth_a_moment(bytes, next, after);
        assert!(before(Outlook::Releases, 1, 160 * MIB + 1));
        assert!(!before(Outlook::Releases, 1, 160 * MIB));
        assert!(!before(Outlook::Releases, 10, 169 * MIB));
        assert!(before(Outlook::Releases, 10, 171 * MIB));
        assert!(before(Outlook::Keeps, 1, 171 * MIB));
        assert!(!before(Outlook::Keeps, 1, 169 * MIB));
        assert!(!before(Outlook::Keeps, 10, 640 * MIB));
        assert!(before(Outlook::Keeps, 10, 641 * MIB));
        assert!(peak(0).is_worth_a_look(160 * MIB / 64) && !peak(0).is_worth_a_look(2 * MIB));
    }
}
