//! An open file description of an object, which a VMA holds.

use alloc::sync::Arc;
use core::fmt;

use machine::Machine;
use paging::{Format, Paging};
use vma::{MappedFile, Placement, VmFlags, Vma};

use crate::{
    Mappings, MemoryPages, Object, ObjectError, Shared,
    object::{device_memory, share},
};

/// An open file description.
struct Description<M: Machine> {
    object: Shared<dyn Object<M>>,
    writable: bool,
    noexec: bool,
}

/// An open file description of an object, which a VMA maps. Clones are the same description; two
/// VMAs merge only if theirs is the same.
///
/// # Misuse
/// Which rights it gives is the host's decision: programs get no more of the object than its pages.
pub struct Backing<M: Machine>(Shared<Description<M>>);

impl<M: Machine> Backing<M> {
    /// Opens the object. If it is not `writable`, its shared maps never become writable. Allocates
    /// once.
    ///
    /// # Errors
    /// [`ObjectError::HeapExhausted`].
    pub fn open(
        object: impl Into<Shared<dyn Object<M>>>,
        writable: bool,
    ) -> Result<Self, ObjectError> {
        share(Description { object: object.into(), writable, noexec: false }).map(Backing)
    }

    /// Opens the object on a mount that forbids execution: its maps never become executable. See
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_noexec(
        object: impl Into<Shared<dyn Object<M>>>,
        writable: bool,
    ) -> Result<Self, ObjectError> {
        share(Description { object: object.into(), writable, noexec: true }).map(Backing)
    }

    /// The object.
    pub fn object(&self) -> &Shared<dyn Object<M>> {
        &self.0.object
    }

    /// Whether a VMA has this page of the object, by this description, at an address.
    pub(crate) fn has_page_at(&self, index: u64, vma: &Vma<Self>, at: usize) -> bool {
        vma.file.as_ref() == Some(self) && vma.offset_at(at) as u64 == index
    }

    /// Whether the object's frames are of the machine of the spaces with this [`Paging`].
    pub(crate) fn is_at_home<F: Format>(&self, paging: &Arc<Paging<M, F>>) -> bool {
        core::ptr::eq(self.0.object.home(), Arc::as_ptr(paging).cast())
    }

    /// Whether it leads to the object with these mappings.
    pub(super) fn is_of(&self, mappings: *const Mappings) -> bool {
        core::ptr::eq(self.0.object.mappings(), mappings)
    }
}

impl<M: Machine> Clone for Backing<M> {
    fn clone(&self) -> Self {
        Backing(self.0.clone())
    }
}

impl<M: Machine> PartialEq for Backing<M> {
    fn eq(&self, other: &Self) -> bool {
        Shared::ptr_eq(&self.0, &other.0)
    }
}

impl<M: Machine> fmt::Debug for Backing<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backing")
            .field("inode", &self.0.object.info().inode)
            .field("writable", &self.0.writable)
            .finish_non_exhaustive()
    }
}

impl<M: Machine> MappedFile for Backing<M> {
    fn writable(&self) -> bool {
        self.0.writable
    }

    fn is_write_sealed(&self) -> bool {
        self.0.object.in_memory().is_some_and(MemoryPages::is_write_sealed)
    }

    fn noexec(&self) -> bool {
        self.0.noexec
    }

    fn acts_anonymous(&self) -> bool {
        self.0.object.info().acts_anonymous
    }

    fn placement(&self) -> Placement {
        self.0.object.info().placement
    }

    fn has_close_hook(&self) -> bool {
        self.segment_size().is_some()
    }

    fn driver_flags(&self) -> VmFlags {
        self.0.object.info().device_memory.map_or(VmFlags::empty(), |_| device_memory::FLAGS)
    }

    fn segment_size(&self) -> Option<usize> {
        self.0.object.in_memory()?.segment_size()
    }

    fn device(&self) -> (u32, u32) {
        self.0.object.info().device
    }

    fn inode(&self) -> u64 {
        self.0.object.info().inode
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.0.object.write_path(out)
    }
}
