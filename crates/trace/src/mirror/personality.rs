//! The part of threads' personalities that decides what VMAs they make: READ_IMPLIES_EXEC.

use std::collections::HashSet;

use crate::record::{Call, Op};

/// Threads whose personality makes what they map readable executable, too. It is a thread's own,
/// and those that it makes inherit it.
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

    /// Linux takes it from every 64-bit program.
    pub(super) fn exec(&mut self, tid: u32) {
        self.set(tid, false);
    }

    pub(super) fn inherit(&mut self, tid: u32, child: u32) {
        self.set(child, self.reads_execute(tid));
    }

    /// Takes note of personality(2), and of nothing else.
    pub(super) fn call(&mut self, call: &Call) {
        const ASK: u32 = u32::MAX;
        const READ_IMPLIES_EXEC: u32 = 0x40_0000;
        let wanted = call.args[0] as u32;
        if call.op == Op::Personality && call.result >= 0 && wanted != ASK {
            self.set(call.tid, wanted & READ_IMPLIES_EXEC != 0);
        }
    }
}
