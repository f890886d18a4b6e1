//! Why a fault needs no lock of the address space.
//!
//! # The two sections
//!
//! A fault at an address:
//!
//! 1. takes a guard, and looks the VMA up in the tree, without a lock; checks the access;
//! 2. prepares what it will need: a zeroed frame, the VMA's anon_vma;
//! 3. locks the lowest page table of the address, which it makes if there is none;
//! 4. with that lock held, *looks the VMA up again*: is it the very same one? And is the entry as
//!    it should be? If not, it unlocks and begins again;
//! 5. stores the entry, and unlocks.
//!
//! A call that changes a range, with the mmap lock:
//!
//! 1. stores the change of the VMAs into the tree: a hole, other rights, or a busy VMA;
//! 2. *sweeps* the tables of the range: locks each, changes or removes the pages, unlocks;
//! 3. flushes the TLBs, and only then gives the frames back; or lets both wait (below);
//! 4. for a range that gets another VMA, stores it without the busy mark.
//!
//! # Why no page is left behind
//!
//! Let a fault have found a VMA, and a call have stored something else in its place.
//!
//! *Both lock the same table.* If the fault was first, the sweep finds its entry. If the sweep was
//! first, its unlock and the fault's lock order the call's store before the second look, which
//! fails. The sweep locks each table that exists, also one without pages: a fault that has looked
//! and not yet stored is invisible in the entries.
//!
//! *The sweep found no table.* Then it has read an absent upper entry with the lock of that upper
//! table held. The table is linked there later, with the same lock: its linker's second look comes
//! after that, and so does the second look of any CPU that was led through the new entry.
//!
//! *The table died.* It was empty and unlinked, with both locks held. A fault that waited for its
//! lock walks again.
//!
//! # Why the second look may compare addresses
//!
//! A VMA never changes in the tree, but for its first write. The guard keeps the VMA of the first
//! look allocated, so no other VMA has its address. The same VMA may leave the address and come
//! back, when a neighbour shrinks and grows: then its meaning at the address is the same, and the
//! entry is read with the lock held. For anonymous memory the prepared frame holds zeros, which is
//! right for any absent entry.
//!
//! # Why the second look is one load
//!
//! A call counts a change between its store and its sweep. A fault that reads the same count before
//! its first look and at its second one need not look at the VMAs again: see `change_count`.
//!
//! # Why a range is empty before it is new
//!
//! A map over another one is stored busy first. A fault that finds a busy VMA waits for the mmap
//! lock; one that was earlier fails its second look, or the sweep removes its page. The flush ends
//! before the second store. So no CPU has an old translation when the first new page appears, and
//! no write into the new map is lost ([`vma::CallStep`]).
//!
//! # Why an unused VMA is not swept
//!
//! A fault marks the VMA before its second look, and munmap closes the mark before its store. If no
//! VMA of the range was marked, no page is there, and none comes. The argument is in `anon_vma` of
//! `vma`, "Untouched VMAs".
//!
//! # TLBs
//!
//! From absent to present nothing is cached. A page that gains rights may fault once more:
//! [`FaultOutcome::Spurious`](crate::FaultOutcome::Spurious) drops the old translation. A page that
//! loses rights is flushed before the call returns, and an unmapped one before its frame is given
//! back. A page that gets another frame, by a copy, is flushed before it is writable
//! (`copy_on_write`).
//!
//! A space can let munmap of private anonymous memory wait for a TLB grace period instead
//! ([`UnmapPolicy`](crate::UnmapPolicy)): no CPU is interrupted, and the frames, the unlinked
//! tables and the addresses wait until each CPU has flushed for its own reasons. `deferred_unmap`
//! has the argument. A fault finds a hole. All calls that promise an effect flush as above:
//! mprotect, MADV_DONTNEED, maps over others, mremap, brk, exec, truncation, fork.
//!
//! # Copy-on-write
//!
//! Each entry of a page with a frame of its own holds a reference to the frame. A page is
//! *exclusive* if no other entry leads there; only such a page is writable. A write to a page that
//! is not exclusive copies it, or, if its frame has one reference, makes it exclusive. The state is
//! in two software bits of the entry ([`paging::Share`]).
//!
//! # fork
//!
//! Parent and child share page tables after a fork. Each changes only tables of its own, and copies
//! or takes over a shared one first: `cursor::share` in `paging` has the argument. A call makes the
//! tables that it will change its own *before* it closes the range ([`vma::CallStep::close`]), so
//! lack of memory changes nothing. Tables that lie wholly in a range that becomes empty are left to
//! the other space, without a copy.
//!
//! # Objects
//!
//! An object may take a page back under a fault. The argument above holds for it, with a mark of
//! the page in the place of the call's store: `object`, "Taking a page back".
//!
//! A guard page is an entry like any other; a fault that finds one with the lock held begins again,
//! and fails at its first look.
//!
//! # Waiting, and memory
//!
//! A fault holds no guard and no lock while it waits or allocates. Questions that only the mmap
//! lock can decide are decided with it: a hole may be a stack that grows, or a moment of a call, so
//! SIGSEGV is decided there. Other calls that look at VMAs without the lock take it at a hole, too.
//! A fault whose second look fails sixteen times takes the lock: then no VMA changes, and its
//! second look succeeds. A CPU that waits for the lock performs flushes for others.
//!
//! Nothing has changed when memory runs out: the frame is given back, and a table that is new and
//! empty is unlinked. An anon_vma that was set stays, as in Linux. Unmapping needs no memory for
//! pages: it collects up to 64 frames on its stack for each flush.
//!
//! # Order of locks
//!
//! The mmap lock, then an upper table, then a lower table. No lock is held while frames are
//! allocated or given back, and none but the mmap lock while TLBs are flushed.
