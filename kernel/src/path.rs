//! Paths: from a name to an inode.
//!
//! A walk goes component by component, without recursion. A symbolic link puts its target in front
//! of what is left, and at most [`LINKS`] links are followed. So a walk ends, and its memory is
//! bounded by that many targets.

use crate::errno::Errno;
use crate::file::inode::{Inode, InodeKind};
use crate::file::pseudo::Target;
use crate::file::tree;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{ELOOP, ENAMETOOLONG, ENOENT, ENOMEM, ENOTDIR};

/// The most links that a walk follows.
const LINKS: usize = 40;
/// The longest name of an entry.
pub(crate) const NAME_MAX: usize = 255;

/// The current folder and the umask of a process.
#[derive(Clone)]
pub(crate) struct Place {
    /// The current folder; none for the root.
    pub(crate) folder: Option<Arc<Inode>>,
    pub(crate) umask: u32,
}

impl Default for Place {
    fn default() -> Self {
        Place { folder: None, umask: 0o022 }
    }
}

impl Place {
    /// The current folder.
    pub(crate) fn folder(&self) -> Arc<Inode> {
        self.folder.clone().unwrap_or_else(|| Arc::clone(tree::root()))
    }
}

/// The start of a walk.
pub(crate) struct Start {
    /// For paths that begin with no slash.
    pub(crate) folder: Arc<Inode>,
    /// The process that `/proc/self` means.
    pub(crate) pid: u32,
}

/// The result of a walk.
pub(crate) struct Found {
    /// The folder of the last name.
    pub(crate) parent: Arc<Inode>,
    /// The last name: empty for the root, or `.`, or `..`.
    pub(crate) name: Vec<u8>,
    /// The inode, if there is one.
    pub(crate) node: Option<Arc<Inode>>,
    /// The path ends with a slash, so it can only mean a folder.
    pub(crate) folder: bool,
}

impl Found {
    /// The inode.
    ///
    /// # Errors
    /// ENOENT.
    pub(crate) fn node(self) -> Result<Arc<Inode>, Errno> {
        self.node.ok_or(Errno(ENOENT))
    }

    /// Whether the last name is that of an entry: not the root, `.` or `..`.
    pub(crate) fn is_entry(&self) -> bool {
        !matches!(&self.name[..], b"" | b"." | b"..")
    }
}

impl Start {
    /// Walks along a path. `follow`: also a link at its end.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, ENOMEM.
    pub(crate) fn walk(&self, path: &[u8], follow: bool) -> Result<Found, Errno> {
        if path.is_empty() {
            return Err(Errno(ENOENT));
        }
        let mut rest = join(path, b"")?;
        let mut at = 0;
        let mut links = 0;
        let mut here = self.from(path);
        loop {
            let slashes = rest[at..].iter().take_while(|byte| **byte == b'/').count();
            at += slashes;
            let len = rest[at..].iter().take_while(|byte| **byte != b'/').count();
            let name = &rest[at..at + len];
            at += len;
            if !here.is_folder() {
                return Err(Errno(ENOTDIR));
            }
            let last = rest[at..].iter().all(|byte| *byte == b'/');
            let folder = last && at < rest.len();
            let found =
                |parent: Arc<Inode>, node| Ok(Found { parent, name: name.to_vec(), node, folder });
            match name {
                b"" | b"." if last => return found(Arc::clone(&here), Some(here)),
                b"." => continue,
                b".." => {
                    here = here.parent()?;
                    if last {
                        return found(Arc::clone(&here), Some(here));
                    }
                    continue;
                }
                _ if len > NAME_MAX => return Err(Errno(ENAMETOOLONG)),
                _ => {}
            }
            let mut node = match here.child(name)? {
                Some(node) => node,
                None if last => return found(here, None),
                None => return Err(Errno(ENOENT)),
            };
            if node.is_link() && (!last || follow || folder) {
                links += 1;
                if links > LINKS {
                    return Err(Errno(ELOOP));
                }
                match self.target(&node)? {
                    Target::Path(target) => {
                        if target.is_empty() {
                            return Err(Errno(ENOENT));
                        }
                        if target.starts_with(b"/") {
                            here = Arc::clone(tree::root());
                        }
                        rest = join(&target, &rest[at..])?;
                        at = 0;
                        continue;
                    }
                    Target::Inode(target) => node = target,
                }
            }
            if !last {
                here = node;
                continue;
            }
            if folder && !node.is_folder() {
                return Err(Errno(ENOTDIR));
            }
            return found(here, Some(node));
        }
    }

    /// Walks to the name at the end of a path, for calls that make, remove or rename it: a link is
    /// not followed, not even before a slash.
    ///
    /// # Errors
    /// Those of [`walk`](Self::walk).
    pub(crate) fn walk_to_name(&self, path: &[u8]) -> Result<Found, Errno> {
        let slashes = path.iter().rev().take_while(|byte| **byte == b'/').count();
        // Of a path that is only slashes, one stays.
        let name = &path[..(path.len() - slashes).max(path.len().min(1))];
        let found = self.walk(name, false)?;
        Ok(Found { folder: slashes > 0, ..found })
    }

    /// The inode of a path.
    ///
    /// # Errors
    /// Those of [`walk`](Self::walk).
    pub(crate) fn find(&self, path: &[u8], follow: bool) -> Result<Arc<Inode>, Errno> {
        self.walk(path, follow)?.node()
    }

    fn from(&self, path: &[u8]) -> Arc<Inode> {
        if path.starts_with(b"/") { Arc::clone(tree::root()) } else { Arc::clone(&self.folder) }
    }

    /// The target of a link.
    ///
    /// # Errors
    /// ENOENT: it leads to a process that has ended. ENOMEM.
    pub(crate) fn target(&self, link: &Inode) -> Result<Target, Errno> {
        match &link.kind {
            InodeKind::Link(target) => Ok(Target::Path(join(target, b"")?)),
            InodeKind::Proc(entry) => entry.target(self.pid),
            _ => Err(Errno(ENOENT)),
        }
    }
}

fn join(one: &[u8], other: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut both = Vec::new();
    both.try_reserve(one.len() + other.len()).map_err(|_| Errno(ENOMEM))?;
    both.extend_from_slice(one);
    both.extend_from_slice(other);
    Ok(both)
}
