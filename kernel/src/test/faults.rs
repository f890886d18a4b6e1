//! Faults that are taken and survived: guard pages, access rights, pages of programs.

use super::sections::wait_for;
use crate::arch::features::{self, guards_programs, let_access, registers};
use crate::arch::place::{RETURN, UNMAPPED};
use crate::grace::Grace;
use crate::layout::direct;
use crate::machine::Kernel;
use crate::memory::parts;
use crate::smp::everywhere;
use crate::smp::{set_tick, stack_of};
use crate::space::{Tables, tables, vmap};
use crate::trap::probe;
use ::grace::Reclaim;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{
    Asid, Cpus, FaultKind, FrameSource, Memory, NodePolicy, Translated, VirtAddr, VirtRange,
};
use paging::{Attrs, Flags};

const PAGE: u64 = 4096;

/// Checks the outcome of an access.
fn expect(
    what: &str,
    at: VirtAddr,
    found: Option<FaultKind>,
    wanted: Option<FaultKind>,
) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what} {at}: {found:?} instead of {wanted:?}"))
}

fn load(at: VirtAddr) -> Option<FaultKind> {
    // SAFETY: the value is read and not used.
    unsafe { probe::load(at.get()) }.fault()
}

/// Writes the value that is already there, if it can be read.
fn store(at: VirtAddr) -> Option<FaultKind> {
    // SAFETY: as above; the stored value is the present one.
    unsafe {
        let value = probe::load(at.get()).value;
        probe::store(at.get(), value).fault()
    }
}

/// The page below each stack and the page behind an area are unmapped, and the kernel survives an
/// access.
pub(super) fn guards() -> Result<(), String> {
    for cpu in 0..Kernel.count() {
        let stack = stack_of(cpu);
        expect("the end of a stack", stack.start(), load(stack.start()), None)?;
        for below in [1, PAGE / 8, PAGE / 8 + 1] {
            let at = VirtAddr::new(stack.start().get() - 8 * below);
            expect("below a stack", at, store(at), Some(FaultKind::NotPresent))?;
        }
    }
    let area = vmap().vmalloc(3 * PAGE).map_err(|error| error.to_string())?;
    let last = VirtAddr::new(area.get() + 3 * PAGE - 8);
    let behind = VirtAddr::new(area.get() + 3 * PAGE);
    let seen = (store(last), store(behind));
    // SAFETY: the area belongs to this test.
    unsafe { vmap().vfree(area) }.map_err(|error| error.to_string())?;
    expect("in an area", last, seen.0, None)?;
    expect("behind an area", behind, seen.1, Some(FaultKind::NotPresent))
}

/// No page is both writable and executable. No address can write text and constants.
pub(super) fn rights() -> Result<(), String> {
    let half = VirtRange::new(VirtAddr::new(0xffff_8000_0000_0000), 0x7fff_ffff_f000);
    let half = half.ok_or("there is no upper half")?;
    let (guard, mut pages) = (Grace::pin(), 0);
    for page in tables().walk(&guard).pages(half) {
        pages += 1;
        let flags = page.attrs.flags;
        if flags.contains(Flags::WRITE | Flags::EXECUTE) {
            return Err(format!("{} can be written and executed", page.page));
        }
        if flags.contains(Flags::USER) || !flags.contains(Flags::GLOBAL) {
            return Err(format!("{} is {flags:?}: not the kernel's alone", page.page));
        }
    }
    drop(guard);
    if pages < Kernel.free_frames() {
        return Err(format!("{pages} pages are mapped, fewer than there are frames"));
    }
    for part in parts() {
        if !part.write {
            let at = VirtAddr::new(part.start);
            expect("a store to the image", at, store(at), Some(FaultKind::Protection))?;
        }
        if Kernel.frame_ptr(part.frame()).is_some() {
            return Err(format!("{} is the image's, and memory", part.frame()));
        }
        let at = direct(part.frame().start());
        expect("the image in the direct map", at, load(at), Some(FaultKind::NotPresent))?;
    }
    let low = VirtAddr::new(UNMAPPED);
    expect("the code that CPUs start from", low, load(low), Some(FaultKind::NotPresent))?;
    let none = VirtAddr::new(0x1234_5678_9abc_def0);
    expect("no address", none, load(none), Some(FaultKind::NotCanonical))
}

/// The registers that these rights depend on are the same on all CPUs.
pub(super) fn alike() -> Result<(), String> {
    let wanted = registers();
    let names = features::REGISTERS;
    if !features::are_whole(wanted) {
        return Err(format!("{names} are {wanted:x?}"));
    }
    everywhere(|cpu| {
        let found = registers();
        if found == wanted {
            return Ok(());
        }
        Err(format!("cpu{cpu}: {names} are {found:x?} instead of {wanted:x?}"))
    })
}

/// Text can be executed, data cannot.
pub(super) fn execution() -> Result<(), String> {
    let area = vmap().vmalloc(PAGE).map_err(|error| error.to_string())?;
    // SAFETY: ordinary memory of this test.
    unsafe { Kernel.write(area, &RETURN) }.map_err(|fault| fault.to_string())?;
    let text = VirtAddr::new(probe::returns());
    let seen = (executed_at(text), executed_at(area));
    // SAFETY: the area belongs to this test.
    unsafe { vmap().vfree(area) }.map_err(|error| error.to_string())?;
    expect("execution of text", text, seen.0, None)?;
    expect("execution of data", area, seen.1, Some(FaultKind::Protection))
}

/// The kernel cannot access or execute pages of programs. Where it says so, it can access them, and
/// sees their contents.
pub(super) fn user() -> Result<(), String> {
    let paging = tables().paging();
    let told = |error: paging::Error| error.to_string();
    let space = Tables::user(paging, Asid(1), Some(Arc::clone(tables()))).map_err(told)?;
    let frame = Kernel.alloc(0, NodePolicy::Local).map_err(|error| error.to_string())?;
    let page = VirtRange::new(VirtAddr::new(0x40_0000), PAGE).ok_or("a page")?;
    let attrs = Attrs::new(Flags::RWX | Flags::USER);
    // SAFETY: the space and the frame belong to this test.
    unsafe { space.map(page, frame, attrs) }.map_err(|failed| told(failed.error))?;
    // SAFETY: the tables include the kernel's half, and there is one tag.
    unsafe { space.activate() };
    let at = page.start();
    let mut code = [0; 8];
    code[..RETURN.len()].copy_from_slice(&RETURN);
    let code = u64::from_le_bytes(code);
    // SAFETY: ordinary memory of this test.
    let (written, seen) = unsafe { (Kernel.store(at, code), Kernel.load(at)) };
    let (touched, executed) = (load(at), executed_at(at));
    let (denied, interrupted) = touched_in_handlers(at);
    // SAFETY: the kernel's own tables map everything that it uses.
    unsafe {
        tables().activate();
        space.leave();
    }
    // SAFETY: as above; the flush follows at once.
    unsafe { space.unmap(page, |_| ()) }.map_err(|failed| told(failed.error))?.flush();
    drop(space);
    // SAFETY: nothing maps the frame any more.
    unsafe { Kernel.release(frame) }.map_err(|error| error.to_string())?;
    if (written, seen) != (Ok(()), Ok(code)) {
        return Err(format!("a program's page: {written:?}, {seen:?}"));
    }
    expect("a program's page", at, touched, guards_programs().then_some(FaultKind::Protection))?;
    interrupted?;
    // The first may have come before the permission.
    if guards_programs() && denied < 2 {
        return Err(format!("a handler touches a program's page: {denied} of 2 are kept from it"));
    }
    expect("execution of a program's page", at, executed, Some(FaultKind::Protection))
}

/// Counts handlers, of two or more, that cannot access a program's page although the code that they
/// interrupt can.
fn touched_in_handlers(at: VirtAddr) -> (usize, Result<(), String>) {
    let (ticks, denied) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&ticks), Arc::clone(&denied));
    // Relaxed, all: only the boot CPU uses them.
    let tick = move || {
        if Kernel.current().index() == 0 {
            seen.1.fetch_add((load(at) == Some(FaultKind::Protection)).into(), Ordering::Relaxed);
            seen.0.fetch_add(1, Ordering::Relaxed);
        }
    };
    if guards_programs() {
        let_access(true);
    }
    set_tick(Some(Arc::new(tick)));
    let came = wait_for("two ticks", || ticks.load(Ordering::Relaxed) >= 2);
    set_tick(None);
    if guards_programs() {
        let_access(false);
    }
    (denied.load(Ordering::Relaxed), came)
}

fn executed_at(at: VirtAddr) -> Option<FaultKind> {
    // SAFETY: if it can be executed, the instruction returns.
    unsafe { probe::execute(at.get()) }.fault()
}
