//! A new address space.

use crate::file::sysfs;
use crate::file::userfaultfd::Monitors;
use crate::smp::tlb_grace;
use crate::space::tables;
use crate::task::memory::{Space, promises};
use crate::task::oom::Shortage;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use mm::{Layout, Profile, UnmapPolicy};
use paging::Tag;

/// An empty address space. Tags are assigned; this machine has one, which all get. Huge pages come
/// where the settings say.
pub(super) fn new_space(layout: Layout) -> Result<Arc<Space>, mm::Error> {
    let kernel = Some(Arc::clone(tables()));
    let paging = tables().paging();
    let mut space = Space::try_new(paging, Tag::Assigned, kernel, Profile::LINUX_6_18, layout)?;
    space.set_userfault_handler(Arc::new(Monitors));
    space.set_shortage_handler(Arc::new(Shortage));
    space.set_commitment(promises()?);
    // Relaxed: written before there are programs.
    if GRACE.load(Ordering::Relaxed) {
        // SAFETY: these are the machine's periods. Each CPU that runs programs takes part, and
        // makes the kernel's tables active before it goes idle (`run`).
        unsafe { space.set_unmap_policy(UnmapPolicy::Grace(Arc::clone(tlb_grace()))) }?;
    }
    let space = Arc::new(space);
    sysfs::apply(&space);
    Ok(space)
}

/// Whether munmap waits for TLB grace periods instead of interrupting CPUs.
static GRACE: AtomicBool = AtomicBool::new(false);

/// Lets munmap wait for TLB grace periods in all programs that start from now on.
pub(crate) fn unmap_by_grace_periods() {
    // Relaxed: as in `new_space`.
    GRACE.store(true, Ordering::Relaxed);
}
