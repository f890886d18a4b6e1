//! Copies of files of the host in a tree, each at its own path.
//!
//! The links and folders that lead to a file are copied with it, so the path means the same file in
//! the machine. Entries that the tree has already stay, and paths lead through them.

use super::archive::{EntryKind, LeftOut, OURS, Tree, TreeEntry};
use super::walk::Walk;
use std::path::{Path, PathBuf};

/// A path that begins with a slash.
///
/// # Errors
/// It is not UTF-8, or there is no current folder.
pub(super) fn absolute(path: &Path) -> Result<String, String> {
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|error| format!("cannot find {}: {error}", path.display()))?;
    let text = absolute.into_os_string().into_string();
    text.map_err(|path| format!("{} is not UTF-8", Path::new(&path).display()))
}

/// Copies the file or folder at a path, a folder with all its contents. Returns its path in the
/// tree, without links and without a slash at its beginning, and the entries that are left out.
///
/// # Errors
/// It cannot be read.
pub(super) fn copy(tree: &mut Tree, path: &str) -> Result<(String, LeftOut), String> {
    let mut walk = Walk::new(path);
    while let Some(here) = walk.step() {
        if here == OURS {
            return Err(format!("the name /{OURS} is reserved"));
        }
        if tree.get(&here).is_none() {
            let entry = TreeEntry::of_host(Path::new(&format!("/{here}")));
            let cannot = |why: String| format!("cannot read /{here}: {why}");
            let entry = entry.map_err(|error| cannot(error.to_string()))?;
            tree.add(&here, entry.map_err(|why| cannot(why.into()))?);
        }
        match tree.get(&here).map(|entry| &entry.kind) {
            Some(EntryKind::Link(target)) => {
                let many = || format!("cannot read {path}: too many links");
                walk.follow(target).ok_or_else(many)?;
            }
            Some(EntryKind::File(_)) if !walk.is_at_end() => {
                return Err(format!("cannot read {path}: /{here} is not a folder"));
            }
            _ => {}
        }
    }
    let here = walk.place();
    if here.is_empty() {
        return Err("cannot copy all of this host: name a folder of it".into());
    }
    let mut left_out = LeftOut::new();
    if tree.get(&here).is_none_or(|entry| matches!(entry.kind, EntryKind::Folder)) {
        let root = PathBuf::from(format!("/{here}"));
        left_out = tree.read_below(&root, format!("{here}/"))?;
    }
    Ok((here, left_out))
}
