//! Markers: breakpoints by which the child sends messages to its tracer, in registers.
//!
//! A breakpoint needs no system call, and a child that has lost its tracer dies at it.

use std::arch::asm;

use crate::Region;

/// The upper bits of `rax` at every marker, so that no other breakpoint is taken for one.
const MAGIC: u64 = 0x5a3a_7ac0_c0a7_0000;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum MarkerKind {
    /// The child is ready, and has done nothing yet.
    Hello = MAGIC,
    /// The child is set up and warm. The message contains its regions.
    Regions = MAGIC + 1,
    /// The next instruction is the call of the operation.
    Begin = MAGIC + 2,
    /// The child panicked. The message is the reason.
    Panicked = MAGIC + 3,
}

impl MarkerKind {
    /// The kind in `rax`, if it has one.
    pub(super) fn of(rax: u64) -> Option<Self> {
        [MarkerKind::Hello, MarkerKind::Regions, MarkerKind::Begin, MarkerKind::Panicked]
            .into_iter()
            .find(|kind| *kind as u64 == rax)
    }
}

/// Sends a message, which stays readable until the tracer resumes the child.
pub(super) fn mark(kind: MarkerKind, message: &[u8]) {
    // SAFETY: a breakpoint changes nothing. The tracer resumes after it.
    unsafe {
        asm!(
            "int3",
            in("rax") kind as u64, in("rdi") message.as_ptr(), in("rsi") message.len(),
            options(nostack, preserves_flags)
        );
    }
}

/// Marks the beginning and calls `run(first, second)`, which is counted: the instruction after the
/// marker is that call, and counting ends when it has returned. The stack starts at a cache line.
///
/// # Safety
/// `run` must be sound to call with these arguments, and must not unwind.
#[inline(never)]
pub(super) unsafe fn counted<A, B>(
    run: unsafe extern "C" fn(*mut A, *mut B),
    first: *mut A,
    second: *mut B,
) {
    // SAFETY: the stack pointer is restored from r12, which the callee preserves. Moving it down
    // only leaves space unused. All registers that a C function may change are declared. The caller
    // vouches for the call.
    unsafe {
        asm!(
            "mov r12, rsp",
            "and rsp, -64",
            "int3",
            "call r13",
            "mov rsp, r12",
            in("r13") run,
            inout("rax") MarkerKind::Begin as u64 => _,
            inout("rdi") first => _,
            inout("rsi") second => _,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Encodes the regions as bytes: for each the range, the length of the name, and the name.
pub(super) fn encode(regions: &[Region]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for region in regions {
        let range = region.addresses();
        for number in [range.start, range.end, region.name().len()] {
            bytes.extend_from_slice(&(number as u64).to_le_bytes());
        }
        bytes.extend_from_slice(region.name().as_bytes());
    }
    bytes
}

/// Decodes regions. `None` if the bytes are not valid.
pub(super) fn decode(mut bytes: &[u8]) -> Option<Vec<Region>> {
    let mut regions = Vec::new();
    while !bytes.is_empty() {
        let mut numbers = [0; 3];
        for number in &mut numbers {
            let (first, rest) = bytes.split_first_chunk::<8>()?;
            (*number, bytes) = (usize::try_from(u64::from_le_bytes(*first)).ok()?, rest);
        }
        let (name, rest) = bytes.split_at_checked(numbers[2])?;
        bytes = rest;
        regions.push(Region::new(std::str::from_utf8(name).ok()?, numbers[0]..numbers[1]));
    }
    Some(regions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_survive_the_way() {
        let regions =
            [Region::new("a", 1..2), Region::new("", 0..0), Region::new("ä b", 5..usize::MAX)];
        let bytes = encode(&regions);
        assert_eq!(decode(&bytes).as_deref(), Some(&regions[..]));
        assert_eq!(decode(&[]).as_deref(), Some(&[][..]));
        for length in 1..bytes.len() {
            // A prefix is either invalid or ends between two regions.
            let cut = decode(&bytes[..length]);
            assert!(cut.is_none_or(|cut| regions.starts_with(&cut) && cut.len() < 3));
        }
    }

    #[test]
    fn kinds_are_known_by_number() {
        assert_eq!(MarkerKind::of(MarkerKind::Begin as u64), Some(MarkerKind::Begin));
        assert_eq!(MarkerKind::of(0), None);
    }
}
