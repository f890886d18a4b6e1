//! Which anonymous pages two VMAs may share: the anon_vma and the chain of those a VMA is linked to.
//!
//! A VMA gets an [`AnonVma`] with its first private page. Pages of one anon_vma may lie in several VMAs
//! (after a split), and a page made before a fork may lie in the child's too, so a child's VMA
//! is linked to its ancestors' anon_vmas as well as to its own. Two VMAs merge only if that leaves every page findable,
//! which is why the chain decides merges although no listing shows it (rules 2 and 3 of the notes on Linux).
//!
//! An anon_vma counts the VMAs linked to it, the VMAs whose own it is, and its children. The first VMA to link
//! tells the parent, the last one to go does so too; so [`Chain::link`] and [`Chain::unlink`] are exact
//! opposites and a failed operation can undo one with the other. The counts guide reuse at fork and nothing
//! else: no memory is published through them, hence Relaxed everywhere.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A set of VMAs that may hold the same anonymous pages.
#[derive(Debug)]
pub(crate) struct AnonVma {
    /// None for a root, which counts as its own child.
    parent: Option<Arc<AnonVma>>,
    /// Children that some VMA is linked to (a root counts itself).
    children: AtomicUsize,
    /// VMAs whose own anon_vma this is.
    active: AtomicUsize,
    /// VMAs linked to it.
    linked: AtomicUsize,
}

impl AnonVma {
    fn new(parent: Option<Arc<AnonVma>>) -> Arc<Self> {
        Arc::new(AnonVma {
            parent,
            children: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            linked: AtomicUsize::new(0),
        })
    }

    fn parent(&self) -> &AnonVma {
        self.parent.as_deref().unwrap_or(self)
    }

    /// May a forked child take it over: nobody's own, and at most one line of descent.
    fn idle(&self) -> bool {
        // Relaxed: a heuristic count, see the module's head.
        self.children.load(Relaxed) < 2 && self.active.load(Relaxed) == 0
    }
}

/// A VMA's own anon_vma and all that it is linked to, oldest first. Pieces of a split VMA share one chain.
///
/// The value itself holds no count: who puts a VMA into an address space calls [`link`](Self::link), who takes it out
/// calls [`unlink`](Self::unlink). So dropping a retired VMA late, after its grace period, changes nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain(Option<Arc<Links>>);

#[derive(Debug)]
struct Links {
    own: Arc<AnonVma>,
    /// Every anon_vma the VMA is linked to, its own included.
    all: Vec<Arc<AnonVma>>,
}

impl Chain {
    /// A new root, for a first fault with nobody to share with.
    pub(crate) fn new_root() -> Self {
        let own = AnonVma::new(None);
        Chain(Some(Arc::new(Links { all: alloc::vec![own.clone()], own })))
    }

    /// Has the VMA seen a private page?
    pub(crate) fn is_faulted(&self) -> bool {
        self.0.is_some()
    }

    /// Was it inherited by fork, so that pages of an ancestor may be in it?
    pub(crate) fn is_inherited(&self) -> bool {
        self.0.as_ref().is_some_and(|links| links.all.len() > 1)
    }

    /// Do both VMAs have the same own anon_vma (or none)?
    pub(crate) fn same_owner(&self, other: &Chain) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(&a.own, &b.own),
            (None, None) => true,
            _ => false,
        }
    }

    /// The chain of a forked child's VMA: linked to all that the parent's is, with an idle ancestor's anon_vma for
    /// its own, or a new one. Not yet linked.
    pub(crate) fn fork(&self) -> Chain {
        let Some(parent) = &self.0 else { return Chain(None) };
        let mut all = Vec::with_capacity(parent.all.len() + 1);
        all.extend(parent.all.iter().cloned());
        let own = match all.iter().find(|anon| anon.idle()) {
            Some(idle) => idle.clone(),
            None => {
                let own = AnonVma::new(Some(parent.own.clone()));
                all.push(own.clone());
                own
            }
        };
        Chain(Some(Arc::new(Links { own, all })))
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

    /// Counts one VMA less.
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
        let root = Chain::new_root();
        root.link();
        let middle = root.fork();
        middle.link();
        assert!(middle.is_inherited() && !middle.same_owner(&root));
        let leaf = middle.fork();
        leaf.link();
        assert!(!leaf.same_owner(&middle));
        middle.unlink();
        // The middle's anon_vma has one child, the leaf's, and is nobody's own any more.
        let next = leaf.fork();
        assert!(next.same_owner(&middle));
    }

    #[test]
    fn link_and_unlink_cancel_out() {
        let root = Chain::new_root();
        root.link();
        let child = root.fork();
        child.link();
        child.unlink();
        root.unlink();
        let links = root.0.as_ref().unwrap();
        assert_eq!(links.own.children.load(Relaxed), 0);
        assert_eq!(links.own.linked.load(Relaxed), 0);
        assert_eq!(links.own.active.load(Relaxed), 0);
    }
}
