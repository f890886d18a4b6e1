//! The records of a vmtrace: events of a program, in the order in which they took effect.
//!
//! Records are the whole interface between the tracer and the mirror. The live tracer creates them
//! one by one; a file holds them as text. The mirror cannot tell the two sources apart, so a
//! recorded run replays exactly as it ran.

/// An enum whose variants have words in a trace.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$about])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$variant),*];

            /// Its word in a trace.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }

            /// The one with this word.
            pub(crate) fn named(word: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|one| one.name() == word)
            }
        }
    };
}

mod stack;

use vma::VmFlags;

pub use stack::{Frame, Image, ImageId, Stack, StackEnd, StackId, Symbol};

/// The number of an address space, chosen by the recorder.
pub type MmId = u32;
/// The number of an open file description; 0 for none (anonymous memory).
pub type FileId = u32;

/// One record, which is one line of a trace. A listing takes several lines.
///
/// ```
/// use trace::record::*;
/// let grown = Record::Grow { mm: 1, end: 0x7fff_0000, start: 0x7ffe_0000 };
/// assert_ne!(grown, Record::ExitMmap { mm: 1 });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// `X`: a new address space after execve; `vmas` [`Record::Vma`] follow.
    Exec {
        /// The new address space.
        mm: MmId,
        /// The thread that called execve.
        tid: u32,
        /// The number of initial VMAs that follow.
        vmas: usize,
        /// The current end of the heap.
        brk: usize,
        /// The start of the heap.
        start_brk: usize,
        /// An address inside the main stack.
        start_stack: usize,
        /// The address at which the downward search for free addresses begins. 0: addresses are
        /// chosen in another way and not predicted.
        mmap_base: usize,
        /// The path of the program.
        exe: String,
    },
    /// `D`: an open file description.
    File(FileDesc),
    /// `V`: an initial VMA of the newest [`Record::Exec`].
    Vma(InitialVma),
    /// `Y`: the line of the vsyscall page, which ends each listing of the newest address space.
    Vsyscall(String),
    /// `M`: a system call and its result.
    Call(Call),
    /// `L`: the flags that a driver chooses for the next mmap of that address space.
    DriverFlags {
        /// Address space.
        mm: MmId,
        /// All flags of the new VMA.
        flags: VmFlags,
    },
    /// `A`: a VMA that the previous call made and that its arguments do not describe (shmat,
    /// io_setup).
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
    /// `S`: the state of a range after a call that failed for a reason that VMAs do not show (a
    /// limit, a driver's error). It is read from the kernel, and recorded only if the rules alone
    /// give another state.
    Settled {
        /// Address space.
        mm: MmId,
        /// First byte.
        start: usize,
        /// First byte past it.
        end: usize,
        /// The flags of the one VMA there; `None` for a hole.
        flags: Option<VmFlags>,
    },
    /// `N`: a file was renamed or unlinked.
    Rename {
        /// The open file.
        file: FileId,
        /// Its new path, as the listing shows it.
        path: String,
    },
    /// `K`: fork made `child` from `mm`.
    Fork {
        /// The parent's address space.
        mm: MmId,
        /// The child's.
        child: MmId,
        /// The thread that forked.
        tid: u32,
        /// The new process.
        child_tid: u32,
    },
    /// `T`: a thread or a vforked child shares the address space.
    Share {
        /// Address space.
        mm: MmId,
        /// The thread that made it.
        tid: u32,
        /// The new thread or child.
        child_tid: u32,
        /// Whether it is a vforked child and not a thread.
        vfork: bool,
    },
    /// `C`: the kernel's listing at this point.
    Check {
        /// Address space.
        mm: MmId,
        /// The number of lines in the listing.
        lines: usize,
        /// FNV-1a 64 of its bytes.
        hash: u64,
    },
    /// `Z`: the last listing of an address space, in full.
    Listing(Listing),
    /// `U`: from here on the order of events in the address space is uncertain. A difference may
    /// come from the record as well as from a rule.
    Doubt {
        /// Address space.
        mm: MmId,
        /// The cause.
        cause: Doubt,
    },
    /// `Q`: the address space has ended (Linux: `exit_mmap`).
    ExitMmap {
        /// Address space.
        mm: MmId,
    },
    /// `#i`: a file with code that is in a call stack.
    Image(Image),
    /// `#s`: a call stack, before the first call that has it.
    Stack(Stack),
    /// `#n`: a function at an address of a stack, after all calls. If it was inlined, the function
    /// that contains it follows.
    Symbol(Symbol),
}

impl Record {
    /// The address space whose VMAs the record may change, and which still exists after it.
    ///
    /// ```
    /// use trace::record::Record;
    /// assert_eq!(Record::Fault { mm: 7, addr: 0x1000 }.changes(), Some(7));
    /// assert_eq!(Record::ExitMmap { mm: 7 }.changes(), None);
    /// ```
    pub fn changes(&self) -> Option<MmId> {
        match self {
            Record::Call(call) => Some(call.mm),
            Record::Adopt { mm, .. }
            | Record::Fault { mm, .. }
            | Record::Grow { mm, .. }
            | Record::Settled { mm, .. } => Some(*mm),
            Record::Fork { child, .. } => Some(*child),
            _ => None,
        }
    }
}

named! {
    /// The reason why the records of an address space may be wrong.
    ///
    /// ```
    /// use trace::record::Doubt;
    /// assert_eq!(Doubt::ALL.map(Doubt::name), ["touch", "overlap", "files", "attached", "ring"]);
    /// ```
    Doubt {
        /// A thread first wrote to a VMA during another thread's call. The order of the two is
        /// unknown.
        Touch "touch",
        /// Several calls were in flight at once, because one of them waited for another thread.
        Overlap "overlap",
        /// Open files could not be told apart, because the tracer ran out of descriptors.
        Files "files",
        /// The program ran before it was followed, so the history of its VMAs is not known.
        Attached "attached",
        /// The program has an io_uring, through which it can advise memory without a system call of
        /// its own (`IORING_OP_MADVISE`).
        Ring "ring",
    }
}

impl Doubt {
    /// An explanation of a later difference, for the user.
    pub fn explain(self) -> &'static str {
        match self {
            Doubt::Touch => {
                "a difference is not counted as a mismatch: a thread first wrote to memory next to \
                 the range of another thread's call during the call, and their order is unknown"
            }
            Doubt::Overlap => {
                "a difference is not counted as a mismatch: several threads made memory calls at \
                 once, because one call waited for another thread, and their order is unknown"
            }
            Doubt::Files => {
                "a difference is not counted as a mismatch: the tracer ran out of file \
                 descriptors, so it told open files apart only by device and inode"
            }
            Doubt::Attached => {
                "a difference is not counted as a mismatch: the program ran before it was \
                 followed, and what its memory was before is not known"
            }
            Doubt::Ring => {
                "a difference is not counted as a mismatch: the program has an io_uring, and an \
                 IORING_OP_MADVISE in it is not seen"
            }
        }
    }
}

/// An open file description. Two opens of one inode are different; dup and fork share one.
///
/// ```
/// use trace::record::*;
/// let file = FileDesc {
///     id: 3, dev: (8, 1), inode: 42, kind: FileKind::Regular, writable: false, noexec: false,
///     path: "/a".into(),
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
    /// The kind of the file.
    pub kind: FileKind,
    /// Whether it was opened for writing.
    pub writable: bool,
    /// Whether its mount forbids execution.
    pub noexec: bool,
    /// The path as the listing shows it (newline escaped as `\012`).
    pub path: String,
}

named! {
    /// The kind of a mapped file, as far as it affects its maps.
    ///
    /// ```
    /// use trace::record::*;
    /// assert_ne!(FileKind::Regular, FileKind::RegularThp);
    /// ```
    FileKind {
        /// Mapped by execve itself, and of unknown kind.
        Exec "exec",
        /// A regular file.
        Regular "reg",
        /// A regular file on a file system that aligns large maps to 2 MiB.
        RegularThp "reg-thp",
        /// tmpfs or memfd.
        Shmem "shmem",
        /// tmpfs or memfd that may use huge pages and aligns large maps to 2 MiB.
        ShmemThp "shmem-thp",
        /// A device.
        Device "dev",
        /// hugetlbfs.
        Huge "huge",
        /// The file behind an anonymous MAP_SHARED map. The kernel chooses its inode.
        ShmAnon "shmanon",
        /// SysV shared memory or an aio ring, which calls other than mmap create.
        Adopted "adopted",
    }
}

/// A full description of a VMA.
///
/// ```
/// use trace::record::*;
/// let vma = InitialVma {
///     start: 0x1000, end: 0x2000, flags: "rd,ex".parse()?, pgoff: 0, file: 0,
///     name: Some("[vdso]".into()),
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
    /// All flags.
    pub flags: VmFlags,
    /// The offset in pages.
    pub pgoff: usize,
    /// The open file, 0 if anonymous.
    pub file: FileId,
    /// The name in the listing, such as `[vdso]`.
    pub name: Option<String>,
}

/// A system call, with the numbers that the kernel received.
///
/// ```
/// use trace::record::*;
/// let call = Call::new(1, 7, Op::Munmap, &[0x1000, 0x2000], -22);
/// assert!(call.failed() && call.args[2] == 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The time of the record in nanoseconds since the run began, right after the call returned.
    /// The live session sets it. Recordings of older versions have none.
    pub at: Option<u64>,
    /// The call stack of the thread at the call; 0 if it was not recorded.
    pub stack: StackId,
    /// The address space that it acted on.
    pub mm: MmId,
    /// The calling thread.
    pub tid: u32,
    /// The kind of call.
    pub op: Op,
    /// The arguments; those beyond [`Op::arity`] are 0. For ioctl and close, the first is the
    /// number of the userfaultfd's inode, because descriptors are duplicated.
    pub args: [usize; 6],
    /// mmap: the open file, 0 if none.
    pub file: FileId,
    /// mbind and ioctl: the words that the call read from memory (node mask, 0, 0; or start,
    /// length, mode; or API, features, 0).
    pub memory: Option<[usize; 3]>,
    /// The result of the call: -errno as a negative number.
    pub result: isize,
}

impl Call {
    /// A call of a thread on an address space. The arguments that are left out are 0.
    ///
    /// # Panics
    /// If there are more than six.
    pub fn new(mm: MmId, tid: u32, op: Op, args: &[usize], result: isize) -> Call {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        Call { at: None, stack: 0, mm, tid, op, args: all, file: 0, memory: None, result }
    }

    /// Whether the kernel refused it.
    pub fn failed(&self) -> bool {
        (-4095..0).contains(&self.result)
    }
}

macro_rules! ops {
    (@ range) => { true };
    (@) => { false };
    ($($variant:ident $name:literal $arity:literal $($range:ident)?),* $(,)?) => {
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

            /// The call of that name.
            pub fn named(name: &str) -> Option<Op> {
                Op::ALL.iter().copied().find(|op| op.name() == name)
            }

            /// The name of the system call in a trace.
            pub fn name(self) -> &'static str {
                match self { $(Op::$variant => $name),* }
            }

            /// The number of arguments that a trace records.
            pub fn arity(self) -> usize {
                match self { $(Op::$variant => $arity),* }
            }

            /// Whether it acts on the VMAs of a range, whose start and length are its first
            /// arguments.
            pub fn takes_range(self) -> bool {
                match self { $(Op::$variant => ops!(@ $($range)?)),* }
            }
        }
    };
}

ops! {
    Mmap "mmap" 6, Munmap "munmap" 2 range, Mprotect "mprotect" 3 range,
    PkeyMprotect "pkey_mprotect" 4 range, Mremap "mremap" 5, Brk "brk" 1, Madvise "madvise" 3 range,
    Mlock "mlock" 2 range, Mlock2 "mlock2" 3 range, Munlock "munlock" 2 range,
    Mlockall "mlockall" 1, Munlockall "munlockall" 0, Mbind "mbind" 6 range, Shmat "shmat" 3,
    Shmdt "shmdt" 1, RemapFilePages "remap_file_pages" 5 range, Mseal "mseal" 3 range,
    Prctl "prctl" 5, Ioctl "ioctl" 3, Close "close" 1, IoSetup "io_setup" 2, IoDestroy "io_destroy" 1,
    ProcessMadvise "process_madvise" 5, SetMempolicyHomeNode "set_mempolicy_home_node" 4 range,
    MapShadowStack "map_shadow_stack" 3, Personality "personality" 1,
    PkeyAlloc "pkey_alloc" 2, PkeyFree "pkey_free" 1,
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
    /// The thread that ended it.
    pub tid: u32,
    /// Whether execve ended it, and not exit.
    pub exec: bool,
    /// The lines of `/proc/PID/maps`, without newlines.
    pub lines: Vec<String>,
    /// The start and flags of each VMA, from smaps.
    pub flags: Vec<(usize, VmFlags)>,
}
