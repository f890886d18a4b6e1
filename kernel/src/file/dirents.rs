//! The entries of a folder, as getdents64 shows them: taken at once, when a program reads from the
//! beginning.

use super::budget::Charge;
use super::inode::{FolderEntry, Inode, InodeKind};
use crate::errno::Errno;
use crate::lock::lock;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{ENOENT, ENOMEM, ENOTDIR};

/// The entries of a folder: name, inode number, type.
pub(crate) struct Listing {
    pub(crate) entries: Vec<(Vec<u8>, u64, u8)>,
    _charge: Charge,
}

impl Listing {
    /// Lists a folder.
    ///
    /// # Errors
    /// ENOTDIR; ENOENT: it was removed. ENOMEM.
    pub(super) fn of(node: &Arc<Inode>) -> Result<Listing, Errno> {
        const FOLDER: u8 = 4;
        let parent = node.parent().map_err(|error| match error {
            Errno(ENOTDIR) => error,
            _ => Errno(ENOENT),
        })?;
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut add = |name: &[u8], number, kind| {
            entries.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
            bytes += 64 + name.len();
            entries.push((name.to_vec(), number, kind));
            Ok(())
        };
        add(b".", node.number, FOLDER)?;
        add(b"..", parent.number, FOLDER)?;
        match &node.kind {
            InodeKind::Folder(folder) => {
                // The budget bounds the entries of all folders, so this lock is held for a bounded
                // time.
                let folder = lock(folder);
                for (name, FolderEntry { node, .. }) in &folder.entries {
                    add(name, node.number, node.entry_type())?;
                }
            }
            InodeKind::Proc(entry) => entry.list(&mut add)?,
            _ => return Err(Errno(ENOTDIR)),
        }
        let charge = Charge::new(bytes).map_err(|_| Errno(ENOMEM))?;
        Ok(Listing { entries, _charge: charge })
    }
}
