//! The interface between a VMA and the file that it maps. The host brings its own file type.

use core::fmt;

use crate::VmFlags;

/// A mapped file. It stands for an *open file description*, not for an inode: two VMAs of the same
/// file merge only if [`PartialEq`] says that both came from the same open.
///
/// Cloning must be cheap (a reference count), because each piece of a split VMA holds a clone. No
/// method may block or call into an address space: they are called with its lock held.
///
/// ```
/// use vma::MappedFile;
///
/// #[derive(Clone, PartialEq)]
/// struct Disk(u64);
///
/// impl MappedFile for Disk {
///     fn writable(&self) -> bool { true }
///     fn device(&self) -> (u32, u32) { (8, 1) }
///     fn inode(&self) -> u64 { self.0 }
///     fn write_path(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
///         write!(out, "/disk/{}", self.0)
///     }
/// }
/// assert!(!Disk(7).has_close_hook());
/// ```
pub trait MappedFile: Clone + PartialEq + Send + Sync + 'static {
    /// Whether the file was opened for writing, so that a shared map of it may become writable.
    fn writable(&self) -> bool;

    /// Whether a seal forbids new shared maps that may be written: then one for reading never
    /// becomes writable.
    fn is_write_sealed(&self) -> bool {
        false
    }

    /// Whether the file's mount forbids execution.
    fn noexec(&self) -> bool {
        false
    }

    /// How the file wants its maps placed.
    fn placement(&self) -> Placement {
        Placement::Pages
    }

    /// Whether its VMAs have a close hook, as SysV shared memory does. Such a VMA is never merged
    /// into a neighbour.
    fn has_close_hook(&self) -> bool {
        false
    }

    /// Whether maps of it that are not writable shared maps behave as anonymous memory
    /// (`/dev/zero`).
    fn acts_anonymous(&self) -> bool {
        false
    }

    /// Flags that its driver adds to each map of it, such as IO and PFNMAP for the memory of a
    /// device.
    fn driver_flags(&self) -> VmFlags {
        VmFlags::empty()
    }

    /// The size in bytes of a SysV shared memory segment; `None` for any other file.
    fn segment_size(&self) -> Option<usize> {
        None
    }

    /// Major and minor device number, for the listing.
    fn device(&self) -> (u32, u32);

    /// Inode number, for the listing.
    fn inode(&self) -> u64;

    /// Writes the path as the listing shows it.
    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// How a file wants its maps placed.
///
/// ```
/// use vma::Placement;
/// assert_ne!(Placement::HugeAligned, Placement::HugeOnly(2 << 20));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// At any page boundary.
    Pages,
    /// Aligned for 2 MiB huge pages, if the map contains a whole one (ext4, xfs, btrfs, fuse,
    /// erofs).
    HugeAligned,
    /// As tmpfs with huge pages places maps: first a place for single pages. If huge pages are not
    /// aligned there, a larger range and an aligned address in it, if there is room.
    HugeIfRoom,
    /// hugetlbfs: length and address are multiples of this size in bytes, a power of two.
    HugeOnly(usize),
    /// The driver chooses the address, so it cannot be predicted.
    Driver,
}

/// The file of an address space without files.
///
/// ```
/// # use vma::*;
/// let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// assert!(space.get_mut().mmap(MapRequest::anonymous(0x4000, 3)).is_ok());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoFile {}

impl MappedFile for NoFile {
    fn writable(&self) -> bool {
        match *self {}
    }

    fn device(&self) -> (u32, u32) {
        match *self {}
    }

    fn inode(&self) -> u64 {
        match *self {}
    }

    fn write_path(&self, _: &mut dyn fmt::Write) -> fmt::Result {
        match *self {}
    }
}
