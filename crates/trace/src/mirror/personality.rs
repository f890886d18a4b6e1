//! The personality flag READ_IMPLIES_EXEC of threads, which affects their VMAs.

use std::collections::HashSet;

use crate::record::{Call, Op};

/// The threads with READ_IMPLIES_EXEC: their readable maps are executable, too. New threads inherit
/// it.
#[derive(Default)]
pub(super) struct Personalities(HashSet<u32>);

impl Personalities {
    pub(super) fn reads_execute(&self, tid: u32) -> bool {
        self.0.contains(&tid)
    }

    fn set(&mut self, tid: u32, on: bool) {
        match on {
            true => self.0.insert(tid),
            false => self.0.remove(&tid),
        };
    }

    /// Clears the flag: Linux clears it for every 64-bit program.
    pub(super) fn exec(&mut self, tid: u32) {
        self.set(tid, false);
    }

    pub(super) fn inherit(&mut self, tid: u32, child: u32) {
        self.set(child, self.reads_execute(tid));
    }

    /// Handles personality(2) and ignores all other calls.
    pub(super) fn call(&mut self, call: &Call) {
        const ASK: u32 = u32::MAX;
        const READ_IMPLIES_EXEC: u32 = 0x40_0000;
        let wanted = call.args[0] as u32;
        if call.op == Op::Personality && call.result >= 0 && wanted != ASK {
            self.set(call.tid, wanted & READ_IMPLIES_EXEC != 0);
        }
    }
}
