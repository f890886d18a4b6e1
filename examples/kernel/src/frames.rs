//! The kernel's own frame allocator, and its own record of each frame. It needs no heap.
//!
//! A record has the [`FrameInfo`] in which Samara's crates count, and the kernel's own count, that
//! of its [`Page`]s. All pages of a frame share one reference of the `FrameInfo`. So the frame is
//! free again when both counts are 0, whichever is first.

use crate::boot::{self, OFFSET};
use crate::tiny::Tiny;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Relaxed};
use machine::{
    Frame, FrameError, FrameInfo, FrameRange, FrameSource, Irqs, NodePolicy, Owner, lock,
};
use spin::{Once, mutex::SpinMutex};

/// The kernel's record of a frame.
struct Record {
    info: FrameInfo,
    /// The number of its pages, or [`FREE`].
    pages: AtomicU32,
}

/// Relaxed, wherever it is stored and replaced: [`LOCK`] is held.
const FREE: u32 = u32::MAX;

impl Record {
    fn is_free(&self) -> bool {
        self.pages.load(Relaxed) == FREE
    }
}

/// The memory that has records. A larger kernel makes them when it knows how much memory it has.
pub const LIMIT: u64 = 256 << 20;
const COUNT: usize = (LIMIT >> 12) as usize;
static RECORDS: [Record; COUNT] =
    [const { Record { info: FrameInfo::new(), pages: AtomicU32::new(0) } }; COUNT];
static LOCK: SpinMutex<()> = SpinMutex::new(());
/// The frames that have memory: the image's data, and all that follows.
static MEMORY: Once<FrameRange> = Once::new();

/// Frees all frames behind the image.
///
/// # Safety
/// The frames are mapped at [`OFFSET`]. The image's data are the first, and the others are unused.
pub unsafe fn start(memory: FrameRange) {
    MEMORY.call_once(|| memory);
    let behind = memory.iter().skip(boot::data().whole_frames().len() as usize);
    behind.filter_map(record).for_each(|page| page.pages.store(FREE, Relaxed));
    for info in boot::tables().iter().filter_map(|table| Tiny.info(table)) {
        // SAFETY: it is not free. `adopt` wants each of the loader's tables to be a block.
        unsafe { info.allocate(0) };
    }
}

fn record(frame: Frame) -> Option<&'static Record> {
    MEMORY.get().filter(|memory| memory.contains(frame))?;
    RECORDS.get(frame.number() as usize)
}

/// The memory of a frame that has a record.
pub fn pointer(frame: Frame) -> Option<NonNull<u8>> {
    record(frame)?;
    NonNull::new(ptr::with_exposed_provenance_mut((frame.start().get() + OFFSET) as usize))
}

// SAFETY: a block is taken, under the lock, where all frames are free, and `recycle` alone frees
// it. A frame has one record, which stays where it is.
unsafe impl FrameSource for Tiny {
    /// Takes the first free block. A kernel that runs for long has a buddy allocator here.
    fn alloc(&self, order: u8, _: NodePolicy) -> Result<Frame, FrameError> {
        let none = FrameError::OutOfFrames { order };
        let len = 1_usize.checked_shl(order.into()).ok_or(FrameError::TooLarge { order })?;
        let _section = self.irqs_off();
        let _locked = lock(self, &LOCK);
        // A block begins at a multiple of its length.
        let mut blocks = RECORDS.chunks_exact(len);
        let number = blocks.position(|block| block.iter().all(Record::is_free)).ok_or(none)?;
        let block = &RECORDS[number * len..][..len];
        block.iter().for_each(|page| page.pages.store(0, Relaxed));
        // SAFETY: the block was free, and is no longer.
        unsafe { block[0].info.allocate(order) };
        Frame::new((number * len) as u64).ok_or(none)
    }
    unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
        let _section = self.irqs_off();
        let _locked = lock(self, &LOCK);
        // SAFETY: its last reference is gone.
        let len = 1 << unsafe { info.recycle() };
        let block = RECORDS.iter().skip(frame.number() as usize).take(len);
        block.for_each(|page| page.pages.store(FREE, Relaxed));
    }
    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        record(frame).map(|record| &record.info)
    }
    fn free_frames(&self) -> usize {
        RECORDS.iter().filter(|page| page.is_free()).count()
    }
}

/// A frame that the kernel uses, counted in its record.
pub struct Page(pub Frame, &'static AtomicU32);

impl Page {
    /// A new frame, whose contents are undefined.
    pub fn alloc() -> Result<Page, FrameError> {
        let frame = Tiny.alloc(0, NodePolicy::Local)?;
        let pages = &record(frame).ok_or(FrameError::NotOurs(frame))?.pages;
        pages.store(1, Relaxed); // No other code has the frame yet.
        Ok(Page(frame, pages))
    }
}

impl Clone for Page {
    fn clone(&self) -> Page {
        self.1.fetch_add(1, Relaxed); // `self` keeps the frame meanwhile.
        Page(self.0, self.1)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // AcqRel: all uses of the frame come before its end.
        if self.1.fetch_sub(1, AcqRel) == 1 {
            // SAFETY: the reference of `alloc`. A pin of the crates may keep the frame for longer.
            let _ = unsafe { Tiny.release(self.0) };
        }
    }
}

/// The frames that are neither free nor a table: how many there are, and the sums of both counts.
pub fn census() -> (usize, u32, u32) {
    let is_other =
        |record: &&Record| !record.is_free() && !matches!(record.info.owner(), Owner::Table(_));
    let others = || RECORDS.iter().filter(is_other);
    let pages = others().map(|record| record.pages.load(Relaxed)).sum();
    (others().count(), pages, others().map(|record| record.info.refs()).sum())
}
