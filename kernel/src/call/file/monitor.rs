//! userfaultfd(2), the ioctls of its descriptors, and PAGEMAP_SCAN.

use super::{Call, Errno, Outcome, check_flags};
use crate::call::fail;
use crate::file::monitor::{FEATURES, Monitor};
use crate::file::node::{Kind, Node};
use crate::file::open::{Mode, Open};
use crate::user::HOLE;
use alloc::sync::Arc;
use linux_raw_sys::errno::{EFAULT, EINVAL, ENOTTY};
use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};
use mm::{PageCategories, Scan};

const API: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const UNREGISTER: u64 = 0x8010_aa01;
const WAKE: u64 = 0x8010_aa02;
const WRITEPROTECT: u64 = 0xc018_aa06;
/// The ioctls of a descriptor, and of a registered range: bits by number.
const OF_ALL: u64 = 1 << 63 | 1 << 1 | 1;
const OF_RANGE: u64 = 1 << 6 | 1 << 2;

/// PAGEMAP_SCAN.
pub(super) const SCAN: u64 = 0xc060_6610;
const PAGE: u64 = 4096;

/// userfaultfd(2).
pub(in crate::call) fn userfaultfd(call: &mut Call<'_>) -> Outcome {
    const USER_MODE_ONLY: u32 = 1;
    let flags = call.args[0];
    check_flags(flags, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY)?;
    let flags = flags as u32;
    let node = Node::new(Kind::Monitor(Monitor::new(call.space())?), 0o600)?;
    let open = Open::new(node, None, Mode::READ_WRITE, flags & O_NONBLOCK)?;
    Ok(call.files()?.insert(open, flags & O_CLOEXEC != 0, 0)?.into())
}

/// An ioctl of a descriptor of userfaultfd.
pub(super) fn ioctl(call: &mut Call<'_>, monitor: &Monitor, request: u64, at: u64) -> Outcome {
    const VERSION: u64 = 0xaa;
    let user = call.user();
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
            monitor.register(start, len, modes)?;
            user.write(at + 24, &OF_RANGE)?;
        }
        UNREGISTER => {
            let [start, len]: [u64; 2] = user.read(at)?;
            monitor.unregister(start, len)?;
        }
        // No thread ever waits.
        WAKE if monitor.is_ready() => {
            let [start, len]: [u64; 2] = user.read(at)?;
            if !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || len == 0 {
                return fail(EINVAL);
            }
        }
        WRITEPROTECT => {
            let [start, len, mode]: [u64; 3] = user.read(at)?;
            // To protect wakes no thread, so it does not say that it does not.
            if !matches!(mode, 0..=2) {
                return fail(EINVAL);
            }
            monitor.protect(start, len, mode == 1)?;
        }
        _ => return fail(EINVAL),
    }
    Ok(0)
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
    if let Kind::Monitor(monitor) = &open.node.kind { Some(monitor) } else { None }
}
