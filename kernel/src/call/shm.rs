//! System V shared memory: shmget, shmat, shmdt, shmctl.
//!
//! A segment lives until it is removed, however many programs end. After IPC_RMID only its maps
//! keep it: its number finds it as long as there is one, and its memory goes with the last. So no
//! counter of attachments has to follow forks, unmaps and ends. IPC_STAT counts the maps of all
//! processes when it is asked, which costs a walk over them.
//!
//! Permissions are kept and shown. IPC_INFO, SHM_INFO and SHM_STAT are not there.

use super::{Call, Outcome, fail};
use crate::errno::Errno;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::space::tables;
use crate::task::memory::promises;
use crate::task::process;
use crate::time::{SECOND, real_time};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::errno::{EEXIST, EINVAL, ENOENT, ENOMEM, ENOSPC};
use mm::{AttachRequest, Backing, Shared, Shmem, WeakShared};
use spin::mutex::SpinMutex;
use zerocopy::IntoBytes;

type Memory = Shmem<Kernel>;

/// The most segments (SHMMNI).
const MOST: usize = 4096;
/// The largest size (SHMMAX).
const LARGEST: u64 = u64::MAX - (1 << 24);
/// SHM_DEST: it is removed.
const REMOVED: u32 = 0o1000;

struct Segment {
    key: u32,
    size: u64,
    /// None when it is removed: then its maps keep it.
    memory: Option<Shared<Memory>>,
    weak: WeakShared<Memory>,
    /// Of the object, as [`address`] has it.
    address: usize,
    /// User, group, and those of its maker.
    owners: [u32; 4],
    mode: u32,
    /// Seconds: last attachment, last detachment, last change.
    times: [u64; 3],
    /// The processes that made it, and that used it last.
    pids: [u32; 2],
}

static SEGMENTS: SpinMutex<BTreeMap<u32, Segment>> = SpinMutex::new(BTreeMap::new());
static NEXT: AtomicU32 = AtomicU32::new(0);

fn seconds() -> u64 {
    real_time() / SECOND
}

/// Forgets the segments that are removed and mapped nowhere. `kept` gets the memory of the other
/// removed ones: if its last map goes meanwhile, it is dropped without the lock.
fn forget(segments: &mut BTreeMap<u32, Segment>, kept: &mut Vec<Shared<Memory>>) {
    segments.retain(|_, segment| {
        if segment.memory.is_some() || kept.try_reserve(1).is_err() {
            return true;
        }
        let memory = segment.weak.upgrade();
        memory.map(|memory| kept.push(memory)).is_some()
    });
}

/// shmget(2).
pub(super) fn shmget(call: &mut Call<'_>) -> Outcome {
    const CREATE: u32 = 0o1000;
    const EXCLUSIVE: u32 = 0o2000;
    const HUGE: u32 = 0o4000;
    const NO_RESERVE: u32 = 0o10000;
    let [key, size, flags, ..] = call.args;
    let (key, flags) = (key as u32, flags as u32);
    let find =
        || lock(&SEGMENTS).iter().find(|(_, one)| one.key == key).map(|(id, one)| (*id, one.size));
    if key != 0
        && let Some((id, has)) = find()
    {
        return match () {
            () if flags & CREATE != 0 && flags & EXCLUSIVE != 0 => fail(EEXIST),
            () if size > has => fail(EINVAL),
            () => Ok(id.into()),
        };
    }
    if key != 0 && flags & CREATE == 0 {
        return fail(ENOENT);
    }
    if !(1..=LARGEST).contains(&size) {
        return fail(EINVAL);
    }
    // There are no huge pages to reserve.
    if flags & HUGE != 0 || size > i64::MAX as u64 {
        return fail(ENOMEM);
    }
    // Relaxed: only the number.
    let id = NEXT.fetch_add(1, Ordering::Relaxed) & i32::MAX as u32;
    let no_memory = |_| Errno(ENOMEM);
    let memory = Shmem::segment(tables().paging(), key, id.into(), size).map_err(no_memory)?;
    if flags & NO_RESERVE == 0 {
        memory.set_commitment(promises().map_err(mm::Error::from)?).map_err(no_memory)?;
    }
    let identity = lock(&call.process().identity).clone();
    let (user, group) = (identity.user[1], identity.group[1]);
    let segment = Segment {
        key,
        size,
        weak: Shared::downgrade(&memory),
        address: address(&memory),
        memory: Some(memory),
        owners: [user, group, user, group],
        mode: flags & 0o777,
        times: [0, 0, seconds()],
        pids: [call.process().pid, 0],
    };
    let mut kept = Vec::new();
    let mut segments = lock(&SEGMENTS);
    forget(&mut segments, &mut kept);
    if segments.len() >= MOST {
        return fail(ENOSPC);
    }
    if segments.contains_key(&id) || key != 0 && segments.values().any(|one| one.key == key) {
        // Another thread was faster, or all numbers were used once.
        drop(segments);
        return if key != 0 && flags & EXCLUSIVE == 0 { shmget(call) } else { fail(EEXIST) };
    }
    segments.insert(id, segment);
    Ok(id.into())
}

/// The memory of a segment.
///
/// # Errors
/// EINVAL: there is none, or it is removed and mapped nowhere. Its memory may be there a while
/// longer, until the last look at its last map is over.
fn find(id: u32) -> Result<Shared<Memory>, Errno> {
    let found = lock(&SEGMENTS).get(&id).map(|segment| (segment.weak.clone(), segment.mode));
    let (weak, mode) = found.ok_or(Errno(EINVAL))?;
    let memory = weak.upgrade().ok_or(Errno(EINVAL))?;
    if mode & REMOVED != 0 && count_maps(&memory) == 0 {
        return Err(Errno(EINVAL));
    }
    Ok(memory)
}

/// shmat(2).
pub(super) fn shmat(call: &mut Call<'_>) -> Outcome {
    let [id, at, flags, ..] = call.args;
    let has = |flag| flags & flag != 0;
    let (read_only, round, replace, exec) =
        (has(0o10000), has(0o20000), has(0o40000), has(0o100_000));
    let memory = find(id as u32)?;
    let len = memory.size() as usize;
    let segment = Backing::open(memory, !read_only).map_err(|_| Errno(ENOMEM))?;
    let addr = (at != 0).then_some(at as usize);
    let request = AttachRequest { segment, len, addr, read_only, exec, replace, round };
    let at = call.space().shmat(request)?;
    note(call, id as u32, 0);
    Ok(at as u64)
}

/// Notes the process that has attached or detached a segment, and the time.
fn note(call: &Call<'_>, id: u32, which: usize) {
    if let Some(segment) = lock(&SEGMENTS).get_mut(&id) {
        segment.times[which] = seconds();
        segment.pids[1] = call.process().pid;
    }
}

/// shmdt(2).
pub(super) fn shmdt(call: &mut Call<'_>) -> Outcome {
    let at = call.args[0] as usize;
    let place = call.space().shared_place(at);
    call.change(|call| {
        call.space().shmdt(at)?;
        Ok(0)
    })?;
    let id = place.and_then(|(object, _)| {
        let segments = lock(&SEGMENTS);
        segments.iter().find(|(_, segment)| segment.address == object).map(|(id, _)| *id)
    });
    id.inspect(|id| note(call, *id, 1));
    Ok(0)
}

/// The address that [`Space::shared_place`](mm::AddressSpace::shared_place) returns for the object.
fn address(memory: &Shared<Memory>) -> usize {
    core::ptr::from_ref(&**memory).addr()
}

/// The maps of a segment in all processes.
fn count_maps(memory: &Shared<Memory>) -> u64 {
    let (object, mut count) = (address(memory), 0);
    let mut spaces: Vec<_> = process::all().iter().filter_map(|one| one.space()).collect();
    // Processes of a vfork share a space.
    spaces.sort_unstable_by_key(|space| Arc::as_ptr(space).addr());
    spaces.dedup_by_key(|space| Arc::as_ptr(space).addr());
    for space in &spaces {
        space.for_each_vma(|range, _| {
            let place = space.shared_place(range.start);
            count += u64::from(place.is_some_and(|(found, _)| found == object));
        });
    }
    count
}

/// shmctl(2).
pub(super) fn shmctl(call: &mut Call<'_>) -> Outcome {
    const REMOVE: u32 = 0;
    const SET: u32 = 1;
    const STAT: u32 = 2;
    const LOCK: u32 = 11;
    const UNLOCK: u32 = 12;
    let [id, command, at, ..] = call.args;
    if (id as i32) < 0 {
        return fail(EINVAL);
    }
    let bad = Errno(EINVAL);
    let new = match command as u32 {
        SET => Some(call.user().read::<[u32; 28]>(at)?),
        REMOVE | STAT | LOCK | UNLOCK => None,
        _ => return fail(EINVAL),
    };
    let memory = find(id as u32)?;
    let mut segments = lock(&SEGMENTS);
    let segment = segments.get_mut(&(id as u32)).ok_or(bad)?;
    match (command as u32, new) {
        (SET, Some(new)) => {
            (segment.owners[0], segment.owners[1]) = (new[1], new[2]);
            segment.mode = segment.mode & !0o777 | new[5] & 0o777;
            segment.times[2] = seconds();
        }
        (REMOVE, _) => {
            (segment.key, segment.mode) = (0, segment.mode | REMOVED);
            let memory = segment.memory.take();
            drop(segments);
            drop(memory);
        }
        (STAT, _) => {
            let Segment { key, size, owners, mode, times, pids, .. } = *segment;
            drop(segments);
            let count = count_maps(&memory);
            let half = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
            let [user, group, maker, makers_group] = owners;
            // The permissions: 48 bytes. Then size, times, processes, attachments.
            let words = [
                half(key, user),
                half(group, maker),
                half(makers_group, mode),
                0,
                0,
                0,
                size,
                times[0],
                times[1],
                times[2],
                half(pids[0], pids[1]),
                count,
                0,
                0,
            ];
            call.user().write_bytes(at, words.as_bytes())?;
        }
        // There is no swap: all is locked.
        _ => {}
    }
    Ok(0)
}
