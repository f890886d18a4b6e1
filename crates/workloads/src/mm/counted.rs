//! The second baseline, as in Linux since 6.4: VMAs in a maple tree, each with a count of the
//! faults that use it, and a readers-writer lock.
//!
//! A fault finds its VMA without a lock, and increments the count. Calls hold the lock for writing.
//! Before a call changes a VMA, it marks it with the number of the writer's turn, and waits until
//! no fault uses it. A fault that finds the mark takes the lock for reading.

use super::context::SpaceContext;
use super::memory::{HEAP, Memory, PAGE, SharedMemory, TOP, VmaType};
use super::pages::{Fault, Pages};
use crate::error::Error;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use grace::Concurrent;
use lock_api::{RawRwLock, RwLock};
use machine::{Machine, PageSize, VirtAddr};
use maple::{MapleTree, Nodes, OwnerLock, RefCounted, WriteToken};

/// Added to the count while a writer waits for the faults.
const WRITER: u32 = 1 << 30;

struct Vma {
    start: usize,
    end: AtomicUsize,
    of: VmaType,
    /// The page of the file at `start`.
    index: usize,
    /// One while it is in the tree, and one for each fault.
    users: AtomicU32,
    /// The last turn in which a writer changed it.
    turn: AtomicU64,
}

type Tree<G> = MapleTree<RefCounted<Vma>, G, Nodes, OwnerLock>;

pub(super) struct Counted<M: Machine, G: Concurrent, R: RawRwLock> {
    tree: Tree<G>,
    right: RwLock<R, WriterState>,
    /// The number of the writer's turn, or of the next one.
    turn: AtomicU64,
    pages: Pages<M, G>,
}

struct WriterState {
    token: WriteToken,
    brk: usize,
}

impl Vma {
    fn new(start: usize, end: usize, of: VmaType, index: usize) -> Result<RefCounted<Vma>, Error> {
        let (users, turn) = (AtomicU32::new(1), AtomicU64::new(0));
        let vma = Vma { start, end: AtomicUsize::new(end), of, index, users, turn };
        RefCounted::new(vma).map_err(|error| Error::Tree(error.into()))
    }

    fn fault(&self, at: usize) -> Fault {
        let page = VirtAddr::new(at as u64).align_down(PageSize::Size4K);
        Fault { page, of: self.of, index: self.index + (at - self.start) / PAGE }
    }

    /// Counts a fault, unless a writer uses the VMA in this turn, or it is not in the tree.
    fn enter(&self, turn: u64) -> bool {
        // Relaxed: only to fail early.
        if self.turn.load(Ordering::Relaxed) == turn {
            return false;
        }
        let may = |users: u32| (users != 0 && users < WRITER).then_some(users + 1);
        // Acquire: pairs with the Release of `begin_write`, so that the mark is seen below.
        if self.users.fetch_update(Ordering::Acquire, Ordering::Relaxed, may).is_err() {
            return false;
        }
        // Relaxed: ordered by the Acquire above.
        if self.turn.load(Ordering::Relaxed) == turn {
            self.leave();
            return false;
        }
        true
    }

    fn leave(&self) {
        // Release: pairs with the Acquire of `begin_write`.
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// Waits until no fault uses the VMA. None does until the turn ends.
    fn begin_write<M: Machine>(&self, machine: &M, turn: u64) {
        // Relaxed: only the holder of the lock stores it.
        if self.turn.load(Ordering::Relaxed) == turn {
            return;
        }
        // Acquire: pairs with `leave`.
        self.users.fetch_add(WRITER, Ordering::Acquire);
        while self.users.load(Ordering::Acquire) != WRITER + 1 {
            machine.relax();
        }
        // Relaxed: the Release below.
        self.turn.store(turn, Ordering::Relaxed);
        // Release: pairs with the Acquire of `enter`.
        self.users.fetch_sub(WRITER, Ordering::Release);
    }
}

impl<M: Machine, G: Concurrent, R: RawRwLock + Send + Sync + 'static> Counted<M, G, R> {
    pub(super) fn make(context: &Arc<SpaceContext<M>>) -> Result<SharedMemory, Error> {
        Self::new(context).map(|new| Arc::new(new) as _)
    }

    fn new(context: &Arc<SpaceContext<M>>) -> Result<Self, Error> {
        let (tree, token) = Tree::with_token_in();
        let right = RwLock::new(WriterState { token, brk: HEAP });
        Ok(Counted { tree, right, turn: AtomicU64::new(1), pages: Pages::new(context)? })
    }

    /// Holds the lock for writing, for one turn.
    fn write<T>(&self, change: impl FnOnce(&mut WriterCall<'_, M, G, R>) -> T) -> T {
        let mut state = self.right.write();
        // Relaxed: only the holder of the lock stores it.
        let turn = self.turn.load(Ordering::Relaxed);
        let result = change(&mut WriterCall { space: self, state: &mut state, turn });
        // Release: a fault that sees the next turn sees the changes of this one.
        self.turn.store(turn + 1, Ordering::Release);
        result
    }
}

/// A call, with the lock held for writing.
struct WriterCall<'c, M: Machine, G: Concurrent, R: RawRwLock> {
    space: &'c Counted<M, G, R>,
    state: &'c mut WriterState,
    turn: u64,
}

impl<M: Machine, G: Concurrent, R: RawRwLock> WriterCall<'_, M, G, R> {
    fn tree(&mut self) -> Result<maple::Writer<'_, RefCounted<Vma>, G, Nodes>, Error> {
        Ok(self.space.tree.writer(&mut self.state.token)?)
    }

    /// The VMAs of a range.
    fn overlapping(&mut self, start: usize, end: usize) -> Result<Vec<RefCounted<Vma>>, Error> {
        let tree = self.tree()?;
        Ok(tree.iter(start..=end - 1).map(|(_, vma)| vma.to_ref_counted()).collect())
    }

    /// Removes the VMAs of a range, or their parts in it, and its pages.
    fn clear(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let found = self.overlapping(start, end)?;
        if found.is_empty() {
            return Ok(());
        }
        for vma in found {
            vma.begin_write(self.space.pages.tables.machine(), self.turn);
            // Relaxed: only the holder of the lock stores it.
            let old = vma.end.load(Ordering::Relaxed);
            if old > end {
                let index = vma.index + (end - vma.start) / PAGE;
                let rest = Vma::new(end, old, vma.of, index)?;
                self.tree()?.store_range(end..=old - 1, rest).map_err(|failed| failed.error)?;
            }
            // Relaxed: faults read both after `enter`, which fails in this turn.
            if vma.start < start {
                vma.end.store(start, Ordering::Relaxed);
            } else {
                vma.users.store(0, Ordering::Relaxed);
            }
        }
        self.tree()?.erase_range(start..=end - 1)?;
        self.space.pages.remove(start..end)
    }

    /// Inserts a VMA. An anonymous one before it grows instead; one behind it is taken over.
    fn add(&mut self, start: usize, end: usize, of: VmaType) -> Result<(), Error> {
        let machine = self.space.pages.tables.machine();
        let turn = self.turn;
        let mut tree = self.tree()?;
        let joins = |vma: &RefCounted<Vma>| of == VmaType::Anonymous && vma.of == of;
        let after = tree.lookup(end).map(|(_, vma)| vma.to_ref_counted()).filter(joins);
        let before = tree.lookup(start - 1).map(|(_, vma)| vma.to_ref_counted()).filter(joins);
        // Relaxed, here and below: only the holder of the lock stores it.
        let last = after.as_ref().map_or(end, |after| after.end.load(Ordering::Relaxed));
        if let Some(after) = &after {
            after.begin_write(machine, turn);
            after.users.store(0, Ordering::Relaxed);
        }
        match before {
            Some(before) => {
                before.begin_write(machine, turn);
                if after.is_some() {
                    let range = before.start..=last - 1;
                    tree.store_range(range, before.clone()).map_err(|failed| failed.error)?;
                } else {
                    tree.set_end(before.start, last - 1)?;
                }
                before.end.store(last, Ordering::Relaxed);
            }
            None => {
                let new = Vma::new(start, last, of, 0)?;
                tree.store_range(start..=last - 1, new).map_err(|failed| failed.error)?;
            }
        }
        Ok(())
    }
}

impl<M: Machine, G: Concurrent, R: RawRwLock + Send + Sync + 'static> Memory for Counted<M, G, R> {
    fn enter(&self) {
        self.pages.tables.enter();
    }

    fn leave(&self) {
        self.pages.leave();
    }

    #[cfg(test)]
    fn walk(&self, at: VirtAddr) -> Option<paging::Mapping> {
        self.pages.tables.walk(&G::pin()).get(at)
    }

    fn map(&self, at: Option<usize>, len: usize, of: VmaType) -> Result<usize, Error> {
        self.write(|call| {
            let start = match at {
                Some(at) => {
                    call.clear(at, at + len)?;
                    at
                }
                None => call.tree()?.empty_area_rev(0..=TOP - 1, len, 1)?,
            };
            call.add(start, start + len, of)?;
            Ok(start)
        })
    }

    fn unmap(&self, at: usize, len: usize) -> Result<(), Error> {
        self.write(|call| call.clear(at, at + len))
    }

    fn brk(&self, to: usize) -> Result<(), Error> {
        self.write(|call| {
            let brk = call.state.brk;
            if to > brk {
                call.add(brk, to, VmaType::Anonymous)?;
            } else if to < brk {
                call.clear(to, brk)?;
            }
            call.state.brk = to;
            Ok(())
        })
    }

    fn fault(&self, at: usize) -> Result<(), Error> {
        let guard = G::pin();
        // Acquire: pairs with the Release of `write`.
        let turn = self.turn.load(Ordering::Acquire);
        if let Some((_, vma)) = self.tree.lookup(&guard, at) {
            let vma = vma.get();
            if vma.enter(turn) {
                // Relaxed: ordered by `enter`.
                let is_there = at < vma.end.load(Ordering::Relaxed);
                let done = is_there.then(|| self.pages.fault(&guard, vma.fault(at)));
                vma.leave();
                if let Some(done) = done {
                    return done;
                }
            }
        }
        drop(guard);
        let _state = self.right.read();
        let guard = G::pin();
        let found = self.tree.lookup(&guard, at);
        let (_, vma) = found.ok_or(Error::NoArea(VirtAddr::new(at as u64)))?;
        self.pages.fault(&guard, vma.get().fault(at))
    }

    fn fork(&self) -> Result<SharedMemory, Error> {
        self.write(|call| {
            let child = Self::new(&self.pages.context)?;
            for vma in call.overlapping(0, 1 << 47)? {
                vma.begin_write(self.pages.tables.machine(), call.turn);
                // Relaxed: only the holder of the lock stores it.
                let (start, end) = (vma.start, vma.end.load(Ordering::Relaxed));
                let copy = Vma::new(start, end, vma.of, vma.index)?;
                let mut state = child.right.write();
                let mut tree = child.tree.writer(&mut state.token)?;
                tree.store_range(start..=end - 1, copy).map_err(|failed| failed.error)?;
                if vma.of != VmaType::SharedFile {
                    self.pages.copy_to(&child.pages, start..end)?;
                }
            }
            child.right.write().brk = call.state.brk;
            Ok(Arc::new(child) as _)
        })
    }
}

impl<M: Machine, G: Concurrent, R: RawRwLock> Drop for Counted<M, G, R> {
    fn drop(&mut self) {
        let ended = self.pages.remove_all();
        debug_assert_eq!(ended, Ok(()));
    }
}
