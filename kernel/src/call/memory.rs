//! Calls on memory: each is a call of `mm`.

use super::{Call, Outcome, Stop, fail, file};
use crate::task::Space;
use crate::user::END;
use alloc::vec;
use linux_raw_sys::errno::{EFAULT, EINVAL, ENOMEM, ENOSPC, EOVERFLOW};
use mm::{Advice, LockAll, MapFlags, RemapRequest, SyncFlags};

const PAGE: u64 = 4096;

/// Brings pages in, or does other work on a range that takes long: part by part, between which the
/// CPU goes to other threads when the turn is over. The call is made again then.
fn in_parts(
    call: &mut Call<'_>,
    addr: u64,
    len: u64,
    work: impl Fn(&Space, usize, usize) -> Result<(), mm::Error>,
) -> Result<(), Stop> {
    /// The bytes of a part.
    const PART: u64 = 1 << 20;
    // A length that wraps is rounded to nothing, as in Linux.
    let len = if addr.checked_add(len).is_some_and(|end| end <= END) { len } else { 0 };
    let mut done = call.moved();
    while done < len {
        let part = (len - done).min(PART);
        work(call.space(), addr.wrapping_add(done) as usize, part as usize)?;
        done += part;
        if done < len && !call.goes_on(done, [])? {
            break;
        }
    }
    Ok(())
}

/// mmap(2).
pub(super) fn mmap(call: &mut Call<'_>) -> Outcome {
    let [_, len, _, flags, ..] = call.args;
    let at = call.change(map)?;
    let flags = MapFlags::from_bits_retain(flags as u32);
    if flags.contains(MapFlags::POPULATE) && !flags.contains(MapFlags::NONBLOCK) {
        let brought = in_parts(call, at, len, Space::populate);
        // A page that cannot be brought in is not the call's failure.
        if let Err(stop @ Stop::Turn) = brought {
            call.own.resume.changed = Some(Ok(at));
            return Err(stop);
        }
    }
    Ok(at)
}

fn map(call: &mut Call<'_>) -> Outcome {
    let [addr, len, prot, flags, fd, offset] = call.args;
    // `mmap` brings the pages in.
    let flags = MapFlags::from_bits_retain(flags as u32).difference(MapFlags::POPULATE);
    let prot = prot as u32;
    let fixed = flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
    if fixed && len > 0 && addr >= -4095_i64 as u64 {
        // Linux takes such an address for the error of that number.
        return Ok(addr);
    }
    if !offset.is_multiple_of(PAGE) {
        return fail(EINVAL);
    }
    let space = call.space();
    let at = if flags.contains(MapFlags::ANONYMOUS) {
        space.mmap(addr as usize, len as usize, prot, flags)
    } else {
        match file::backing(call, fd, prot, flags)? {
            Some(file) => {
                // As a file is never longer, its pages have no such offset.
                if len <= END && offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
                    return fail(EOVERFLOW);
                }
                space.mmap_object(addr as usize, len as usize, prot, flags, file, offset as usize)
            }
            None => space.mmap(addr as usize, len as usize, prot, flags | MapFlags::ANONYMOUS),
        }
    };
    Ok(at? as u64)
}

/// munmap(2).
pub(super) fn munmap(call: &mut Call<'_>) -> Outcome {
    let [addr, len, ..] = call.args;
    call.change(|call| {
        call.space().munmap(addr as usize, len as usize)?;
        Ok(0)
    })
}

/// mprotect(2).
pub(super) fn mprotect(call: &mut Call<'_>) -> Outcome {
    let [addr, len, prot, ..] = call.args;
    call.space().mprotect(addr as usize, len as usize, prot as u32, None)?;
    Ok(0)
}

/// mremap(2).
pub(super) fn mremap(call: &mut Call<'_>) -> Outcome {
    const MAYMOVE: u64 = 1;
    const FIXED: u64 = 2;
    const DONTUNMAP: u64 = 4;
    let [addr, old_len, new_len, flags, new_addr, _] = call.args;
    let has = |flag| flags & flag != 0;
    if flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0 || has(FIXED | DONTUNMAP) && !has(MAYMOVE) {
        return fail(EINVAL);
    }
    let to = |flag| has(flag).then_some(new_addr as usize);
    let request = RemapRequest {
        addr: addr as usize,
        old_len: old_len as usize,
        new_len: new_len as usize,
        may_move: has(MAYMOVE),
        fixed: to(FIXED),
        dont_unmap: to(DONTUNMAP),
    };
    call.change(|call| Ok(call.space().mremap(request)? as u64))
}

/// brk(2): never fails, but for the result.
pub(super) fn brk(call: &mut Call<'_>) -> Outcome {
    call.change(|call| Ok(call.space().brk(call.args[0] as usize)? as u64))
}

/// madvise(2).
pub(super) fn madvise(call: &mut Call<'_>) -> Outcome {
    let [addr, len, advice, ..] = call.args;
    let Some(advice) = Advice::from_number(advice as u32) else { return fail(EINVAL) };
    let within = addr.checked_add(len).is_some_and(|end| end <= END);
    if within && matches!(advice, Advice::PopulateRead | Advice::PopulateWrite) {
        in_parts(call, addr, len, |space, at, len| space.madvise(at, len, advice))?;
        return Ok(0);
    }
    let (addr, len) = (addr as usize, len as usize);
    // Monitors read of the removal before it happens.
    call.change(|call| {
        call.space().announce_removal(addr, len, advice)?;
        Ok(0)
    })?;
    call.space().madvise_announced(addr, len, advice)?;
    Ok(0)
}

/// mincore(2).
pub(super) fn mincore(call: &mut Call<'_>) -> Outcome {
    /// Pages that are looked at together.
    const PAGES: u64 = 4096;
    let [addr, len, into, ..] = call.args;
    if !addr.is_multiple_of(PAGE) {
        return fail(EINVAL);
    }
    let pages = len.div_ceil(PAGE);
    if addr.checked_add(len).is_none_or(|end| end > END) {
        return fail(ENOMEM);
    }
    if into.checked_add(pages).is_none_or(|end| end > END) {
        return fail(EFAULT);
    }
    let mut bytes = vec![0; PAGES.min(pages) as usize];
    let mut done = call.moved();
    while done < pages {
        let count = (pages - done).min(PAGES);
        let part = &mut bytes[..count as usize];
        call.space().mincore((addr + done * PAGE) as usize, part)?;
        call.user().write_bytes(into + done, part)?;
        done += count;
        if !call.goes_on(done, [])? {
            break;
        }
    }
    Ok(0)
}

/// mlock(2).
pub(super) fn mlock(call: &mut Call<'_>) -> Outcome {
    lock_pages(call, false)
}

/// The VMAs change at once, and the pages come in parts.
fn lock_pages(call: &mut Call<'_>, on_fault: bool) -> Outcome {
    let [addr, len, ..] = call.args;
    let (at, bytes) = (addr as usize, len as usize);
    if call.moved() == 0
        && let Err(error) = call.space().with_vmas(|calls| calls.mlock(at, bytes, on_fault))
    {
        // This fails, too. Before a VMA without rights, it also brings the pages in.
        call.space().mlock(at, bytes, on_fault)?;
        return Err(error.into());
    }
    in_parts(call, addr, len, Space::populate)?;
    Ok(0)
}

/// mlock2(2).
pub(super) fn mlock2(call: &mut Call<'_>) -> Outcome {
    let flags = call.args[2];
    if flags & !1 != 0 {
        return fail(EINVAL);
    }
    lock_pages(call, flags != 0)
}

/// munlock(2).
pub(super) fn munlock(call: &mut Call<'_>) -> Outcome {
    let [addr, len, ..] = call.args;
    call.space().munlock(addr as usize, len as usize)?;
    Ok(0)
}

/// mlockall(2).
pub(super) fn mlockall(call: &mut Call<'_>) -> Outcome {
    let flags = call.args[0];
    if flags == 0 || flags & !7 != 0 || flags == 4 {
        return fail(EINVAL);
    }
    let has = |flag| flags & flag != 0;
    call.space().mlockall(LockAll { current: has(1), future: has(2), on_fault: has(4) })?;
    Ok(0)
}

/// munlockall(2).
pub(super) fn munlockall(call: &mut Call<'_>) -> Outcome {
    call.space().munlockall()?;
    Ok(0)
}

/// msync(2).
pub(super) fn msync(call: &mut Call<'_>) -> Outcome {
    let [addr, len, flags, ..] = call.args;
    let flags = SyncFlags::from_bits_retain(flags as u32);
    call.space().msync(addr as usize, len as usize, flags)?;
    Ok(0)
}

/// mseal(2).
pub(super) fn mseal(call: &mut Call<'_>) -> Outcome {
    let [addr, len, flags, ..] = call.args;
    if flags != 0 {
        return fail(EINVAL);
    }
    call.space().with_vmas(|calls| calls.mseal(addr as usize, len as usize))?;
    Ok(0)
}

/// process_vm_readv(2) and process_vm_writev(2) of the process itself or another.
pub(super) fn process_vm(call: &mut Call<'_>, write: bool) -> Outcome {
    /// The most pieces of a list, and the bytes that are copied together.
    const PIECES: u64 = 1024;
    const PART: usize = 16 << 10;
    /// The most bytes of a call, as in Linux.
    const MOST: u64 = 0x7fff_f000;
    let [pid, local, local_count, remote, remote_count, flags] = call.args;
    if flags != 0 || local_count > PIECES || remote_count > PIECES {
        return fail(EINVAL);
    }
    let other = crate::task::process::process(pid as u32);
    let space = other.and_then(|process| process.space());
    let Some(space) = space else { return fail(linux_raw_sys::errno::ESRCH) };
    let pieces = |at: u64, count: u64| -> Result<vec::Vec<[u64; 2]>, Stop> {
        let read =
            (0..count).map(|index| call.user().read::<[u64; 2]>(at.wrapping_add(16 * index)));
        Ok(read.collect::<Result<_, _>>()?)
    };
    let (mut here, mut there) = (pieces(local, local_count)?, pieces(remote, remote_count)?);
    if here.iter().chain(&there).any(|piece| piece[1] > i64::MAX as u64) {
        return fail(EINVAL);
    }
    let mut left = MOST;
    for piece in &mut here {
        piece[1] = piece[1].min(left);
        left -= piece[1];
    }
    let mut bytes = vec![0; PART];
    let mut done = call.moved();
    skip(&mut here, done);
    skip(&mut there, done);
    let (mut from, mut to) = (0, 0);
    while let (Some(own), Some(others)) = (here.get_mut(from), there.get_mut(to)) {
        let part = (own[1].min(others[1]) as usize).min(PART);
        let part = &mut bytes[..part];
        // The bytes that are copied before a fault count, on both sides.
        let whole = |copied: Result<(), mm::CopyError>, len| match copied {
            Ok(()) => len,
            Err(error) => error.copied,
        };
        let copied = if write {
            let found = call.user().read_some(own[0], part);
            whole(space.write(others[0] as usize, &part[..found]), found)
        } else {
            let found = whole(space.read(others[0] as usize, part), part.len());
            call.user().write_some(own[0], &part[..found])
        };
        let len = copied as u64;
        done += len;
        if copied < part.len() {
            return if done == 0 { fail(EFAULT) } else { Ok(done) };
        }
        for piece in [&mut *own, &mut *others] {
            *piece = [piece[0].wrapping_add(len), piece[1] - len];
        }
        from += usize::from(own[1] == 0);
        to += usize::from(others[1] == 0);
        if !call.goes_on(done, [])? {
            break;
        }
    }
    Ok(done)
}

/// Takes this many bytes from the beginning of pieces.
fn skip(pieces: &mut [[u64; 2]], mut bytes: u64) {
    for piece in pieces {
        let len = bytes.min(piece[1]);
        *piece = [piece[0].wrapping_add(len), piece[1] - len];
        bytes -= len;
    }
}

/// pkey_alloc(2), pkey_free(2): the kernel gives out no keys, as Linux on a CPU without them.
pub(super) fn pkey_alloc(call: &mut Call<'_>) -> Outcome {
    let [flags, rights, ..] = call.args;
    fail(if flags != 0 || rights & !3 != 0 { EINVAL } else { ENOSPC })
}

/// pkey_mprotect(2): without a key, -1, it is mprotect(2).
pub(super) fn pkey_mprotect(call: &mut Call<'_>) -> Outcome {
    if call.args[3] as i32 != -1 { fail(EINVAL) } else { mprotect(call) }
}

/// remap_file_pages(2): a part of a shared map becomes one of other pages of its file.
pub(super) fn remap_file_pages(call: &mut Call<'_>) -> Outcome {
    let [start, size, prot, page, ..] = call.args;
    if prot != 0 {
        return fail(EINVAL);
    }
    call.change(|call| {
        let [start, size, page] = [start, size, page].map(|word| word as usize);
        call.space().with_vmas(|calls| calls.remap_file_pages(start, size, page))?;
        Ok(0)
    })
}
