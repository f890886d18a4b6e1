//! Copies from and to a program's memory, for system calls.
//!
//! A call trusts no address of a program. Each copy checks that it lies in the program's half, goes
//! through the CPU's own translations, and handles faults like those of the program
//! ([`mm::AddressSpace::copy_from_user`]). A bad address is EFAULT.

use crate::errno::Errno;
use crate::machine::compare_exchange;
use crate::task::Space;
use crate::task::program::Name;
use crate::user::END;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{E2BIG, EFAULT, ENAMETOOLONG, ENOMEM};
use machine::VirtAddr;
use mm::Access;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The longest path, with its zero.
pub(crate) const PATH_MAX: usize = 4096;

/// The memory of the program that this CPU has active.
#[derive(Clone, Copy)]
pub(crate) struct User<'a>(&'a Arc<Space>);

impl<'a> User<'a> {
    /// # Safety
    /// The space is active on this CPU, and stays so while the value lives.
    pub(crate) unsafe fn new(space: &'a Arc<Space>) -> Self {
        User(space)
    }

    pub(crate) fn space(self) -> &'a Arc<Space> {
        self.0
    }

    /// Replaces the word at `at` by `new`, in one atomic instruction, if it is `old`. Returns
    /// whether it was.
    pub(crate) fn compare_exchange(self, at: u64, old: u32, new: u32) -> Result<bool, Errno> {
        if at >= END || !at.is_multiple_of(4) {
            return Err(Errno(EFAULT));
        }
        loop {
            // SAFETY: a program's word, in the lower half.
            match unsafe { compare_exchange(VirtAddr::new(at), old, new) } {
                Ok(was) => return Ok(was),
                Err(_) => self
                    .0
                    .handle_fault(VirtAddr::new(at), Access::Write)
                    .map_err(|_| Errno(EFAULT))?,
            };
        }
    }

    /// Copies bytes from the program.
    pub(crate) fn read_bytes(self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: the space is active, by the promise of `new`.
        unsafe { self.0.copy_from_user(at as usize, into) }.map_err(|_| Errno(EFAULT))
    }

    /// Copies bytes to the program.
    pub(crate) fn write_bytes(self, at: u64, from: &[u8]) -> Result<(), Errno> {
        // SAFETY: as above.
        unsafe { self.0.copy_to_user(at as usize, from) }.map_err(|_| Errno(EFAULT))
    }

    /// Copies bytes to the program, and returns how many were copied before the first fault.
    pub(crate) fn write_some(self, at: u64, from: &[u8]) -> usize {
        // SAFETY: as above.
        unsafe { self.0.copy_to_user(at as usize, from) }
            .map_or_else(|error| error.copied, |()| from.len())
    }

    /// Copies bytes from the program, and returns how many were copied before the first fault.
    pub(crate) fn read_some(self, at: u64, into: &mut [u8]) -> usize {
        let len = into.len();
        // SAFETY: as above.
        unsafe { self.0.copy_from_user(at as usize, into) }
            .map_or_else(|error| error.copied, |()| len)
    }

    pub(crate) fn read<T: FromBytes + IntoBytes>(self, at: u64) -> Result<T, Errno> {
        let mut value = T::new_zeroed();
        self.read_bytes(at, value.as_mut_bytes())?;
        Ok(value)
    }

    pub(crate) fn write<T: IntoBytes + Immutable>(self, at: u64, value: &T) -> Result<(), Errno> {
        self.write_bytes(at, value.as_bytes())
    }

    /// Copies a text that ends with a zero, without it. `too_long` is the errno beyond `most`
    /// bytes.
    pub(crate) fn text(self, at: u64, most: usize, too_long: u32) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        let mut part = [0; 256];
        loop {
            let here = at.checked_add(text.len() as u64).ok_or(Errno(EFAULT))?;
            // Up to the next page: the text may end in the last page that is mapped.
            let room = (4096 - here as usize % 4096).min(part.len()).min(most - text.len());
            if room == 0 {
                return Err(Errno(too_long));
            }
            self.read_bytes(here, &mut part[..room])?;
            let end = part[..room].iter().position(|byte| *byte == 0);
            let found = &part[..end.unwrap_or(room)];
            text.try_reserve(found.len()).map_err(|_| Errno(ENOMEM))?;
            text.extend_from_slice(found);
            if end.is_some() {
                return Ok(text);
            }
        }
    }

    /// Copies the name of a thread, which ends with a zero or is cut.
    pub(crate) fn name(self, at: u64) -> Result<Name, Errno> {
        let mut name = Name::default();
        let last = name.len() - 1;
        for (place, byte) in (at..).zip(&mut name[..last]) {
            *byte = self.read(place)?;
            if *byte == 0 {
                break;
            }
        }
        Ok(name)
    }

    /// Copies a path.
    pub(crate) fn path(self, at: u64) -> Result<Vec<u8>, Errno> {
        self.text(at, PATH_MAX, ENAMETOOLONG)
    }

    /// Copies a list of texts that ends with a null pointer, of at most `most` bytes together. A
    /// null list is an empty one.
    pub(crate) fn texts(self, at: u64, most: usize) -> Result<Vec<Vec<u8>>, Errno> {
        let (mut texts, mut left) = (Vec::new(), most);
        if at == 0 {
            return Ok(texts);
        }
        loop {
            let here = at.checked_add(8 * texts.len() as u64).ok_or(Errno(EFAULT))?;
            let text: u64 = self.read(here)?;
            if text == 0 {
                return Ok(texts);
            }
            let text = self.text(text, left, E2BIG)?;
            left = left.checked_sub(text.len() + 9).ok_or(Errno(E2BIG))?;
            texts.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
            texts.push(text);
        }
    }
}
