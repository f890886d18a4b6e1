//! The IDT, by which CPUs find their handlers: one for all.

use super::entry::{HANDLERS, VECTORS};
use crate::arch::tables::OWN_STACKS;
use spin::Once;
use x86_64::structures::idt::InterruptDescriptorTable;
use x86_64::{PrivilegeLevel, VirtAddr};

/// Makes this CPU use the handlers: on their own stacks, or, before these exist, on the current
/// stack.
pub(super) fn load(own_stacks: bool) {
    static EARLY: Once<InterruptDescriptorTable> = Once::new();
    static FULL: Once<InterruptDescriptorTable> = Once::new();
    let table = if own_stacks { &FULL } else { &EARLY };
    table.call_once(|| make(own_stacks)).load();
}

fn make(own_stacks: bool) -> InterruptDescriptorTable {
    let mut table = InterruptDescriptorTable::new();
    for (vector, handler) in VECTORS.iter().zip(HANDLERS.iter()) {
        let at = VirtAddr::from_ptr(*handler as *const ());
        let own = OWN_STACKS.iter().find(|(own, _)| own_stacks && own == vector);
        macro_rules! set {
            ($entry:expr) => {
                set!($entry, 0)
            };
            ($entry:expr, $level:literal) => {{
                // SAFETY: the handler returns as from an interrupt, and pops the words that the CPU
                // pushes for this vector.
                let options = unsafe { $entry.set_handler_addr(at) };
                options.set_privilege_level(PrivilegeLevel::from_u16($level));
                if let Some((_, number)) = own {
                    // SAFETY: this stack exists, and no other vector uses it.
                    unsafe { options.set_stack_index(*number) };
                }
            }};
        }
        match vector {
            0 => set!(table.divide_error),
            1 => set!(table.debug),
            2 => set!(table.non_maskable_interrupt),
            // Programs may execute the instructions of these two.
            3 => set!(table.breakpoint, 3),
            4 => set!(table.overflow, 3),
            5 => set!(table.bound_range_exceeded),
            6 => set!(table.invalid_opcode),
            7 => set!(table.device_not_available),
            8 => set!(table.double_fault),
            10 => set!(table.invalid_tss),
            11 => set!(table.segment_not_present),
            12 => set!(table.stack_segment_fault),
            13 => set!(table.general_protection_fault),
            14 => set!(table.page_fault),
            16 => set!(table.x87_floating_point),
            17 => set!(table.alignment_check),
            18 => set!(table.machine_check),
            19 => set!(table.simd_floating_point),
            20 => set!(table.virtualization),
            21 => set!(table.cp_protection_exception),
            vector => set!(table[*vector]),
        }
    }
    table
}
