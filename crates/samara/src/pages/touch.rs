//! The accesses of a program: they fault, are repeated, and are compared with the model.
//!
//! Each access goes through the TLB of the CPU that makes it. So a translation that a call should
//! have flushed is used here, and the machine halts.

use machine::{Translated, VirtAddr};
use mm::{Access, Backing, Error, FaultError, FaultOutcome, ObjectError};
use sim::Sim;
use trace::mirror::SpaceChange;
use vma::{Area, PAGE_SIZE, VmFlags};

use super::{
    objects::key_of,
    process::{Process, few_pages, is_refusal},
    sim_machine::SimMachine,
};

/// The faults after which an access must have ended.
const MOST_FAULTS: usize = 64;

/// Touches a page as the VMA there allows: reads it, and writes it where that changes no VMA. A
/// forbidden access is tried, and must fail.
///
/// # Errors
/// A description of what is wrong.
pub(super) fn page(
    process: &mut Process,
    sim_machine: &mut SimMachine,
    page: usize,
) -> Result<(), String> {
    if !read(process, sim_machine, page)? {
        return Ok(());
    }
    let Some(area) = area_at(process, page) else { return Ok(()) };
    if !area.vma.flags.contains(VmFlags::WRITE) {
        return must_fail(process, sim_machine, page, Access::Write);
    }
    // A first write to another VMA would give it an anon_vma, which the program's has not.
    if area.vma.is_private() && !area.vma.is_faulted() {
        return Ok(());
    }
    write(process, sim_machine, page)
}

/// Reads a page, and compares it with the model. Returns whether the VMA allows it.
///
/// # Errors
/// A description of what is wrong.
pub(super) fn read(
    process: &mut Process,
    sim_machine: &mut SimMachine,
    page: usize,
) -> Result<bool, String> {
    let Some(area) = area_at(process, page) else {
        // A touch below a stack would make it grow.
        if !next_is_stack(process, page) {
            must_fail(process, sim_machine, page, Access::Read)?;
        }
        return Ok(false);
    };
    if !area.vma.flags.intersects(VmFlags::ACCESS) {
        must_fail(process, sim_machine, page, Access::Read)?;
        return Ok(false);
    }
    let found = match access(process, sim_machine, page, None)? {
        Ok(found) => found,
        Err(error) => return unread(sim_machine, &area, page, error).map(|()| false),
    };
    // The fault may have brought a new word in, through a userfaultfd.
    if let Some(expected) = process.model.expected(&sim_machine.objects, &area.vma, page) {
        sim_machine.figures.compared += 1;
        if found != expected {
            return Err(format!("the page at {page:x} holds {found:#x}, and not {expected:#x}"));
        }
    }
    Ok(true)
}

/// Writes a new word to a page.
fn write(process: &mut Process, sim_machine: &mut SimMachine, page: usize) -> Result<(), String> {
    let Some(area) = area_at(process, page) else {
        return Err(format!("nothing is mapped at {page:x}, which was to be written"));
    };
    let word = sim_machine.new_word();
    match access(process, sim_machine, page, Some(word))? {
        Ok(_) => {
            wrote(process, sim_machine, &area, page, word);
            Ok(())
        }
        Err(error) => unread(sim_machine, &area, page, error),
    }
}

/// Puts a word that was written into the model.
fn wrote(
    process: &mut Process,
    sim_machine: &mut SimMachine,
    area: &Area<Backing<Sim>>,
    page: usize,
    word: u64,
) {
    match &area.vma.file {
        Some(file) if !area.vma.is_private() => {
            sim_machine.objects.write(key_of(file), area.vma.offset_at(page) as u64, word);
        }
        _ => process.model.write(page, word),
    }
}

/// An access to memory that the VMA allows has failed: for a reason that VMAs do not show, or
/// wrongly.
fn unread(
    sim_machine: &mut SimMachine,
    area: &Area<Backing<Sim>>,
    page: usize,
    error: FaultError,
) -> Result<(), String> {
    let index = area.vma.offset_at(page) as u64;
    let beyond = area.vma.file.as_ref().is_some_and(|file| file.object().is_beyond_end(index));
    match error {
        // Not all kernels mark the VMA (`Profile::guard_flag`).
        FaultError::Guard(_) => {}
        FaultError::Object(_, ObjectError::BeyondEnd) if beyond => {}
        FaultError::OutOfMemory(_) => {
            sim_machine.figures.lack("more than 1 GiB of frames: a touch was left out");
            return Ok(());
        }
        error => return Err(format!("an access that the VMA allows failed: {error}")),
    }
    sim_machine.figures.refused += 1;
    Ok(())
}

/// The first write to a VMA, and writes to some more of its pages.
pub(super) fn first_write(
    process: &mut Process,
    sim_machine: &mut SimMachine,
    addr: usize,
) -> Result<Result<usize, Error>, String> {
    let page = addr & !(PAGE_SIZE - 1);
    let Some(area) = area_at(process, page) else {
        return Ok(Err(vma::Error::Unmapped.into()));
    };
    if !area.vma.flags.contains(VmFlags::WRITE) {
        // A debugger wrote, or the program did before it took the right away.
        let word = sim_machine.new_word();
        if process.space.poke(page, &word.to_ne_bytes()).is_ok() {
            wrote(process, sim_machine, &area, page, word);
        }
    } else {
        for page in few_pages(area.start.max(page)..area.end) {
            write(process, sim_machine, page)?;
        }
    }
    // If no write was possible, the VMA alone learns of it.
    let step: SpaceChange<Backing<Sim>> = SpaceChange::FirstWrite(addr);
    match area_at(process, page).is_some_and(|area| area.vma.is_faulted()) {
        true => Ok(Ok(0)),
        false => Ok(process.space.with_vmas(|vmas| step.carry_out(vmas))),
    }
}

/// The stack grows to the page at `start`, by an access there.
pub(super) fn grow(
    process: &mut Process,
    sim_machine: &mut SimMachine,
    step: &SpaceChange<Backing<Sim>>,
    start: usize,
) -> Result<Result<usize, Error>, String> {
    let done = access(process, sim_machine, start, None)?;
    if done.is_ok() && area_at(process, start).is_some_and(|area| area.start == start) {
        page(process, sim_machine, start)?;
        return Ok(Ok(0));
    }
    // It did not grow by one access, but it has.
    sim_machine.figures.lack("a stack that grew where a fault does not let it grow");
    Ok(process.space.with_vmas(|vmas| step.carry_out(vmas)))
}

fn area_at(process: &Process, at: usize) -> Option<Area<Backing<Sim>>> {
    process.space.with_vmas(|vmas| Ok(vmas.area_at(at))).ok().flatten()
}

fn next_is_stack(process: &Process, at: usize) -> bool {
    let next = process.space.with_vmas(|vmas| Ok(vmas.areas_from(at).next())).ok().flatten();
    next.is_some_and(|area| area.vma.flags.contains(VmFlags::GROWSDOWN))
}

/// An access that must fail.
fn must_fail(
    process: &mut Process,
    sim_machine: &mut SimMachine,
    page: usize,
    how: Access,
) -> Result<(), String> {
    let at = VirtAddr::new(page as u64);
    let allowed = match how {
        // SAFETY: memory of the recorded program, to which no Rust code holds a reference.
        Access::Write => unsafe { sim_machine.sim.store(at, 0) }.is_ok(),
        // SAFETY: as above.
        _ => unsafe { sim_machine.sim.load(at) }.is_ok(),
    };
    let fault = process.space.handle_fault(at, how);
    match fault {
        Err(error) if !allowed && is_refusal(&error) => {
            sim_machine.figures.refused += 1;
            Ok(())
        }
        _ => Err(format!(
            "at {page:x} the VMAs do not allow to {how}, but {}",
            if allowed { "the CPU could" } else { "the fault allows it" }
        )),
    }
}

/// Reads the word at an address, or writes one, with the faults that this takes.
fn access(
    process: &mut Process,
    sim_machine: &mut SimMachine,
    page: usize,
    word: Option<u64>,
) -> Result<Result<u64, FaultError>, String> {
    let at = VirtAddr::new(page as u64);
    sim_machine.figures.touches += 1;
    for _ in 0..MOST_FAULTS {
        let done = match word {
            // SAFETY: memory of the recorded program, to which no Rust code holds a reference.
            Some(word) => unsafe { sim_machine.sim.store(at, word) }.map(|()| word),
            // SAFETY: as above.
            None => unsafe { sim_machine.sim.load(at) },
        };
        if let Ok(found) = done {
            return Ok(Ok(found));
        }
        let how = if word.is_some() { Access::Write } else { Access::Read };
        let kind = kind(process, sim_machine, page, how);
        match process.space.handle_fault(at, how) {
            Ok(FaultOutcome::Spurious) => sim_machine.figures.fault("spurious"),
            Ok(_) => sim_machine.figures.fault(kind),
            Err(FaultError::UserFault(_)) if resolve(process, sim_machine, page) => {
                sim_machine.figures.fault("userfaultfd");
            }
            Err(error) => return Ok(Err(error)),
        }
    }
    Err(format!("an access to {page:x} faults again and again"))
}

/// The kind of a fault that is about to be handled.
fn kind(process: &Process, sim_machine: &SimMachine, page: usize, how: Access) -> &'static str {
    let Some(area) = area_at(process, page) else { return "stack" };
    let file = area.vma.file.as_ref().map(|file| sim_machine.objects.is_file(key_of(file)));
    let present = process.space.resident(page..page + PAGE_SIZE) != 0;
    match file {
        _ if how == Access::Write && area.vma.is_private() && (present || file.is_some()) => "copy",
        Some(true) => "file",
        Some(false) => "shared",
        None if how == Access::Write => "anonymous",
        None => "zero",
    }
}

/// Resolves a fault as the monitor of a userfaultfd does: with a page that holds a new word, or
/// with the page that the object has, or by ending the protection.
fn resolve(process: &mut Process, sim_machine: &mut SimMachine, page: usize) -> bool {
    let Some(area) = area_at(process, page) else { return false };
    let word = sim_machine.new_word();
    let bytes = word.to_ne_bytes().repeat(PAGE_SIZE / 8);
    if process.space.userfault_copy(page, &bytes, false).is_ok() {
        wrote(process, sim_machine, &area, page, word);
        return true;
    }
    process.space.userfault_continue(page, PAGE_SIZE, false).is_ok()
        || process.space.userfault_write_protect(page, PAGE_SIZE, false).is_ok()
}
