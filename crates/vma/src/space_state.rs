//! The state of an address space apart from its VMAs.
//!
//! The tree's lock guards it. Each part is a word of its own, so that the lock's holder can change
//! it while the lock is borrowed by the tree's writer. The accesses are plain loads and stores.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{
    Limits, VmFlags, Vma,
    anon_vma::{Anon, Generation, Moment},
    pkey_set::Pkeys,
    sizes::{KINDS, SizeChange},
    vma_counts::VmaCounts,
};

/// The addresses of a program's parts, in bytes. execve sets them.
///
/// ```
/// use vma::Layout;
/// let mmap_base = 0x7fff_0000_0000;
/// let layout = Layout { start_brk: 0x5000, brk: 0x5000, mmap_base, ..Layout::default() };
/// assert_eq!(layout.start_stack, 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The start of the heap. The default is 0: a host whose programs call brk sets it and `brk`,
    /// otherwise their heap begins at address 0.
    pub start_brk: usize,
    /// The current end of the heap.
    pub brk: usize,
    /// An address inside the main stack.
    pub start_stack: usize,
    /// The address at which the downward search for free addresses begins.
    pub mmap_base: usize,
}

/// A word that only the holder of the tree's lock, or an exclusive owner, reads or writes.
#[derive(Debug, Default)]
struct LockedWord(AtomicUsize);

impl LockedWord {
    fn new(value: usize) -> Self {
        LockedWord(AtomicUsize::new(value))
    }

    fn get(&self) -> usize {
        // Relaxed, here and below: the lock orders one holder's accesses before the next holder's.
        self.0.load(Relaxed)
    }

    fn set(&self, value: usize) {
        self.0.store(value, Relaxed);
    }
}

/// The bit of PR_SET_MDWE that keeps the setting from forked children.
const NO_INHERIT: usize = 2;

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct SpaceState {
    start_brk: LockedWord,
    brk: LockedWord,
    start_stack: LockedWord,
    mmap_base: LockedWord,
    default_flags: LockedWord,
    merge_any: LockedWord,
    read_implies_exec: LockedWord,
    /// PR_SET_MDWE: the bits of the call.
    deny_exec: LockedWord,
    /// As [`Pkeys::to_word`].
    pkeys: LockedWord,
    vmas: LockedWord,
    unshared: LockedWord,
    sizes: [LockedWord; KINDS],
    limits: [LockedWord; 4],
    /// Faults take numbers without the lock.
    last_anon: AtomicUsize,
    /// The children so far. Faults read it without the lock.
    forks: LockedWord,
    generation: Generation,
}

impl SpaceState {
    pub(crate) fn new(layout: Layout) -> Self {
        let state = SpaceState::default();
        state.set_layout(layout);
        state
    }

    /// The state of a forked child that shares all VMAs. A new moment begins.
    pub(crate) fn fork(&self) -> Self {
        self.forks.set(self.forks.get() + 1);
        let child = SpaceState {
            merge_any: LockedWord::new(self.merge_any.get()),
            read_implies_exec: LockedWord::new(self.read_implies_exec.get()),
            deny_exec: LockedWord::new(self.inherited_deny_exec()),
            pkeys: LockedWord::new(self.pkeys.get()),
            vmas: LockedWord::new(self.vmas.get()),
            unshared: LockedWord::new(self.unshared.get()),
            sizes: self.sizes.each_ref().map(|size| LockedWord::new(size.get())),
            limits: self.limits.each_ref().map(|limit| LockedWord::new(limit.get())),
            generation: self.generation.next(),
            ..SpaceState::new(self.layout())
        };
        child.set_default_flags(self.default_flags() & (VmFlags::NOHUGEPAGE | VmFlags::SOFTDIRTY));
        child
    }

    /// The same state, for a tree that shares all VMAs.
    pub(crate) fn duplicate(&self) -> Self {
        let copy = |word: &LockedWord| LockedWord::new(word.get());
        SpaceState {
            start_brk: copy(&self.start_brk),
            brk: copy(&self.brk),
            start_stack: copy(&self.start_stack),
            mmap_base: copy(&self.mmap_base),
            default_flags: copy(&self.default_flags),
            merge_any: copy(&self.merge_any),
            read_implies_exec: copy(&self.read_implies_exec),
            deny_exec: copy(&self.deny_exec),
            pkeys: copy(&self.pkeys),
            vmas: copy(&self.vmas),
            unshared: copy(&self.unshared),
            sizes: self.sizes.each_ref().map(copy),
            limits: self.limits.each_ref().map(copy),
            // Relaxed: only the number.
            last_anon: AtomicUsize::new(self.last_anon.load(Relaxed)),
            forks: copy(&self.forks),
            generation: self.generation,
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout {
            start_brk: self.start_brk.get(),
            brk: self.brk.get(),
            start_stack: self.start_stack.get(),
            mmap_base: self.mmap_base.get(),
        }
    }

    pub(crate) fn set_layout(&self, layout: Layout) {
        self.start_brk.set(layout.start_brk);
        self.brk.set(layout.brk);
        self.start_stack.set(layout.start_stack);
        self.mmap_base.set(layout.mmap_base);
    }

    pub(crate) fn set_brk(&self, brk: usize) {
        self.brk.set(brk);
    }

    /// Where the downward search for free addresses begins.
    pub(crate) fn mmap_base(&self) -> usize {
        self.mmap_base.get()
    }

    /// Flags that every new VMA gets (mlockall with MCL_FUTURE, soft-dirty).
    pub(crate) fn default_flags(&self) -> VmFlags {
        VmFlags::from_bits_retain(self.default_flags.get() as u64)
    }

    pub(crate) fn set_default_flags(&self, flags: VmFlags) {
        self.default_flags.set(flags.bits() as usize);
    }

    /// PR_SET_MEMORY_MERGE: new VMAs that qualify get MERGEABLE.
    pub(crate) fn merge_any(&self) -> bool {
        self.merge_any.get() != 0
    }

    pub(crate) fn set_merge_any(&self, on: bool) {
        self.merge_any.set(on.into());
    }

    /// The personality READ_IMPLIES_EXEC.
    pub(crate) fn read_implies_exec(&self) -> bool {
        self.read_implies_exec.get() != 0
    }

    pub(crate) fn set_read_implies_exec(&self, on: bool) {
        self.read_implies_exec.set(on.into());
    }

    /// The bits of PR_SET_MDWE.
    pub(crate) fn deny_exec(&self) -> usize {
        self.deny_exec.get()
    }

    pub(crate) fn inherited_deny_exec(&self) -> usize {
        let bits = self.deny_exec.get();
        if bits & NO_INHERIT == 0 { bits } else { 0 }
    }

    pub(crate) fn set_deny_exec(&self, bits: usize) {
        self.deny_exec.set(bits);
    }

    pub(crate) fn pkeys(&self) -> Pkeys {
        Pkeys::from_word(self.pkeys.get())
    }

    pub(crate) fn set_pkeys(&self, pkeys: Pkeys) {
        self.pkeys.set(pkeys.to_word());
    }

    pub(crate) fn counts(&self) -> VmaCounts {
        let sizes = SizeChange(self.sizes.each_ref().map(|size| size.get() as isize));
        let (vmas, unshared) = (self.vmas.get() as isize, self.unshared.get() as isize);
        VmaCounts { vmas, unshared, sizes }
    }

    /// The limits that were set.
    pub(crate) fn limits(&self) -> Limits {
        // 0 stands for no limit, so that a new state has none.
        let [address_space, data, locked, may_lock] =
            self.limits.each_ref().map(|limit| !limit.get());
        Limits { address_space, data, locked, may_lock: may_lock != 0 }
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        let Limits { address_space, data, locked, may_lock } = limits;
        let words = [address_space, data, locked, if may_lock { usize::MAX } else { 0 }];
        self.limits.iter().zip(words).for_each(|(word, limit)| word.set(!limit));
    }

    pub(crate) fn count_more(&self, more: VmaCounts) {
        self.vmas.set(self.vmas.get().wrapping_add_signed(more.vmas));
        self.unshared.set(self.unshared.get().wrapping_add_signed(more.unshared));
        for (size, more) in self.sizes.iter().zip(more.sizes.0) {
            size.set(size.get().wrapping_add_signed(more));
        }
    }

    /// So many neighbours of this VMA, which have been counted as one with it, are still VMAs of
    /// their own.
    pub(crate) fn count_apart<F>(&self, neighbours: usize, vma: &Vma<F>) {
        let one = VmaCounts::of(vma);
        (0..neighbours).for_each(|_| self.count_more(one));
    }

    /// They have been joined.
    pub(crate) fn count_joined<F>(&self, neighbours: usize, vma: &Vma<F>) {
        let VmaCounts { vmas, unshared, .. } = VmaCounts::of(vma);
        let less = VmaCounts { vmas: -vmas, unshared: -unshared, ..VmaCounts::default() };
        (0..neighbours).for_each(|_| self.count_more(less));
    }

    /// The generation of this address space.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// A new anon_vma, for a first write.
    pub(crate) fn new_anon(&self) -> Anon {
        Anon::new(self.next_number(), self.generation)
    }

    /// A new anon_vma for an inherited VMA that is about to be split.
    pub(crate) fn inherited_anon(&self) -> Anon {
        Anon::inherited(self.next_number(), self.generation)
    }

    /// A number for a new anon_vma.
    pub(crate) fn next_number(&self) -> usize {
        // Relaxed: the numbers only have to differ. A 64-bit counter does not wrap.
        self.last_anon.fetch_add(1, Relaxed) + 1
    }

    /// The present moment.
    pub(crate) fn moment(&self) -> Moment {
        Moment { generation: self.generation, forks: self.forks.get() }
    }
}
