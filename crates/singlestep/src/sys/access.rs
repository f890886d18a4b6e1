//! Determines which bytes an instruction accesses, from the registers before and after it.

use std::ops::Range;

use iced_x86::{CodeSize, ConditionCode, Mnemonic, OpAccess, OpKind, Register, UsedMemory};
use libc::user_regs_struct;

use super::code::Decoded;
use crate::Error;

/// The direction flag: string instructions proceed to lower addresses.
const DIRECTION: u64 = 1 << 10;

/// Calls `touch(bytes, written)` for each piece of memory that the instruction accessed in the step
/// between these two states of the registers. `mask` has a bit for each element, from before the
/// step, for instructions for which [`mask_register`] returns a register.
pub(super) fn each(
    decoded: &Decoded,
    before: &user_regs_struct,
    after: &user_regs_struct,
    mask: u64,
    mut touch: impl FnMut(Range<u64>, bool),
) -> Result<(), Error> {
    let instruction = &decoded.instruction;
    for memory in &decoded.memory {
        let written = match memory.access() {
            OpAccess::None | OpAccess::NoMemAccess => continue,
            OpAccess::Read | OpAccess::CondRead => false,
            // A failed compare-exchange also takes the line for writing.
            OpAccess::Write
            | OpAccess::CondWrite
            | OpAccess::ReadWrite
            | OpAccess::ReadCondWrite => true,
        };
        let address = memory
            .virtual_address(0, |register, _, _| value(register, before))
            .ok_or_else(|| decoded.unknown())?;
        let size = memory.memory_size().size() as u64;
        if decoded.repeats {
            let times = repetitions(memory, before, after);
            let size = instruction.memory_size().size() as u64;
            let first = match before.eflags & DIRECTION {
                0 => address,
                _ => address.wrapping_sub(size.wrapping_mul(times.saturating_sub(1))),
            };
            touch(bytes(first, size.wrapping_mul(times)), written);
        } else if size == 0 {
            return Err(decoded.unknown());
        } else if mask_register(decoded).is_some() {
            if !masks_elements(decoded) {
                return Err(decoded.unknown());
            }
            let element = memory.memory_size().element_size() as u64;
            for index in (0..size / element).filter(|index| mask >> index & 1 == 1) {
                touch(bytes(address.wrapping_add(index * element), element), written);
            }
        } else {
            let conditional = matches!(memory.access(), OpAccess::CondRead | OpAccess::CondWrite);
            // A conditional move always reads. The other conditions are not visible in the
            // registers.
            if conditional && instruction.condition_code() == ConditionCode::None
                || masks_bytes(decoded)
            {
                return Err(decoded.unknown());
            }
            let address = address.wrapping_add(bit_offset(decoded, before).unwrap_or(0));
            touch(bytes(address, size), written);
        }
    }
    Ok(())
}

/// The mask register that selects which memory elements a vector instruction accesses, or the
/// vector register whose elements do so by their highest bits.
pub(super) fn mask_register(decoded: &Decoded) -> Option<Register> {
    if masks_in_vector(decoded) {
        // The other operands are the memory, and the loaded or stored value.
        return Some(decoded.instruction.op1_register());
    }
    let mask = decoded.instruction.op_mask();
    (mask != Register::None && !decoded.memory.is_empty()).then_some(mask)
}

/// Whether each bit of the mask stands for one element of the memory operand, in order. (Not so for
/// instructions that compress, expand or broadcast.)
fn masks_elements(decoded: &Decoded) -> bool {
    use Mnemonic::*;
    masks_in_vector(decoded)
        || !decoded.instruction.is_broadcast()
            && matches!(
                decoded.instruction.mnemonic(),
                Vmovdqu8
                    | Vmovdqu16
                    | Vmovdqu32
                    | Vmovdqu64
                    | Vmovdqa32
                    | Vmovdqa64
                    | Vmovups
                    | Vmovupd
                    | Vmovaps
                    | Vmovapd
                    | Vpcmpb
                    | Vpcmpub
                    | Vpcmpw
                    | Vpcmpuw
                    | Vpcmpd
                    | Vpcmpud
                    | Vpcmpq
                    | Vpcmpuq
                    | Vpcmpeqb
                    | Vpcmpeqw
                    | Vpcmpeqd
                    | Vpcmpeqq
                    | Vptestmb
                    | Vptestnmb
            )
}

/// Whether a vector register selects the elements.
fn masks_in_vector(decoded: &Decoded) -> bool {
    use Mnemonic::*;
    let mnemonic = decoded.instruction.mnemonic();
    matches!(mnemonic, Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq)
}

/// Whether a vector register selects bytes, at an address that is no operand.
fn masks_bytes(decoded: &Decoded) -> bool {
    use Mnemonic::*;
    matches!(decoded.instruction.mnemonic(), Maskmovq | Maskmovdqu | Vmaskmovdqu)
}

/// The number of repetitions of a repeating string instruction in this step.
fn repetitions(memory: &UsedMemory, before: &user_regs_struct, after: &user_regs_struct) -> u64 {
    let times = before.rcx.wrapping_sub(after.rcx);
    match memory.address_size() {
        CodeSize::Code32 => times & u64::from(u32::MAX),
        _ => times,
    }
}

/// The distance from its operand at which a bit instruction with a bit number in a register
/// accesses memory: the bit number, in whole operands.
fn bit_offset(decoded: &Decoded, before: &user_regs_struct) -> Option<u64> {
    let instruction = &decoded.instruction;
    let is_bit = matches!(
        instruction.mnemonic(),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
    );
    if !is_bit || instruction.op1_kind() != OpKind::Register {
        return None;
    }
    let register = instruction.op1_register();
    let value = value(register, before)?;
    let (bit, bits) = match register.size() {
        2 => (i64::from(value as i16), 16),
        4 => (i64::from(value as i32), 32),
        _ => (value as i64, 64),
    };
    Some((bit.div_euclid(bits) * (bits / 8)) as u64)
}

/// The bytes from `start`. Empty at the end of the address space, where no access succeeds.
fn bytes(start: u64, length: u64) -> Range<u64> {
    start..start.saturating_add(length)
}

/// The value of a register in an address, or of a segment's base. `None` for vector registers.
fn value(register: Register, registers: &user_regs_struct) -> Option<u64> {
    Some(match register {
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => match register.full_register() {
            Register::RAX => registers.rax,
            Register::RBX => registers.rbx,
            Register::RCX => registers.rcx,
            Register::RDX => registers.rdx,
            Register::RSI => registers.rsi,
            Register::RDI => registers.rdi,
            Register::RBP => registers.rbp,
            Register::RSP => registers.rsp,
            Register::R8 => registers.r8,
            Register::R9 => registers.r9,
            Register::R10 => registers.r10,
            Register::R11 => registers.r11,
            Register::R12 => registers.r12,
            Register::R13 => registers.r13,
            Register::R14 => registers.r14,
            Register::R15 => registers.r15,
            _ => return None,
        },
    })
}
