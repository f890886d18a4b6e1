//! userfaultfds: the address space that each one serves, its registered ranges, and whether it is
//! still open.
//!
//! Descriptors are duplicated, inherited and passed on. So a userfaultfd is identified by its inode
//! number, which is unique, and records have that number in place of the descriptor. A userfaultfd
//! serves the address space that created it, whichever process holds it. If a fork created it for
//! the child (UFFD_FEATURE_EVENT_FORK), it has its parent's number in the child's address space.

use std::{fs, ops::Range, os::unix::fs::MetadataExt};

use super::sys::Tid;
use crate::{
    abi::{UFFDIO_REGISTER, UFFDIO_UNREGISTER},
    record::MmId,
};

/// A userfaultfd, identified by its inode number.
#[derive(Clone, Copy)]
pub(super) struct Userfault {
    /// The address space that it serves.
    pub(super) mm: MmId,
    /// Its number in records.
    pub(super) id: u64,
    pub(super) features: usize,
}

/// The userfaultfds with registered ranges of an address space.
#[derive(Default)]
pub(super) struct Watchers(Vec<Watcher>);

struct Watcher {
    /// Its number in records.
    id: u64,
    /// Its inode; 0 if a fork made it and its descriptor was not used yet.
    inode: u64,
    /// Its last known descriptor.
    holder: (Tid, usize),
    ranges: Vec<Range<usize>>,
}

/// A userfaultfd that was closed.
pub(super) struct Closed {
    /// Its number in records.
    pub(super) id: u64,
    pub(super) inode: u64,
    /// Its last known descriptor.
    pub(super) fd: usize,
}

impl Watchers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Remembers the ranges that a request has registered with the userfaultfd `id`, to notice when
    /// it is closed.
    pub(super) fn note(
        &mut self,
        id: u64,
        holder: (Tid, usize),
        request: u32,
        range: Range<usize>,
    ) {
        match request {
            UFFDIO_REGISTER => match self.0.iter_mut().find(|watcher| watcher.id == id) {
                Some(watcher) => watcher.ranges.push(range),
                None => {
                    let inode = inode_of(holder.0, holder.1).unwrap_or(0);
                    self.0.push(Watcher { id, inode, holder, ranges: vec![range] });
                }
            },
            UFFDIO_UNREGISTER => {
                for watcher in &mut self.0 {
                    watcher.ranges.retain(|r| !(range.start <= r.start && r.end <= range.end));
                }
                self.0.retain(|watcher| !watcher.ranges.is_empty());
            }
            _ => {}
        }
    }

    /// Those that a fork made for the child: one for each of these with an inode that `asked`.
    pub(super) fn of_child(&self, asked: impl Fn(u64) -> bool) -> Watchers {
        let made =
            |watcher: &Watcher| Watcher { inode: 0, ranges: watcher.ranges.clone(), ..*watcher };
        Watchers(self.0.iter().filter(|watcher| asked(watcher.inode)).map(made).collect())
    }

    /// Takes a descriptor that was not used yet for the oldest one that a fork made. Returns its
    /// number; `None` if the descriptors of all are known.
    pub(super) fn adopt(&mut self, inode: u64, holder: (Tid, usize)) -> Option<u64> {
        let watcher = self.0.iter_mut().find(|watcher| watcher.inode == 0)?;
        (watcher.inode, watcher.holder) = (inode, holder);
        Some(watcher.id)
    }

    /// Whether a descriptor is open for each of them, of its last holder or of `tid`.
    pub(super) fn are_held(&mut self, tid: Tid) -> bool {
        self.0.iter_mut().all(|watcher| watcher.is_held(tid))
    }

    /// Removes those that are closed: for which no descriptor is found, and none of whose ranges is
    /// `watched`.
    pub(super) fn take_closed(
        &mut self,
        tid: Tid,
        watched: impl Fn(&Range<usize>) -> bool,
    ) -> Vec<Closed> {
        let mut closed = Vec::new();
        self.0.retain_mut(|watcher| {
            let open = watcher.is_held(tid) || watcher.ranges.iter().any(&watched);
            if !open {
                let Watcher { id, inode, holder: (_, fd), .. } = *watcher;
                closed.push(Closed { id, inode, fd });
            }
            open
        });
        closed
    }
}

impl Watcher {
    /// Whether a descriptor for it is open. If the known one now belongs to another file, it
    /// searches those of its holder and of `tid`.
    fn is_held(&mut self, tid: Tid) -> bool {
        if self.inode == 0 {
            return false;
        }
        let (holder, fd) = self.holder;
        if inode_of(holder, fd) == Some(self.inode) {
            return true;
        }
        for owner in [holder, tid] {
            let Ok(open) = fs::read_dir(format!("/proc/{owner}/fd")) else { continue };
            let numbers = open.flatten().filter_map(|fd| fd.file_name().to_str()?.parse().ok());
            for fd in numbers {
                if inode_of(owner, fd) == Some(self.inode) {
                    self.holder = (owner, fd);
                    return true;
                }
            }
        }
        false
    }
}

/// The inode number behind a descriptor of `tid`.
pub(super) fn inode_of(tid: Tid, fd: usize) -> Option<u64> {
    fs::metadata(format!("/proc/{tid}/fd/{fd}")).ok().map(|meta| meta.ino())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsRawFd, process};

    use super::*;

    #[test]
    fn the_first_descriptor_of_one_that_a_fork_made_is_taken() {
        let (tid, file) = (process::id() as Tid, File::open("/proc/self/exe").unwrap());
        let holder = (tid, file.as_raw_fd() as usize);
        let inode = inode_of(tid, holder.1).unwrap();
        let mut parent = Watchers::default();
        parent.note(7, holder, UFFDIO_REGISTER, 0x1000..0x3000);
        assert!(parent.are_held(tid));
        assert_eq!(parent.adopt(inode, holder), None);
        assert!(parent.of_child(|asked| asked != inode).is_empty());
        let mut child = parent.of_child(|asked| asked == inode);
        assert!(!child.are_held(tid));
        assert_eq!(child.adopt(inode, holder), Some(7));
        assert_eq!(child.adopt(inode, holder), None);
        assert!(child.are_held(tid));
        child.note(7, holder, UFFDIO_UNREGISTER, 0x1000..0x2000);
        assert!(!child.is_empty());
        child.note(7, holder, UFFDIO_UNREGISTER, 0..0x4000);
        assert!(child.is_empty());
    }

    #[test]
    fn one_without_a_descriptor_is_open_while_a_vma_is_watched() {
        let tid = process::id() as Tid;
        let holder = (tid, usize::MAX);
        let mut watchers = Watchers::default();
        for (id, start) in [(7, 0x1000), (8, 0x5000), (9, 0x9000)] {
            watchers.note(id, holder, UFFDIO_REGISTER, start..start + 0x1000);
        }
        let closed = watchers.take_closed(tid, |range| range.start == 0x5000);
        assert_eq!(closed.iter().map(|closed| closed.id).collect::<Vec<_>>(), [7, 9]);
        assert!(closed.iter().all(|closed| (closed.inode, closed.fd) == (0, usize::MAX)));
        assert_eq!(watchers.adopt(1, holder), Some(8));
    }
}
