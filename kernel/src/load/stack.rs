//! The stack of a new program: its arguments, its environment, and the auxiliary vector of the
//! kernel. From high to low addresses: the texts, random bytes, the vector, the environment's
//! pointers, the arguments' pointers, their number.

use super::elf::Image;
use crate::errno::Errno;
use crate::random;
use crate::task::memory::{STACK, Space};
use crate::time::CLOCK_TICKS;
use alloc::vec::Vec;
use linux_raw_sys::auxvec::{
    AT_BASE, AT_CLKTCK, AT_EGID, AT_ENTRY, AT_EUID, AT_EXECFN, AT_FLAGS, AT_GID, AT_HWCAP,
    AT_HWCAP2, AT_MINSIGSTKSZ, AT_NULL, AT_PAGESZ, AT_PHDR, AT_PHENT, AT_PHNUM, AT_PLATFORM,
    AT_RANDOM, AT_SECURE, AT_UID,
};
use linux_raw_sys::errno::{E2BIG, ENOMEM};
use machine::VirtAddr;
use mm::Access;
use zerocopy::IntoBytes;

/// Fills the stack that ends at `end`, and returns the stack pointer.
pub(super) fn fill(
    space: &Space,
    end: usize,
    path: &[u8],
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
    (image, interpreter): (&Image, Option<&Image>),
    [user, effective_user, group, effective_group]: [u32; 4],
) -> Result<u64, Errno> {
    let mut texts = Texts { bytes: Vec::new() };
    // Offsets from the start of the texts.
    let platform = texts.add(b"x86_64")?;
    let name = texts.add(path)?;
    let add_all = |texts: &mut Texts, all: &[Vec<u8>]| -> Result<Vec<usize>, Errno> {
        all.iter().map(|text| texts.add(text)).collect()
    };
    let arguments = add_all(&mut texts, arguments)?;
    let environment = add_all(&mut texts, environment)?;
    let random = texts.bytes.len();
    for _ in 0..2 {
        texts.bytes.extend_from_slice(random::word().as_bytes());
    }
    if texts.bytes.len() > STACK / 4 {
        return Err(Errno(E2BIG));
    }
    let start = (end - 8 - texts.bytes.len()) & !15;
    let at = |offset: usize| (start + offset) as u64;
    let capabilities = raw_cpuid::cpuid!(1).edx;
    let signal_frame = 1024 + crate::user::xstate::bytes() as u64;
    let told = [
        (AT_HWCAP, capabilities.into()),
        (AT_PAGESZ, 4096),
        (AT_CLKTCK, CLOCK_TICKS),
        (AT_PHDR, image.headers as u64),
        (AT_PHENT, 56),
        (AT_PHNUM, image.segments as u64),
        (AT_BASE, interpreter.map_or(0, |interpreter| interpreter.base as u64)),
        (AT_FLAGS, 0),
        (AT_ENTRY, image.entry as u64),
        (AT_UID, user.into()),
        (AT_EUID, effective_user.into()),
        (AT_GID, group.into()),
        (AT_EGID, effective_group.into()),
        (AT_SECURE, 0),
        (AT_RANDOM, at(random)),
        (AT_HWCAP2, 0),
        (AT_EXECFN, at(name)),
        (AT_PLATFORM, at(platform)),
        (AT_MINSIGSTKSZ, signal_frame),
        (AT_NULL, 0),
    ];
    let mut words = Vec::new();
    let count = 3 + arguments.len() + environment.len() + 2 * told.len();
    words.try_reserve(count + 1).map_err(|_| Errno(ENOMEM))?;
    words.push(arguments.len() as u64);
    words.extend(arguments.iter().map(|offset| at(*offset)));
    words.push(0);
    words.extend(environment.iter().map(|offset| at(*offset)));
    words.push(0);
    words.extend(told.iter().flat_map(|(kind, value)| [u64::from(*kind), *value]));
    // The stack pointer is a multiple of 16.
    let stack = (start - 8 * words.len()) & !15;
    let no_memory = |_| Errno(ENOMEM);
    // A stack with many texts grows. The writes do not make it grow.
    space.handle_fault(VirtAddr::new(stack as u64), Access::Write).map_err(|_| Errno(ENOMEM))?;
    space.write(start, &texts.bytes).map_err(no_memory)?;
    space.write(stack, words.as_bytes()).map_err(no_memory)?;
    Ok(stack as u64)
}

/// Texts, one behind the other, each with a zero at its end.
struct Texts {
    bytes: Vec<u8>,
}

impl Texts {
    fn add(&mut self, text: &[u8]) -> Result<usize, Errno> {
        let at = self.bytes.len();
        self.bytes.try_reserve(text.len() + 1).map_err(|_| Errno(ENOMEM))?;
        self.bytes.extend_from_slice(text);
        self.bytes.push(0);
        Ok(at)
    }
}
