//! Files: objects whose pages the host reads and writes.
//!
//! A page is read at its first use, with those that the host wants to read ahead. A shared map gets
//! it read-only; the first write marks it as written. A sync
//!
//! 1. takes the marks;
//! 2. takes from all maps the right to write, and flushes;
//! 3. writes the pages out.
//!
//! A write that comes before step 2 is in the page when step 3 copies it; one that comes later
//! faults, and marks the page again. So no write is lost, and none is written twice for nothing.
//!
//! Pins write without a right. A pin for writing is taken by an entry with the right to write, so
//! its page is marked then, and step 3 keeps the mark of each page that it finds pinned. It looks
//! before it copies: a pin that has ended by then has written, and none can begin without a fault.
//! So a page of the file that is pinned for writing is always marked, and a page without a mark can
//! be evicted. A page that a device reads for long is written out by each sync, too.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{fmt, ops::Range, sync::atomic::AtomicU8};

use machine::{Frame, Machine, lock};
use paging::{Format, Paging};
use spin::mutex::SpinMutex;
use vma::{PAGE_SIZE, Placement};

use crate::{
    CachedPages, FrameGroup, GroupError, Mappings, Object, ObjectError, ObjectInfo, Shared,
    fault::frame_ref::Reference,
    object::cache::{PAGE, PageCache, as_its_pages},
    object::page_index::MAX_PAGES,
    object::read_write::load,
    object::share,
};

/// Where the pages of a [`File`] come from. The host implements it for its files.
///
/// # Misuse
/// A source that panics: a page that could not be read is not in the file. No lock is held during a
/// read. A sync holds the file's lock of syncs, so a source that syncs its file waits without end.
pub trait PageSource: Send + Sync + 'static {
    /// Reads a page. Bytes beyond the end of the file are left as they are: zeros. May wait.
    ///
    /// # Errors
    /// [`ObjectError::Failed`].
    fn read(&self, index: u64, into: &mut [u8; PAGE_SIZE]) -> Result<(), ObjectError>;

    /// Writes a page; the part of it within the file counts. May wait.
    ///
    /// # Errors
    /// [`ObjectError::Failed`].
    fn write(&self, index: u64, from: &[u8; PAGE_SIZE]) -> Result<(), ObjectError>;

    /// How many of the pages after this one to read together with it.
    fn read_ahead(&self, index: u64) -> u64 {
        let _ = index;
        0
    }

    /// How its maps are placed. Always the same.
    fn placement(&self) -> Placement {
        Placement::Pages
    }

    /// Whether private maps of it behave as anonymous memory; see
    /// [`ObjectInfo::acts_anonymous`]. Always the same.
    fn acts_anonymous(&self) -> bool {
        false
    }

    /// Major and minor device number, for the listing. Always the same.
    fn device(&self) -> (u32, u32);

    /// Inode number, for the listing. Always the same.
    fn inode(&self) -> u64;

    /// Writes the path as the listing shows it.
    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// A file, with its pages in memory. When it is dropped, written pages are written out.
///
/// The last one to hold it may be a VMA that waits for its grace period. Then it is dropped where
/// deferred frees run. A host whose source cannot wait there keeps the file, and syncs it first.
pub struct File<M: Machine, S: PageSource> {
    pages: PageCache<M>,
    syncs: SpinMutex<()>,
    info: ObjectInfo,
    source: S,
}

impl<M: Machine, S: PageSource> File<M, S> {
    /// A file of `size` bytes, for address spaces with this [`Paging`]. Allocates once.
    ///
    /// # Errors
    /// [`ObjectError::BeyondEnd`]: larger than objects can be; [`ObjectError::HeapExhausted`].
    pub fn try_new<F: Format>(
        paging: &Arc<Paging<M, F>>,
        source: S,
        size: u64,
    ) -> Result<Shared<Self>, ObjectError> {
        let (placement, acts_anonymous) = (source.placement(), source.acts_anonymous());
        let numbers = ObjectInfo::new(source.device(), source.inode());
        let info = ObjectInfo { placement, acts_anonymous, ..numbers };
        let pages = PageCache::new(paging);
        let file = share(File { pages, syncs: SpinMutex::new(()), info, source })?;
        file.set_size(size)?;
        Ok(file)
    }

    /// Where its pages come from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.pages.size()
    }

    /// The file has this size now. Pages beyond it go, from all spaces, written or not, with the
    /// copies that private maps made. The rest of the last page becomes zeros, also if the file
    /// becomes larger.
    ///
    /// # Context
    /// With nothing held; waits for the spaces that map it, and for a sync if it becomes shorter.
    ///
    /// # Errors
    /// [`ObjectError::BeyondEnd`]: larger than objects can be. Nothing has changed.
    pub fn set_size(&self, bytes: u64) -> Result<(), ObjectError> {
        let sync_lock = || lock(&self.pages.machine, &self.syncs);
        // A sync under way does not write after the end of this call, where its bytes would be seen
        // when the file becomes larger again.
        let mut synced = (bytes < self.size()).then(sync_lock);
        loop {
            let done = self.pages.set_size(bytes, |old| {
                // It has become longer since the look.
                if bytes < old && synced.is_none() {
                    return Err(ObjectError::Absent);
                }
                // A map may have written beyond the end: that part of the file is zeros.
                self.pages.clear(old..bytes.min(old.next_multiple_of(PAGE)));
                Ok(())
            });
            match done {
                Err(ObjectError::Absent) => synced = Some(sync_lock()),
                done => return done,
            }
        }
    }

    /// Pages that come from now on count for a group. Later calls change nothing.
    ///
    /// # Errors
    /// [`GroupError::Foreign`].
    pub fn set_group(&self, group: &Shared<FrameGroup<M>>) -> Result<(), GroupError> {
        self.pages.set_group(group)
    }

    /// Reads bytes from `at` on, up to the end, as pread(2). Returns how many.
    ///
    /// # Context
    /// With nothing held; waits for the source.
    ///
    /// # Errors
    /// As [`Object::bring_in`].
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<usize, ObjectError> {
        loop {
            let (losses, size) = (self.pages.losses(), self.size());
            let len = size.saturating_sub(at).min(into.len() as u64);
            let read = self.each_part(at..at + len, |part, place| {
                load(part, &mut into[place..]);
            });
            match read {
                // It has become shorter meanwhile, and maybe longer again: then the loss is seen,
                // because it was counted before the size that is read here was stored.
                Err(ObjectError::BeyondEnd)
                    if self.size() != size || self.pages.losses() != losses => {}
                read => return read.map(|()| self.pages.left_of(at, len as usize)),
            }
        }
    }

    /// Writes bytes at `at`, within the size, as pwrite(2). They are written out by the next sync.
    /// Each page is written in one step.
    ///
    /// # Context
    /// As for [`read`](Self::read).
    ///
    /// # Errors
    /// As [`Object::bring_in`]; nothing has changed, unless a page was evicted meanwhile and could
    /// not be read again, or the file has become shorter meanwhile: then the pages before are
    /// written.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), ObjectError> {
        let end = at.checked_add(from.len() as u64).ok_or(ObjectError::BeyondEnd)?;
        if end > self.size() {
            return Err(ObjectError::BeyondEnd);
        }
        (at / PAGE..end.div_ceil(PAGE)).try_for_each(|index| self.bring_in(index))?;
        let mut rest = from;
        while !rest.is_empty() {
            let here = end - rest.len() as u64;
            let (part, later) = rest.split_at(rest.len().min((PAGE - here % PAGE) as usize));
            self.write_page(here, part)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes bytes of one page, with the lock held: no truncation comes in their middle.
    fn write_page(&self, at: u64, from: &[u8]) -> Result<(), ObjectError> {
        let index = at / PAGE;
        loop {
            self.bring_in(index)?;
            let _locked = self.pages.lock();
            match self.pages.index.hold(index) {
                // Evicted since it was brought in.
                Err(ObjectError::Absent) => continue,
                held => {
                    // SAFETY: `hold` took this reference.
                    let page = unsafe { Reference::new(&self.pages.machine, held?) };
                    self.pages.store(&page, at, from);
                    // Marked afterwards: a sync that takes the mark copies the bytes.
                    self.dirtied(index, page.frame());
                    return Ok(());
                }
            }
        }
    }

    /// Calls `each` with the parts of a range. A page that was evicted since it was brought in
    /// comes again.
    fn each_part(
        &self,
        bytes: Range<u64>,
        each: impl FnMut(&[AtomicU8], usize),
    ) -> Result<(), ObjectError> {
        let hold = |index| loop {
            self.bring_in(index)?;
            match self.pages.index.hold(index) {
                Err(ObjectError::Absent) => {}
                held => return held.map(Some),
            }
        };
        self.pages.each_held(bytes, hold, each)
    }

    fn read_page(&self, index: u64, frame: Frame) -> Result<(), ObjectError> {
        let page = self.pages.machine.frame_ptr(frame).ok_or(ObjectError::Failed)?;
        // SAFETY: a frame of our own, which no other code uses yet; it is a page long.
        let bytes = unsafe { &mut *page.cast::<[u8; PAGE_SIZE]>().as_ptr() };
        bytes.fill(0);
        self.source.read(index, bytes)
    }

    /// Writes out the pages of a range that are marked as being synced.
    fn write_out(&self, pages: Range<u64>, copy: &mut [u8; PAGE_SIZE]) -> Result<(), ObjectError> {
        self.pages.index.sync(pages, |index| {
            let mut found = false;
            // Before the copy: if the file becomes larger meanwhile, the copy has zeros beyond the
            // old end, as the page then has.
            let size = self.pages.size();
            // A page within the size that is going stays, because it was written.
            let hold = |index| match self.is_beyond_end(index) {
                true => Ok(None),
                false => match self.pages.index.hold_going(index) {
                    Err(ObjectError::Absent) => Ok(None),
                    held => held.map(Some),
                },
            };
            self.pages.each_held(index * PAGE..(index + 1) * PAGE, hold, |part, _| {
                found = true;
                load(part, copy);
            })?;
            let within = size.saturating_sub(index * PAGE).min(PAGE) as usize;
            copy[within..].fill(0);
            // Otherwise the file has become shorter.
            if found { self.source.write(index, copy) } else { Ok(()) }
        })
    }
}

/// A page's copy, on the heap: kernel stacks are small.
fn page_copy() -> Result<Box<[u8; PAGE_SIZE]>, ObjectError> {
    let mut copy = Vec::new();
    let room = copy.try_reserve_exact(PAGE_SIZE);
    // The heap has no error of its own here.
    let no_memory = machine::FrameError::OutOfFrames { order: 0 };
    room.map_err(|_| ObjectError::OutOfMemory(no_memory))?;
    copy.resize(PAGE_SIZE, 0);
    copy.into_boxed_slice().try_into().map_err(|_| ObjectError::Failed)
}

// SAFETY: as for `Shmem`.
unsafe impl<M: Machine, S: PageSource> Object<M> for File<M, S> {
    as_its_pages!();

    fn bring_in(&self, index: u64) -> Result<(), ObjectError> {
        if !self.pages.is_present(index) {
            self.pages.read_in(index, |frame| self.read_page(index, frame))?;
            for next in (index + 1..).take(self.source.read_ahead(index) as usize) {
                let read = || self.pages.read_in(next, |frame| self.read_page(next, frame));
                // A page that cannot be read now is read when it is needed.
                if self.pages.is_present(next) || read().is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.source.write_path(out)
    }

    fn cached(&self) -> Option<&dyn CachedPages> {
        Some(self)
    }
}

impl<M: Machine, S: PageSource> CachedPages for File<M, S> {
    fn dirtied(&self, index: u64, frame: Frame) {
        self.pages.index.set_dirty(index, frame);
    }

    /// Writes out the written pages of a range. Another sync of the file waits meanwhile. If a page
    /// cannot be written, the others are, and the page stays marked.
    fn sync(&self, pages: Range<u64>) -> Result<(), ObjectError> {
        let mut copy = page_copy()?;
        let _locked = lock(&self.pages.machine, &self.syncs);
        if self.pages.index.start_sync(pages.clone()) {
            self.pages.mappings.clean(&self.pages.machine, pages.clone());
            self.write_out(pages, &mut copy)?;
        }
        Ok(())
    }

    /// Reads the pages that are absent, up to the first that cannot be read.
    fn will_need(&self, mut pages: Range<u64>) {
        let _ = pages.try_for_each(|index| match self.pages.is_beyond_end(index) {
            true => Err(ObjectError::BeyondEnd),
            false => self.bring_in(index),
        });
    }

    fn evict(&self, index: u64) -> bool {
        self.pages.evict(index)
    }
}

impl<M: Machine, S: PageSource> Drop for File<M, S> {
    /// Writes out what was written, without heap. A page that a pin may still write to needs a
    /// copy: it is lost if there is no heap for one, or the source fails.
    fn drop(&mut self) {
        if !self.pages.index.start_sync(0..MAX_PAGES) {
            return;
        }
        let size = self.size();
        // Writes of maps beyond the end are not the file's.
        self.pages.clear(size..size.next_multiple_of(PAGE));
        let machine = &self.pages.machine;
        let write = |index: u64| {
            let frame = self.pages.index.get(index).frame();
            let frame = frame.filter(|_| !self.is_beyond_end(index));
            let Some(info) = frame.and_then(|frame| machine.info(frame)) else { return Ok(()) };
            let page = frame.and_then(|frame| machine.frame_ptr(frame));
            let page = page.ok_or(ObjectError::Failed)?.cast::<[u8; PAGE_SIZE]>();
            if info.refs() == 1 {
                // SAFETY: the file is mapped nowhere, because each map holds it; and the only
                // reference is the index's. So no other code uses the page.
                return self.source.write(index, unsafe { page.as_ref() });
            }
            self.write_out(index..index + 1, &mut *page_copy()?)
        };
        let _lost = self.pages.index.sync(0..MAX_PAGES, write);
    }
}

impl<M: Machine, S: PageSource> fmt::Debug for File<M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("inode", &self.info.inode)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
