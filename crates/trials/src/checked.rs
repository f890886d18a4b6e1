//! Accesses through a CPU's translations and to the frames behind them, each compared with the
//! expected result.
//!
//! A fault at a mapped page is retried: it may be spurious, just after a table was linked or a page
//! became writable, and it drops the cached entry that caused it. At a page of a program, that is
//! [published](machine::Tlb::published) here before, as by a page-fault handler. An access that must
//! fault is tried once.

use crate::worker::{Context, Outcome, fail};
use alloc::format;
use alloc::vec::Vec;
use core::fmt::Arguments;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::{
    Fault, FaultKind, Frame, Machine, NodePolicy, Owner, Tlb, Translated, VirtAddr, VirtRange,
};
use paging::Format;

/// The most spurious faults of an access: for an upper-level entry, and for the page's entry.
const SPURIOUS: usize = 3;

fn patiently<T>(machine: &impl Tlb, access: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
    let mut last = access();
    for _ in 0..SPURIOUS {
        let Err(fault) = &last else { break };
        // The kernel's half is published on all CPUs by the call that maps a page.
        let of_program = (fault.address.get() as i64) >= 0;
        if of_program
            && let Some((_, space)) = machine.active()
            && let Some(word) = VirtRange::new(fault.address, 1)
        {
            machine.published(Some(space), word);
        }
        last = access();
    }
    last
}

/// Loads the word at `at`, which is mapped.
pub(crate) fn load(
    machine: &(impl Tlb + Translated),
    at: VirtAddr,
    what: Arguments<'_>,
) -> Outcome<u64> {
    // SAFETY: trials access only their own memory, and by words.
    patiently(machine, || unsafe { machine.load(at) })
        .or_else(|fault| fail(format!("{what}: {fault}, expected a readable page")))
}

/// Stores to `at`, which is mapped writable.
pub(crate) fn store(
    machine: &(impl Tlb + Translated),
    at: VirtAddr,
    value: u64,
    what: Arguments<'_>,
) -> Outcome {
    // SAFETY: as in `load`.
    patiently(machine, || unsafe { machine.store(at, value) })
        .or_else(|fault| fail(format!("{what}: {fault}, expected a writable page")))
}

/// Checks that the word at `at`, which is mapped, is `expected`.
pub(crate) fn is(
    machine: &(impl Tlb + Translated),
    at: VirtAddr,
    expected: u64,
    what: Arguments<'_>,
) -> Outcome {
    let found = load(machine, at, what)?;
    if found == expected {
        return Ok(());
    }
    fail(format!("{what}: read {found:#x} at {at}, expected {expected:#x}"))
}

/// Checks that a load at `at`, which is not mapped, faults.
pub(crate) fn is_absent(machine: &impl Translated, at: VirtAddr, what: Arguments<'_>) -> Outcome {
    // SAFETY: as in `load`. The frame that a stale translation leads to stays allocated.
    match unsafe { machine.load(at) } {
        Err(Fault { kind: FaultKind::NotPresent, .. }) => Ok(()),
        Err(fault) => fail(format!("{what}: {fault}, expected that no page is mapped")),
        Ok(found) => {
            fail(format!("{what}: read {found:#x} at {at}, expected a fault: no page is mapped"))
        }
    }
}

/// Checks that a store to `at`, which is mapped read-only, faults.
pub(crate) fn is_read_only(
    machine: &impl Translated,
    at: VirtAddr,
    value: u64,
    what: Arguments<'_>,
) -> Outcome {
    // SAFETY: as in `load`. The frame that a stale translation leads to stays allocated.
    match unsafe { machine.store(at, value) } {
        Err(Fault { kind: FaultKind::Protection, .. }) => Ok(()),
        Err(fault) => fail(format!("{what}: {fault}, expected a protection fault")),
        Ok(()) => fail(format!("{what}: wrote to {at}, expected a fault: it is read-only")),
    }
}

/// A word of a page, which begins at a frame, in the machine's memory.
fn cell<M: Machine>(machine: &M, frame: Frame, number: usize) -> Outcome<NonNull<AtomicU64>> {
    // A page or a table may have more than one frame.
    let frame = frame.checked_add((number / 512) as u64).unwrap_or(frame);
    match machine.frame_ptr(frame) {
        // SAFETY: within the frame.
        Some(memory) => Ok(unsafe { memory.cast().add(number % 512) }),
        None => fail(format!("frame {frame} has no memory")),
    }
}

/// Reads a word of a frame of ours without a translation.
pub(crate) fn peek<M: Machine>(machine: &M, frame: Frame, number: usize) -> Outcome<u64> {
    let cell = cell(machine, frame, number)?;
    // SAFETY: a word of memory, which all CPUs access by words. Relaxed: the handover of the frame
    // to this CPU has ordered it.
    Ok(unsafe { cell.as_ref() }.load(Ordering::Relaxed))
}

/// Writes a word of a frame of ours without a translation.
pub(crate) fn poke<M: Machine>(machine: &M, frame: Frame, number: usize, value: u64) -> Outcome {
    let cell = cell(machine, frame, number)?;
    // SAFETY: as in `peek`. Relaxed: as there.
    unsafe { cell.as_ref() }.store(value, Ordering::Relaxed);
    Ok(())
}

/// Checks that a word of a frame of ours is `expected`.
pub(crate) fn frame_is<M: Machine>(
    machine: &M,
    frame: Frame,
    number: usize,
    expected: u64,
    what: Arguments<'_>,
) -> Outcome {
    let found = peek(machine, frame, number)?;
    if found == expected {
        return Ok(());
    }
    fail(format!("{what}: word {number} of frame {frame} is {found:#x}, expected {expected:#x}"))
}

/// Allocates so many pages of the smallest size for this use.
pub(crate) fn take<F: Format, M: Machine>(
    machine: &M,
    count: usize,
    owner: Owner,
) -> Outcome<Vec<Frame>> {
    let mut frames = Vec::with_capacity(count);
    for _ in 0..count {
        let frame = machine.alloc(F::PAGE.order(), NodePolicy::Local).of("could not take a frame");
        let frame = frame.and_then(|frame| {
            // SAFETY: it was just allocated, and the owner is right.
            unsafe { machine.set_owner(frame, owner) }.of("could not say what a frame is for")?;
            Ok(frame)
        });
        match frame {
            Ok(frame) => frames.push(frame),
            Err(stop) => {
                give(machine, &frames)?;
                return Err(stop);
            }
        }
    }
    Ok(frames)
}

/// Gives up a reference to each of these frames. The last one frees a frame.
pub(crate) fn give<M: Machine>(machine: &M, frames: &[Frame]) -> Outcome {
    frames.iter().try_for_each(|frame| {
        // SAFETY: the reference is the caller's, and the caller has no mapping to it any more.
        unsafe { machine.release(*frame) }.map(drop).of("could not give a frame back")
    })
}
