//! What a CPU sees through its translations, and what is in the frames: each look is compared with
//! what should be there.
//!
//! A fault is tried again where something is mapped: it may be spurious, just after a table was
//! linked or a page became writable, and has dropped what it came from. What should fault is tried
//! once.

use crate::crew::{Outcome, Told, seen};
use alloc::format;
use alloc::vec::Vec;
use core::fmt::Arguments;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::{Fault, FaultKind, Frame, Machine, Owner, Place, Translated, VirtAddr};

/// As often a fault may be spurious: by an upper-level entry, by the page's.
const SPURIOUS: usize = 3;

fn patiently<T>(access: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
    let mut last = access();
    for _ in 0..SPURIOUS {
        if last.is_ok() {
            break;
        }
        last = access();
    }
    last
}

/// The word at `at`, which is mapped.
pub(crate) fn load(machine: &impl Translated, at: VirtAddr, what: Arguments<'_>) -> Outcome<u64> {
    // SAFETY: trials look at memory of their own only, and by words.
    patiently(|| unsafe { machine.load(at) })
        .or_else(|fault| seen(format!("{what}: {fault}, and it should be readable")))
}

/// Stores to `at`, which is mapped to be written.
pub(crate) fn store(
    machine: &impl Translated,
    at: VirtAddr,
    value: u64,
    what: Arguments<'_>,
) -> Outcome {
    // SAFETY: as in `load`.
    patiently(|| unsafe { machine.store(at, value) })
        .or_else(|fault| seen(format!("{what}: {fault}, and it should be writable")))
}

/// At `at`, which is mapped, is `expected`.
pub(crate) fn is(
    machine: &impl Translated,
    at: VirtAddr,
    expected: u64,
    what: Arguments<'_>,
) -> Outcome {
    let found = load(machine, at, what)?;
    if found == expected {
        return Ok(());
    }
    seen(format!("{what}: at {at} is {found:#x}, expected {expected:#x}"))
}

/// Nothing is mapped at `at`: a load faults.
pub(crate) fn is_absent(machine: &impl Translated, at: VirtAddr, what: Arguments<'_>) -> Outcome {
    // SAFETY: as in `load`; what a stale translation leads to is kept.
    match unsafe { machine.load(at) } {
        Err(Fault { kind: FaultKind::NotPresent, .. }) => Ok(()),
        Err(fault) => seen(format!("{what}: {fault}, expected that nothing is mapped")),
        Ok(found) => seen(format!(
            "{what}: at {at} is {found:#x} still, expected a fault: nothing is mapped"
        )),
    }
}

/// What is mapped at `at` may be read, not written: a store faults.
pub(crate) fn is_read_only(
    machine: &impl Translated,
    at: VirtAddr,
    value: u64,
    what: Arguments<'_>,
) -> Outcome {
    // SAFETY: as in `load`; what a stale translation leads to is kept.
    match unsafe { machine.store(at, value) } {
        Err(Fault { kind: FaultKind::Protection, .. }) => Ok(()),
        Err(fault) => seen(format!("{what}: {fault}, expected that the mapping does not allow it")),
        Ok(()) => {
            seen(format!("{what}: {at} could be written still, expected a fault: it is read-only"))
        }
    }
}

/// The word of a frame, as the machine has it in memory.
fn cell<M: Machine>(machine: &M, frame: Frame, number: usize) -> Outcome<NonNull<AtomicU64>> {
    match machine.frame_ptr(frame) {
        // SAFETY: within the frame.
        Some(memory) => Ok(unsafe { memory.cast().add(number % 512) }),
        None => seen(format!("frame {frame} has no memory")),
    }
}

/// Reads a word of a frame of ours, past all translations.
pub(crate) fn peek<M: Machine>(machine: &M, frame: Frame, number: usize) -> Outcome<u64> {
    let cell = cell(machine, frame, number)?;
    // SAFETY: a word of memory, which all use by words. Relaxed: what orders it is how the frame
    // came here.
    Ok(unsafe { cell.as_ref() }.load(Ordering::Relaxed))
}

/// Writes a word of a frame of ours, past all translations.
pub(crate) fn poke<M: Machine>(machine: &M, frame: Frame, number: usize, value: u64) -> Outcome {
    let cell = cell(machine, frame, number)?;
    // SAFETY: as in `peek`. Relaxed: as there.
    unsafe { cell.as_ref() }.store(value, Ordering::Relaxed);
    Ok(())
}

/// The word of a frame of ours is `expected`.
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
    seen(format!("{what}: word {number} of frame {frame} is {found:#x}, expected {expected:#x}"))
}

/// Takes so many frames, for this use.
pub(crate) fn take<M: Machine>(machine: &M, count: usize, owner: Owner) -> Outcome<Vec<Frame>> {
    let mut frames = Vec::with_capacity(count);
    for _ in 0..count {
        let frame = machine.alloc(0, Place::Local).of("to take a frame");
        let frame = frame.and_then(|frame| {
            // SAFETY: it was just allocated, and it is true.
            unsafe { machine.set_owner(frame, owner) }.of("to say what a frame is for")?;
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

/// Gives up a reference to each of these frames: the last one frees them.
pub(crate) fn give<M: Machine>(machine: &M, frames: &[Frame]) -> Outcome {
    frames.iter().try_for_each(|frame| {
        // SAFETY: the reference is the caller's, and nothing is mapped to it any more by who gives
        // it up.
        unsafe { machine.release(*frame) }.map(drop).of("to give a frame back")
    })
}
