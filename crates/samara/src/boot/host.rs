//! Copies of files of the host in a tree, each at its own path.
//!
//! The links and folders that lead to a file are copied with it, so the path means the same file in
//! the machine. Entries that the tree has already stay, and paths lead through them.

use super::archive::{Entry, EntryKind, LeftOut, MOST_LINKS, OURS, Tree, words};
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
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

/// Copies what is at a path, a folder with all that is in it. Returns its path in the tree, without
/// links and without a slash at its beginning, and what is left out.
///
/// # Errors
/// It cannot be read.
pub(super) fn copy(tree: &mut Tree, path: &str) -> Result<(String, LeftOut), String> {
    let mut at = Vec::<String>::new();
    let mut todo = VecDeque::from(words(path));
    let mut links = 0;
    while let Some(word) = todo.pop_front() {
        match word.as_str() {
            "" | "." => continue,
            ".." => {
                at.pop();
                continue;
            }
            OURS if at.is_empty() => return Err(format!("the name /{OURS} is reserved")),
            _ => at.push(word),
        }
        let here = at.join("/");
        if tree.get(&here).is_none() {
            let entry = entry(Path::new(&format!("/{here}")))?;
            tree.add(&here, entry);
        }
        match tree.get(&here).map(|entry| &entry.kind) {
            Some(EntryKind::Link(target)) => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(format!("cannot read {path}: too many links"));
                }
                at.pop();
                if target.starts_with('/') {
                    at.clear();
                }
                words(target).into_iter().rev().for_each(|word| todo.push_front(word));
            }
            Some(EntryKind::File(_)) if !todo.is_empty() => {
                return Err(format!("cannot read {path}: /{here} is not a folder"));
            }
            _ => {}
        }
    }
    let here = at.join("/");
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

/// The entry for what the host has at a path.
fn entry(path: &Path) -> Result<Entry, String> {
    let cannot = |why: &str| format!("cannot read {}: {why}", path.display());
    let metadata = path.symlink_metadata().map_err(|error| cannot(&error.to_string()))?;
    let kind = if metadata.is_dir() {
        EntryKind::Folder
    } else if metadata.is_symlink() {
        let target = fs::read_link(path).map_err(|error| cannot(&error.to_string()))?;
        EntryKind::Link(
            target.into_os_string().into_string().map_err(|_| cannot("it is not UTF-8"))?,
        )
    } else if metadata.is_file() {
        EntryKind::File(path.into())
    } else {
        return Err(cannot("it is no file, folder or link"));
    };
    Ok(Entry { kind, mode: metadata.permissions().mode() & 0o7777 })
}
