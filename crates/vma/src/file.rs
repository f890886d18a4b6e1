//! What a VMA needs to know of the file behind it. The host brings its own type.

use core::fmt;

/// A mapped file, as the host sees it: an *open file description*, not an inode. Two VMAs of the
/// same file merge only if [`PartialEq`] says that both came from the same open.
///
/// Cloning must be cheap (a reference count): each piece of a split VMA holds one. None of the
/// methods may block or call back into an address space; they are called with its lock held.
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
    /// Opened for writing: a shared map of it may become writable.
    fn writable(&self) -> bool;

    /// On a mount that forbids execution.
    fn noexec(&self) -> bool {
        false
    }

    /// How the file wants its maps placed.
    fn placement(&self) -> Placement {
        Placement::Pages
    }

    /// Its VMAs carry a hook that runs when they close (SysV shared memory), so that no merge may
    /// swallow one.
    fn has_close_hook(&self) -> bool {
        false
    }

    /// Maps of it that nobody can write to in common behave as anonymous memory (`/dev/zero`).
    fn acts_anonymous(&self) -> bool {
        false
    }

    /// Size in bytes of a SysV shared memory segment; `None` for anything else.
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
    /// Anywhere, page by page.
    Pages,
    /// So that 2 MiB of it can be one huge page, where the map contains that much (ext4, xfs,
    /// btrfs, fuse, erofs).
    HugeAligned,
    /// So that a huge page of it lies at a huge address, where that can be had by moving up what
    /// was found for a single page (tmpfs with huge pages).
    HugeIfRoom,
    /// hugetlbfs: length and address are multiples of this many bytes, a power of two.
    HugeOnly(usize),
    /// The driver decides; address choice cannot be foretold.
    Driver,
}
