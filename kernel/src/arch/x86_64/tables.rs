//! The tables by which a CPU finds its handlers and their stacks: a GDT and a TSS for each CPU, one
//! IDT for all.

use crate::trap::entry::{HANDLERS, VECTORS};
use alloc::vec;
use spin::Once;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::idt::InterruptDescriptorTable;
use x86_64::structures::tss::TaskStateSegment;
use x86_64::{PrivilegeLevel, VirtAddr};

/// Vectors with stacks of their own, because they may come while the stack is unusable, or in the
/// middle of anything: a double fault, which a fault becomes when the stack has overflowed; an NMI;
/// a machine check. A page fault has none: it may come within another.
const OWN_STACKS: [(u8, u16); 3] = [(8, 0), (2, 1), (18, 2)];
const OWN_STACK: usize = 16 << 10;

/// The selectors of programs, with privilege level 3.
pub(crate) const USER_DATA: u16 = 0x1b;
pub(crate) const USER_CODE: u16 = 0x23;

/// The GDT and TSS of one CPU.
pub(crate) struct CpuTables {
    gdt: GlobalDescriptorTable,
    tss: TaskStateSegment,
}

impl CpuTables {
    pub(crate) const fn new() -> Self {
        CpuTables { gdt: GlobalDescriptorTable::new(), tss: TaskStateSegment::new() }
    }

    /// Allocates the stacks and makes this CPU use the tables.
    ///
    /// # Safety
    /// Call it once, on the CPU that owns them, when the heap works and before faults are handled.
    pub(crate) unsafe fn load(&'static mut self) {
        for (_, number) in OWN_STACKS {
            let stack = vec![0_u128; OWN_STACK / 16].leak();
            let end = VirtAddr::from_ptr(stack.as_ptr_range().end);
            self.tss.interrupt_stack_table[usize::from(number)] = end;
        }
        let code = self.gdt.append(Descriptor::kernel_code_segment());
        let data = self.gdt.append(Descriptor::kernel_data_segment());
        // The order is that of `sysret`.
        let user_data = self.gdt.append(Descriptor::user_data_segment());
        let user_code = self.gdt.append(Descriptor::user_code_segment());
        debug_assert!(user_data.0 == USER_DATA && user_code.0 == USER_CODE);
        let tss = self.gdt.append(Descriptor::tss_segment(&self.tss));
        self.gdt.load();
        let stack = (&raw const self.tss.privilege_stack_table).expose_provenance() as u64;
        crate::cpu::area::here().own.interrupt_stack.set(stack);
        // SAFETY: the selectors are in the table that was just loaded, which stays allocated.
        unsafe {
            CS::set_reg(code);
            SS::set_reg(data);
            DS::set_reg(SegmentSelector::NULL);
            ES::set_reg(SegmentSelector::NULL);
            load_tss(tss);
        }
        load_handlers(true);
    }
}

/// Makes this CPU use the handlers: on their own stacks, or, before these exist, on the current
/// stack.
pub(crate) fn load_handlers(own_stacks: bool) {
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
                // SAFETY: the handler returns as from an interrupt, and pops what the CPU pushes
                // for this vector.
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
