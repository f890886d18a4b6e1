//! Carries out a recorded system call on our own address space.

use std::ops::Range;

use vma::{
    Advice, AttachRequest, LockAll, MapFlags, MapRequest, Policy, RemapRequest, Uffd, VmFlags,
    Writer,
};

use super::{
    Engine,
    beside::Steps,
    file::{File, HUGE_PAGE},
};
use crate::{
    record::{Call, FileKind, InitialVma, Op},
    span::Span,
};

const ENOMEM: isize = -12;
const EACCES: isize = -13;
const EPERM: isize = -1;
const EINVAL: isize = -22;
const EAGAIN: isize = -11;
const EIO: isize = -5;
const EOPNOTSUPP: isize = -95;
/// MPOL_MF_MOVE and MPOL_MF_MOVE_ALL.
const MPOL_MF_MOVE: usize = 2 | 4;
/// ERESTARTSYS. The program never sees it: the kernel repeats the call after a signal.
const RESTARTS: isize = -512;

/// The outcome of a call on our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    /// This result. The kernel's must equal it.
    Result(isize),
    /// This address, chosen by the rules. The kernel's must equal it.
    Address(usize),
    /// Nothing to compare: VMAs do not determine the outcome, or the call does not change them.
    Unknown,
}

/// The data that a call needs besides its arguments.
pub(super) struct Context {
    pub(super) file: Option<File>,
    pub(super) driver_flags: Option<VmFlags>,
    /// ioctl: the userfaultfd's features.
    pub(super) features: usize,
    /// io_destroy: the size of the ring, if its io_setup was seen.
    pub(super) ring: Option<usize>,
}

fn outcome(result: Result<(), vma::Error>) -> Ours {
    Ours::Result(result.map_or_else(errno, |()| 0))
}

fn errno(error: vma::Error) -> isize {
    -(error.errno() as isize)
}

/// Carries out the call. If the kernel refused it for a reason that VMAs do not show (a limit, a
/// privilege, a missing facility), nothing is done. If the kernel stopped half-way, our rules stop
/// at the same place.
pub(super) fn perform(space: &mut Steps<'_>, call: &Call, context: Context) -> Ours {
    let [a, b, c, d, e, _] = call.args;
    let kernel = call.result;
    let failed = (-4095..0).contains(&kernel);
    match call.op {
        Op::Mmap => mmap(space, call, context),
        Op::Munmap if failed && !(kernel == EPERM && has_sealed(space, a, b)) => Ours::Unknown,
        Op::Munmap => outcome(space.munmap(a, b)),
        Op::Mprotect | Op::PkeyMprotect => {
            let pkey = (call.op == Op::PkeyMprotect && d as i32 != -1).then_some(d as u8);
            if let (Some(key), 0 | ENOMEM | EACCES | EPERM) = (pkey, kernel) {
                // The kernel has accepted the key. The session may have begun after its pkey_alloc.
                space.adopt_pkey(key, false);
            }
            match kernel {
                ENOMEM if !has_hole(space, a, b) => Ours::Unknown,
                0 | ENOMEM | EACCES | EPERM => outcome(space.mprotect(a, b, c as u32, pkey)),
                _ => Ours::Unknown,
            }
        }
        Op::Mremap => mremap(space, call),
        Op::Brk => {
            if kernel as usize != a {
                return Ours::Unknown;
            }
            Ours::Result(space.brk(a) as isize)
        }
        Op::Madvise => match (Advice::from_number(c as u32), kernel) {
            // Refused because of pages, which the mirror does not know.
            (Some(advice), EINVAL | EPERM) if !advice.changes_vmas() => Ours::Unknown,
            (Some(advice), 0 | ENOMEM) => outcome(space.madvise(a, b, advice)),
            (Some(advice), EINVAL | EPERM) if space.refuses_advice(a, b, advice) => {
                outcome(space.madvise(a, b, advice))
            }
            _ => Ours::Unknown,
        },
        Op::Mlock | Op::Mlock2 => match kernel {
            // ENOMEM has two causes. Either RLIMIT_MEMLOCK refused the call at once, or all VMAs
            // were locked and then a page could not be populated.
            ENOMEM if !has_hole(space, a, b) && !may_fail_to_fault(space, a, b) => Ours::Unknown,
            ENOMEM => {
                let _ = space.mlock(a, b, call.op == Op::Mlock2 && c & 1 != 0);
                Ours::Unknown
            }
            0 | EAGAIN => {
                let on_fault = call.op == Op::Mlock2 && c & 1 != 0;
                outcome(space.mlock(a, b, on_fault))
            }
            _ => Ours::Unknown,
        },
        Op::Munlock if kernel == 0 || kernel == ENOMEM => outcome(space.munlock(a, b)),
        Op::Mlockall if kernel == 0 => outcome(space.mlockall(LockAll {
            current: a & 1 != 0,
            future: a & 2 != 0,
            on_fault: a & 4 != 0,
        })),
        Op::Munlockall if kernel == 0 => outcome(space.munlockall()),
        // With MPOL_MF_MOVE, misplaced pages make the call fail after its change. Without it, the
        // call fails before.
        Op::Mbind if kernel == 0 || (kernel == EIO && call.args[5] & MPOL_MF_MOVE != 0) => {
            mbind(space, call)
        }
        Op::SetMempolicyHomeNode if kernel == 0 => outcome(space.set_home_node(a, b, c as u32)),
        Op::RemapFilePages if kernel == 0 => outcome(space.remap_file_pages(a, b, d)),
        Op::Mseal if kernel == 0 => outcome(space.mseal(a, b)),
        Op::Shmat if kernel == EPERM => replace_sealed(space, b),
        Op::Shmdt if kernel == 0 => outcome(space.shmdt(a)),
        Op::PkeyAlloc if !failed => {
            space.adopt_pkey(kernel as u8, false);
            Ours::Unknown
        }
        Op::PkeyFree if kernel == 0 => {
            space.adopt_pkey(a as u8, false);
            outcome(space.pkey_free(a as u8))
        }
        Op::Prctl if kernel == 0 => prctl(space, a, b, c),
        Op::Ioctl if kernel == 0 => uffd_ioctl(space, call, context.features),
        Op::Close => close(space, a),
        Op::IoDestroy if kernel == 0 => io_destroy(space, a, context.ring),
        _ => {
            let _ = e;
            Ours::Unknown
        }
    }
}

fn mmap(space: &mut Steps<'_>, call: &Call, context: Context) -> Ours {
    const MAP_FIXED: usize = 0x10;
    let [addr, len, prot, flags, _, offset] = call.args;
    if call.result == EPERM && flags & MAP_FIXED != 0 && has_sealed(space, addr, len) {
        // It failed at the unmap of its target.
        return outcome(space.munmap(addr, len));
    }
    let mut flags = MapFlags::from_bits_retain(flags as u32);
    if (-4095..0).contains(&call.result) {
        if flags.contains(MapFlags::FIXED) {
            refused_by_driver(space, call);
        }
        return Ours::Unknown;
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
        return Ours::Result(space.mmap(request).map_or_else(errno, |addr| addr as isize));
    }
    let ours = space.mmap(request.clone());
    if ours != Ok(got) {
        // Continue at the kernel's address, so that one wrong address does not make all later ones
        // wrong.
        if let Ok(wrong) = ours {
            let _ = space.munmap(wrong, len);
        }
        let _ = space.mmap(MapRequest { addr: got, flags: flags | MapFlags::FIXED, ..request });
    }
    Ours::Address(ours.unwrap_or_else(|error| errno(error) as usize))
}

/// A fixed map that fails for lack of huge pages, or for MAP_SYNC that the file system does not
/// support, has already unmapped its target. (Failures of other drivers are read from the kernel,
/// see `settle`.)
fn refused_by_driver(space: &mut Steps<'_>, call: &Call) {
    let [addr, len, _, flags, ..] = call.args;
    let flags = MapFlags::from_bits_retain(flags as u32);
    let validates = flags.contains(MapFlags::SHARED_VALIDATE);
    let len = match call.result {
        EOPNOTSUPP if flags.contains(MapFlags::SYNC) && !validates => len,
        ENOMEM if flags.contains(MapFlags::ANONYMOUS | MapFlags::HUGETLB) => {
            len.next_multiple_of(HUGE_PAGE)
        }
        _ => return,
    };
    let _ = space.munmap(addr, len);
}

fn mremap(space: &mut Steps<'_>, call: &Call) -> Ours {
    const MAYMOVE: usize = 1;
    const FIXED: usize = 2;
    const DONTUNMAP: usize = 4;
    let [addr, old_len, new_len, flags, new_addr, _] = call.args;
    let fixed = flags & FIXED != 0;
    match call.result {
        EAGAIN => return Ours::Unknown,
        // A signal came first, and the kernel repeats the call. The target may already be unmapped.
        RESTARTS => {
            if fixed {
                let _ = space.munmap(new_addr, new_len);
            }
            return Ours::Unknown;
        }
        // A limit, or no space. The kernel notices it before or after it unmaps the target.
        ENOMEM => return Ours::Unknown,
        // A driver may forbid splitting its VMAs, as perf does. Such a VMA may be in the source or
        // in the target.
        EINVAL if meets_device(space, addr, old_len.max(new_len)) => return Ours::Unknown,
        EINVAL if fixed && meets_device(space, new_addr, new_len) => return Ours::Unknown,
        EINVAL if flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0 => return Ours::Result(EINVAL),
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
        return Ours::Result(space.mremap(there).map_or_else(errno, |to| to as isize));
    }
    let ours = space.mremap(request);
    match ours {
        Ok(to) if !fixed && to != addr => Ours::Address(to),
        Ok(to) => Ours::Result(to as isize),
        Err(error) => Ours::Result(errno(error)),
    }
}

/// Whether addresses are chosen upwards (the legacy layout), from an unknown start.
pub(super) fn bottom_up(space: &Writer<'_, File, Engine>) -> bool {
    space.layout().mmap_base == 0
}

fn mbind(space: &mut Steps<'_>, call: &Call) -> Ours {
    const DEFAULT: u32 = 0;
    const PREFERRED: u32 = 1;
    const LOCAL: u32 = 4;
    const MODE_FLAGS: u32 = 0b111 << 13;
    let [start, len, mode, _, max_node, _] = call.args;
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
    match space.mbind(start, len, policy) {
        _ if call.result == EIO => Ours::Unknown,
        result => outcome(result),
    }
}

fn prctl(space: &mut Steps<'_>, option: usize, arg: usize, value: usize) -> Ours {
    const PR_SET_MM: usize = 35;
    const PR_SET_MM_START_STACK: usize = 5;
    const PR_SET_MM_START_BRK: usize = 6;
    const PR_SET_MM_BRK: usize = 7;
    const PR_SET_MEMORY_MERGE: usize = 67;
    match (option, arg) {
        (PR_SET_MEMORY_MERGE, _) => return outcome(space.set_memory_merge(arg != 0)),
        (PR_SET_MM, _) => {
            let mut layout = space.layout();
            match arg {
                PR_SET_MM_START_STACK => layout.start_stack = value,
                PR_SET_MM_START_BRK => layout.start_brk = value,
                PR_SET_MM_BRK => layout.brk = value,
                _ => return Ours::Unknown,
            }
            space.set_layout(layout);
        }
        _ => {}
    }
    Ours::Unknown
}

fn uffd_ioctl(space: &mut Steps<'_>, call: &Call, features: usize) -> Ours {
    const EVENT_FORK: usize = 1 << 1;
    const EVENT_REMAP: usize = 1 << 2;
    const UFFDIO_REGISTER: usize = 0xc020_aa00;
    const UFFDIO_UNREGISTER: usize = 0x8010_aa01;
    let Some([start, len, mode]) = call.memory else { return Ours::Unknown };
    match call.args[1] & 0xffff_ffff {
        UFFDIO_REGISTER => {
            let mut modes = VmFlags::empty();
            for (bit, flag) in
                [(1, VmFlags::UFFD_MISSING), (2, VmFlags::UFFD_WP), (4, VmFlags::UFFD_MINOR)]
            {
                if mode & bit != 0 {
                    modes |= flag;
                }
            }
            let uffd = Uffd {
                id: call.args[0] as u64,
                follows_fork: features & EVENT_FORK != 0,
                follows_remap: features & EVENT_REMAP != 0,
            };
            outcome(space.watch(start, len, modes, uffd))
        }
        UFFDIO_UNREGISTER => outcome(space.unwatch(start, len)),
        _ => Ours::Unknown,
    }
}

fn close(space: &mut Steps<'_>, fd: usize) -> Ours {
    match space.close_watch(fd as u64) {
        Ok(()) => Ours::Unknown,
        Err(error) => Ours::Result(errno(error)),
    }
}

/// Unmaps the whole original range of the aio ring at `ring`, even if parts of it were changed or
/// replaced.
fn io_destroy(space: &mut Steps<'_>, ring: usize, known: Option<usize>) -> Ours {
    let size = |area: vma::Area<File>| area.vma.file.as_ref().and_then(File::ring_size);
    let mapped = || space.area_at(ring).and_then(size);
    let Some(size) = known.or_else(mapped) else { return Ours::Unknown };
    match space.munmap(ring, size) {
        // Linux ignores a failed unmap here.
        Err(vma::Error::Sealed) => Ours::Unknown,
        result => outcome(result),
    }
}

/// SHM_REMAP over a sealed VMA, as in mmap. The size is unknown, but it reached the first sealed
/// VMA.
fn replace_sealed(space: &mut Steps<'_>, addr: usize) -> Ours {
    let sealed = space.areas_from(addr).find(|area| area.vma.flags.contains(VmFlags::SEALED));
    match sealed {
        Some(area) => outcome(space.munmap(addr, area.end - addr)),
        None => Ours::Unknown,
    }
}

/// shmat of a segment. The kernel's VMA shows its size. Returns our result.
pub(super) fn attach(
    space: &mut Steps<'_>,
    &[_, addr, flags, ..]: &[usize; 6],
    vma: &InitialVma,
    segment: File,
) -> isize {
    const SHM_RDONLY: usize = 0o10000;
    const SHM_RND: usize = 0o20000;
    const SHM_REMAP: usize = 0o40000;
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
    space.shmat(request).map_or_else(errno, |addr| addr as isize)
}

fn has_sealed(space: &Writer<'_, File, Engine>, start: usize, len: usize) -> bool {
    let Some(span) = Span::checked(start, len) else { return false };
    space
        .areas_from(span.start)
        .take_while(|area| area.start < span.end)
        .any(|area| area.vma.flags.contains(VmFlags::SEALED))
}

/// Whether the range contains a map of a device.
fn meets_device(space: &Writer<'_, File, Engine>, start: usize, len: usize) -> bool {
    let Some(span) = Span::checked(start, len) else { return false };
    let is_device = |area: vma::Area<File>| {
        area.vma.file.as_ref().is_some_and(|file| file.kind() == FileKind::Device)
    };
    space.areas_from(span.start).take_while(|area| area.start < span.end).any(is_device)
}

fn has_hole(space: &Writer<'_, File, Engine>, start: usize, len: usize) -> bool {
    let Some(Range { start: mut at, end }) = Span::checked(start, len).map(|span| span.range())
    else {
        return true;
    };
    while at < end {
        match space.area_at(at) {
            Some(area) => at = area.end,
            None => return true,
        }
    }
    false
}

/// Whether populating the range may fail: a VMA has no access, reaches past a file's end, has guard
/// pages, or is registered with a userfaultfd.
fn may_fail_to_fault(space: &Writer<'_, File, Engine>, start: usize, len: usize) -> bool {
    let Some(Range { start: mut at, end }) = Span::checked(start, len).map(|span| span.range())
    else {
        return false;
    };
    while at < end {
        let Some(area) = space.area_at(at) else { return false };
        let accessible = area.vma.flags.intersects(VmFlags::ACCESS);
        let barred = area.vma.flags.intersects(VmFlags::UFFD | VmFlags::MAYBE_GUARD);
        if !accessible || barred || area.vma.file.is_some() {
            return true;
        }
        at = area.end;
    }
    false
}
