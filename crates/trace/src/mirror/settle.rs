//! Corrects the state after a call whose effect depends on what VMAs do not show. Most such calls
//! failed.
//!
//! A limit, a driver or a file system may stop a call half-way, and a failed MAP_FIXED has already
//! unmapped its target. One rule covers all of these: in the ranges that the call could change, the
//! mirror takes over the kernel's VMAs and keeps the state that listings do not show. This is not
//! done for a failure that the rules predict, because there our rules must stop exactly where the
//! kernel does.
//!
//! A stack that could not grow has an anon_vma, but no page that shows it. mprotect does: memory
//! that becomes read-only stays accounted if it has one. So there the kernel's flags are looked at,
//! too. Guard pages that a call installed before it failed gave their VMA an anon_vma as well.

use std::ops::Range;

use vma::{VmFlags, Vma};

use super::{Expected, Mirror, Shadow, SpaceChange, file::File};
use crate::{
    abi::{EINVAL, ENOMEM, MAP_FIXED, MREMAP_FIXED, SHM_REMAP},
    record::{Call, MmId, Op, Record},
    span::{self, Span},
};

impl Mirror {
    /// The ranges in which the rules do not determine the effect of the newest call; see
    /// [`Observer::undetermined`](crate::observer::Observer::undetermined).
    pub fn undetermined(&self, mm: MmId, limited: bool) -> Vec<Range<usize>> {
        let Some(mirrored) = self.spaces.get(&mm) else { return Vec::new() };
        let Some(call) = &mirrored.last_call else { return Vec::new() };
        if matches!(call.op, Op::Mprotect | Op::PkeyMprotect) && call.result == 0 {
            return self.stacks_in_doubt(mm, Span::of(call.args[0], call.args[1]).range());
        }
        let stopped = !mirrored.determined || (limited && call.result == ENOMEM);
        if stopped && call.failed() { reach(call) } else { Vec::new() }
    }

    /// The VMAs that may have tried to grow, and that are read-only and not accounted on our side.
    fn stacks_in_doubt(&self, mm: MmId, within: Range<usize>) -> Vec<Range<usize>> {
        let decides = VmFlags::GROWSDOWN | VmFlags::WRITE | VmFlags::ACCOUNT;
        self.vmas_near(mm, within, |vma| {
            vma.flags & decides == VmFlags::GROWSDOWN && vma.is_private() && !vma.is_faulted()
        })
    }

    /// Whether a VMA has guard pages on the kernel's side only. The first ones give it an anon_vma.
    fn got_guards(&self, mm: MmId, vma: &Range<usize>, flags: VmFlags) -> bool {
        let unaware = |vma: &Vma<File>| {
            vma.file.is_none()
                && vma.is_private()
                && !vma.is_faulted()
                && !vma.flags.contains(VmFlags::MAYBE_GUARD)
        };
        flags.contains(VmFlags::MAYBE_GUARD)
            && self.vmas_near(mm, vma.clone(), unaware).contains(vma)
    }

    /// The records that make our side of `range` equal to the kernel's `vmas`.
    pub fn unsettled(
        &self,
        mm: MmId,
        range: Range<usize>,
        vmas: &[(Range<usize>, VmFlags)],
    ) -> Vec<Record> {
        let Some(mirrored) = self.spaces.get(&mm) else { return Vec::new() };
        let guard = mirrored.space.pin();
        let ours: Vec<(Range<usize>, VmFlags)> = mirrored
            .space
            .iter(&guard, range.start)
            .take_while(|(vma, _)| vma.start < range.end)
            .map(|(vma, contents)| (vma, contents.flags))
            .collect();
        let unseen = self.unseen();
        let meets = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        let mut records = Vec::new();
        let mut hole = |start: usize, end: usize| {
            if ours.iter().any(|(vma, _)| meets(vma, &(start..end))) {
                records.push(Record::Settled { mm, start, end, flags: None });
            }
        };
        let near: Vec<_> = vmas.iter().filter(|(vma, _)| meets(vma, &range)).collect();
        let mut at = range.start;
        for (vma, _) in &near {
            if at < vma.start {
                hole(at, vma.start);
            }
            at = vma.end;
        }
        if at < range.end {
            hole(at, range.end);
        }
        for (vma, flags) in near {
            let same = |(our, had): &&(Range<usize>, VmFlags)| {
                our == vma && *had - unseen == *flags - unseen
            };
            if ours.iter().find(same).is_none() {
                let (start, end) = (vma.start, vma.end);
                let grew = flags.contains(VmFlags::GROWSDOWN | VmFlags::ACCOUNT)
                    && self.stacks_in_doubt(mm, vma.clone()).contains(vma);
                if grew || self.got_guards(mm, vma, *flags) {
                    records.push(Record::Fault { mm, addr: start });
                }
                records.push(Record::Settled { mm, start, end, flags: Some(*flags) });
            }
        }
        records
    }
}

impl<B: Shadow> Mirror<B> {
    /// Gives a range the kernel's state.
    pub(super) fn settle(
        &mut self,
        mm: MmId,
        start: usize,
        end: usize,
        flags: Option<VmFlags>,
    ) -> Result<(), Expected> {
        let (mirrored, result) =
            self.change_space(mm, |space| space.change(SpaceChange::Settle { start, end, flags }))?;
        // If nothing was mapped before, nothing can be derived. The next listing shows the
        // difference.
        match result {
            Err(vma::Error::Unmapped) => Ok(()),
            result => mirrored.tolerate(result, || format!("VMAs at {start:x} to {end:x}")),
        }
    }
}

/// The ranges that a failed call may have changed.
fn reach(call: &Call) -> Vec<Range<usize>> {
    let [a, b, c, d, e, _] = call.args;
    let span = |start, length| {
        Span::checked(start, length).map(|span| span.range()).filter(|range| !range.is_empty())
    };
    let page = vma::PAGE_SIZE;
    let ranges = match call.op {
        Op::Mmap if d & MAP_FIXED != 0 => {
            [span::length_of_map(&call.args).and_then(|length| span(a, length)), None]
        }
        Op::Mremap if d & MREMAP_FIXED != 0 => [span(a, b), span(e, c)],
        Op::Mremap => [span(a, b), None],
        // The segment's size is unknown, so the range reaches to the end.
        Op::Shmat if c & SHM_REMAP != 0 => [Some(b & !(page - 1)..usize::MAX & !(page - 1)), None],
        // The kernel rejects an unaligned address before it changes anything.
        Op::Munmap | Op::Mprotect | Op::PkeyMprotect | Op::Mlock | Op::Mlock2 | Op::Munlock
            if call.result == EINVAL && !a.is_multiple_of(page) =>
        {
            [None, None]
        }
        Op::Madvise if vma::Advice::from_number(c as u32).is_none_or(|a| !a.changes_vmas()) => {
            [None, None]
        }
        _ if call.op.takes_range() => [span(a, b), None],
        _ => [None, None],
    };
    ranges.into_iter().flatten().collect()
}
