//! A VMA: the properties that all pages of a mapped range share.
//!
//! The range is the tree's key and is not stored here, and the offset is kept relative to the
//! address. So both halves of a split VMA have the same contents, and so does a VMA that grew or
//! shrank. Every change of an address space is then one store of one range into the tree. A VMA in
//! the tree never changes, because readers look at it without a lock. To change it, store another
//! one. The only exceptions are its first write and its first page ([`anon_vma`](crate::anon_vma)).

use alloc::sync::Arc;

use crate::{VmFlags, anon_vma::AnonSlot, anon_vma::TouchMark};

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
pub(crate) const PAGE_SHIFT: u32 = 12;

/// Rounds up to whole pages; `None` on overflow.
pub(crate) fn page_align(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE_SIZE)
}

/// Rounds up to whole pages; 0 on overflow.
pub(crate) fn page_align_wrapping(len: usize) -> usize {
    page_align(len).unwrap_or(0)
}

/// The contents of a VMA. `F` is the host's [`MappedFile`](crate::MappedFile).
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// let vma = writer.area_at(at).unwrap().vma;
/// assert!(vma.is_private() && !vma.is_faulted());
/// assert_eq!(vma.offset_at(at), at / PAGE_SIZE);
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Vma<F> {
    /// Permissions and behaviour.
    pub flags: VmFlags,
    /// The file it maps; `None` for anonymous memory.
    pub file: Option<F>,
    /// Offset in pages minus address in pages, wrapping. It stays the same when a VMA is split.
    pub(crate) slide: usize,
    pub(crate) anon: AnonSlot,
    pub(crate) policy: Option<Policy>,
    pub(crate) uffd: Option<Uffd>,
    pub(crate) name: Option<Arc<str>>,
    /// See [`is_busy`](Self::is_busy). No listing shows it.
    pub(crate) busy: bool,
}

impl<F> Vma<F> {
    /// An anonymous VMA with these flags. Its offset equals its address.
    pub(crate) fn anonymous(flags: VmFlags) -> Self {
        Vma {
            flags,
            file: None,
            slide: 0,
            anon: AnonSlot::default(),
            policy: None,
            uffd: None,
            name: None,
            busy: false,
        }
    }

    /// A VMA of `mapped_file` that maps page `pgoff` at address `start`.
    pub(crate) fn of_file(flags: VmFlags, file: F, start: usize, pgoff: usize) -> Self {
        let mut vma = Vma::anonymous(flags);
        vma.file = Some(file);
        vma.set_offset(start, pgoff);
        vma
    }

    /// The offset in pages of the page at `addr`. For a file, it is the offset in the file; for
    /// anonymous memory, the address at which it was mapped.
    pub fn offset_at(&self, addr: usize) -> usize {
        (addr >> PAGE_SHIFT).wrapping_add(self.slide)
    }

    pub(crate) fn set_offset(&mut self, start: usize, pgoff: usize) {
        self.slide = pgoff.wrapping_sub(start >> PAGE_SHIFT);
    }

    /// Whether it has an anon_vma: it saw a first private write.
    pub fn is_faulted(&self) -> bool {
        self.anon.get().is_faulted()
    }

    /// A page of the VMA is about to appear in the page tables, during calls that change
    /// VMAs. A first write of a private page calls
    /// [`AddressSpace::first_write`](crate::AddressSpace) instead. Then a call that unmaps the VMA
    /// removes its pages ([`Host`](crate::Host)).
    ///
    /// Cost: a load; a compare-exchange at the first page. Any context.
    ///
    /// # Misuse
    /// A mark without need makes munmap look at page tables without need.
    #[inline]
    #[must_use]
    pub fn mark_touched(&self) -> TouchMark {
        self.anon.touch()
    }

    /// As [`mark_touched`](Self::mark_touched). The caller holds the mmap lock, and has found the
    /// VMA with it.
    pub fn mark_touched_for_call(&self) {
        self.anon.touch_for_call();
    }

    /// The userfaultfd that it is registered with.
    pub fn uffd(&self) -> Option<Uffd> {
        self.uffd
    }

    /// Whether its pages can be private: it was not mapped as shared.
    pub fn is_private(&self) -> bool {
        !self.flags.intersects(VmFlags::SHARED | VmFlags::MAYSHARE)
    }

    /// Whether fork drops it or changes its contents. A first write does not change that.
    pub(crate) fn changes_at_fork(&self) -> bool {
        let flags = VmFlags::LOCKED_MASK | VmFlags::DONTCOPY | VmFlags::WIPEONFORK;
        self.flags.intersects(flags) || self.uffd.is_some()
    }

    /// Whether a call is about to change the pages of the VMA, so that a page fault must wait for
    /// the mmap lock ([`Host`](crate::Host)).
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Its name, if it has a special one such as `[vdso]`.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Its own memory policy, if it has one.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }
}

impl<F: crate::MappedFile> Vma<F> {
    /// Whether its pages are anonymous: it has no file, or one that only stands for zeros.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.file
            .as_ref()
            .is_none_or(|file| !self.flags.contains(VmFlags::SHARED) && file.acts_anonymous())
            && self.name.is_none()
    }

    pub(crate) fn has_close_hook(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.has_close_hook())
    }

    /// The bytes below its start that stay free, so that a stack can grow.
    pub(crate) fn guard_gap(&self, stack_gap: usize) -> usize {
        if self.flags.contains(VmFlags::GROWSDOWN) {
            stack_gap
        } else if self.flags.contains(VmFlags::SHADOW_STACK) {
            PAGE_SIZE
        } else {
            0
        }
    }
}

/// A NUMA memory policy. VMAs merge only if their policies are equal.
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// let interleave = Policy { mode: 3, nodes: 0b11, home: None };
/// writer.mbind(at, 0x1000, Some(interleave))?;
/// assert_eq!(writer.area_at(at).unwrap().vma.policy(), Some(interleave));
/// assert_eq!(writer.count(), 2);
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Policy {
    /// `MPOL_*` with its mode flags.
    pub mode: u32,
    /// One bit per node.
    pub nodes: u64,
    /// The preferred node, if one was set.
    pub home: Option<u32>,
}

/// The userfaultfd that a VMA is registered with.
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// let uffd = Uffd { id: 1, follows_fork: false, follows_remap: false };
/// writer.watch(at, 0x1000, VmFlags::UFFD_MISSING, uffd)?;
/// assert_eq!(writer.count(), 2);
/// writer.close_watch(1)?;
/// assert_eq!(writer.count(), 1);
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Uffd {
    /// The host's number for it.
    pub id: u64,
    /// Forked children stay registered (UFFD_FEATURE_EVENT_FORK).
    pub follows_fork: bool,
    /// Moved VMAs stay registered (UFFD_FEATURE_EVENT_REMAP).
    pub follows_remap: bool,
}

impl Uffd {
    /// One that follows neither forks nor moves.
    pub fn new(id: u64) -> Self {
        Uffd { id, follows_fork: false, follows_remap: false }
    }
}
