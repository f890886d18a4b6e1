//! The seam between who follows a program and who mirrors it.
//!
//! The live tracer knows ptrace and the kernel; the mirror knows VMAs. They meet here: records
//! flow towards the mirror, and the two questions that a tracer must ask about VMAs to look in
//! the right places flow back.

use std::{io, ops::Range, time::Duration};

use vma::VmFlags;

use crate::record::{MmId, Record};

/// Who is told what a program does. Calls come one at a time, in the order of effect.
///
/// ```
/// use trace::{observer::Observer, record::Record};
///
/// /// Tells an observer of the end of an address space.
/// fn gone(observer: &mut dyn Observer) {
///     observer.record(Record::Gone { mm: 1 }, None);
/// }
/// ```
pub trait Observer {
    /// Something took effect. `kernel` is the time that the kernel took for a system call.
    fn record(&mut self, record: Record, kernel: Option<Duration>);

    /// The kernel's listing (text of /proc/PID/maps) after the newest record of `mm`. `smaps`
    /// reads start and flags of every VMA, which costs more and is needed only after a mismatch.
    fn listing(
        &mut self,
        mm: MmId,
        maps: &str,
        smaps: &mut dyn FnMut() -> io::Result<Vec<(usize, VmFlags)>>,
    );

    /// The VMAs of `mm` that overlap `around` or lie next to it, are private, and did not yet see a
    /// write fault: where the tracer must look for first touches before the next call.
    fn untouched(&self, mm: MmId, around: Range<usize>) -> Vec<Range<usize>>;

    /// Those of them that a thread could write to now: where a first touch and a call can race.
    fn touchable(&self, mm: MmId, around: Range<usize>) -> Vec<Range<usize>> {
        self.untouched(mm, around)
    }

    /// Where a call that leaves it to the kernel would most likely put a map of `length` bytes.
    fn likely_place(&mut self, mm: MmId, length: usize) -> Option<Range<usize>> {
        let _ = (mm, length);
        None
    }

    /// The VMAs of `mm` that grow downwards: where the tracer must look for growth.
    fn growing(&self, mm: MmId) -> Vec<Range<usize>>;

    /// The ranges in which the newest call of `mm` may have done what its result and the rules do
    /// not tell: it failed, and not for a reason that VMAs show. `limited`: a resource limit may
    /// have stopped it sooner than VMAs did. The tracer then reads the kernel's VMAs and tells
    /// [`settled`](Self::settled).
    fn undetermined(&mut self, mm: MmId, limited: bool) -> Vec<Range<usize>> {
        let _ = (mm, limited);
        Vec::new()
    }

    /// What the kernel has in `range` after such a call: range and flags of each VMA.
    fn settled(&mut self, mm: MmId, range: Range<usize>, vmas: &[(Range<usize>, VmFlags)]) {
        let _ = (mm, range, vmas);
    }

    /// The file behind the VMA of `mm` at `addr`, 0 if there is none: whose new name a listing
    /// shows.
    fn file_at(&self, mm: MmId, addr: usize) -> crate::record::FileId {
        let _ = (mm, addr);
        0
    }

    /// The files that no VMA of any address space maps any more since this was asked last:
    /// the tracer lets go of its copies of their descriptors.
    fn released(&mut self) -> Vec<crate::record::FileId>;

    /// A process is not followed, or no further: its calls are not told. It runs on. `first` says
    /// that it is the program's first process.
    fn unfollowed(&mut self, why: &str, first: bool) {
        let _ = first;
        self.notice(why);
    }

    /// A facility that is missing, a kernel whose rules were not checked, a program that cannot be
    /// followed: shown to the user once. It comes as often as there is a reason.
    fn notice(&mut self, text: &str);
}
