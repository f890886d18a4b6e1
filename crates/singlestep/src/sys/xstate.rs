//! The registers that select elements of vectors: mask registers of AVX-512, and vector registers.
//! They are not among the general registers.

use std::{arch::x86_64::__cpuid_count, ffi::c_void};

use iced_x86::Register;
use nix::{errno::Errno, unistd::Pid};

use super::tracee::system;
use crate::Error;

/// The register set with the processor's whole extended state.
const NT_X86_XSTATE: usize = 0x202;
/// The numbers of components in that state: the upper halves of the registers YMM, and the mask
/// registers.
const UPPER: u32 = 2;
const MASKS: u32 = 5;
/// The place of the registers XMM, which are no component of their own.
const LOWER: usize = 160;

/// A bit for each element of this size in bytes that a register of a stopped child selects. Of a
/// mask register the bits themselves.
pub(super) fn mask(pid: Pid, register: Register, element: usize) -> Result<u64, Error> {
    let state = state(pid)?;
    let number = register.number();
    if !register.is_vector_register() {
        let bytes = piece::<8>(&state, component(MASKS) + 8 * number)?;
        return Ok(u64::from_le_bytes(bytes));
    }
    let mut bytes = piece::<16>(&state, LOWER + 16 * number)?.to_vec();
    if register.is_ymm() {
        bytes.extend(piece::<16>(&state, component(UPPER) + 16 * number)?);
    }
    let selected = bytes.chunks_exact(element.max(1)).map(|bytes| bytes[bytes.len() - 1] >> 7);
    Ok(selected.rev().fold(0, |mask, bit| mask << 1 | u64::from(bit)))
}

/// The place of a component. An instruction that uses its registers was just decoded, but this
/// processor may not support it.
fn component(number: u32) -> usize {
    __cpuid_count(0xd, number).ebx as usize
}

fn state(pid: Pid) -> Result<Vec<u8>, Error> {
    let len = [UPPER, MASKS].map(component).into_iter().max().unwrap_or(0) + 256;
    let mut state = vec![0u8; len];
    let mut area =
        libc::iovec { iov_base: state.as_mut_ptr().cast::<c_void>(), iov_len: state.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes to `state`, which has that size.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_GETREGSET, pid.as_raw(), NT_X86_XSTATE, &raw mut area) };
    Errno::result(result).map_err(system("reading the child's vector registers"))?;
    state.truncate(area.iov_len);
    Ok(state)
}

fn piece<const N: usize>(state: &[u8], start: usize) -> Result<[u8; N], Error> {
    let bytes = state.get(start..).and_then(|rest| rest.first_chunk::<N>());
    bytes.copied().ok_or(Error::Confused("a vector register is missing from its state"))
}
