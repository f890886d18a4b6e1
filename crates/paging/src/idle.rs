//! CPUs that have left a space for a while: no IPI for its flushes, and no flush if none came.
//!
//! A CPU that idles, runs a thread of the kernel, or another program, may come back soon. If it
//! stayed a target of flushes, each would interrupt it; if it [left](PageTables::leave), it would
//! lose its translations. So it becomes idle: it keeps what it has cached, and a flush passes over
//! it and takes its mark. When it comes back it keeps its translations only if it has its mark.
//!
//! # Why it is right
//! The CPU has other tables active. So it uses nothing that it has cached under the space's tag,
//! and does not walk the space's tables, not even by speculation: frames and tables may be freed
//! after a flush that has passed over it (I3, I5). Cached upper-level entries stay unused, too,
//! until the return. That is why the CPU must not keep the space's tables loaded while it idles.
//! [`machine::AtomicCpuSet`] has the argument about a CPU that comes back while a flush looks for
//! its targets; loom checks it there, and `sim` here (`tests/idle.rs`).
//!
//! A space whose CPUs are idle may lose an assigned tag, as if it were nowhere active.
//!
//! # Cost
//! A locked instruction to become idle, and one to come back. A flush: one for each 32 CPUs among
//! which some are idle.

use crate::format::Format;
use crate::tables::PageTables;
use crate::tags::Tagged;
use grace::Concurrent;
use machine::Machine;

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// This CPU has activated other tables, and may come back to these by
    /// [`activate`](Self::activate): flushes pass over it until then. If one does, its cached
    /// translations are dropped when it comes back. To be called after each switch to other tables,
    /// in the place of [`leave`](Self::leave), also for the tables of the kernel, for which it does
    /// nothing.
    ///
    /// Cost: a locked instruction, and no flush. Where spaces share a tag and the machine has more
    /// than one, it is [`leave`](Self::leave).
    ///
    /// # Safety
    /// These tables are not active on this CPU. It activates them again only by
    /// [`activate`](Self::activate). No code on this CPU relies on an earlier
    /// [`enter`](Self::enter).
    ///
    /// ```compile_fail,E0133
    /// # use {grace::Concurrent, machine::Machine, paging::{Format, PageTables}};
    /// # fn switch<M: Machine, F: Format, G: Concurrent>(tables: &PageTables<M, F, G>) {
    /// tables.idle();
    /// # }
    /// ```
    pub unsafe fn idle(&self) {
        let machine = self.machine();
        match &self.tagged {
            Tagged::Kernel => {}
            // With one tag, the CPU has dropped everything when it activated others.
            Tagged::Shared(_) if machine.tags() == 1 => self.forget_cpu(),
            // SAFETY: passed on.
            Tagged::Shared(_) => unsafe { self.leave() },
            Tagged::Fixed(_) | Tagged::Own(_) => {
                let _section = machine.irqs_off();
                self.forget_entered();
                self.cpus.idle(machine.current());
            }
        }
    }

    /// Removes this CPU from the set of targets. It has nothing cached.
    fn forget_cpu(&self) {
        let _section = self.machine().irqs_off();
        self.cpus.remove(self.machine().current());
    }
}
