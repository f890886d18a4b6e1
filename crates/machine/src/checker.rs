//! Reports to a machine that checks its users; a real one needs none.

use crate::{Asid, CpuSet, Frame, VirtRange};

/// Reports to a machine that checks how it is used, such as `sim`. A host has none: it leaves
/// [`Step::checker`](crate::Step::checker) as it is, and the calls are compiled away.
///
/// The absent checker is a checker, too, so code calls `machine.checker().check_reuse(..)`. The
/// methods are called in the middle of changes, as [`Step::step`](crate::Step::step). By default
/// each of them does nothing.
///
/// ```
/// use machine::{Asid, Checker, Step};
///
/// struct Host;
/// // SAFETY: the defaults.
/// unsafe impl Step for Host {}
/// // Nothing is checked, and nothing is done.
/// Host.checker().check_tag_taken(Asid(1));
/// ```
#[allow(unused_variables, reason = "by default nothing is checked")]
pub trait Checker {
    /// A range of addresses that was mapped before is reused. At this moment no CPU may hold a
    /// translation of it (I4). `space` is as in [`Flush::Range`](crate::Flush::Range).
    #[inline]
    fn check_reuse(&self, space: Option<Asid>, range: VirtRange) {}

    /// A space loses its tag, which is active on no CPU. All that CPUs have cached under it is
    /// void: each CPU that uses the tag again [activates](crate::Tlb::activate) it without `keep`
    /// first.
    #[inline]
    fn check_tag_taken(&self, asid: Asid) {}

    /// A flush of a tag passes over CPUs that do not have it active. Their cached entries of it
    /// are void, as for [`check_tag_taken`](Self::check_tag_taken).
    #[inline]
    fn check_passed_over(&self, cpus: &CpuSet, asid: Asid) {}

    /// The page in `frame` is now in the constructed state of quicklist `list` (I6), and will be
    /// returned to that list in the same state. A checker remembers the words, and compares them
    /// whenever the page enters or leaves the list.
    #[inline]
    fn note_constructed(&self, frame: Frame, list: u8) {}
}

/// That of a machine, if it has one.
impl Checker for Option<&dyn Checker> {
    #[inline(always)]
    fn check_reuse(&self, space: Option<Asid>, range: VirtRange) {
        if let Some(checker) = self {
            checker.check_reuse(space, range);
        }
    }

    #[inline(always)]
    fn check_tag_taken(&self, asid: Asid) {
        if let Some(checker) = self {
            checker.check_tag_taken(asid);
        }
    }

    #[inline(always)]
    fn check_passed_over(&self, cpus: &CpuSet, asid: Asid) {
        if let Some(checker) = self {
            checker.check_passed_over(cpus, asid);
        }
    }

    #[inline(always)]
    fn note_constructed(&self, frame: Frame, list: u8) {
        if let Some(checker) = self {
            checker.note_constructed(frame, list);
        }
    }
}
