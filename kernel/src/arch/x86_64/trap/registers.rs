//! The registers of an interrupted thread or handler.

/// The saved registers, as `entry` pushes them.
#[repr(C, align(16))]
#[derive(Clone, Copy, Default)]
pub(crate) struct Registers {
    pub(crate) r15: u64,
    pub(crate) r14: u64,
    pub(crate) r13: u64,
    pub(crate) r12: u64,
    pub(crate) r11: u64,
    pub(crate) r10: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rbp: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rdx: u64,
    pub(crate) rcx: u64,
    pub(crate) rbx: u64,
    pub(crate) rax: u64,
    pub(crate) vector: u64,
    pub(crate) code: u64,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) flags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss: u64,
}

impl Registers {
    /// The top word of the interrupted stack.
    pub(super) fn top(&self) -> u64 {
        // SAFETY: the kernel's stack, which was in use a moment ago.
        unsafe { *core::ptr::with_exposed_provenance(self.rsp as usize) }
    }
}
