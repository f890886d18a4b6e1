//! Changes of folders.
//!
//! One lock serializes them. So a change may look at several folders, one after another, and they
//! stay as it has seen them. Walks do not take it: a rename adds the new name before it removes the
//! old one, so a walk finds the inode by one of them.

use super::inode::{CHANGED, Folder, FolderEntry, Inode, InodeKind, WRITTEN};
use crate::errno::Errno;
use crate::lock::lock;
use crate::path::Found;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{
    EBUSY, EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, EXDEV,
};
use spin::Once;
use spin::mutex::{SpinMutex, SpinMutexGuard};

static ROOT: Once<Arc<Inode>> = Once::new();
static CHANGES: SpinMutex<()> = SpinMutex::new(());

/// The folder at the top.
pub(crate) fn root() -> &'static Arc<Inode> {
    ROOT.get().expect("it is made before the first program")
}

/// Makes the root.
pub(super) fn start() -> Result<(), Errno> {
    let root = Inode::root()?;
    ROOT.call_once(|| root);
    Ok(())
}

/// The lock of a folder's contents.
fn contents(node: &Inode) -> Result<SpinMutexGuard<'_, Folder>, Errno> {
    match &node.kind {
        InodeKind::Folder(folder) => Ok(lock(folder)),
        // Nothing can be made in /proc.
        InodeKind::Proc(_) => Err(Errno(ENOENT)),
        _ => Err(Errno(ENOTDIR)),
    }
}

/// Adds an inode that is in no folder yet.
///
/// # Errors
/// EEXIST; ENOENT: the folder was removed, or is in `/proc`. ENOSPC. Nothing has changed.
pub(crate) fn insert(parent: &Arc<Inode>, name: &[u8], node: &Arc<Inode>) -> Result<(), Errno> {
    let _changes = lock(&CHANGES);
    add(parent, name, node)?;
    if node.is_folder() {
        // Relaxed: changes have the lock; others only show it.
        parent.links.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn add(parent: &Inode, name: &[u8], node: &Arc<Inode>) -> Result<(), Errno> {
    let entry = FolderEntry::new(name, node)?;
    let mut folder = contents(parent)?;
    if folder.removed {
        return Err(Errno(ENOENT));
    }
    if folder.entries.contains_key(name) {
        return Err(Errno(EEXIST));
    }
    folder.entries.insert(name.to_vec(), entry);
    drop(folder);
    parent.touch(&[WRITTEN, CHANGED]);
    Ok(())
}

/// Adds another name of an inode: link(2).
///
/// # Errors
/// EPERM: a folder. ENOENT: it has no name any more. Those of [`insert`].
pub(crate) fn link(parent: &Arc<Inode>, name: &[u8], node: &Arc<Inode>) -> Result<(), Errno> {
    let _changes = lock(&CHANGES);
    if node.is_folder() {
        return Err(Errno(EPERM));
    }
    if matches!(node.kind, InodeKind::Proc(_)) {
        return Err(Errno(EXDEV));
    }
    // Relaxed: as above.
    if node.links.load(Ordering::Relaxed) == 0 {
        return Err(Errno(ENOENT));
    }
    add(parent, name, node)?;
    node.links.fetch_add(1, Ordering::Relaxed);
    node.touch(&[CHANGED]);
    Ok(())
}

/// Checks that a folder may go, and forbids additions to it.
fn retire(node: &Inode) -> Result<(), Errno> {
    if let InodeKind::Folder(folder) = &node.kind {
        let mut folder = lock(folder);
        if !folder.entries.is_empty() {
            return Err(Errno(ENOTEMPTY));
        }
        // The root has no parent.
        if folder.parent.strong_count() == 0 {
            return Err(Errno(EBUSY));
        }
        folder.removed = true;
    }
    Ok(())
}

/// An inode has lost a name.
fn unlinked(parent: &Inode, node: &Inode) {
    // Relaxed: as above.
    if node.is_folder() {
        node.links.store(0, Ordering::Relaxed);
        parent.links.fetch_sub(1, Ordering::Relaxed);
    } else {
        node.links.fetch_sub(1, Ordering::Relaxed);
    }
    node.touch(&[CHANGED]);
    parent.touch(&[WRITTEN, CHANGED]);
}

/// Removes an entry: unlink(2), or rmdir(2) if `folder`.
///
/// # Errors
/// ENOENT, EISDIR, ENOTDIR, ENOTEMPTY, EBUSY, EINVAL, EPERM. Nothing has changed.
pub(crate) fn remove(found: &Found, folder: bool) -> Result<(), Errno> {
    match (folder, &found.name[..]) {
        (true, b".") => return Err(Errno(EINVAL)),
        (true, b"..") => return Err(Errno(ENOTEMPTY)),
        (true, b"") => return Err(Errno(EBUSY)),
        (false, b"" | b"." | b"..") => return Err(Errno(EISDIR)),
        _ => {}
    }
    let parent = &found.parent;
    let _changes = lock(&CHANGES);
    if matches!(parent.kind, InodeKind::Proc(_)) {
        return Err(Errno(if found.node.is_some() { EPERM } else { ENOENT }));
    }
    let node = parent.child(&found.name)?.ok_or(Errno(ENOENT))?;
    match (folder, node.is_folder()) {
        (true, false) => return Err(Errno(ENOTDIR)),
        (false, true) => return Err(Errno(EISDIR)),
        (false, false) if found.folder => return Err(Errno(ENOTDIR)),
        _ => {}
    }
    if matches!(node.kind, InodeKind::Proc(_)) {
        return Err(Errno(EBUSY));
    }
    retire(&node)?;
    let gone = contents(parent)?.entries.remove(&found.name);
    unlinked(parent, &node);
    // With its name gone, `node` drops it.
    drop(gone);
    Ok(())
}

/// The treatment of an entry that already has the new name (renameat2(2)).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    Replace,
    Refuse,
    Exchange,
}

/// Renames an entry.
///
/// # Errors
/// Those of rename(2). Nothing has changed.
pub(crate) fn rename(from: &Found, to: &Found, existing: Existing) -> Result<(), Errno> {
    if !from.is_entry() || !to.is_entry() {
        return Err(Errno(EBUSY));
    }
    let _changes = lock(&CHANGES);
    let parents = [&from.parent, &to.parent];
    if parents.iter().any(|parent| matches!(parent.kind, InodeKind::Proc(_))) {
        return Err(Errno(if from.node.is_none() { ENOENT } else { EXDEV }));
    }
    let node = from.parent.child(&from.name)?.ok_or(Errno(ENOENT))?;
    let old = to.parent.child(&to.name)?;
    if (from.folder || to.folder) && !node.is_folder() {
        return Err(Errno(ENOTDIR));
    }
    if matches!(node.kind, InodeKind::Proc(_))
        || old.as_ref().is_some_and(|old| matches!(old.kind, InodeKind::Proc(_)))
    {
        return Err(Errno(EBUSY));
    }
    if is_within(&to.parent, &node)? {
        return Err(Errno(EINVAL));
    }
    let entry = FolderEntry::new(&to.name, &node)?;
    match (&old, existing) {
        (None, Existing::Exchange) => return Err(Errno(ENOENT)),
        (Some(_), Existing::Refuse) => return Err(Errno(EEXIST)),
        (Some(old), _) if Arc::ptr_eq(old, &node) => return Ok(()),
        (Some(old), Existing::Exchange) => {
            if is_within(&from.parent, old)? {
                return Err(Errno(EINVAL));
            }
        }
        (Some(old), _) => match (node.is_folder(), old.is_folder()) {
            (true, false) => return Err(Errno(ENOTDIR)),
            (false, true) => return Err(Errno(EISDIR)),
            // A folder that contains the other one is not empty.
            _ => retire(old)?,
        },
        (None, _) => {}
    }
    let exchanged = match (&old, existing) {
        (Some(old), Existing::Exchange) => Some(FolderEntry::new(&from.name, old)?),
        _ => None,
    };
    {
        let mut folder = contents(&to.parent)?;
        if folder.removed {
            return Err(Errno(ENOENT));
        }
        let replaced = folder.entries.insert(to.name.clone(), entry);
        drop(folder);
        drop(replaced);
    }
    moved(&node, &from.parent, &to.parent);
    match (&old, exchanged) {
        (Some(old), Some(entry)) => {
            let replaced = contents(&from.parent)?.entries.insert(from.name.clone(), entry);
            drop(replaced);
            moved(old, &to.parent, &from.parent);
        }
        (old, _) => {
            let gone = contents(&from.parent)?.entries.remove(&from.name);
            drop(gone);
            if let Some(old) = old {
                unlinked(&to.parent, old);
            }
        }
    }
    node.touch(&[CHANGED]);
    parents.iter().for_each(|parent| parent.touch(&[WRITTEN, CHANGED]));
    Ok(())
}

/// An inode has moved: a folder has another parent.
fn moved(node: &Arc<Inode>, from: &Arc<Inode>, to: &Arc<Inode>) {
    if let InodeKind::Folder(folder) = &node.kind
        && !Arc::ptr_eq(from, to)
    {
        lock(folder).parent = Arc::downgrade(to);
        // Relaxed: as above.
        from.links.fetch_sub(1, Ordering::Relaxed);
        to.links.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether a folder is another one, or is within it.
fn is_within(folder: &Arc<Inode>, other: &Arc<Inode>) -> Result<bool, Errno> {
    let mut here = Arc::clone(folder);
    loop {
        if Arc::ptr_eq(&here, other) {
            return Ok(true);
        }
        let parent = here.parent()?;
        if Arc::ptr_eq(&parent, &here) {
            return Ok(false);
        }
        here = parent;
    }
}
