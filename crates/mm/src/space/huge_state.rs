//! The huge pages of a space: where faults bring them in, and the huge zero page.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use machine::{Machine, PageSize};
use maple::RefCounted;
use paging::{Format, Paging};
use spin::Once;

use crate::{FaultBlocks, HugePages, fault::zero_page::ZeroFrame};

/// State of a space and its forks.
pub(crate) struct HugeState<M: Machine, F: Format> {
    policy: AtomicU8,
    /// The orders of blocks: everywhere in the upper half, by madvise in the lower.
    blocks: AtomicU32,
    /// Whether there was ever a way for a huge page to come, here or in a parent.
    ever: AtomicBool,
    zero: RefCounted<Once<ZeroFrame<M, F>>>,
}

impl<M: Machine, F: Format> HugeState<M, F> {
    pub(crate) fn try_new() -> Result<Self, vma::Error> {
        let zero = RefCounted::new(Once::new()).map_err(|_| vma::Error::OutOfMemory)?;
        Ok(HugeState::of(zero))
    }

    fn of(zero: RefCounted<Once<ZeroFrame<M, F>>>) -> Self {
        let (policy, ever) = (AtomicU8::new(HugePages::Never as u8), AtomicBool::new(false));
        HugeState { policy, blocks: AtomicU32::new(0), ever, zero }
    }

    /// That of a forked child.
    pub(crate) fn fork(&self) -> Self {
        let child = HugeState::of(self.zero.clone());
        child.policy.store(self.policy.load(Ordering::Relaxed), Ordering::Relaxed);
        child.blocks.store(self.blocks.load(Ordering::Relaxed), Ordering::Relaxed);
        child.ever.store(self.may_exist(), Ordering::Relaxed);
        child
    }

    /// The caller has the mmap lock.
    pub(crate) fn set(&self, policy: HugePages) {
        if matches!(policy, HugePages::Madvise | HugePages::Always) {
            self.note();
        }
        // Relaxed: a fault that reads the old policy acts by it. A call that cuts the pages of a
        // fault that reads the new one has the mmap lock later, and sees the note.
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn policy(&self) -> HugePages {
        // Relaxed: as in `set`.
        match self.policy.load(Ordering::Relaxed) {
            1 => HugePages::Madvise,
            2 => HugePages::Always,
            3 => HugePages::Disabled,
            _ => HugePages::Never,
        }
    }

    pub(crate) fn set_blocks(&self, blocks: FaultBlocks) {
        let word = u32::from(blocks.always) << 16 | u32::from(blocks.madvise);
        // Relaxed: a fault that reads the old sizes acts by them.
        self.blocks.store(word, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn blocks(&self) -> FaultBlocks {
        // Relaxed: as in `set_blocks`.
        let word = self.blocks.load(Ordering::Relaxed);
        FaultBlocks { always: (word >> 16) as u16, madvise: word as u16 }
    }

    /// A huge page is about to be made. The caller has the mmap lock, as each call has that cuts
    /// pages.
    pub(crate) fn note(&self) {
        // Relaxed: the mmap lock orders it.
        self.ever.store(true, Ordering::Relaxed);
    }

    /// Whether a huge page may be in the tables.
    pub(crate) fn may_exist(&self) -> bool {
        // Relaxed: as in `note`.
        self.ever.load(Ordering::Relaxed)
    }

    /// Whether a fault may bring in a huge page or a block.
    pub(crate) fn may_come(&self) -> bool {
        let blocks = self.blocks();
        self.may_exist() || blocks.always | blocks.madvise != 0
    }

    /// The huge zero page, if it was ever asked for.
    pub(crate) fn known_zero(&self) -> Option<&ZeroFrame<M, F>> {
        self.zero.get()
    }

    /// The huge zero page of the space and its forks.
    pub(crate) fn zero(&self, paging: &Arc<Paging<M, F>>) -> &ZeroFrame<M, F> {
        self.zero.call_once(|| ZeroFrame::with_order(Arc::clone(paging), PageSize::Size2M.order()))
    }
}
