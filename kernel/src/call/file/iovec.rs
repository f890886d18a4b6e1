//! The parts of a program's memory that a read or a write names.

use crate::errno::Errno;
use crate::user::END;
use crate::user::copy::User;
use alloc::vec::Vec;
use core::iter;
use linux_raw_sys::errno::{EFAULT, EINVAL, ENOMEM};

/// The most bytes of a call, as in Linux.
pub(super) const MOST: u64 = 0x7fff_f000;
/// The most parts of a vector (IOV_MAX).
const PARTS: u64 = 1024;

/// The parts of a program's memory that a call names.
pub(super) struct Parts {
    /// Here, so that a call on one part needs no heap.
    first: [u64; 2],
    others: Vec<[u64; 2]>,
    pub(super) total: u64,
}

impl Parts {
    pub(super) fn one(at: u64, len: u64) -> Result<Parts, Errno> {
        let total = len.min(MOST);
        check(at, len)?;
        Ok(Parts { first: [at, total], others: Vec::new(), total })
    }

    /// Reads a vector of `iovec`.
    pub(super) fn read(user: User<'_>, at: u64, count: u64) -> Result<Parts, Errno> {
        if count > PARTS {
            return Err(Errno(EINVAL));
        }
        let (mut first, mut others, mut total) = ([0; 2], Vec::new(), 0);
        others.try_reserve_exact(count.saturating_sub(1) as usize).map_err(|_| Errno(ENOMEM))?;
        for index in 0..count {
            let at = at.checked_add(16 * index).ok_or(Errno(EFAULT))?;
            let [base, len]: [u64; 2] = user.read(at)?;
            if len > i64::MAX as u64 {
                return Err(Errno(EINVAL));
            }
            check(base, len)?;
            let len = len.min(MOST - total);
            total += len;
            match index {
                0 => first = [base, len],
                _ => others.push([base, len]),
            }
        }
        Ok(Parts { first, others, total })
    }

    /// The pieces of memory from byte `skip` on, `most` bytes at most.
    fn pieces(&self, skip: u64, most: usize) -> impl Iterator<Item = (u64, usize)> {
        let (mut skip, mut most) = (skip, most as u64);
        iter::once(&self.first).chain(&self.others).filter_map(move |[at, len]| {
            let over = skip.min(*len);
            skip -= over;
            let len = (len - over).min(most);
            most -= len;
            (len > 0).then_some((at + over, len as usize))
        })
    }

    /// Copies from the program. Returns how many bytes came before a fault.
    pub(super) fn gather(&self, user: User<'_>, skip: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        for (at, len) in self.pieces(skip, into.len()) {
            let copied = user.read_some(at, &mut into[done..done + len]);
            done += copied;
            if copied < len {
                break;
            }
        }
        done
    }

    /// Copies to the program. Returns how many bytes went before a fault.
    pub(super) fn scatter(&self, user: User<'_>, skip: u64, from: &[u8]) -> usize {
        let mut done = 0;
        for (at, len) in self.pieces(skip, from.len()) {
            let copied = user.write_some(at, &from[done..done + len]);
            done += copied;
            if copied < len {
                break;
            }
        }
        done
    }
}

/// Whether addresses are those of programs.
fn check(at: u64, len: u64) -> Result<(), Errno> {
    let end = at.checked_add(len).filter(|end| *end <= END);
    end.map(drop).ok_or(Errno(EFAULT))
}
