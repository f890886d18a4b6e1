//! The interface between the tracer and the mirror.
//!
//! The live tracer knows ptrace and the kernel; the mirror knows VMAs. Records flow to the mirror.
//! In the other direction the tracer asks the mirror about VMAs, to know where to look.

use std::{io, ops::Range, time::Duration};

use vma::VmFlags;

use crate::{
    record::{FileId, MmId, Record},
    report::{ResidentSet, Usage},
};

/// A VMA as the kernel describes it, without its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelVma {
    /// Its addresses.
    pub range: Range<usize>,
    /// READ, WRITE, EXEC, and MAYSHARE if it is shared.
    pub rights: VmFlags,
    /// The offset in its file, in bytes; 0 without a file.
    pub offset: usize,
    /// Major and minor number of its file's device.
    pub dev: (u32, u32),
    /// Its file's inode; 0 without a file.
    pub inode: u64,
}

/// A VMA with code, in which a frame of a call stack may lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its addresses.
    pub range: Range<usize>,
    /// The offset in its file, in bytes.
    pub offset: usize,
    /// Its contents.
    pub source: CodeSource,
}

/// Where code comes from.
///
/// ```
/// use trace::observer::CodeSource;
/// assert_ne!(CodeSource::Memory, CodeSource::Vdso);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeSource {
    /// A file, by its device and inode.
    File((u32, u32), u64),
    /// The vdso.
    Vdso,
    /// Anonymous memory, such as that of a just-in-time compiler.
    Memory,
}

/// Which VMAs the tracer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Private VMAs that have not seen a first write. The tracer looks there for first writes
    /// before the next call.
    Untouched,
    /// Those of them that a thread could write to now, so that a first write and a call can race.
    /// An observer may return all that are untouched.
    Touchable,
    /// VMAs that grow downwards. The tracer looks there for stack growth.
    Growing,
}

/// Reports to an observer other than records.
#[derive(Debug)]
pub enum Event<'a> {
    /// All records of the newest call were reported. It may be left out, and is for observers that
    /// show each call at once.
    CallReported,
    /// The kernel's VMAs in a range whose state was [not determined](Observer::undetermined), with
    /// their ranges and flags.
    Settled {
        /// The address space.
        mm: MmId,
        /// The range.
        range: Range<usize>,
        /// The VMAs.
        vmas: &'a [(Range<usize>, VmFlags)],
    },
    /// The descriptor of the next ioctl or close. Its record has the number of the userfaultfd's
    /// inode, because descriptors are duplicated.
    Descriptor(u32),
    /// So many bytes are resident, before the next record of a call. The tracer looks now and then.
    Resident {
        /// The address space.
        mm: MmId,
        /// The bytes.
        bytes: usize,
    },
    /// An address space has more resident memory than any had before, as far as the tracer has
    /// looked: before the next record of a call, or right before it ends.
    Peak {
        /// The address space.
        mm: MmId,
        /// The resident pages.
        moment: ResidentSet,
    },
    /// The memory of the machine that an address space uses, right before it ends.
    Used {
        /// The address space.
        mm: MmId,
        /// The use.
        usage: Usage,
    },
    /// A process is not followed, or no longer. It runs on, and its calls are not reported.
    Unfollowed {
        /// The reason, for the user.
        why: &'a str,
        /// Whether it is the program's first process.
        first: bool,
    },
}

/// The receiver of a program's events. Calls come one at a time, in the order in which the events
/// took effect.
///
/// ```
/// use trace::{observer::Observer, record::Record};
///
/// /// Reports the end of an address space.
/// fn ended(observer: &mut dyn Observer) {
///     observer.record(Record::ExitMmap { mm: 1 }, None);
/// }
/// ```
#[allow(unused_variables, reason = "defaults ignore what they are told")]
pub trait Observer {
    /// An event took effect. `kernel` is the time that the kernel took for a system call.
    fn record(&mut self, record: Record, kernel: Option<Duration>);

    /// The kernel's listing (text of `/proc/PID/maps`) after the newest record of `mm`. `smaps`
    /// reads the start and flags of every VMA. It costs more and is needed only after a mismatch.
    fn listing(
        &mut self,
        mm: MmId,
        maps: &str,
        smaps: &mut dyn FnMut() -> io::Result<Vec<(usize, VmFlags)>>,
    );

    /// The VMAs of `mm` that `wanted` describes, and that overlap `around` or lie next to it.
    fn ranges(&self, mm: MmId, around: Range<usize>, wanted: Wanted) -> Vec<Range<usize>>;

    /// The files that have lost their last VMA since the previous question. The tracer closes its
    /// copies of their descriptors.
    fn released(&mut self) -> Vec<FileId>;

    /// Reports a missing facility, a kernel whose rules were not checked, or a program that cannot
    /// be followed. It may come many times; the user sees it once.
    fn notice(&mut self, text: &str);

    /// Something else happened that an observer may want to know.
    fn event(&mut self, event: Event<'_>) {
        if let Event::Unfollowed { why, .. } = event {
            self.notice(why);
        }
    }

    /// Whether the kernel's VMAs in `around` and next to it, after the newest record of `mm`, are
    /// the observer's. If not, the tracer passes the whole [`listing`](Self::listing).
    fn agrees_around(&mut self, mm: MmId, around: Range<usize>, kernel: &[KernelVma]) -> bool {
        false
    }

    /// The most likely place for a map of `length` bytes if the kernel chooses the address.
    fn likely_place(&mut self, mm: MmId, length: usize) -> Option<Range<usize>> {
        None
    }

    /// The ranges in which the effect of the newest call of `mm` is not determined by its result
    /// and the rules. Most such calls failed, and not for a reason that VMAs show. `limited`: a
    /// resource limit may have stopped the call earlier. The tracer then reads the kernel's VMAs
    /// and reports them with [`Event::Settled`].
    fn undetermined(&mut self, mm: MmId, limited: bool) -> Vec<Range<usize>> {
        Vec::new()
    }

    /// The VMA with code at `addr`; `None` if there is no executable one. It is asked for each
    /// frame of a call stack.
    fn code_at(&self, mm: MmId, addr: usize) -> Option<Code> {
        None
    }

    /// Whether names of functions shall be reported while the program runs, and not only at the
    /// end. It is asked every few milliseconds.
    fn wants_names(&mut self) -> bool {
        false
    }

    /// Whether a program that ran before shall be left. It is asked every few milliseconds.
    fn has_enough(&mut self) -> bool {
        false
    }

    /// The file behind the VMA of `mm` at `addr`, and its path as the listing shows it; 0 and no
    /// path if there is none. It is asked when a listing shows a new name there, and when a frame
    /// of a call stack lies in a file that was not read yet.
    fn file_at(&self, mm: MmId, addr: usize) -> (FileId, String) {
        (0, String::new())
    }
}
