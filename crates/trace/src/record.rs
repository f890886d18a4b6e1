//! One record of a vmtrace: what happened, in the order in which it took effect.
//!
//! A trace is the whole interface between who watches a program and who mirrors it. The live
//! tracer makes these records one by one; a file holds them as text; the mirror consumes them
//! and cannot tell where they came from. So a recorded run replays exactly as it ran.

use vma::VmFlags;

/// Number of an address space, chosen by who recorded.
pub type MmId = u32;
/// Number of an open file description; 0 stands for none (anonymous memory).
pub type FileId = u32;

/// One line of a trace (a listing takes several).
///
/// ```
/// use trace::record::*;
/// let grown = Record::Grow { mm: 1, end: 0x7fff_0000, start: 0x7ffe_0000 };
/// assert_ne!(grown, Record::Gone { mm: 1 });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// `X`: a new address space after execve; `vmas` [`Record::Vma`] follow.
    Exec {
        /// The new address space.
        mm: MmId,
        /// Thread that called execve.
        tid: u32,
        /// How many initial VMAs follow.
        vmas: usize,
        /// Current end of the heap, bytes.
        brk: usize,
        /// Start of the heap, bytes.
        start_brk: usize,
        /// An address inside the main stack.
        start_stack: usize,
        /// Where the downward search for free addresses begins; 0 if they are chosen otherwise and
        /// not predicted.
        mmap_base: usize,
        /// Path of the program.
        exe: String,
    },
    /// `D`: an open file description.
    File(FileDesc),
    /// `V`: an initial VMA of the newest [`Record::Exec`].
    Vma(InitialVma),
    /// `Y`: the line of the legacy vsyscall page, which ends each listing of the newest address
    /// space.
    Vsyscall(String),
    /// `M`: a system call and its result.
    Call(Call),
    /// `L`: flags that a driver chooses for the next mmap of that address space.
    DriverFlags {
        /// Address space.
        mm: MmId,
        /// All flags of the new VMA.
        flags: VmFlags,
    },
    /// `A`: a VMA made by the call before that its arguments do not describe (shmat, io_setup).
    Adopt {
        /// Address space.
        mm: MmId,
        /// The VMA.
        vma: InitialVma,
    },
    /// `F`: the first write fault in the VMA that starts at `addr`.
    Fault {
        /// Address space.
        mm: MmId,
        /// Start of the VMA.
        addr: usize,
    },
    /// `G`: the stack VMA that ends at `end` grew down to `start`.
    Grow {
        /// Address space.
        mm: MmId,
        /// End of the VMA, which stays.
        end: usize,
        /// Its new start.
        start: usize,
    },
    /// `S`: what a call left in a range where it failed for a reason that VMAs do not show (a
    /// limit, a driver's refusal): read from the kernel, recorded only where the rules alone leave
    /// something else.
    Settled {
        /// Address space.
        mm: MmId,
        /// First byte.
        start: usize,
        /// First byte past it.
        end: usize,
        /// Flags of the one VMA that lies there now; `None` for a hole.
        flags: Option<VmFlags>,
    },
    /// `N`: a file was renamed or unlinked.
    Rename {
        /// The open file.
        file: FileId,
        /// Its path from now on, as the listing shows it.
        path: String,
    },
    /// `K`: fork made `child` from `mm`.
    Fork {
        /// The parent's address space.
        mm: MmId,
        /// The child's.
        child: MmId,
        /// Thread that forked.
        tid: u32,
        /// The new process.
        child_tid: u32,
    },
    /// `T`: a thread or a vforked child shares the address space.
    Share {
        /// Address space.
        mm: MmId,
        /// Thread that made it.
        tid: u32,
        /// The new one.
        child_tid: u32,
        /// vfork rather than a thread.
        vfork: bool,
    },
    /// `C`: the kernel's listing at this point.
    Check {
        /// Address space.
        mm: MmId,
        /// Lines in the listing.
        lines: usize,
        /// FNV-1a 64 over its bytes.
        hash: u64,
    },
    /// `Z`: the last listing of an address space, in full.
    Listing(Listing),
    /// `U`: the order of what the address space did is not known for sure from here on, so a
    /// difference may come from the record as well as from a rule.
    Doubt {
        /// Address space.
        mm: MmId,
        /// What happened.
        cause: Doubt,
    },
    /// `Q`: the address space is gone.
    Gone {
        /// Address space.
        mm: MmId,
    },
}

/// Why a record may differ from what the kernel did.
///
/// ```
/// use trace::record::Doubt;
/// assert_eq!(Doubt::ALL.map(Doubt::name), ["touch", "overlap", "files"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// A thread first wrote to a VMA while another one's call was in flight: before or after it
    /// took effect.
    Touch,
    /// Several calls were in flight at once: one of them waited for another thread.
    Overlap,
    /// Open files could not be told apart: the tracer ran out of descriptors.
    Files,
}

impl Doubt {
    /// Each of them.
    pub const ALL: [Doubt; 3] = [Doubt::Touch, Doubt::Overlap, Doubt::Files];

    /// Its word in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Doubt::Touch => "touch",
            Doubt::Overlap => "overlap",
            Doubt::Files => "files",
        }
    }

    /// What a difference after it means, for people.
    pub fn explain(self) -> &'static str {
        match self {
            Doubt::Touch => {
                "a difference is not counted as a mismatch: a thread first wrote to memory next to that of another thread's call while the \
                 call was made, and which came first cannot be told"
            }
            Doubt::Overlap => {
                "a difference is not counted as a mismatch: memory calls of several threads were made at once, because one of them waited \
                 for another thread, and their order cannot be told"
            }
            Doubt::Files => {
                "a difference is not counted as a mismatch: the tracer ran out of file descriptors, so open files were told apart by device \
                 and inode alone"
            }
        }
    }
}

/// An open file description: two opens of one inode are two, dup and fork share one.
///
/// ```
/// use trace::record::*;
/// let file = FileDesc {
///     id: 3, dev: (8, 1), inode: 42, kind: FileKind::Regular, writable: false, noexec: false, path: "/a".into(),
/// };
/// assert_eq!(Record::File(file.clone()), Record::File(file));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDesc {
    /// Its number in the trace.
    pub id: FileId,
    /// Major and minor number of the device.
    pub dev: (u32, u32),
    /// Inode number.
    pub inode: u64,
    /// What kind of file.
    pub kind: FileKind,
    /// Opened for writing.
    pub writable: bool,
    /// On a mount without execution.
    pub noexec: bool,
    /// Path as the listing shows it (newline escaped as `\012`).
    pub path: String,
}

/// What a mapped file is, as far as its maps behave differently.
///
/// ```
/// use trace::record::*;
/// assert_ne!(FileKind::Regular, FileKind::RegularThp);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Mapped by execve itself.
    Exec,
    /// A regular file.
    Regular,
    /// A regular file on a file system that aligns large maps to 2 MiB.
    RegularThp,
    /// tmpfs or memfd.
    Shmem,
    /// tmpfs or memfd that may use huge pages and aligns large maps to 2 MiB.
    ShmemThp,
    /// A device.
    Device,
    /// hugetlbfs.
    Huge,
    /// Behind an anonymous MAP_SHARED map; its inode is the kernel's.
    ShmAnon,
    /// SysV shared memory, aio rings: made by other calls than mmap.
    Adopted,
}

/// A VMA given in full.
///
/// ```
/// use trace::record::*;
/// let vma = InitialVma {
///     start: 0x1000, end: 0x2000, flags: "rd,ex".parse()?, pgoff: 0, file: 0, name: Some("[vdso]".into()),
/// };
/// assert_eq!(vma.flags, vma::VmFlags::READ | vma::VmFlags::EXEC);
/// # Ok::<(), vma::UnknownFlag>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialVma {
    /// First byte.
    pub start: usize,
    /// First byte past it.
    pub end: usize,
    /// All its flags.
    pub flags: VmFlags,
    /// Offset in pages.
    pub pgoff: usize,
    /// The open file, 0 if anonymous.
    pub file: FileId,
    /// A name for the listing, such as `[vdso]`.
    pub name: Option<String>,
}

/// A system call: numbers as the kernel got them.
///
/// ```
/// use trace::record::*;
/// let call = Call {
///     mm: 1, tid: 7, op: Op::Munmap, args: [0x1000, 0x2000, 0, 0, 0, 0], file: 0, memory: None, result: 0,
/// };
/// assert_eq!(call.op.arity(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Address space it acted on.
    pub mm: MmId,
    /// Thread that called.
    pub tid: u32,
    /// Which call.
    pub op: Op,
    /// Its arguments; those beyond [`Op::arity`] are 0. ioctl and close: the first is the number of
    /// the userfaultfd's inode, for descriptors are duplicated.
    pub args: [usize; 6],
    /// mmap: the open file, 0 if none.
    pub file: FileId,
    /// mbind and ioctl: what the call read from memory (node mask, 0, 0; or start, length, mode; or
    /// API, features, 0).
    pub memory: Option<[usize; 3]>,
    /// What the call returned: -errno as a negative number.
    pub result: isize,
}

macro_rules! ops {
    ($($variant:ident $name:literal $arity:literal),* $(,)?) => {
        /// The calls that change VMAs.
        ///
        /// ```
        /// use trace::record::Op;
        /// assert_eq!((Op::Mremap.name(), Op::Mremap.arity()), ("mremap", 5));
        /// assert!(Op::ALL.contains(&Op::Brk));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Op {
            /// Every call, in a fixed order.
            pub const ALL: &'static [Op] = &[$(Op::$variant),*];

            /// The name of the system call, as traces have it.
            pub fn name(self) -> &'static str {
                match self { $(Op::$variant => $name),* }
            }

            /// How many arguments a trace records.
            pub fn arity(self) -> usize {
                match self { $(Op::$variant => $arity),* }
            }
        }
    };
}

ops! {
    Mmap "mmap" 6, Munmap "munmap" 2, Mprotect "mprotect" 3, PkeyMprotect "pkey_mprotect" 4,
    Mremap "mremap" 5, Brk "brk" 1, Madvise "madvise" 3, Mlock "mlock" 2, Mlock2 "mlock2" 3,
    Munlock "munlock" 2, Mlockall "mlockall" 1, Munlockall "munlockall" 0, Mbind "mbind" 6,
    Shmat "shmat" 3, Shmdt "shmdt" 1, RemapFilePages "remap_file_pages" 5, Mseal "mseal" 3,
    Prctl "prctl" 5, Ioctl "ioctl" 3, Close "close" 1, IoSetup "io_setup" 2, IoDestroy "io_destroy" 1,
    ProcessMadvise "process_madvise" 5, SetMempolicyHomeNode "set_mempolicy_home_node" 4,
    MapShadowStack "map_shadow_stack" 3, Personality "personality" 1,
}

/// The listing of an address space at its end.
///
/// ```
/// use trace::record::*;
/// let last = Listing { mm: 1, tid: 7, exec: false, lines: vec![], flags: vec![] };
/// assert_eq!(Record::Listing(last.clone()), Record::Listing(last));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Address space.
    pub mm: MmId,
    /// Thread that ended it.
    pub tid: u32,
    /// By execve rather than exit.
    pub exec: bool,
    /// Lines of /proc/PID/maps, without their newlines.
    pub lines: Vec<String>,
    /// Start and flags of each VMA, from smaps.
    pub flags: Vec<(usize, VmFlags)>,
}
