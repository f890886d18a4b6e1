//! Which anonymous pages two VMAs may share: the anon_vma, and the chain of anon_vmas that a VMA is
//! linked to.
//!
//! A VMA gets an [`AnonVma`] with its first private page. After a split, pages of one anon_vma lie
//! in several VMAs. After a fork, a page that is older than the fork lies in the child's VMA, too.
//! So a child's VMA is linked to the anon_vmas of its ancestors as well as to its own. Two VMAs
//! merge only if every page can still be found afterwards. That is why the chain decides merges
//! although no listing shows it (rules 2 and 3 of RULES.md).
//!
//! An anon_vma has three counts: the VMAs linked to it, the VMAs that have it as their own, and its
//! children. The first VMA to link adds it to its parent's children, and the last one to unlink
//! removes it. So [`Chain::link`] and [`Chain::unlink`] are exact opposites, and a failed operation
//! can undo one with the other. The counts only decide whether fork may reuse an anon_vma. They
//! publish no memory, so Relaxed suffices everywhere.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{Error, RefCounted};

/// A group of VMAs that may hold the same anonymous pages.
#[derive(Debug)]
pub(crate) struct AnonVma {
    /// `None` for a root, which counts as its own child.
    parent: Option<RefCounted<AnonVma>>,
    /// Children that have a linked VMA. A root counts itself.
    children: AtomicUsize,
    /// VMAs that have this as their own anon_vma.
    active: AtomicUsize,
    /// VMAs that are linked to it.
    linked: AtomicUsize,
}

impl AnonVma {
    fn new(parent: Option<RefCounted<AnonVma>>) -> Result<RefCounted<Self>, Error> {
        let (children, active, linked) = Default::default();
        Ok(RefCounted::new(AnonVma { parent, children, active, linked })?)
    }

    fn parent(&self) -> &AnonVma {
        self.parent.as_deref().unwrap_or(self)
    }

    /// Whether a forked child may take it over: no VMA has it as its own, and it has fewer than two
    /// children.
    fn idle(&self) -> bool {
        // Relaxed: counts only, see the module's head.
        self.children.load(Relaxed) < 2 && self.active.load(Relaxed) == 0
    }
}

/// The parents form a list as long as the chain of forks. Dropping it in a loop avoids deep
/// recursion.
impl Drop for AnonVma {
    fn drop(&mut self) {
        let mut parent = self.parent.take();
        while let Some(mut last) = parent.and_then(RefCounted::into_inner) {
            parent = last.parent.take();
        }
    }
}

/// A VMA's own anon_vma and all anon_vmas that it is linked to, oldest first. The pieces of a split
/// VMA share one chain.
///
/// Creating or dropping a chain changes no count. Code that puts a VMA into an address space calls
/// [`link`](Self::link); code that removes it calls [`unlink`](Self::unlink). So a retired VMA may
/// be dropped late, after its grace period, without changing the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain(Option<RefCounted<Links>>);

#[derive(Debug)]
struct Links {
    own: RefCounted<AnonVma>,
    /// Every anon_vma that the VMA is linked to, including its own.
    all: Vec<RefCounted<AnonVma>>,
}

/// An empty list with room for `len`.
fn list<T>(len: usize) -> Result<Vec<T>, Error> {
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|_| Error::OutOfMemory)?;
    Ok(list)
}

/// A chain for tests: the address of each anon_vma with three counts: linked VMAs, VMAs that have
/// it as their own, and children.
#[cfg(any(test, fuzzing))]
pub(crate) struct Audit {
    pub(crate) own: usize,
    pub(crate) all: Vec<(usize, [usize; 3])>,
}

impl Chain {
    /// A new root, for a first write fault without a neighbour to share with.
    pub(crate) fn new_root() -> Result<Self, Error> {
        let own = AnonVma::new(None)?;
        let mut all = list(1)?;
        all.push(own.clone());
        Ok(Chain(Some(RefCounted::new(Links { own, all })?)))
    }

    /// Whether the VMA has had a private page.
    pub(crate) fn is_faulted(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it was inherited by fork, so that the VMA may hold pages of an ancestor.
    pub(crate) fn is_inherited(&self) -> bool {
        self.0.as_ref().is_some_and(|links| links.all.len() > 1)
    }

    /// Whether both VMAs have the same anon_vma as their own, or both have none.
    pub(crate) fn same_owner(&self, other: &Chain) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => RefCounted::is_same(&a.own, &b.own),
            (None, None) => true,
            _ => false,
        }
    }

    /// The chain of a forked child's VMA. It has all links of the parent's chain. Its own anon_vma
    /// is an idle one of these, or else a new one. The caller links it.
    pub(crate) fn fork(&self) -> Result<Chain, Error> {
        let Some(parent) = &self.0 else { return Ok(Chain(None)) };
        let mut all = list(parent.all.len() + 1)?;
        all.extend(parent.all.iter().cloned());
        let own = match all.iter().find(|anon| anon.idle()) {
            Some(idle) => idle.clone(),
            None => {
                let own = AnonVma::new(Some(parent.own.clone()))?;
                all.push(own.clone());
                own
            }
        };
        Ok(Chain(Some(RefCounted::new(Links { own, all })?)))
    }

    /// The chain's counts, for tests.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn audit(&self) -> Option<Audit> {
        let address = |anon: &RefCounted<AnonVma>| core::ptr::from_ref(&**anon).addr();
        let counts = |anon: &RefCounted<AnonVma>| {
            let counts = [&anon.linked, &anon.active, &anon.children];
            (address(anon), counts.map(|count| count.load(Relaxed)))
        };
        let links = self.0.as_ref()?;
        Some(Audit { own: address(&links.own), all: links.all.iter().map(counts).collect() })
    }

    /// Counts one more VMA with this chain.
    pub(crate) fn link(&self) {
        let Some(links) = &self.0 else { return };
        for anon in &links.all {
            // Relaxed: counts only, see the module's head; the same below.
            if anon.linked.fetch_add(1, Relaxed) == 0 {
                anon.parent().children.fetch_add(1, Relaxed);
            }
        }
        links.own.active.fetch_add(1, Relaxed);
    }

    /// Counts one VMA less with this chain.
    pub(crate) fn unlink(&self) {
        let Some(links) = &self.0 else { return };
        for anon in &links.all {
            if anon.linked.fetch_sub(1, Relaxed) == 1 {
                anon.parent().children.fetch_sub(1, Relaxed);
            }
        }
        links.own.active.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_an_exited_middle_reuses_its_anon_vma() {
        let root = Chain::new_root().unwrap();
        root.link();
        let middle = root.fork().unwrap();
        middle.link();
        assert!(middle.is_inherited() && !middle.same_owner(&root));
        let leaf = middle.fork().unwrap();
        leaf.link();
        assert!(!leaf.same_owner(&middle));
        middle.unlink();
        // The middle's anon_vma has one child, the leaf's, and no VMA has it as its own any more.
        let next = leaf.fork().unwrap();
        assert!(next.same_owner(&middle));
    }

    #[test]
    fn link_and_unlink_cancel_out() {
        let root = Chain::new_root().unwrap();
        root.link();
        let child = root.fork().unwrap();
        child.link();
        child.unlink();
        root.unlink();
        let links = root.0.as_ref().unwrap();
        assert_eq!(links.own.children.load(Relaxed), 0);
        assert_eq!(links.own.linked.load(Relaxed), 0);
        assert_eq!(links.own.active.load(Relaxed), 0);
    }
}
