//! The mask registers of AVX-512. They are not among the general registers.

use std::{arch::x86_64::__cpuid_count, ffi::c_void};

use iced_x86::Register;
use nix::{errno::Errno, unistd::Pid};

use super::tracee::system;
use crate::Error;

/// The register set with the processor's whole extended state.
const NT_X86_XSTATE: usize = 0x202;
/// The number of the mask registers' component in that state.
const MASKS: u32 = 5;

/// The value of a mask register of a stopped child.
pub(super) fn mask(pid: Pid, register: Register) -> Result<u64, Error> {
    // The offset of the mask registers in the state. An instruction that uses them was just
    // decoded, but this processor may not support it.
    let part = __cpuid_count(0xd, MASKS);
    let start = part.ebx as usize + 8 * (register.number());
    let mut state = vec![0u8; part.ebx as usize + 64];
    let mut area =
        libc::iovec { iov_base: state.as_mut_ptr().cast::<c_void>(), iov_len: state.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes to `state`, which has that size.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_GETREGSET, pid.as_raw(), NT_X86_XSTATE, &raw mut area) };
    Errno::result(result).map_err(system("reading the child's vector masks"))?;
    let bytes = state.get(start..).and_then(|rest| rest.first_chunk::<8>());
    bytes
        .map(|bytes| u64::from_le_bytes(*bytes))
        .ok_or(Error::Confused("the mask register is missing from its state"))
}
