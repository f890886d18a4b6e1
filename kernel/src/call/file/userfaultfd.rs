//! userfaultfd(2), the ioctls of its descriptors, and PAGEMAP_SCAN.

use super::{Call, Outcome, check_flags};
use crate::call::fail;
use crate::errno::Errno;
use crate::file::inode::InodeKind;
use crate::file::open::{Mode, Open};
use crate::file::userfaultfd::{FEATURES, Monitor};
use crate::task::Space;
use crate::user::HOLE;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use linux_raw_sys::errno::{EAGAIN, EFAULT, EINVAL, ENOMEM, ENOTTY};
use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};
use mm::{PageCategories, Scan};

const API: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const UNREGISTER: u64 = 0x8010_aa01;
const WAKE: u64 = 0x8010_aa02;
const COPY: u64 = 0xc028_aa03;
const ZEROPAGE: u64 = 0xc020_aa04;
const MOVE: u64 = 0xc028_aa05;
const WRITEPROTECT: u64 = 0xc018_aa06;
const CONTINUE: u64 = 0xc020_aa07;
const POISON: u64 = 0xc020_aa08;
/// USERFAULTFD_IOC_NEW, of `/dev/userfaultfd`.
pub(super) const NEW: u64 = 0xaa00;
/// The ioctls of a descriptor, and those of any registered range: bits by number.
const OF_ALL: u64 = 1 << 63 | 1 << 1 | 1;
const OF_RANGE: u64 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8;

/// PAGEMAP_SCAN.
pub(super) const SCAN: u64 = 0xc060_6610;
const PAGE: u64 = 4096;

/// userfaultfd(2).
pub(in crate::call) fn userfaultfd(call: &mut Call<'_>) -> Outcome {
    new(call, call.args[0])
}

/// A descriptor of userfaultfd.
pub(super) fn new(call: &mut Call<'_>, flags: u64) -> Outcome {
    const USER_MODE_ONLY: u32 = 1;
    check_flags(flags, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY)?;
    let flags = flags as u32;
    let monitor = Monitor::new(call.space(), flags & (O_CLOEXEC | O_NONBLOCK))?;
    Ok(descriptor(call, monitor)?.into())
}

/// A descriptor of a monitor.
pub(super) fn descriptor(call: &Call<'_>, monitor: Arc<Monitor>) -> Result<u32, Errno> {
    let flags = monitor.flags() & (O_NONBLOCK | O_CLOEXEC);
    call.descriptor(InodeKind::Monitor(monitor), Mode::READ_WRITE, flags)
}

/// An ioctl of a descriptor of userfaultfd.
pub(super) fn ioctl(call: &mut Call<'_>, monitor: &Monitor, request: u64, at: u64) -> Outcome {
    const VERSION: u64 = 0xaa;
    /// Modes of an ioctl that resolves.
    const DONT_WAKE: u64 = 1;
    const PROTECT: u64 = 2;
    const HOLES: u64 = 2;
    let user = call.user();
    let told_at = match request {
        COPY | MOVE => Some(at.wrapping_add(32)),
        ZEROPAGE | CONTINUE | POISON => Some(at.wrapping_add(24)),
        _ => None,
    };
    if (told_at.is_some() || request == WRITEPROTECT) && monitor.is_changing() {
        let told = told_at.map_or(Ok(()), |at| user.write(at, &-i64::from(EAGAIN)));
        return told.map_err(Into::into).and(fail(EAGAIN));
    }
    match request {
        API => {
            let [version, features, _]: [u64; 3] = user.read(at)?;
            if version != VERSION || monitor.start(features).is_err() {
                user.write(at, &[0_u64; 3])?;
                return fail(EINVAL);
            }
            user.write(at, &[VERSION, FEATURES, OF_ALL])?;
        }
        REGISTER => {
            let [start, len, modes]: [u64; 3] = user.read(at)?;
            monitor.register([start, len], modes)?;
            // UFFDIO_WRITEPROTECT and UFFDIO_CONTINUE, for the modes of WP and MINOR.
            user.write(at + 24, &(OF_RANGE | (modes & 6) << 5))?;
        }
        UNREGISTER => {
            let [start, len]: [u64; 2] = user.read(at)?;
            monitor.unregister(start, len)?;
        }
        WAKE => {
            let [start, len]: [u64; 2] = user.read(at)?;
            monitor.space()?;
            monitor.wake(range(start, len)?);
        }
        WRITEPROTECT => {
            let [start, len, mode]: [u64; 3] = user.read(at)?;
            // To protect wakes no thread, so it does not say that it does not.
            if !matches!(mode, 0..=2) {
                return fail(EINVAL);
            }
            let (space, range) = (monitor.space()?, range(start, len)?);
            space.userfault_write_protect(start as usize, len as usize, mode == 1)?;
            if mode == 0 {
                monitor.wake(range);
            }
        }
        COPY => {
            let [to, from, len, mode]: [u64; 4] = user.read(at)?;
            let space = check_mode(monitor, mode, DONT_WAKE | PROTECT)?;
            let range = range(to, len)?;
            from.checked_add(len).filter(|end| *end <= HOLE).ok_or(Errno(EINVAL))?;
            let done = copy(call, &space, [to, from, len], mode & PROTECT != 0);
            return resolved(call, monitor, at + 32, range, mode & DONT_WAKE == 0, done);
        }
        MOVE => {
            let [to, from, len, mode]: [u64; 4] = user.read(at)?;
            let space = check_mode(monitor, mode, DONT_WAKE | HOLES)?;
            let (range, source) = (range(to, len)?, range(from, len)?);
            let (to, from) = (to as usize, source.start as usize);
            let done = space.userfault_move(to, from, len as usize, mode & HOLES != 0);
            return resolved(call, monitor, at + 32, range, mode & DONT_WAKE == 0, done);
        }
        ZEROPAGE | CONTINUE | POISON => {
            let [start, len, mode]: [u64; 3] = user.read(at)?;
            let protect = if request == CONTINUE { PROTECT } else { 0 };
            let space = check_mode(monitor, mode, DONT_WAKE | protect)?;
            let range = range(start, len)?;
            let (from, len) = (start as usize, len as usize);
            let done = match request {
                ZEROPAGE => space.userfault_zeropage(from, len),
                POISON => space.userfault_poison(from, len),
                _ => space.userfault_continue(from, len, mode & PROTECT != 0),
            };
            return resolved(call, monitor, at + 24, range, mode & DONT_WAKE == 0, done);
        }
        _ => return fail(EINVAL),
    }
    Ok(0)
}

/// Whole pages of programs.
fn range(start: u64, len: u64) -> Result<Range<u64>, Errno> {
    let end = start.checked_add(len).filter(|end| *end <= HOLE && len > 0);
    let whole = start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
    end.filter(|_| whole).map(|end| start..end).ok_or(Errno(EINVAL))
}

fn check_mode(monitor: &Monitor, mode: u64, known: u64) -> Result<Arc<Space>, Errno> {
    let space = monitor.space()?;
    if mode & !known == 0 { Ok(space) } else { Err(Errno(EINVAL)) }
}

/// UFFDIO_COPY: by a buffer of the kernel, page by page.
fn copy(
    call: &Call<'_>,
    space: &Space,
    [to, from, len]: [u64; 3],
    protect: bool,
) -> Result<(), Stopped> {
    let mut page = Vec::new();
    if page.try_reserve_exact(PAGE as usize).is_err() {
        return Err(Stopped { done: 0, errno: Errno(ENOMEM) });
    }
    page.resize(PAGE as usize, 0);
    for done in (0..len).step_by(PAGE as usize) {
        let read = call.user().read_bytes(from + done, &mut page);
        read.map_err(|_| Stopped { done, errno: Errno(EFAULT) })?;
        let copied = space.userfault_copy((to + done) as usize, &page, protect);
        copied.map_err(|failed| Stopped { done, errno: failed.error.into() })?;
    }
    Ok(())
}

/// An ioctl that resolves has stopped early.
struct Stopped {
    /// The bytes that were resolved before.
    done: u64,
    errno: Errno,
}

impl From<mm::Resolved> for Stopped {
    fn from(resolved: mm::Resolved) -> Stopped {
        Stopped { done: resolved.done as u64, errno: resolved.error.into() }
    }
}

/// Ends an ioctl that resolves: tells how far it came, and wakes those that wait there.
fn resolved(
    call: &Call<'_>,
    monitor: &Monitor,
    told_at: u64,
    range: Range<u64>,
    wakes: bool,
    done: Result<(), impl Into<Stopped>>,
) -> Outcome {
    let len = range.end - range.start;
    let stopped = done.err().map(Into::into);
    let done = stopped.as_ref().map_or(len, |stopped| stopped.done);
    let told = match &stopped {
        Some(Stopped { done: 0, errno }) => -i64::from(errno.0) as u64,
        _ => done,
    };
    call.user().write(told_at, &told)?;
    if wakes && done > 0 {
        monitor.wake(range.start..range.start + done);
    }
    match stopped {
        None => Ok(0),
        Some(Stopped { done: 0, errno }) => Err(errno.into()),
        Some(_) => fail(EAGAIN),
    }
}

/// PAGEMAP_SCAN of the space that a description of `pagemap` shows.
pub(super) fn scan(call: &mut Call<'_>, open: &Open, at: u64) -> Outcome {
    /// `struct pm_scan_arg`.
    const SIZE: u64 = 96;
    const PROTECT: u64 = 1;
    const CHECK: u64 = 2;
    let Some(space) = open.pagemap() else { return fail(ENOTTY) };
    let arguments: [u64; 12] = call.user().read(at)?;
    let [size, flags, start, end, _, into, most, pages, masks @ ..] = arguments;
    let masks = masks.map(PageCategories::from_bits);
    let [Some(inverted), Some(mask), Some(anyof), Some(shown)] = masks else {
        return fail(EINVAL);
    };
    if size != SIZE || flags & !(PROTECT | CHECK) != 0 || !start.is_multiple_of(PAGE) {
        return fail(EINVAL);
    }
    if end < start || end > HOLE {
        return fail(EFAULT);
    }
    if into == 0 && most > 0 {
        return fail(EINVAL);
    }
    // Without room for regions, all pages that match are protected, and none is shown.
    let what = Scan {
        category_mask: mask,
        category_anyof_mask: anyof,
        category_inverted: inverted,
        return_mask: shown,
        wp_matching: flags & PROTECT != 0,
        check_wp_async: flags & CHECK != 0,
        max_pages: if most == 0 { 0 } else { pages as usize },
        max_regions: most as usize,
    };
    let found = space.scan(start as usize..end as usize, &what).map_err(Errno::from)?;
    let regions = if most == 0 { &[][..] } else { &found.regions[..] };
    for (index, region) in regions.iter().enumerate() {
        let region = [region.start as u64, region.end as u64, region.categories.bits()];
        call.user().write(into + 24 * index as u64, &region)?;
    }
    call.user().write(at + 32, &(found.walk_end as u64))?;
    Ok(regions.len() as u64)
}

/// Whether a description is one of userfaultfd.
pub(super) fn of(open: &Arc<Open>) -> Option<&Monitor> {
    if let InodeKind::Monitor(monitor) = &open.node.kind { Some(monitor) } else { None }
}
