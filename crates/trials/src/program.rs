//! A program's address space, for trials: made, active on the CPUs that work in it, given back.

use crate::crew::{Outcome, Told};
use crate::ground::{Ground, Tables};
use alloc::string::String;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Asid, Machine, Translated};

/// The space of a program, with the kernel's half.
pub(crate) struct Program<'g, 'a, M: Machine, G: Concurrent> {
    ground: &'g Ground<'a, M, G>,
    tables: Tables<M, G>,
}

impl<'g, 'a, M: Machine + Translated, G: Concurrent> Program<'g, 'a, M, G> {
    pub(crate) fn new(ground: &'g Ground<'a, M, G>) -> Result<Self, String> {
        let kernel = ground.tables;
        let tables = ground.on_first(|| {
            Tables::user(kernel.paging(), Asid(1), Some(Arc::clone(kernel)))
                .of("to make a program's tables")
        })?;
        Ok(Program { ground, tables })
    }

    pub(crate) fn tables(&self) -> &Tables<M, G> {
        &self.tables
    }

    /// Does something on this CPU while the space is active there. Afterwards the kernel's is.
    pub(crate) fn inside<T>(&self, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        // SAFETY: the kernel's half has what the host needs, as `Ground` asks for; trials have one
        // program at a time, and its tables are left by all CPUs before they are dropped.
        unsafe { self.tables.activate() };
        let done = work();
        // SAFETY: the kernel's tables were active before, and then the program's are not.
        unsafe {
            self.ground.tables.activate();
            self.tables.leave();
        }
        done
    }

    /// Gives the tables back; no CPU is inside.
    pub(crate) fn end(self) -> Result<(), String> {
        let Program { ground, tables } = self;
        ground.on_first(move || {
            drop(tables);
            Ok(())
        })
    }
}
