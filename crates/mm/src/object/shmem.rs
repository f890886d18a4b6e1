//! Shared memory in RAM: the objects of memfd_create, SysV shared memory and MAP_SHARED |
//! MAP_ANONYMOUS.
//!
//! Its pages are filled with zeros at their first use (`cache`).

use alloc::{string::String, sync::Arc};
use core::{fmt, ops::Range};

use machine::{Frame, Machine, SharedAccess};
use paging::{Format, Paging};
use spin::Once;

use crate::{
    Commitment, FrameGroup, GroupError, Mappings, MemoryPages, Object, ObjectError, ObjectInfo,
    Seals, Shared,
    fault::zero_page::zero,
    object::cache::{PAGE, PageCache, as_its_pages},
    object::seals::SealWord,
    object::{share, text},
};

/// The name of a [`Shmem`] in listings, and its kind.
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
/// let memory = Shmem::memfd(&paging, "name", 7)?;
/// memory.set_size(8192)?;
/// let file = Backing::open(memory.clone(), true)?;
/// let at = space.mmap_object(0, 8192, 3, MapFlags::SHARED, file, 0)?;
/// space.write(at + 4096, b"hello").unwrap();
/// let mut found = [0; 5];
/// memory.read(4096, &mut found);
/// assert_eq!(&found, b"hello");
/// # Ok::<(), Error>(())
/// # }).unwrap();
/// ```
pub struct Shmem<M: Machine> {
    pages: PageCache<M>,
    seals: SealWord,
    path: String,
    is_segment: bool,
    info: ObjectInfo,
    /// Where its size is promised, if it is.
    commitment: Once<Shared<Commitment<M>>>,
}

impl<M: Machine> Shmem<M> {
    /// An object of no bytes, for address spaces with this [`Paging`]. Allocates once.
    ///
    /// # Errors
    /// [`ObjectError::HeapExhausted`].
    pub fn try_new<F: Format>(
        paging: &Arc<Paging<M, F>>,
        kind: ShmemKind,
    ) -> Result<Shared<Self>, ObjectError> {
        let ShmemKind { path, inode, device, segment: is_segment } = kind;
        let (pages, seals) = (PageCache::new(paging), SealWord::new());
        let info = ObjectInfo::new(device, inode);
        share(Shmem { pages, seals, path, is_segment, info, commitment: Once::new() })
    }

    /// As memfd_create(2) makes it.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new).
    pub fn memfd<F: Format>(
        paging: &Arc<Paging<M, F>>,
        name: &str,
        inode: u64,
    ) -> Result<Shared<Self>, ObjectError> {
        let path = text(format_args!("/memfd:{name} (deleted)"))?;
        Shmem::try_new(paging, ShmemKind { path, inode, device: (0, 1), segment: false })
    }

    /// A segment of SysV shared memory, as shmget(2) makes it.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new) and [`set_size`](Self::set_size).
    pub fn segment<F: Format>(
        paging: &Arc<Paging<M, F>>,
        key: u32,
        id: u64,
        size: u64,
    ) -> Result<Shared<Self>, ObjectError> {
        let path = text(format_args!("/SYSV{key:08x} (deleted)"))?;
        let kind = ShmemKind { path, inode: id, device: (0, 1), segment: true };
        let memory = Shmem::try_new(paging, kind)?;
        memory.set_size(size)?;
        Ok(memory)
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.pages.size()
    }

    /// Pages that come from now on count for a group. Later calls change nothing.
    ///
    /// # Errors
    /// [`GroupError::Foreign`].
    pub fn set_group(&self, group: &Shared<FrameGroup<M>>) -> Result<(), GroupError> {
        self.pages.set_group(group)
    }

    /// Promises memory for the whole size, from now on: so Linux does it for shared anonymous
    /// memory and for segments, unless they say NORESERVE. Later calls change nothing.
    ///
    /// # Context
    /// As for [`set_size`](Self::set_size).
    ///
    /// # Errors
    /// [`ObjectError::Overcommit`]; nothing has changed.
    pub fn set_commitment(&self, commitment: &Shared<Commitment<M>>) -> Result<(), ObjectError> {
        let _locked = self.pages.lock();
        if self.commitment.is_completed() {
            return Ok(());
        }
        if !commitment.charge(promised(self.size())) {
            return Err(ObjectError::Overcommit);
        }
        self.commitment.call_once(|| commitment.clone());
        Ok(())
    }

    /// Sets the size, as ftruncate(2). Pages beyond it go, from all spaces, with the copies that
    /// private maps made. The rest of the last page becomes zeros.
    ///
    /// # Context
    /// With nothing held; waits for the spaces that map it.
    ///
    /// # Errors
    /// [`ObjectError::Sealed`]; [`ObjectError::BeyondEnd`]: larger than objects can be;
    /// [`ObjectError::Overcommit`]. Nothing has changed.
    pub fn set_size(&self, bytes: u64) -> Result<(), ObjectError> {
        self.pages.set_size(bytes, |old| {
            let seals = self.seals();
            let sealed = (bytes < old && seals.intersects(Seals::SHRINK))
                || (bytes > old && seals.intersects(Seals::GROW));
            match sealed {
                true => Err(ObjectError::Sealed),
                false => promise(self.commitment.get(), old, bytes),
            }
        })
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
        let _locked = self.pages.lock();
        if self.is_write_sealed() {
            return Err(ObjectError::Sealed);
        }
        self.pages.punch_hole(bytes);
        Ok(())
    }

    /// Reads bytes from `at` on, as pread(2): up to the end. Returns how many.
    pub fn read(&self, at: u64, into: &mut [u8]) -> usize {
        self.pages.read(at, into)
    }

    /// Writes bytes at `at`, as pwrite(2): makes the object larger if need be. Returns how many: it
    /// stops early where a page cannot be written. Each page is written in one step.
    ///
    /// # Context
    /// As for [`set_size`](Self::set_size).
    ///
    /// # Errors
    /// [`ObjectError::Sealed`], [`ObjectError::OutOfMemory`], [`ObjectError::GroupLimit`],
    /// [`ObjectError::Overcommit`], [`ObjectError::BeyondEnd`]. Nothing has been written.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<usize, ObjectError> {
        at.checked_add(from.len() as u64).ok_or(ObjectError::BeyondEnd)?;
        let may = |old: u64, new: u64, now: bool| {
            // No seal comes between the second look and the copy.
            let sealed = self.is_write_sealed();
            if sealed || new > old && self.seals.get().intersects(Seals::GROW) {
                return Err(ObjectError::Sealed);
            }
            // One look: it may be set between two.
            let commitment = self.commitment.get();
            promise(commitment, old, new)?;
            if now { Ok(()) } else { promise(commitment, new, old) }
        };
        let mut done = 0;
        while done < from.len() {
            let here = at + done as u64;
            let part = from.len() - done;
            let part = part.min((PAGE - here % PAGE) as usize);
            match self.pages.write_page(here, &from[done..done + part], may) {
                Ok(()) => done += part,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// The seals.
    pub fn seals(&self) -> Seals {
        self.pages.machine.step(SharedAccess::Other);
        self.seals.get()
    }

    /// Adds seals, as F_ADD_SEALS of fcntl(2).
    ///
    /// # Context
    /// As for [`set_size`](Self::set_size).
    ///
    /// # Errors
    /// [`ObjectError::Sealed`]: no more seals may be added; or WRITE is asked for, and a map is
    /// writable or a page stays pinned for more than a moment. Nothing has changed.
    pub fn add_seals(&self, seals: Seals) -> Result<(), ObjectError> {
        let _locked = self.pages.lock();
        self.seals.add(&self.pages.machine, seals, || {
            // Once no map may write, no pin for writing is taken any more.
            self.pages.mappings.may_write(&self.pages.machine) || self.pages.index.stays_pinned()
        })
    }
}

// SAFETY: a frame gets `Owner::User` before it is inserted, and holds only its page. The index
// keeps a reference until the page has been taken back. The cache keeps the `Paging` alive.
unsafe impl<M: Machine> Object<M> for Shmem<M> {
    as_its_pages!();

    fn bring_in(&self, index: u64) -> Result<(), ObjectError> {
        self.pages.bring_in(index)
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(&self.path)
    }

    fn in_memory(&self) -> Option<&dyn MemoryPages> {
        Some(self)
    }
}

impl<M: Machine> MemoryPages for Shmem<M> {
    fn fill(
        &self,
        index: u64,
        fill: &dyn Fn(Frame) -> Result<(), ObjectError>,
        map: &mut dyn FnMut(Frame, &dyn Fn() -> bool),
    ) -> Result<bool, ObjectError> {
        let filled = |frame| {
            // Bytes that `fill` leaves out are not those of another program.
            zero(&self.pages.machine, frame).map_err(ObjectError::OutOfMemory)?;
            fill(frame)
        };
        let may = || match self.seals.get().intersects(Seals::WRITE) {
            true => Err(ObjectError::Sealed),
            false => Ok(()),
        };
        self.pages.fill(index, filled, may, map)
    }

    fn bring_in_when(
        &self,
        index: u64,
        may: &mut dyn FnMut(&dyn Fn() -> bool),
    ) -> Result<(), ObjectError> {
        self.pages.bring_in_when(index, may)
    }

    fn remove(&self, pages: Range<u64>) -> Result<(), ObjectError> {
        self.punch_hole(pages.start.saturating_mul(PAGE)..pages.end.saturating_mul(PAGE))
    }

    fn is_write_sealed(&self) -> bool {
        self.seals.get().forbid_writing()
    }

    fn admits_writes(&self) -> bool {
        self.seals.admit_writes()
    }

    fn segment_size(&self) -> Option<usize> {
        self.is_segment.then(|| self.size() as usize)
    }
}

/// The bytes of memory for an object of this size.
fn promised(bytes: u64) -> usize {
    usize::try_from(bytes.next_multiple_of(PAGE)).unwrap_or(usize::MAX)
}

/// Promises what a new size needs more, or gives back what it needs less.
fn promise<M: Machine>(
    commitment: Option<&Shared<Commitment<M>>>,
    old: u64,
    new: u64,
) -> Result<(), ObjectError> {
    let Some(commitment) = commitment else { return Ok(()) };
    let (old, new) = (promised(old), promised(new));
    match new.checked_sub(old) {
        Some(0) => {}
        Some(more) if !commitment.charge(more) => return Err(ObjectError::Overcommit),
        Some(_) => {}
        None => commitment.settle(-((old - new) as isize)),
    }
    Ok(())
}

impl<M: Machine> Drop for Shmem<M> {
    fn drop(&mut self) {
        if let Some(commitment) = self.commitment.get() {
            commitment.settle(-(promised(self.pages.size()) as isize));
        }
    }
}

impl<M: Machine> fmt::Debug for Shmem<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shmem")
            .field("path", &self.path)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
