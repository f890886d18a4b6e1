//! Grace periods that no CPU expedites: only timer interrupts end them.

use super::sections::{SOME_TICKS, meet, wait_for};
use crate::cpu::area::total;
use crate::grace::Grace;
use crate::machine::Kernel;
use crate::smp::everywhere;
use crate::smp::tlb_grace;
use crate::space::{map, tables, vmap};
use crate::{clock, layout};
use ::grace::Reclaim;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{
    CpuSet, Cpus, Flush, Frame, FrameError, FrameRange, FrameSource, Irqs, Memory, NodePolicy,
    PageSize, Tlb, Translated, VirtAddr, VirtRange,
};
use paging::Attrs;

/// Pieces that a CPU retires.
const PIECES: usize = 100;
/// Unmappings of a CPU: enough that addresses are reused many times.
const UNMAPS: usize = 20_000;
/// Unmappings after which a CPU waits for a grace period, because the host may pause another CPU
/// for long: fewer than those after which it would send IPIs.
const PACE: usize = 2_500;
/// At most one IPI for this many unmappings.
const UNMAPS_EACH: u64 = 10_000;
/// Pages that are in all TLBs when they are unmapped: few enough for the smallest TLB.
const CACHED: usize = 64;
const TURNS: u64 = 10;
const PAGES: usize = 4;

static FREED: AtomicUsize = AtomicUsize::new(0);

unsafe fn free(piece: NonNull<()>) {
    // SAFETY: `readers` made the pointer from a box.
    drop(unsafe { Box::from_raw(piece.cast::<u64>().as_ptr()) });
    // Relaxed: a statistic.
    FREED.fetch_add(1, Ordering::Relaxed);
}

/// Pieces that CPUs retire are freed, although only timer interrupts report quiescent states. They
/// are not freed while a section is open that was open before.
pub(super) fn readers() -> Result<(), String> {
    // Relaxed, here and below: a statistic.
    FREED.store(0, Ordering::Relaxed);
    let met = AtomicUsize::new(0);
    let all = PIECES * Kernel.count();
    everywhere(|cpu| {
        let guard = Grace::pin();
        // All sections are open before anything is retired.
        meet(&met, 1)?;
        for _ in 0..PIECES {
            let piece = NonNull::from(Box::leak(Box::new(7_u64))).cast();
            // SAFETY: no other code has the pointer, and `free` matches its allocation.
            unsafe { Grace::retire(&guard, piece, free) };
        }
        meet(&met, 2)?;
        // One section stays open for some ticks, while the others end.
        if cpu == 0 {
            clock::wait(SOME_TICKS);
        }
        Grace::reclaim(usize::MAX);
        let early = FREED.load(Ordering::Relaxed);
        drop(guard);
        if early != 0 {
            return Err(format!("{early} pieces were freed in a section that was open before"));
        }
        wait_for("the retired objects to be freed", || {
            Grace::reclaim(usize::MAX);
            FREED.load(Ordering::Relaxed) == all
        })
    })
}

/// All CPUs map, write and unmap changing frames, and ticks alone make the addresses reusable.
/// There are no IPIs if every CPU has a processor, and few if the host pauses a CPU for longer than
/// others take for thousands of unmappings. A value written at a reused address reaches the frame
/// that is mapped there now (I4, I5).
pub(super) fn unmapping() -> Result<(), String> {
    let before = (sent(), flushed());
    everywhere(|cpu| {
        let mut frames = [Frame::default(); 2 * PAGES];
        for frame in &mut frames {
            *frame = Kernel.alloc(0, NodePolicy::Local).map_err(|error| error.to_string())?;
        }
        // However many turns pass before an address is reused, it has different frames half of the
        // time.
        let mut choice = 1_u64 + cpu as u64;
        let done = (0..UNMAPS).try_for_each(|time| {
            choice = choice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let half = (choice >> 63) as usize * PAGES;
            if time % PACE == PACE - 1 {
                let target = tlb_grace().target();
                wait_for("a TLB grace period", || tlb_grace().is_over(target))?;
            }
            once(&frames[half..][..PAGES], (((cpu << 24) + time) * PAGES) as u64)
        });
        for frame in frames {
            // SAFETY: all mappings of the frame are gone, and nothing uses it.
            unsafe { Kernel.release(frame) }.map_err(|error| error.to_string())?;
        }
        done
    })?;
    let (sent, flushes) = (sent() - before.0, flushed() - before.1);
    let unmaps = (UNMAPS * Kernel.count()) as u64;
    if sent * UNMAPS_EACH <= unmaps {
        return Ok(());
    }
    Err(format!("{sent} interrupts between CPUs, and {flushes} flushes, for {unmaps} unmaps"))
}

/// IPIs that CPUs have sent to request flushes.
fn sent() -> u64 {
    total(|stats| &stats.shootdowns)
}

/// Flushes of all CPUs.
fn flushed() -> u64 {
    total(|stats| &stats.flushes)
}

fn once(frames: &[Frame], value: u64) -> Result<(), String> {
    let at = vmap().vm_map_ram(frames, Attrs::KERNEL_RW).map_err(|error| error.to_string())?;
    let seen = frames.iter().enumerate().try_for_each(|(page, frame)| {
        let (at, value) = (VirtAddr::new(at.get() + ((page as u64) << 12)), value + page as u64);
        // SAFETY: ordinary memory.
        unsafe { Kernel.store(at, value) }.map_err(|fault| fault.to_string())?;
        let there = Kernel.frame_ptr(*frame).ok_or("a frame without memory")?;
        // SAFETY: as above; no other code writes it.
        let found = unsafe { there.cast::<u64>().read_volatile() };
        if found == value {
            return Ok(());
        }
        Err(format!(
            "{at}: {value:#x} was written, and {found:#x} is in {frame}: a stale translation"
        ))
    });
    // SAFETY: only the code above uses the mapping.
    unsafe { vmap().vm_unmap_ram(at, frames.len()) }.map_err(|error| error.to_string())?;
    seen
}

/// A full flush that a CPU makes for its own reasons ends a period, without a tick. A flush of some
/// pages does not.
pub(super) fn own_need() -> Result<(), String> {
    let _section = Kernel.irqs_off();
    let target = tlb_grace().target();
    if tlb_grace().advance(target) {
        return Err(String::from("a period was over before it began"));
    }
    let page = VirtRange::new(layout::trials().start(), 4096).ok_or("there are no addresses")?;
    let stride = PageSize::Size4K;
    let here = CpuSet::only(Kernel.current());
    Kernel.flush_on(&here, Flush::Range { space: None, range: page, stride, tables: false });
    if tlb_grace().advance(target) {
        return Err(String::from("a flush of one page has ended a period"));
    }
    Kernel.flush_on(&here, Flush::All);
    // All other CPUs are idle, so the period does not wait for them; or they are about to be, and
    // tick.
    wait_for("the end of a period", || tlb_grace().advance(target))
}

/// Pages that all CPUs have cached are unmapped without a flush. After their grace period, which
/// only ticks end, other frames are mapped there, and no CPU sees the former ones (I4, I5).
pub(super) fn reporting() -> Result<(), String> {
    let range = VirtRange::new(layout::trials().start(), (CACHED as u64) << 12);
    let range = range.ok_or("there are no addresses")?;
    let told = |error: FrameError| error.to_string();
    let mut blocks = [Frame::default(); 2];
    for (number, block) in blocks.iter_mut().enumerate() {
        *block = Kernel.alloc(CACHED.ilog2() as u8, NodePolicy::Local).map_err(told)?;
        let there = Kernel.frame_ptr(*block).ok_or("a frame without memory")?.cast::<u64>();
        for word in 0..CACHED * 512 {
            // SAFETY: the address is within the block, which belongs to this test.
            unsafe { there.add(word).write(number as u64) };
        }
    }
    let (met, before) = (AtomicUsize::new(0), sent());
    let result = everywhere(|cpu| {
        let mut meetings = 0;
        let mut meet = || {
            meetings += 1;
            meet(&met, meetings)
        };
        for turn in 0..TURNS {
            if cpu == 0 {
                let frames = FrameRange::new(blocks[turn as usize % 2], CACHED as u64);
                let frames = frames.ok_or("there are no such frames")?;
                // SAFETY: the frames and the addresses are this trial's. The grace period of the
                // last mapping is over.
                let mapped = unsafe { map(tables(), range.start(), frames, Attrs::KERNEL_RW) };
                mapped.map_err(|error| error.to_string())?;
            }
            meet()?;
            for page in range.pages(PageSize::Size4K) {
                // SAFETY: ordinary memory.
                let found = unsafe { Kernel.load(page) }.map_err(|fault| fault.to_string())?;
                if found != turn % 2 {
                    return Err(format!("cpu{cpu}: {page}: a stale translation, turn {turn}"));
                }
            }
            meet()?;
            if cpu == 0 {
                // SAFETY: nothing uses the addresses until the period is over, and the frames stay
                // allocated.
                let done = unsafe { tables().unmap_lazily(range, |_, _| ()) };
                done.map_err(|error| error.to_string())?;
                let target = tlb_grace().target();
                wait_for("a TLB grace period", || tlb_grace().is_over(target))?;
            }
            meet()?;
        }
        Ok(())
    });
    let sent = sent() - before;
    // Removes the tables that the test made, so that the number of free frames is as before.
    let whole = VirtRange::new(range.start(), PageSize::Size1G.bytes());
    let whole = whole.ok_or("there are no addresses")?;
    // SAFETY: the addresses belong to this test, and nothing uses a table of them any more.
    let pruned = unsafe { tables().prune(whole) };
    pruned.map_err(|failed| failed.error.to_string())?.flush();
    for block in blocks {
        // SAFETY: nothing maps the block any more.
        unsafe { Kernel.release(block) }.map_err(told)?;
    }
    result?;
    match sent {
        0 => Ok(()),
        sent => Err(format!("{sent} interrupts between CPUs")),
    }
}
