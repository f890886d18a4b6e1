//! Shared memory in RAM: what memfd_create, SysV shared memory and MAP_SHARED | MAP_ANONYMOUS map.
//!
//! A page comes at its first use, filled with zeros. Faults and copies take no lock of the object.
//! What takes pages back (a smaller size, a hole) holds the object's lock, one at a time:
//!
//! 1. it stores the new size, or marks the pages of the hole as going;
//! 2. removes the pages from all spaces ([`Mappings::take_back`]);
//! 3. takes them out of the index, and drops their references.
//!
//! A fault that finds a page going waits until it is gone. One that fills a slot looks at the size
//! again afterwards; if the object has become smaller meanwhile, it takes the page back itself.

use alloc::{boxed::Box, string::String, sync::Arc};
use core::{
    any::Any,
    fmt,
    ops::Range,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};

use machine::{Access, Frame, Machine, Owner, Place, lock};
use paging::{Format, Paging};
use spin::mutex::SpinMutex;
use vma::PAGE_SIZE;

use crate::{
    Mappings, Object, ObjectError,
    index::{MAX_PAGES, PageIndex, Slot},
    zero::zero,
};

const PAGE: u64 = PAGE_SIZE as u64;

/// What may no longer be done to a [`Shmem`]; bits as in the F_SEAL constants of fcntl.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seals(pub u32);

impl Seals {
    /// No more seals.
    pub const SEAL: Seals = Seals(1);
    /// It does not become smaller.
    pub const SHRINK: Seals = Seals(2);
    /// It does not become larger.
    pub const GROW: Seals = Seals(4);
    /// Its contents do not change.
    pub const WRITE: Seals = Seals(8);
    /// As WRITE, but writable maps that exist stay so.
    pub const FUTURE_WRITE: Seals = Seals(16);

    /// Whether it has one of these.
    pub fn intersects(self, others: Seals) -> bool {
        self.0 & others.0 != 0
    }
}

/// What the listing shows of a [`Shmem`], and what it is.
#[derive(Clone, Debug)]
pub struct ShmemKind {
    /// The path in the listing, such as `/memfd:name (deleted)`.
    pub path: String,
    /// The inode number.
    pub inode: u64,
    /// Major and minor device number.
    pub device: (u32, u32),
    /// Whether it is a segment of SysV shared memory.
    pub segment: bool,
}

/// Shared memory in RAM.
///
/// ```
/// # use machine::{Asid, PageSize};
/// # use mm::*;
/// # use paging::{Paging, X86_64L4};
/// # use sim::{Config, Grace, Sim};
/// # let sim = Sim::new(Config::default()).unwrap();
/// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
/// # sim.on_cpu(0, || {
/// # let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
/// # let profile = Profile::LINUX_6_18;
/// # let space = AddressSpace::<_, _, Grace>::try_new(&paging, Asid(1), None, profile, layout)?;
/// let memory = Shmem::memfd(&paging, "name", 7);
/// memory.set_size(8192)?;
/// let file = Backing::open(memory.clone(), true);
/// let at = space.mmap_object(0, 8192, 3, MapFlags::SHARED, file, 0)?;
/// space.write(at + 4096, b"hello").unwrap();
/// let mut found = [0; 5];
/// memory.read(4096, &mut found);
/// assert_eq!(&found, b"hello");
/// # Ok::<(), Error>(())
/// # }).unwrap();
/// ```
pub struct Shmem<M: Machine> {
    machine: M,
    /// The [`Paging`] of the spaces that may map it.
    home: Arc<dyn Any + Send + Sync>,
    index: PageIndex<M>,
    /// In bytes. Changes with the lock held.
    size: AtomicU64,
    seals: AtomicU32,
    changes: SpinMutex<()>,
    mappings: Mappings,
    kind: Box<ShmemKind>,
}

impl<M: Machine> Shmem<M> {
    /// An object of no bytes, for address spaces with this [`Paging`].
    pub fn new<F: Format>(paging: &Arc<Paging<M, F>>, kind: ShmemKind) -> Arc<Self> {
        let machine = paging.machine().clone();
        Arc::new(Shmem {
            home: paging.clone(),
            index: PageIndex::new(machine.clone()),
            machine,
            size: AtomicU64::new(0),
            seals: AtomicU32::new(0),
            changes: SpinMutex::new(()),
            mappings: Mappings::new(),
            kind: Box::new(kind),
        })
    }

    /// As memfd_create(2) makes it.
    pub fn memfd<F: Format>(paging: &Arc<Paging<M, F>>, name: &str, inode: u64) -> Arc<Self> {
        let path = alloc::format!("/memfd:{name} (deleted)");
        Shmem::new(paging, ShmemKind { path, inode, device: (0, 1), segment: false })
    }

    /// A segment of SysV shared memory, as shmget(2) makes it.
    ///
    /// # Errors
    /// As [`set_size`](Self::set_size).
    pub fn segment<F: Format>(
        paging: &Arc<Paging<M, F>>,
        key: u32,
        id: u64,
        size: u64,
    ) -> Result<Arc<Self>, ObjectError> {
        let path = alloc::format!("/SYSV{key:08x} (deleted)");
        let memory =
            Shmem::new(paging, ShmemKind { path, inode: id, device: (0, 1), segment: true });
        memory.set_size(size)?;
        Ok(memory)
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.machine.step(Access::Shared);
        // Acquire: pairs with the Release of `set_size`.
        self.size.load(Ordering::Acquire)
    }

    /// The number of pages that it may have.
    fn limit(&self) -> u64 {
        self.size().div_ceil(PAGE)
    }

    /// Sets the size, as ftruncate(2). Pages beyond it go, from all spaces, with the copies that
    /// private maps made. The rest of the last page becomes zeros.
    ///
    /// # Context
    /// With nothing held; waits for the spaces that map it.
    ///
    /// # Errors
    /// [`ObjectError::Sealed`]; [`ObjectError::BeyondEnd`]: larger than objects can be. Nothing has
    /// changed.
    pub fn set_size(&self, bytes: u64) -> Result<(), ObjectError> {
        if bytes.div_ceil(PAGE) > MAX_PAGES {
            return Err(ObjectError::BeyondEnd);
        }
        let _locked = lock(&self.machine, &self.changes);
        let (old, seals) = (self.size(), self.seals());
        if (bytes < old && seals.intersects(Seals::SHRINK))
            || (bytes > old && seals.intersects(Seals::GROW))
        {
            return Err(ObjectError::Sealed);
        }
        // Release: pairs with `size`.
        self.size.store(bytes, Ordering::Release);
        // SeqCst: pairs with the fence in `bring_in`. Either this CPU sees the page in its slot, or
        // the fault sees the new size.
        fence(Ordering::SeqCst);
        if bytes < old {
            self.take_back(bytes.div_ceil(PAGE)..MAX_PAGES, true);
            self.clear(bytes..bytes.next_multiple_of(PAGE));
        }
        Ok(())
    }

    /// Frees the bytes of a range: they read as zeros (FALLOC_FL_PUNCH_HOLE). Whole pages go, from
    /// all spaces. The copies that private maps made stay.
    ///
    /// # Context
    /// As for [`set_size`](Self::set_size).
    ///
    /// # Errors
    /// [`ObjectError::Sealed`]; nothing has changed.
    pub fn punch_hole(&self, bytes: Range<u64>) -> Result<(), ObjectError> {
        let _locked = lock(&self.machine, &self.changes);
        if self.seals().intersects(Seals(Seals::WRITE.0 | Seals::FUTURE_WRITE.0)) {
            return Err(ObjectError::Sealed);
        }
        let end = bytes.end.min(self.size().next_multiple_of(PAGE));
        let whole = bytes.start.div_ceil(PAGE)..end / PAGE;
        if whole.is_empty() {
            self.clear(bytes.start..end);
            return Ok(());
        }
        self.clear(bytes.start..whole.start * PAGE);
        self.clear(whole.end * PAGE..end);
        self.take_back(whole, false);
        Ok(())
    }

    /// Takes pages back. Called with the lock held, or beyond the size.
    fn take_back(&self, pages: Range<u64>, copies: bool) {
        self.index.mark(pages.clone());
        let is_ours = |index, frame| self.index.get(index).frame() == Some(frame);
        self.mappings.take_back(&self.machine, pages.clone(), copies, &is_ours);
        self.index.remove_marked(pages);
    }

    /// Fills bytes with zeros, where there are pages.
    fn clear(&self, bytes: Range<u64>) {
        self.each_part(bytes, |part, _| {
            // Relaxed: a program's memory orders nothing here.
            part.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        });
    }

    /// Calls `each` with the parts of a range that have pages, and their places in the range.
    fn each_part(&self, bytes: Range<u64>, mut each: impl FnMut(&[AtomicU8], usize)) {
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min((at / PAGE + 1) * PAGE);
            if let Some(frame) = self.index.hold(at / PAGE) {
                if let Some(page) = self.machine.frame_ptr(frame) {
                    let within = (at % PAGE) as usize;
                    let page = page.cast::<AtomicU8>();
                    // SAFETY: the part lies in the frame, to which we hold a reference. Other users
                    // access it by translations or by atomic bytes.
                    let part = unsafe {
                        core::slice::from_raw_parts(page.add(within).as_ptr(), (end - at) as usize)
                    };
                    each(part, (at - bytes.start) as usize);
                }
                // SAFETY: `hold` took this reference.
                let released = unsafe { self.machine.release(frame) };
                debug_assert!(released.is_ok(), "a reference of ours is gone: {released:?}");
            }
            at = end;
        }
    }

    /// Reads bytes from `at` on, as pread(2): up to the end. Returns how many.
    pub fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let len = self.size().saturating_sub(at).min(into.len() as u64);
        let into = &mut into[..len as usize];
        into.fill(0);
        self.each_part(at..at + len, |part, place| {
            for (byte, into) in part.iter().zip(&mut into[place..]) {
                // Relaxed: as in `clear`.
                *into = byte.load(Ordering::Relaxed);
            }
        });
        len as usize
    }

    /// Writes bytes at `at`, as pwrite(2): makes the object larger if need be.
    ///
    /// # Context
    /// As for [`set_size`](Self::set_size).
    ///
    /// # Errors
    /// [`ObjectError::Sealed`]; [`ObjectError::OutOfMemory`]: a part may have been written.
    /// [`ObjectError::BeyondEnd`].
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), ObjectError> {
        let end = at.checked_add(from.len() as u64).ok_or(ObjectError::BeyondEnd)?;
        if self.is_write_sealed() {
            return Err(ObjectError::Sealed);
        }
        if end > self.size() {
            self.set_size(end)?;
        }
        for index in at / PAGE..end.div_ceil(PAGE) {
            self.bring_in(index)?;
        }
        self.each_part(at..end, |part, place| {
            for (byte, from) in part.iter().zip(&from[place..]) {
                // Relaxed: as in `clear`.
                byte.store(*from, Ordering::Relaxed);
            }
        });
        Ok(())
    }

    /// The seals.
    pub fn seals(&self) -> Seals {
        self.machine.step(Access::Shared);
        // Acquire: pairs with the Release of `add_seals`.
        Seals(self.seals.load(Ordering::Acquire))
    }

    /// Adds seals, as F_ADD_SEALS of fcntl(2).
    ///
    /// # Context
    /// As for [`set_size`](Self::set_size).
    ///
    /// # Errors
    /// [`ObjectError::Sealed`]: no more seals may be added, or a map is writable and WRITE is asked
    /// for. Nothing has changed.
    pub fn add_seals(&self, seals: Seals) -> Result<(), ObjectError> {
        let _locked = lock(&self.machine, &self.changes);
        let old = self.seals();
        if old.intersects(Seals::SEAL) {
            return Err(ObjectError::Sealed);
        }
        self.machine.step(Access::Shared);
        // Release: pairs with `seals`. A map adds itself to the mappings before it looks.
        self.seals.store(old.0 | seals.0, Ordering::Release);
        let new = seals.intersects(Seals::WRITE) && !old.intersects(Seals::WRITE);
        if new && self.mappings.may_write(&self.machine) {
            self.machine.step(Access::Shared);
            // Release: as above.
            self.seals.store(old.0, Ordering::Release);
            return Err(ObjectError::Sealed);
        }
        Ok(())
    }
}

// SAFETY: a frame gets `Owner::User` before it is inserted, and holds only its page. The index
// keeps a reference until `remove_marked`, which comes after `take_back`.
unsafe impl<M: Machine> Object<M> for Shmem<M> {
    fn page(&self, index: u64) -> Result<Frame, ObjectError> {
        if index >= self.limit() {
            return Err(ObjectError::BeyondEnd);
        }
        self.index.hold(index).ok_or(ObjectError::Absent)
    }

    fn bring_in(&self, index: u64) -> Result<(), ObjectError> {
        if index >= self.limit() {
            return Err(ObjectError::BeyondEnd);
        }
        loop {
            match self.index.get(index) {
                Slot::Page(_) => return Ok(()),
                // The page goes in a moment.
                Slot::Going(_) => self.machine.relax(),
                Slot::Absent => break,
            }
        }
        let no_memory = ObjectError::OutOfMemory;
        let frame = self.machine.alloc(0, Place::Local).map_err(no_memory)?;
        // SAFETY: the frame is ours alone.
        let owned = unsafe { self.machine.set_owner(frame, Owner::User) };
        let filled = owned.and_then(|()| zero(&self.machine, frame));
        let inserted = filled.and_then(|()| self.index.insert(index, frame));
        if inserted != Ok(Slot::Page(frame)) {
            // SAFETY: as above.
            let freed = unsafe { self.machine.release(frame) };
            debug_assert!(freed.is_ok(), "a frame of our own has no reference: {freed:?}");
        }
        inserted.map_err(no_memory)?;
        // SeqCst: pairs with the fence in `set_size`.
        fence(Ordering::SeqCst);
        if index >= self.limit() {
            let _locked = lock(&self.machine, &self.changes);
            // It may have become larger again.
            if index >= self.limit() {
                self.take_back(index..index + 1, true);
                return Err(ObjectError::BeyondEnd);
            }
        }
        Ok(())
    }

    fn home(&self) -> *const () {
        Arc::as_ptr(&self.home).cast()
    }

    fn is_current(&self, index: u64, frame: Frame) -> bool {
        index < self.limit() && self.index.get(index) == Slot::Page(frame)
    }

    fn is_present(&self, index: u64) -> bool {
        matches!(self.index.get(index), Slot::Page(_))
    }

    fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    fn remove(&self, pages: Range<u64>) -> Result<(), ObjectError> {
        self.punch_hole(pages.start * PAGE..pages.end * PAGE)
    }

    fn is_write_sealed(&self) -> bool {
        self.seals().intersects(Seals(Seals::WRITE.0 | Seals::FUTURE_WRITE.0))
    }

    fn segment_size(&self) -> Option<usize> {
        self.kind.segment.then(|| self.size() as usize)
    }

    fn device(&self) -> (u32, u32) {
        self.kind.device
    }

    fn inode(&self) -> u64 {
        self.kind.inode
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(&self.kind.path)
    }
}

impl<M: Machine> fmt::Debug for Shmem<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shmem")
            .field("path", &self.kind.path)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
