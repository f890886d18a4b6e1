//! The contents of frames: copied from one to another, to bytes, and read from swap.

use core::{
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use machine::{ENTRIES, Frame, FrameError, Machine, PageSize};
use paging::Swap;
use vma::PAGE_SIZE;

use crate::fault::zero_page::zero;

/// Copies a frame word by word: a program, or the holder of a pin, may write to the source at this
/// moment. Then the entry that led there is another one when the copy is to be used.
pub(crate) fn copy<M: Machine>(machine: &M, from: Frame, to: Frame) -> Result<(), FrameError> {
    let source = machine.frame_ptr(from).ok_or(FrameError::NotOurs(from))?.cast::<AtomicU64>();
    let copy = machine.frame_ptr(to).ok_or(FrameError::NotOurs(to))?.cast::<u64>();
    // SAFETY: both frames are 512 aligned words long. A reference keeps the source allocated; the
    // copy is ours alone.
    unsafe { copy_words(source, copy) };
    Ok(())
}

/// Fills a frame, which is ours alone, with the bytes of a page.
pub(crate) fn copy_bytes<M: Machine>(
    machine: &M,
    from: &[u8],
    to: Frame,
) -> Result<(), FrameError> {
    let at = machine.frame_ptr(to).ok_or(FrameError::NotOurs(to))?;
    let len = from.len().min(PageSize::Size4K.bytes() as usize);
    // SAFETY: the frame is ours alone, and a page long.
    unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), at.as_ptr(), len) };
    Ok(())
}

/// Copies a frame, which programs may write to meanwhile, to bytes. Returns whether it could.
pub(crate) fn read_words<M: Machine>(machine: &M, from: Frame, to: &mut [u8]) -> bool {
    let Some(at) = machine.frame_ptr(from) else { return false };
    #[cfg(not(loom))]
    let words = at.cast::<AtomicU64>();
    #[cfg(loom)]
    use machine::word::Word;
    #[cfg(loom)]
    let words = at.cast::<machine::word::MemoryWord>();
    for (index, chunk) in to.chunks_exact_mut(8).enumerate().take(ENTRIES) {
        // SAFETY: within the frame, to which the caller has a reference. Relaxed: the words may be
        // of different moments; then the copy is not used.
        let word = unsafe { words.add(index).as_ref() }.load(Ordering::Relaxed);
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    true
}

/// Copies the words of a page. They may be of different moments.
///
/// # Safety
/// Both are a page of aligned words. Other CPUs access the source only as a program does, or
/// atomically, and the copy not at all.
unsafe fn copy_words(source: NonNull<AtomicU64>, copy: NonNull<u64>) {
    // One instruction is twice as fast as the loop, which the compiler may not widen.
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: the caller's promise. The processor moves whole words, so a word that another CPU
    // writes meanwhile is read whole, as by the loop below. The direction flag is clear in Rust
    // code.
    unsafe {
        core::arch::asm!(
            "rep movsq",
            inout("rcx") ENTRIES => _,
            inout("rsi") source.as_ptr() => _,
            inout("rdi") copy.as_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(loom)]
    // SAFETY: the caller's promise.
    unsafe {
        machine::word::copy(source.cast(), copy.cast())
    };
    #[cfg(not(any(all(target_arch = "x86_64", not(miri)), loom)))]
    for index in 0..ENTRIES {
        // SAFETY: the caller's promise. Relaxed: the words may be of different moments.
        unsafe { copy.add(index).write(source.add(index).as_ref().load(Ordering::Relaxed)) };
    }
}

/// Reads a slot into a frame of our own. Bytes that the host leaves out are zeros: the frame may
/// have been another program's.
pub(crate) fn read_slot<M: Machine>(
    machine: &M,
    swap: Option<&dyn Swap>,
    slot: u64,
    into: Frame,
) -> bool {
    let (Some(swap), Some(at)) = (swap, machine.frame_ptr(into)) else { return false };
    if zero(machine, into).is_err() {
        return false;
    }
    // SAFETY: the frame is ours alone, and a page long.
    let done = swap.read(slot, unsafe { &mut *at.cast::<[u8; PAGE_SIZE]>().as_ptr() });
    // SAFETY: as above.
    #[cfg(loom)]
    unsafe {
        machine::word::fill(at.cast())
    };
    done
}
