//! Faults that are taken, and survived: guard pages, rights, what belongs to programs.

use crate::boot::entry::TRAMPOLINE;
use crate::cpu::features::has_smap;
use crate::grace::Grace;
use crate::layout::direct;
use crate::machine::Kernel;
use crate::memory::parts;
use crate::smp::stack_of;
use crate::space::{Tables, tables, vmap};
use crate::trap::probe;
use ::grace::Reclaim;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use machine::{Asid, Cpus, FaultKind, FrameSource, Place, Translated, VirtAddr, VirtRange};
use paging::{Attrs, Flags};

const PAGE: u64 = 4096;

/// What became of an access must be this.
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
    // SAFETY: read, and not looked at.
    unsafe { probe::load(at.get()) }.fault()
}

/// Writes what is there, if that can be read.
fn store(at: VirtAddr) -> Option<FaultKind> {
    // SAFETY: as above; the value is the one that is there.
    unsafe {
        let value = probe::load(at.get()).value;
        probe::store(at.get(), value).fault()
    }
}

/// The page below each stack, and the one behind an area, are not mapped; the kernel goes on.
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
    // SAFETY: it is ours.
    unsafe { vmap().vfree(area) }.map_err(|error| error.to_string())?;
    expect("in an area", last, seen.0, None)?;
    expect("behind an area", behind, seen.1, Some(FaultKind::NotPresent))
}

/// Nothing that is mapped can be both written and executed; text and constants cannot be written by any address.
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
        let at = VirtAddr::new(part.start);
        let wanted = (!part.write).then_some(FaultKind::Protection);
        expect("a store to the image", at, store(at), wanted)?;
        let at = direct(part.frame().start());
        expect("the image in the direct map", at, load(at), Some(FaultKind::NotPresent))?;
    }
    let low = VirtAddr::new(TRAMPOLINE);
    expect("what CPUs start from", low, load(low), Some(FaultKind::NotPresent))?;
    let none = VirtAddr::new(0x1234_5678_9abc_def0);
    expect("no address", none, load(none), Some(FaultKind::NotCanonical))
}

/// Text can be executed, data cannot.
pub(super) fn execution() -> Result<(), String> {
    let area = vmap().vmalloc(PAGE).map_err(|error| error.to_string())?;
    // SAFETY: ours, and ordinary memory: an instruction that returns.
    unsafe { Kernel.write(area, &[0xc3]) }.map_err(|fault| fault.to_string())?;
    let text = VirtAddr::new(probe::returns());
    // SAFETY: both are an instruction that returns.
    let seen = unsafe { (probe::execute(text.get()).fault(), probe::execute(area.get()).fault()) };
    // SAFETY: it is ours.
    unsafe { vmap().vfree(area) }.map_err(|error| error.to_string())?;
    expect("execution of text", text, seen.0, None)?;
    expect("execution of data", area, seen.1, Some(FaultKind::Protection))
}

/// What programs may touch and execute, the kernel may not, unless it says so; and then it sees what is there.
pub(super) fn user() -> Result<(), String> {
    let paging = tables().paging();
    let told = |error: paging::Error| error.to_string();
    let space = Tables::user(paging, Asid(1), Some(Arc::clone(tables()))).map_err(told)?;
    let frame = Kernel.alloc(0, Place::Local).map_err(|error| error.to_string())?;
    let page = VirtRange::new(VirtAddr::new(0x40_0000), PAGE).ok_or("a page")?;
    let attrs = Attrs::new(Flags::RWX | Flags::USER);
    space.map(page, frame, attrs).map_err(|failed| told(failed.error))?;
    // SAFETY: they have the kernel's half, and there is one tag.
    unsafe { space.activate() };
    let at = page.start();
    // SAFETY: ordinary memory, and ours; an instruction that returns.
    let (written, seen) = unsafe { (Kernel.store(at, 0xc3c3), Kernel.load(at)) };
    let (touched, executed) = (load(at), executed_at(at));
    // SAFETY: the kernel's own have all that it needs.
    unsafe {
        tables().activate();
        space.leave();
    }
    space.unmap(page, |_| ()).map_err(|failed| told(failed.error))?.flush();
    drop(space);
    // SAFETY: nothing leads to it any more.
    unsafe { Kernel.release(frame) }.map_err(|error| error.to_string())?;
    if (written, seen) != (Ok(()), Ok(0xc3c3)) {
        return Err(format!("a program's page: {written:?}, {seen:?}"));
    }
    expect("a program's page", at, touched, has_smap().then_some(FaultKind::Protection))?;
    expect("execution of a program's page", at, executed, Some(FaultKind::Protection))
}

fn executed_at(at: VirtAddr) -> Option<FaultKind> {
    // SAFETY: an instruction that returns, if it can be executed.
    unsafe { probe::execute(at.get()) }.fault()
}
