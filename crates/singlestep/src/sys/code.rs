//! The child's instructions, each decoded once.

use std::collections::{HashMap, hash_map::Entry};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpKind, Register, UsedMemory,
};

use super::tracee::Tracee;
use crate::Error;

/// The length of the longest instruction, in bytes.
const LONGEST: usize = 15;

/// The properties of an instruction that are counted.
pub(super) struct Decoded {
    /// The instruction.
    pub(super) instruction: Instruction,
    /// The memory that it accesses, implicit operands included.
    pub(super) memory: Vec<UsedMemory>,
    /// A locked read-modify-write.
    pub(super) atomic: bool,
    /// A fence that is not an atomic.
    pub(super) fence: bool,
    /// A conditional branch.
    pub(super) branch: bool,
    /// A system call.
    pub(super) syscall: bool,
    /// A repeating string instruction.
    pub(super) repeats: bool,
}

impl Decoded {
    /// The error for an instruction whose accesses cannot be determined.
    pub(super) fn unknown(&self) -> Error {
        let instruction = format!("{:?}", self.instruction.mnemonic()).to_lowercase();
        Error::Unknown { instruction, at: self.instruction.ip() }
    }

    fn new(bytes: &[u8], at: u64, factory: &mut InstructionInfoFactory) -> Self {
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        let options = InstructionInfoOptions::NO_REGISTER_USAGE;
        let memory = factory.info_options(&instruction, options).used_memory().to_vec();
        let mnemonic = instruction.mnemonic();
        let names_memory = (0..instruction.op_count())
            .any(|operand| instruction.op_kind(operand) == OpKind::Memory);
        Self {
            instruction,
            memory,
            atomic: instruction.has_lock_prefix() || mnemonic == Mnemonic::Xchg && names_memory,
            fence: matches!(mnemonic, Mnemonic::Mfence | Mnemonic::Lfence | Mnemonic::Sfence),
            branch: instruction.flow_control() == FlowControl::ConditionalBranch,
            syscall: match mnemonic {
                Mnemonic::Syscall | Mnemonic::Sysenter => true,
                Mnemonic::Int => instruction.immediate8() == 0x80,
                _ => false,
            },
            repeats: instruction.is_string_instruction()
                && (instruction.has_rep_prefix() || instruction.has_repne_prefix()),
        }
    }

    /// Whether the trap after it is delayed until the next instruction has been executed, which
    /// would then be missed.
    pub(super) fn hides_the_next(&self) -> bool {
        self.instruction.op_count() > 0
            && self.instruction.op0_kind() == OpKind::Register
            && self.instruction.op0_register() == Register::SS
    }
}

/// The instructions seen so far, by address. Assumes that code does not change.
pub(super) struct Code {
    known: HashMap<u64, Decoded>,
    factory: InstructionInfoFactory,
}

impl Default for Code {
    fn default() -> Self {
        Self { known: HashMap::new(), factory: InstructionInfoFactory::new() }
    }
}

impl Code {
    /// The instruction at this address of the child.
    pub(super) fn at(&mut self, tracee: &Tracee, address: u64) -> Result<&Decoded, Error> {
        match self.known.entry(address) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let mut bytes = [0; LONGEST];
                // The read is shorter where mapped memory ends. The decoder reports it if that is
                // too short.
                let length = tracee.read_some(address, &mut bytes)?;
                Ok(place.insert(Decoded::new(&bytes[..length], address, &mut self.factory)))
            }
        }
    }
}
