//! Objects: the memory behind each map that is not private anonymous memory.
//!
//! A VMA of an object holds a [`Backing`](crate::Backing): an open file description, which leads to
//! the [`Object`]. A fault asks the object for the frame of a page, without a lock; a shared map
//! gets that frame itself, a private one a copy at the first write.
//!
//! # Taking a page back
//! A page may leave an object while programs use it: the file was truncated, or a hole punched. The
//! object marks the page first, so that [`Object::is_current`] says no. Then it removes the page
//! from every space that maps it ([`Mappings::take_back`]). A fault asks `is_current` with the
//! table's lock held, and the removal takes the same lock: so either the fault sees the mark, or
//! the removal sees the fault's entry. It is the argument of [`crate::protocol`], with the mark in
//! the place of the VMA.
//!
//! # Where things are
//!
//! | module | contents |
//! |---|---|
//! | `backing` | the open file description of an object, which a VMA holds |
//! | `shmem`, `seals`, `read_write` | memfd and shared memory: sizes and holes, seals, reads and writes |
//! | `file`, `cache` | files, read-ahead and write-back; code shared with `shmem` |
//! | `page_index`, `radix` | the pages in memory, read and filled without a lock |
//! | `mappings`, `mapped_objects` | the way back to the spaces that map an object |
//! | `device_memory` | the memory of devices |

pub(crate) mod backing;
pub(crate) mod cache;
pub(crate) mod device_memory;
pub(crate) mod file;
pub(crate) mod mapped_objects;
pub(crate) mod mappings;
pub(crate) mod page_index;
mod radix;
mod read_write;
pub(crate) mod seals;
pub(crate) mod shmem;

use alloc::string::String;
use core::{fmt, ops::Range};

use machine::{Frame, Machine};
use paging::Cache;
use vma::Placement;

use crate::{
    Mappings, Shared,
    error::ObjectError,
    fault::frame_ref::{Reference, is_counted},
};

impl<M: Machine, O: Object<M> + 'static> From<Shared<O>> for Shared<dyn Object<M>> {
    fn from(object: Shared<O>) -> Self {
        // SAFETY: it is coerced only.
        unsafe { object.coerce(|inner| inner as *mut _) }
    }
}

/// An object or a description, with one user.
pub(crate) fn share<T>(value: T) -> Result<Shared<T>, ObjectError> {
    Shared::try_new(value).map_err(|_| ObjectError::HeapExhausted)
}

/// Memory that address spaces map: a file, or memory that programs share. Pages are counted from
/// its start, in units of 4 KiB.
///
/// # Safety
/// Programs get the frames. So:
/// - [`page`](Self::page) returns a frame with [`Owner::User`](machine::Owner::User) that holds
///   nothing but this page, and a reference to it for the caller. If it is the memory of a device
///   ([`ObjectInfo::device_memory`]), the frame is no memory of the frame source instead, and
///   programs may use it. With swap, its number stands for no slot ([`paging::Swap`]).
/// - The frame that [`MemoryPages::fill`] passes on is such a frame, and a page of the object with
///   a reference for an entry once the function for it has said `true`.
/// - The frames are of the machine of [`home`](Self::home), which lives as long as the object.
/// - The object keeps a reference of its own for as long as `is_current` may say yes. It drops that
///   reference after [`Mappings::take_back`] has returned.
pub unsafe trait Object<M: Machine>: Send + Sync + 'static {
    /// The address of the [`Paging`](paging::Paging) of the spaces that may map it.
    fn home(&self) -> *const ();

    /// The frame of a page, with a reference for the caller. Called with a guard held: takes no
    /// lock that is held while another CPU is waited for, and does not allocate.
    ///
    /// # Errors
    /// [`ObjectError::Absent`]: the caller drops everything, calls
    /// [`bring_in`](Self::bring_in), and asks again. [`ObjectError::BeyondEnd`].
    fn page(&self, index: u64) -> Result<Frame, ObjectError>;

    /// Brings a page into memory. Called with nothing held: it may allocate, and wait.
    ///
    /// # Errors
    /// [`ObjectError`], but not `Absent`.
    fn bring_in(&self, index: u64) -> Result<(), ObjectError>;

    /// Whether the frame is still that of the page, and is not being taken back. Called with a
    /// table's lock held: only loads.
    fn is_current(&self, index: u64, frame: Frame) -> bool;

    /// Whether the page is in memory (mincore). Called with a guard held.
    fn is_present(&self, index: u64) -> bool;

    /// Where the object is mapped.
    fn mappings(&self) -> &Mappings;

    /// Whether the page lies beyond the end. Takes no reference. Called with a guard held.
    fn is_beyond_end(&self, index: u64) -> bool;

    /// The properties that never change. A load: faults ask for it.
    fn info(&self) -> &ObjectInfo;

    /// Writes the path as the listing shows it.
    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result;

    /// The operations of an object that keeps its pages elsewhere, and in memory as long as they
    /// are used. Always the same.
    #[inline]
    fn cached(&self) -> Option<&dyn CachedPages> {
        None
    }

    /// The operations of an object that has its pages in memory only. Always the same.
    #[inline]
    fn in_memory(&self) -> Option<&dyn MemoryPages> {
        None
    }
}

/// The properties of an [`Object`] that never change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// Major and minor device number, for the listing.
    pub device: (u32, u32),
    /// Inode number, for the listing.
    pub inode: u64,
    /// How its maps are placed.
    pub placement: Placement,
    /// Whether private maps of it behave as anonymous memory (`/dev/zero`). Its pages are zeros
    /// then.
    pub acts_anonymous: bool,
    /// The memory type, if it is the memory of a device: its frames are no memory of the frame
    /// source, hold no references, and are mapped by shared maps only.
    pub device_memory: Option<Cache>,
}

impl ObjectInfo {
    /// The properties of an ordinary file, with these numbers.
    pub const fn new(device: (u32, u32), inode: u64) -> ObjectInfo {
        ObjectInfo {
            device,
            inode,
            placement: Placement::Pages,
            acts_anonymous: false,
            device_memory: None,
        }
    }
}

/// The operations of an [`Object`] that keeps its pages elsewhere: a file.
///
/// Shared maps of its pages are read-only until a write faults, and again after
/// [`Mappings::clean`], so that the object knows which pages are written. Pins for writing go on to
/// write without a fault: an object that cleans a page looks for pins of its frame afterwards
/// ([`FrameInfo::pins`](machine::FrameInfo::pins)), with a SeqCst fence before.
pub trait CachedPages {
    /// A shared map is about to write to the page. Called with a table's lock held: only atomics.
    fn dirtied(&self, index: u64, frame: Frame);

    /// Writes the changed pages of a range to where the object keeps them, and waits (msync).
    /// Called with nothing held.
    ///
    /// # Errors
    /// [`ObjectError::Failed`].
    fn sync(&self, pages: Range<u64>) -> Result<(), ObjectError>;

    /// A space has unmapped the page, which it has not used for a while. The object may give it up,
    /// if no other space maps it and it can bring the page in again. Returns whether it has. Called
    /// with nothing held. By default it has not.
    fn evict(&self, index: u64) -> bool {
        let _ = index;
        false
    }

    /// A program will soon use the pages of a range (MADV_WILLNEED): the object may bring them in.
    /// Called with nothing held. By default there is nothing to do.
    fn will_need(&self, pages: Range<u64>) {
        let _ = pages;
    }
}

/// The operations of an [`Object`] that has its pages in memory only: shared memory.
///
/// # Misuse
/// A `fill` that does nothing leaves zeros. A `map` that calls its function twice puts the page in
/// once, and the function says so. A reference that belongs to no entry is lost.
pub trait MemoryPages {
    /// Frees the pages of a range: they read as zeros afterwards (MADV_REMOVE). Called with nothing
    /// held.
    ///
    /// # Errors
    /// [`ObjectError::Sealed`].
    fn remove(&self, pages: Range<u64>) -> Result<(), ObjectError>;

    /// Puts a new page in, filled by `fill`, where there is none, at the moment when it is mapped
    /// (UFFDIO_COPY). Returns whether it went in. Called with nothing held.
    ///
    /// `map` gets the page's frame, and the function that puts the page in. It calls that with the
    /// lock of the entry's table held. If the answer is `true`, it stores the entry, to which a
    /// reference belongs from then on. `map` may be called several times; the answer is `true` once
    /// at most.
    ///
    /// # Errors
    /// [`ObjectError::Sealed`]; those of `fill`, and of [`Object::bring_in`].
    fn fill(
        &self,
        index: u64,
        fill: &dyn Fn(Frame) -> Result<(), ObjectError>,
        map: &mut dyn FnMut(Frame, &dyn Fn() -> bool),
    ) -> Result<bool, ObjectError>;

    /// As [`Object::bring_in`], at the moment at which `may` lets the page in, or not at all: `may`
    /// gets the function that puts the page in, and calls it once at most, with the lock of a table
    /// held. So no fault brings a page in that is a monitor's by then.
    ///
    /// # Errors
    /// As [`Object::bring_in`].
    fn bring_in_when(
        &self,
        index: u64,
        may: &mut dyn FnMut(&dyn Fn() -> bool),
    ) -> Result<(), ObjectError>;

    /// Whether a seal forbids a new shared map that may be written. By default there are no seals.
    fn is_write_sealed(&self) -> bool {
        false
    }

    /// A new shared map that may be written is about to be stored, and is in the list of
    /// [`Object::mappings`]. Returns whether no seal forbids it. A seal that is being decided
    /// fails, because of this map.
    fn admits_writes(&self) -> bool {
        !self.is_write_sealed()
    }

    /// The size in bytes, if it is a segment of SysV shared memory. By default it is none.
    fn segment_size(&self) -> Option<usize> {
        None
    }
}

/// A text in memory of its own.
pub(crate) fn text(parts: fmt::Arguments<'_>) -> Result<String, ObjectError> {
    struct Text(String);

    impl fmt::Write for Text {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0.try_reserve(part.len()).map_err(|_| fmt::Error)?;
            self.0.push_str(part);
            Ok(())
        }
    }

    let mut text = Text(String::new());
    fmt::write(&mut text, parts).map_err(|_| ObjectError::HeapExhausted)?;
    Ok(text.0)
}

/// A page of an object, with a reference to its frame.
pub(crate) struct HeldPage<'a, M: Machine> {
    object: &'a dyn Object<M>,
    index: u64,
    frame: Frame,
    /// None for the frame of a device.
    reference: Option<Reference<'a, M>>,
}

impl<'a, M: Machine> HeldPage<'a, M> {
    pub(crate) fn get(
        machine: &'a M,
        object: &'a dyn Object<M>,
        index: u64,
    ) -> Result<Self, ObjectError> {
        let frame = object.page(index)?;
        // SAFETY: the object takes this reference for us.
        let reference =
            is_counted(machine, frame).then(|| unsafe { Reference::new(machine, frame) });
        Ok(HeldPage { object, index, frame, reference })
    }

    pub(crate) fn frame(&self) -> Frame {
        self.frame
    }

    pub(crate) fn is_current(&self) -> bool {
        self.object.is_current(self.index, self.frame())
    }

    /// A shared map is about to write to the page.
    pub(crate) fn dirtied(&self) {
        if let Some(cached) = self.object.cached() {
            cached.dirtied(self.index, self.frame());
        }
    }

    pub(crate) fn counts_writes(&self) -> bool {
        self.object.cached().is_some()
    }

    /// The reference is an entry's from now on.
    pub(crate) fn mapped(self) {
        self.reference.map(Reference::keep);
    }
}
