//! Pseudo files: folders, links and files that are made when a program looks. `/proc` consists of
//! them, and the settings under `/sys` have [`Contents`] of this kind.

use super::dirents::AddEntry;
use super::inode::Inode;
use crate::errno::Errno;
use crate::task::memory::Space;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Reads and writes of a file that is not memory.
pub(crate) trait Contents: Send + Sync {
    /// Reads bytes at a place.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<usize, Errno>;

    /// Writes bytes at a place.
    fn write(&self, at: u64, from: &[u8]) -> Result<usize, Errno>;

    /// The space that it shows as `pagemap`.
    fn pagemap(&self) -> Option<Arc<Space>> {
        None
    }
}

/// The target of a link.
pub(crate) enum Target {
    Path(Vec<u8>),
    /// The inode itself (`/proc/PID/fd`).
    Inode(Arc<Inode>),
}

/// The meaning of a name in `/proc`: a folder, a link or a file, of which nothing is kept.
pub(crate) trait PseudoEntry: Send + Sync {
    /// The type, as in `st_mode`.
    fn file_type(&self) -> u32;

    fn name(&self) -> Vec<u8>;

    /// The folder that it is in.
    fn parent(&self) -> Result<Arc<Inode>, Errno>;

    /// Its entry with this name.
    ///
    /// # Errors
    /// ENOTDIR.
    fn child(&self, name: &[u8]) -> Result<Option<Arc<Inode>>, Errno>;

    /// Calls `add` with the name, the inode number and the type of each entry.
    ///
    /// # Errors
    /// ENOTDIR, ENOMEM; those of `add`.
    fn list(&self, add: &mut AddEntry<'_>) -> Result<(), Errno>;

    /// The target of a link, for the process `own`.
    ///
    /// # Errors
    /// ENOENT: the process has ended.
    fn target(&self, own: u32) -> Result<Target, Errno>;

    /// The text of a link, for readlink.
    ///
    /// # Errors
    /// As [`target`](Self::target).
    fn link_text(&self, own: u32) -> Result<Vec<u8>, Errno>;

    /// The contents for a new description: a text is written now. None for a folder.
    ///
    /// # Errors
    /// EROFS: it is not for writing. ESRCH: the process has ended. ENFILE: no budget. ENOMEM.
    fn open(&self, writes: bool) -> Result<Option<Box<dyn Contents>>, Errno>;
}
