//! The segments of a CPU, and the stacks of its handlers: a GDT and a TSS.

use alloc::vec;
use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;

/// Vectors with stacks of their own, because they may come while the stack is unusable, or in the
/// middle of anything: a double fault, which a fault becomes when the stack has overflowed; an NMI;
/// a machine check. A page fault has none: it may come within another.
pub(crate) const OWN_STACKS: [(u8, u16); 3] = [(8, 0), (2, 1), (18, 2)];
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

    /// Allocates the stacks and makes this CPU use the tables. Returns the address of the stack
    /// pointer for interrupts of programs.
    ///
    /// # Safety
    /// Call it once, on the CPU that owns them, when the heap works and before faults are handled.
    pub(crate) unsafe fn load(&'static mut self) -> u64 {
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
        // SAFETY: the selectors are in the table that was just loaded, which stays allocated.
        unsafe {
            CS::set_reg(code);
            SS::set_reg(data);
            DS::set_reg(SegmentSelector::NULL);
            ES::set_reg(SegmentSelector::NULL);
            load_tss(tss);
        }
        (&raw const self.tss.privilege_stack_table).expose_provenance() as u64
    }
}
