//! The host's part of userfaultfd: faults and events that go to a monitor.

use alloc::vec::Vec;
use core::ops::Range;

use machine::VirtAddr;

use crate::Access;

/// The kind of a fault that the monitor resolves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum UserFaultKind {
    /// The page is nowhere.
    Missing,
    /// The page is write-protected.
    WriteProtected,
    /// The object has the page; it is not mapped.
    Minor,
}

/// A fault that a monitor resolves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserFault {
    /// The address of the access.
    pub at: VirtAddr,
    /// The access.
    pub access: Access,
    /// The host's number of the userfaultfd.
    pub uffd: u64,
    /// The kind of the fault.
    pub kind: UserFaultKind,
}

/// The host's part of userfaultfd.
///
/// # Misuse
/// A method that is called with a lock or the mmap lock held, and waits for a CPU, hangs. Wrong
/// answers let a monitor copy a page too early, or never.
pub trait UserFaultHandler: Send + Sync + 'static {
    /// A program has faulted. Called with nothing held, in the context of the fault: it may wait
    /// until the monitor has resolved the fault. Returns whether the fault is to begin again;
    /// otherwise it fails with [`FaultError::UserFault`](crate::FaultError).
    fn handle(&self, fault: UserFault) -> bool;

    /// Whether write-protected pages of this userfaultfd get their rights back without an upcall
    /// (UFFD_FEATURE_WP_ASYNC). Called with a table's lock held: only loads.
    fn is_write_protect_async(&self, uffd: u64) -> bool {
        let _ = uffd;
        false
    }

    /// Whether this userfaultfd write-protects absent pages of anonymous memory, as it does those
    /// of objects (UFFD_FEATURE_WP_UNPOPULATED, which UFFD_FEATURE_WP_ASYNC implies). Called with
    /// the mmap lock held: only loads.
    fn marks_absent_pages(&self, uffd: u64) -> bool {
        self.is_write_protect_async(uffd)
    }

    /// The events that the monitor of this userfaultfd wants; the same ones each time. A
    /// registration with FORK or REMAP has `follows_fork` or `follows_remap` in its
    /// [`Uffd`](vma::Uffd). Called with the mmap lock held: only loads.
    fn events(&self, uffd: u64) -> UserFaultEvents {
        let _ = uffd;
        UserFaultEvents::empty()
    }

    /// Memory of this userfaultfd has changed, or its pages are about to be removed. An event
    /// follows for each such call. Called with the mmap lock held: it does not wait, and calls no
    /// space.
    fn begin_change(&self, uffd: u64) {
        let _ = uffd;
    }

    /// Whether the monitor has not read an event yet of a change that has begun. Context: as
    /// [`begin_change`](Self::begin_change).
    fn is_changing(&self, uffd: u64) -> bool {
        let _ = uffd;
        false
    }

    /// Makes a userfaultfd, with the same features, for the memory of a child that is being forked.
    /// Returns its number, or `None` without memory. If the fork fails, no event has the number.
    /// Context: as [`begin_change`](Self::begin_change).
    fn make_child(&self, uffd: u64) -> Option<u64> {
        let _ = uffd;
        None
    }

    /// Tells the monitors of these events, in this order. Called with nothing held, in the context
    /// of the call that has changed the memory: it may wait until each was read.
    fn deliver(&self, events: Vec<UserFaultEvent>) {
        let _ = events;
    }
}

bitflags::bitflags! {
    /// The events that a monitor wants.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct UserFaultEvents: u32 {
        /// UFFD_FEATURE_EVENT_FORK.
        const FORK = 1;
        /// UFFD_FEATURE_EVENT_REMAP.
        const REMAP = 2;
        /// UFFD_FEATURE_EVENT_REMOVE.
        const REMOVE = 4;
        /// UFFD_FEATURE_EVENT_UNMAP.
        const UNMAP = 8;
    }
}

/// A change of memory of which a monitor hears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UserFaultChange {
    /// The memory was forked. The child's is registered with another userfaultfd
    /// ([`UserFaultHandler::make_child`]).
    Fork {
        /// The host's number of the child's userfaultfd.
        child: u64,
    },
    /// mremap has moved the memory, which is still registered.
    Remap {
        /// The address before.
        from: usize,
        /// The address now.
        to: usize,
        /// The bytes that were moved.
        len: usize,
    },
    /// MADV_DONTNEED, MADV_FREE or MADV_REMOVE is about to remove the pages of this range.
    Remove(Range<usize>),
    /// A call has unmapped this range. A part of it was the userfaultfd's.
    Unmap(Range<usize>),
}

/// An event of a userfaultfd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserFaultEvent {
    /// The host's number of the userfaultfd.
    pub uffd: u64,
    /// The change.
    pub change: UserFaultChange,
}
