//! Carries out a recorded system call on our own address space.

use std::ops::Range;

use vma::{
    Advice, AttachRequest, LockAll, MapFlags, MapRequest, Policy, RemapRequest, Uffd, VmFlags,
    Writer,
};

use super::{
    Engine, SpaceChange,
    file::{File, HUGE_PAGE},
    shadow::SpaceWriter,
};
use crate::{
    abi::*,
    record::{Call, FileKind, InitialVma, Op},
    span::Span,
};

/// MPOL_MF_MOVE and MPOL_MF_MOVE_ALL.
const MPOL_MF_MOVE: usize = 2 | 4;
/// ERESTARTSYS. The program never sees it: the kernel repeats the call after a signal.
const RESTARTS: isize = -512;

/// The outcome of a call on our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OurOutcome {
    /// This result. The kernel's must equal it.
    Result(isize),
    /// This address, chosen by the rules. The kernel's must equal it.
    Address(usize),
    /// Nothing to compare: VMAs do not determine the outcome, or the call does not change them.
    Unknown,
}

/// The data that a call needs in addition to its arguments.
pub(super) struct CallContext {
    pub(super) file: Option<File>,
    pub(super) driver_flags: Option<VmFlags>,
    /// ioctl: the userfaultfd's features.
    pub(super) features: usize,
    /// io_destroy: the size of the ring, if its io_setup was seen.
    pub(super) ring: Option<usize>,
}

fn outcome(result: Result<usize, vma::Error>) -> OurOutcome {
    OurOutcome::Result(result.map_or_else(errno, |address| address as isize))
}

fn errno(error: vma::Error) -> isize {
    -(error.errno() as isize)
}

/// Carries out the call. If the kernel refused it for a reason that VMAs do not show (a limit, a
/// privilege, a missing facility), nothing is done. If the kernel stopped half-way, our rules stop
/// at the same place.
pub(super) fn perform(
    space: &mut SpaceWriter<'_>,
    call: &Call,
    context: CallContext,
) -> OurOutcome {
    let [addr, len, c, d, ..] = call.args;
    let kernel = call.result;
    let change = match call.op {
        Op::Mmap => return mmap(space, call, context),
        Op::Munmap if call.failed() && !(kernel == EPERM && has_sealed(space, addr, len)) => {
            return OurOutcome::Unknown;
        }
        Op::Munmap => SpaceChange::Munmap { addr, len },
        Op::Mprotect | Op::PkeyMprotect => {
            let pkey = (call.op == Op::PkeyMprotect && d as i32 != -1).then_some(d as u8);
            if let (Some(key), 0 | ENOMEM | EACCES | EPERM) = (pkey, kernel) {
                adopt_pkey(space, key, false);
            }
            match kernel {
                ENOMEM if !has_hole(space, addr, len) => return OurOutcome::Unknown,
                0 | ENOMEM | EACCES | EPERM => {
                    SpaceChange::Mprotect { addr, len, prot: c as u32, pkey }
                }
                _ => return OurOutcome::Unknown,
            }
        }
        Op::Mremap => return mremap(space, call),
        Op::Brk if kernel as usize == addr => SpaceChange::Brk(addr),
        Op::Madvise => match (Advice::from_number(c as u32), kernel) {
            // Refused because of pages, which the mirror does not know.
            (Some(advice), EINVAL | EPERM) if !advice.changes_vmas() => return OurOutcome::Unknown,
            (Some(advice), 0 | ENOMEM) => SpaceChange::Madvise { addr, len, advice },
            (Some(advice), EINVAL | EPERM) if space.refuses_advice(addr, len, advice) => {
                SpaceChange::Madvise { addr, len, advice }
            }
            _ => return OurOutcome::Unknown,
        },
        Op::Mlock | Op::Mlock2 => {
            let on_fault = call.op == Op::Mlock2 && c & 1 != 0;
            let lock = SpaceChange::Mlock { addr, len, on_fault };
            match kernel {
                // ENOMEM has two causes. Either RLIMIT_MEMLOCK refused the call at once, or all
                // VMAs were locked and then a page could not be populated.
                ENOMEM if has_hole(space, addr, len) || may_fail_to_fault(space, addr, len) => {
                    let _ = space.change(lock);
                    return OurOutcome::Unknown;
                }
                0 | EAGAIN => lock,
                _ => return OurOutcome::Unknown,
            }
        }
        Op::Munlock if kernel == 0 || kernel == ENOMEM => SpaceChange::Munlock { addr, len },
        // With MPOL_MF_MOVE, misplaced pages make the call fail after its change. Without it, the
        // call fails before.
        Op::Mbind if kernel == EIO && call.args[5] & MPOL_MF_MOVE != 0 => {
            let _ = space.change(mbind(call));
            return OurOutcome::Unknown;
        }
        Op::Shmat if kernel == EPERM => return replace_sealed(space, len),
        Op::PkeyAlloc if !call.failed() => {
            adopt_pkey(space, kernel as u8, false);
            return OurOutcome::Unknown;
        }
        Op::Close => {
            let closed = space.change(SpaceChange::CloseWatch(addr as u64));
            return closed
                .map_or_else(|error| OurOutcome::Result(errno(error)), |_| OurOutcome::Unknown);
        }
        _ if kernel != 0 => return OurOutcome::Unknown,
        Op::Mlockall => SpaceChange::Mlockall(LockAll {
            current: addr & 1 != 0,
            future: addr & 2 != 0,
            on_fault: addr & 4 != 0,
        }),
        Op::Munlockall => SpaceChange::Munlockall,
        Op::Mbind => mbind(call),
        Op::SetMempolicyHomeNode => SpaceChange::SetHomeNode { addr, len, node: c as u32 },
        Op::RemapFilePages => SpaceChange::RemapFilePages { addr, len, pgoff: d },
        Op::Mseal => SpaceChange::Mseal { addr, len },
        Op::Shmdt => SpaceChange::Shmdt(addr),
        Op::PkeyFree => {
            adopt_pkey(space, addr as u8, false);
            SpaceChange::PkeyFree(addr as u8)
        }
        Op::Prctl => return prctl(space, call),
        Op::Ioctl => match uffd_ioctl(call, context.features) {
            Some(change) => change,
            None => return OurOutcome::Unknown,
        },
        Op::IoDestroy => return io_destroy(space, addr, context.ring),
        _ => return OurOutcome::Unknown,
    };
    outcome(space.change(change))
}

/// The kernel has this key. The session may have begun after its pkey_alloc.
pub(super) fn adopt_pkey(space: &mut SpaceWriter<'_>, key: u8, exec_only: bool) {
    // It fails if the recorded kernel has no such key. Then nothing depends on it.
    let _ = space.change(SpaceChange::AdoptPkey { key, exec_only });
}

fn mmap(space: &mut SpaceWriter<'_>, call: &Call, context: CallContext) -> OurOutcome {
    let [addr, len, prot, flags, _, offset] = call.args;
    let mut flags = MapFlags::from_bits_retain(flags as u32);
    let replaces = flags.contains(MapFlags::FIXED);
    if call.result == EPERM && replaces && has_sealed(space, addr, len) {
        // It failed at the unmap of its target.
        return outcome(space.change(SpaceChange::Munmap { addr, len }));
    }
    if call.failed() {
        if replaces {
            refused_by_driver(space, call, flags);
        }
        return OurOutcome::Unknown;
    }
    let got = call.result as usize;
    let fixed = flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
    let driver = context.file.as_ref().is_some_and(|file| file.kind() == FileKind::Device);
    let unforeseeable = !fixed && (flags.contains(MapFlags::BIT32) || driver || bottom_up(space));
    if unforeseeable {
        flags |= MapFlags::FIXED;
    }
    let request = MapRequest {
        addr: if unforeseeable { got } else { addr },
        len,
        prot: prot as u32,
        flags,
        file: context.file,
        // An anonymous map ignores its offset, so any value is allowed.
        offset: if flags.contains(MapFlags::ANONYMOUS) { 0 } else { offset },
        driver_flags: context.driver_flags,
    };
    if fixed || unforeseeable {
        return outcome(space.change(SpaceChange::Mmap(request)));
    }
    let ours = space.change(SpaceChange::Mmap(request.clone()));
    if ours != Ok(got) {
        // Continue at the kernel's address, so that one wrong address does not make all later ones
        // wrong.
        if let Ok(addr) = ours {
            let _ = space.change(SpaceChange::Munmap { addr, len });
        }
        let flags = flags | MapFlags::FIXED;
        let _ = space.change(SpaceChange::Mmap(MapRequest { addr: got, flags, ..request }));
    }
    OurOutcome::Address(ours.unwrap_or_else(|error| errno(error) as usize))
}

/// A fixed map that fails for lack of huge pages, or for MAP_SYNC that the file system does not
/// support, has already unmapped its target. (Failures of other drivers are read from the kernel,
/// see `settle`.)
fn refused_by_driver(space: &mut SpaceWriter<'_>, call: &Call, flags: MapFlags) {
    let [addr, len, ..] = call.args;
    let validates = flags.contains(MapFlags::SHARED_VALIDATE);
    let len = match call.result {
        EOPNOTSUPP if flags.contains(MapFlags::SYNC) && !validates => len,
        ENOMEM if flags.contains(MapFlags::ANONYMOUS | MapFlags::HUGETLB) => {
            len.next_multiple_of(HUGE_PAGE)
        }
        _ => return,
    };
    let _ = space.change(SpaceChange::Munmap { addr, len });
}

fn mremap(space: &mut SpaceWriter<'_>, call: &Call) -> OurOutcome {
    const MAYMOVE: usize = 1;
    const DONTUNMAP: usize = 4;
    let [addr, old_len, new_len, flags, new_addr, _] = call.args;
    let fixed = flags & MREMAP_FIXED != 0;
    match call.result {
        EAGAIN => return OurOutcome::Unknown,
        // A signal came first, and the kernel repeats the call. The target may already be unmapped.
        RESTARTS => {
            if fixed {
                let _ = space.change(SpaceChange::Munmap { addr: new_addr, len: new_len });
            }
            return OurOutcome::Unknown;
        }
        // A limit, or no space. The kernel notices it before or after it unmaps the target.
        ENOMEM => return OurOutcome::Unknown,
        // A driver may forbid splitting its VMAs, as perf does. Such a VMA may be in the source or
        // in the target.
        EINVAL if meets_device(space, addr, old_len.max(new_len)) => return OurOutcome::Unknown,
        EINVAL if fixed && meets_device(space, new_addr, new_len) => return OurOutcome::Unknown,
        EINVAL if flags & !(MAYMOVE | MREMAP_FIXED | DONTUNMAP) != 0 => {
            return OurOutcome::Result(EINVAL);
        }
        _ => {}
    }
    let request = RemapRequest {
        addr,
        old_len,
        new_len,
        may_move: flags & MAYMOVE != 0,
        fixed: fixed.then_some(new_addr),
        dont_unmap: (flags & DONTUNMAP != 0).then_some(new_addr),
    };
    if !fixed && bottom_up(space) && call.result >= 0 && call.result as usize != addr {
        // This address cannot be predicted. Move to the kernel's address.
        let there = RemapRequest { fixed: Some(call.result as usize), ..request };
        return outcome(space.change(SpaceChange::Mremap(there)));
    }
    match space.change(SpaceChange::Mremap(request)) {
        Ok(to) if !fixed && to != addr => OurOutcome::Address(to),
        result => outcome(result),
    }
}

/// Whether addresses are chosen upwards (the legacy layout), from an unknown start.
pub(super) fn bottom_up(space: &Writer<'_, File, Engine>) -> bool {
    space.layout().mmap_base == 0
}

fn mbind(call: &Call) -> SpaceChange<File> {
    const DEFAULT: u32 = 0;
    const PREFERRED: u32 = 1;
    const LOCAL: u32 = 4;
    const MODE_FLAGS: u32 = 0b111 << 13;
    let [addr, len, mode, _, max_node, _] = call.args;
    let mode = mode as u32;
    let mask = call.memory.map_or(0, |words| words[0] as u64);
    // The kernel uses one bit less than `max_node`.
    let bits = max_node.saturating_sub(1).min(64) as u32;
    let nodes = if bits == 64 { mask } else { mask & ((1 << bits) - 1) };
    let policy = match mode & !MODE_FLAGS {
        DEFAULT => None,
        PREFERRED if nodes == 0 => Some(Policy { mode: LOCAL, nodes: 0, home: None }),
        _ => Some(Policy { mode, nodes, home: None }),
    };
    SpaceChange::Mbind { addr, len, policy }
}

fn prctl(space: &mut SpaceWriter<'_>, call: &Call) -> OurOutcome {
    const PR_SET_MEMORY_MERGE: usize = 67;
    let [option, arg, value, ..] = call.args;
    match option {
        PR_SET_MEMORY_MERGE => return outcome(space.change(SpaceChange::SetMemoryMerge(arg != 0))),
        PR_SET_MM => {
            let mut layout = space.layout();
            match arg {
                PR_SET_MM_START_STACK => layout.start_stack = value,
                PR_SET_MM_START_BRK => layout.start_brk = value,
                PR_SET_MM_BRK => layout.brk = value,
                _ => return OurOutcome::Unknown,
            }
            // It cannot fail.
            let _ = space.change(SpaceChange::SetLayout(layout));
        }
        _ => {}
    }
    OurOutcome::Unknown
}

fn uffd_ioctl(call: &Call, features: usize) -> Option<SpaceChange<File>> {
    const EVENT_FORK: usize = 1 << 1;
    const EVENT_REMAP: usize = 1 << 2;
    const MODES: [(usize, VmFlags); 3] =
        [(1, VmFlags::UFFD_MISSING), (2, VmFlags::UFFD_WP), (4, VmFlags::UFFD_MINOR)];
    let [addr, len, mode] = call.memory?;
    match call.args[1] as u32 {
        UFFDIO_REGISTER => {
            let set = MODES.into_iter().filter(|(bit, _)| mode & bit != 0);
            let modes = set.fold(VmFlags::empty(), |all, (_, flag)| all | flag);
            let uffd = Uffd {
                id: call.args[0] as u64,
                follows_fork: features & EVENT_FORK != 0,
                follows_remap: features & EVENT_REMAP != 0,
            };
            Some(SpaceChange::Watch { addr, len, modes, uffd })
        }
        UFFDIO_UNREGISTER => Some(SpaceChange::Unwatch { addr, len }),
        _ => None,
    }
}

/// Unmaps the whole original range of the aio ring at `addr`, even if parts of it were changed or
/// replaced.
fn io_destroy(space: &mut SpaceWriter<'_>, addr: usize, known: Option<usize>) -> OurOutcome {
    let size = |area: vma::Area<File>| area.vma.file.as_ref().and_then(File::ring_size);
    let mapped = || space.area_at(addr).and_then(size);
    let Some(len) = known.or_else(mapped) else { return OurOutcome::Unknown };
    match space.change(SpaceChange::Munmap { addr, len }) {
        // Linux ignores a failed unmap here.
        Err(vma::Error::Sealed) => OurOutcome::Unknown,
        result => outcome(result),
    }
}

/// SHM_REMAP over a sealed VMA, as in mmap. The size is unknown, but it reached the first sealed
/// VMA.
fn replace_sealed(space: &mut SpaceWriter<'_>, addr: usize) -> OurOutcome {
    let sealed = space.areas_from(addr).find(|area| area.vma.flags.contains(VmFlags::SEALED));
    match sealed {
        Some(area) => outcome(space.change(SpaceChange::Munmap { addr, len: area.end - addr })),
        None => OurOutcome::Unknown,
    }
}

/// shmat of a segment. The kernel's VMA shows its size. Returns our result.
pub(super) fn attach(
    space: &mut SpaceWriter<'_>,
    &[_, addr, flags, ..]: &[usize; 6],
    vma: &InitialVma,
    segment: File,
) -> isize {
    const SHM_RDONLY: usize = 0o10000;
    const SHM_RND: usize = 0o20000;
    const SHM_EXEC: usize = 0o100000;
    let len = vma.end.wrapping_sub(vma.start);
    segment.set_whole(len);
    let request = AttachRequest {
        segment,
        len,
        addr: match addr {
            0 if bottom_up(space) => Some(vma.start),
            0 => None,
            addr => Some(addr),
        },
        read_only: flags & SHM_RDONLY != 0,
        exec: flags & SHM_EXEC != 0,
        replace: flags & SHM_REMAP != 0,
        round: flags & SHM_RND != 0,
    };
    space.change(SpaceChange::Shmat(request)).map_or_else(errno, |addr| addr as isize)
}

/// The VMAs that a range meets; none if it wraps, which the kernel refuses.
fn areas_in<'a>(
    space: &'a Writer<'_, File, Engine>,
    start: usize,
    len: usize,
) -> impl Iterator<Item = vma::Area<File>> + 'a {
    let Range { start, end } = Span::checked(start, len).unwrap_or_default().range();
    space.areas_from(start).take_while(move |area| area.start < end)
}

fn has_sealed(space: &Writer<'_, File, Engine>, start: usize, len: usize) -> bool {
    areas_in(space, start, len).any(|area| area.vma.flags.contains(VmFlags::SEALED))
}

/// Whether the range contains a map of a device.
fn meets_device(space: &Writer<'_, File, Engine>, start: usize, len: usize) -> bool {
    areas_in(space, start, len)
        .any(|area| area.vma.file.as_ref().is_some_and(|file| file.kind() == FileKind::Device))
}

fn has_hole(space: &Writer<'_, File, Engine>, start: usize, len: usize) -> bool {
    let Some(span) = Span::checked(start, len) else { return true };
    let mut at = span.start;
    for area in areas_in(space, start, len) {
        if area.start > at {
            return true;
        }
        at = area.end;
    }
    at < span.end
}

/// Whether populating the range may fail: a VMA has no access, reaches past a
/// file's end, has guard pages, or is registered with a userfaultfd.
fn may_fail_to_fault(space: &Writer<'_, File, Engine>, start: usize, len: usize) -> bool {
    areas_in(space, start, len).any(|area| {
        let barred = area.vma.flags.intersects(VmFlags::UFFD | VmFlags::MAYBE_GUARD);
        !area.vma.flags.intersects(VmFlags::ACCESS) || barred || area.vma.file.is_some()
    })
}
