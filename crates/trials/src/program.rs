//! The address space of a program: made for a trial, active on the CPUs that work in it, dropped at
//! its end.

use crate::environment::{Environment, Tables};
use crate::worker::{Context, Outcome};
use alloc::string::String;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Asid, Machine, Translated};
use paging::Format;

/// A program's tables with the kernel's half.
pub(crate) struct Program<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    tables: Tables<M, F, G>,
}

impl<'g, 'a, M: Machine + Translated, F: Format, G: Concurrent> Program<'g, 'a, M, F, G> {
    pub(crate) fn new(env: &'g Environment<'a, M, F, G>) -> Result<Self, String> {
        let kernel = env.tables;
        let tables = env.on_first(|| {
            Tables::user(kernel.paging(), Asid(1), Some(Arc::clone(kernel)))
                .of("could not make a program's tables")
        })?;
        Ok(Program { env, tables })
    }

    pub(crate) fn tables(&self) -> &Tables<M, F, G> {
        &self.tables
    }

    /// Runs `work` on this CPU while the program's tables are active. Afterwards the kernel's are.
    pub(crate) fn inside<T>(&self, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        // SAFETY: the kernel's half has all that the host needs, as `Environment` requires. A trial
        // has one program at a time, and all CPUs leave its tables before they are dropped.
        unsafe { self.tables.activate() };
        let done = work();
        // SAFETY: the kernel's tables were active before. Then the program's are not active any
        // more.
        unsafe {
            self.env.tables.activate();
            self.tables.leave();
        }
        done
    }

    /// Drops the tables. No CPU is inside.
    pub(crate) fn end(self) -> Result<(), String> {
        let Program { env, tables } = self;
        env.on_first(move || {
            drop(tables);
            Ok(())
        })
    }
}
