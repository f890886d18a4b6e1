//! Calls with stacks: counts them, and follows what each has mapped.
//!
//! "The end" is the moment right before the program's first process ends. All maps
//! of all processes at that moment are still mapped at the end. The maps of a process that ended
//! before, or executed another program, are not.

use super::{Expected, Mirror, Shadow, lifetimes::EndedMap, owners::Owners};
use crate::{
    record::{Call, MmId, Op},
    report::{View, stacks::Owned},
};

impl<B: Shadow> Mirror<B> {
    /// The program's first process began with the first program. If it executes another one, its
    /// former address space was not its last.
    pub(super) fn began(&mut self, pid: u32) {
        if *self.root.get_or_insert(pid) == pid {
            self.summary.stacks.set_end(None);
        }
    }

    /// An address space is about to end.
    pub(super) fn ended(&mut self, mm: MmId) {
        let first = self.spaces.get(&mm).map(|mirrored| mirrored.figures.pid);
        if first.is_some() && first == self.root {
            self.keep_end();
        }
    }

    /// The run is over. If its first process has not ended, this is the end.
    pub(super) fn finished(&mut self) {
        if !self.summary.stacks.has_end() {
            self.keep_end();
        }
    }

    fn keep_end(&mut self) {
        if self.summary.stacks.is_empty() {
            return;
        }
        let sums = self.owned();
        self.summary.stacks.set_end(Some(sums));
    }

    /// The mapped bytes of each owner. O(VMAs and owners).
    fn owned(&mut self) -> Owned {
        let mut sums = Owned::new();
        for mirrored in self.spaces.values_mut() {
            let space = mirrored.space.get_mut();
            let owners = mirrored.owners.get_or_insert_with(|| Owners::new(&space));
            owners.add_to(&mut sums, &space);
        }
        sums
    }

    /// The state of the run: its calls, its sizes, and the present maps of call sites. O(VMAs,
    /// owners and stacks).
    pub fn view(&mut self) -> View {
        let mut view = View::default();
        for mirrored in self.spaces.values_mut() {
            let (vmas, mapped) = mirrored.size();
            view.vmas += vmas;
            view.mapped = view.mapped.saturating_add(mapped);
        }
        let spaces = self.spaces.values().map(|mirrored| &mirrored.figures.stats);
        for stats in spaces.chain([&self.summary.total]) {
            view.refused += stats.refused;
            for (&op, calls) in &stats.by_kind {
                *view.calls.entry(op).or_default() += calls;
            }
        }
        if !self.summary.stacks.is_empty() {
            let owned = self.owned();
            view.owners = self.summary.stacks.owners_now(owned);
        }
        view
    }

    /// Prepares the owners for a call.
    pub(super) fn begin_owned(&mut self, call: &Call) -> Result<(), Expected> {
        let mirrored = self.known(call.mm)?;
        if call.stack != 0 && mirrored.owners.is_none() {
            mirrored.owners = Some(Owners::new(&mirrored.space.get_mut()));
        }
        if let Some(owners) = &mut mirrored.owners {
            owners.begin(call.stack, call.op);
        }
        Ok(())
    }

    /// Counts a call that has mapped so many bytes. Calls without a stack count like those with
    /// one.
    pub(super) fn count_stack(&mut self, call: &Call, mapped: u64) {
        if call.stack != 0 || !self.summary.stacks.is_empty() {
            self.summary.stacks.count((call.stack, call.op), 1, mapped);
        }
    }

    /// Counts a map that has ended for the call that made it.
    pub(super) fn count_ended(&mut self, life: EndedMap) {
        if let Some(lived) = life.lived.filter(|_| life.stack != 0) {
            self.summary.stacks.count_ended((life.stack, Op::Mmap), lived);
        }
    }

    /// Counts what the newest call has mapped by a record of its own.
    pub(super) fn count_adopted(&mut self, mm: MmId) {
        let Some(mirrored) = self.spaces.get_mut(&mm) else { return };
        if let (Some(owners), Some(call)) = (&mut mirrored.owners, &mirrored.last_call) {
            let mapped = owners.take_mapped();
            self.summary.stacks.count((call.stack, call.op), 0, mapped);
        }
    }
}
