//! The calls that end areas.

use super::{Area, Model, kind};
use crate::common::*;
use crate::script::Call;
use machine::*;
use vmap::{AreaState, Made};

impl Model {
    /// The possible results of an unmapping by the call for `made`.
    pub(super) fn unmapping(
        &self,
        world: &World,
        made: Made,
        at: VirtAddr,
        pages: usize,
    ) -> Vec<&'static str> {
        let vmap = world.vmap();
        if made == Made::Ram && pages == 0 {
            return vec!["ZeroSize"];
        }
        if made == Made::Ram && (pages as u64).saturating_mul(PAGE) > vmap.space().len() {
            return vec!["TooLarge"];
        }
        let Some(info) = vmap.find_vm_area(at) else { return vec!["NotMapped"] };
        if info.made == Made::Block && made == Made::Ram {
            return match self.page_at(at.get()) {
                Some((run, _)) if run.at == at && run.pages == pages => vec![],
                Some((run, _)) if run.at == at => vec!["WrongSize"],
                Some(_) => vec!["NotTheStart"],
                // It may still wait; whether it does is not modelled.
                None => vec!["NotMapped", "Twice", "WrongSize", "NotTheStart"],
            };
        }
        match self.areas.get(&at.get()) {
            _ if info.state == AreaState::Waiting => vec!["Twice"],
            _ if info.first != at => vec!["NotTheStart"],
            _ if info.made != made => vec!["WrongKind"],
            Some(area) if made == Made::Ram && area.pages != pages => vec!["WrongSize"],
            Some(area) if area.pending_free.is_some() => vec!["Twice"],
            Some(_) => vec![],
            None => panic!("{info} is not live"),
        }
    }

    pub(super) fn unmap(&mut self, world: &World, cpu: usize, call: Call, at: VirtAddr) {
        let vmap = world.vmap();
        let start = at.align_down(PageSize::Size4K);
        let call = match (call, self.areas.get(&start.get())) {
            (Call::Right, Some(area)) => match area.made {
                Made::Vmap => Call::Vunmap,
                Made::Ram => Call::Ram(area.pages),
                Made::Ioremap => Call::Iounmap,
                Made::Reserved => Call::Unreserve,
                _ => Call::Vfree,
            },
            (Call::Right, None) => Call::Ram(1),
            (call, _) => call,
        };
        let expect = |made, at, pages| self.unmapping(world, made, at, pages);
        let (expected, done) = match call {
            Call::Vunmap => (expect(Made::Vmap, at, 0), vmap.end_vmap(at)),
            // SAFETY: it is accessed through translations only, which the machine checks.
            Call::Vfree => (expect(Made::Vmalloc, at, 0), unsafe { vmap.vfree(at) }),
            Call::VfreeAtomic => {
                let expected = expect(Made::Vmalloc, at, 0);
                let _interrupt = world.sim.irqs_off();
                // SAFETY: as above.
                (expected, unsafe { vmap.vfree_atomic(at) })
            }
            Call::Unreserve => {
                let expected = expect(Made::Reserved, at, 0);
                // SAFETY: as above; nothing is mapped there.
                (expected, unsafe { vmap.unreserve(at) })
            }
            Call::Iounmap => (expect(Made::Ioremap, start, 0), vmap.end_io(at)),
            Call::Ram(pages) => (expect(Made::Ram, at, pages), vmap.end_ram(at, pages)),
            Call::Right => unreachable!("it was replaced"),
        };
        if let Err(error) = done {
            let kind = kind(&error);
            assert!(expected.contains(&kind.as_str()), "{call:?} {at}: {error}, not {expected:?}");
            return;
        }
        assert!(expected.is_empty(), "{call:?} {at}: not {expected:?}");
        if let Call::VfreeAtomic = call {
            self.areas.get_mut(&at.get()).unwrap().pending_free = Some(cpu);
            return;
        }
        self.forget(start.get());
        if let Call::Vfree = call {
            self.forget_pending(cpu);
        }
        self.look_for_pending(world);
    }

    fn forget(&mut self, start: u64) {
        let area = self.areas.remove(&start).unwrap();
        self.freed.push(area.at);
        if area.made == Made::Vmalloc {
            area.frames.iter().for_each(|frame| drop(self.memory.remove(frame)));
        }
    }

    /// Removes the areas that were freed in interrupts on a CPU.
    pub(crate) fn forget_pending(&mut self, cpu: usize) {
        let pending_free = self.areas.iter().filter(|(_, area)| area.pending_free == Some(cpu));
        let pending_free: Vec<u64> = pending_free.map(|(start, _)| *start).collect();
        pending_free.into_iter().for_each(|start| self.forget(start));
    }

    /// Any call on that CPU that frees, or that lacks memory or space, may free areas that were
    /// freed in interrupts.
    pub(crate) fn look_for_pending(&mut self, world: &World) {
        let is_pending = |at: u64| {
            let info = world.vmap().find_vm_area(virt(at));
            info.is_some_and(|info| info.state == AreaState::PendingFree)
        };
        let removed = |(start, area): (&u64, &Area)| {
            (area.pending_free.is_some() && !is_pending(*start)).then_some(*start)
        };
        let removed: Vec<u64> = self.areas.iter().filter_map(removed).collect();
        removed.into_iter().for_each(|start| self.forget(start));
    }

    pub(crate) fn unmap_all(&mut self, world: &World, cpu: usize) {
        let live = self.areas.values().filter(|area| area.pending_free.is_none());
        let live: Vec<VirtAddr> = live.map(|area| area.at).collect();
        live.into_iter().for_each(|at| self.unmap(world, cpu, Call::Right, at));
        world.release(&self.pool);
    }
}
