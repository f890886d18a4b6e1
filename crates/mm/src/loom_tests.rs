//! Loom models of faults during calls, and of the copies of pages: this crate as it is,
//! with the tree of VMAs and the page tables, on the machine for models ([`sim::Model`]).
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p samara-mm --lib loom`
//!
//! Most models bound the number of preemptions. The last two let two CPUs take turns at chosen
//! places, because an error there needs the same frame twice at one address; loom chooses only what
//! the loads return. The mutants are in `campaign/mutants.d/mm.toml`.

use alloc::{rc::Rc, sync::Arc};
use core::cell::Cell;

use grace::Reclaim;
use machine::{Asid, EntryOp, Frame, PageSize, SharedAccess as Step, VirtAddr};
use paging::{Flags, Paging, Swap, X86_64};
use sim::{Model, ModelGrace, model};
use vma::{Advice, Layout, MapFlags, Profile};

use crate::{Access, AddressSpace, FaultError};

pub(crate) const LEVELS: u8 = 3;
/// A page that has an entry in the short tables of models.
pub(crate) const AT: usize = 0x20_0000;
pub(crate) const PAGE: usize = 4096;
/// A private map at a fixed address.
pub(crate) const FIXED: MapFlags =
    MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::FIXED);
/// A CPU that runs no thread. Its TLB keeps what it has cached before.
pub(crate) const IDLE: usize = 3;

pub(crate) type Space = AddressSpace<Model, X86_64<LEVELS>, ModelGrace>;

/// A space with a page at [`AT`], whose words are 1, 0, 0...; and its child. The page must be
/// copied before a write. The tables are each space's own.
struct Family {
    parent: Arc<Space>,
    child: Space,
}

impl Family {
    fn new(model: &Model) -> Family {
        let parent = new_space(model);
        store(model, &parent, 0, 1);
        let child = parent.fork(Asid(2)).unwrap();
        // A page of its own takes the parent off the shared tables.
        parent.handle_fault(VirtAddr::new((AT + PAGE) as u64), Access::Write).unwrap();
        Family { parent, child }
    }

    /// Takes the spaces down. A model's tables are too short to sweep all addresses, so its pages
    /// are unmapped first.
    fn end(self) {
        for space in [&*self.parent, &self.child] {
            space.munmap(AT, 2 * PAGE).unwrap();
        }
    }
}

/// A space with two pages at [`AT`], which is active on this CPU.
fn new_space(model: &Model) -> Arc<Space> {
    space_with(model, None)
}

/// The same, on a host that may have swap.
pub(crate) fn space_with(model: &Model, swap: Option<Arc<dyn Swap>>) -> Arc<Space> {
    let paging = Paging::try_with_swap(model.clone(), PageSize::Size1G, swap).unwrap();
    let layout = Layout { mmap_base: 8 * AT, start_brk: AT, brk: AT, start_stack: 0 };
    let profile = Profile { task_size: 16 * AT, ..Profile::LINUX_6_18 };
    let space = Space::try_new(&paging, Asid(1), None, profile, layout).unwrap();
    assert_eq!(space.mmap(AT, 2 * PAGE, 3, FIXED), Ok(AT));
    run(&space);
    Arc::new(space)
}

/// Makes this CPU translate by the space.
pub(crate) fn run(space: &Space) {
    // SAFETY: the CPU needs no mapping of its own, and each space has a tag of its own.
    unsafe { space.activate() };
}

/// An access of a program: faults until it succeeds. Returns what `f` has with the frame.
pub(crate) fn touch<T>(model: &Model, space: &Space, access: Access, f: impl Fn(Frame) -> T) -> T {
    let at = VirtAddr::new(AT as u64);
    loop {
        if let Some(result) = model.access(at, access == Access::Write, &f) {
            return result;
        }
        space.handle_fault(at, access).unwrap();
    }
}

pub(crate) fn load(model: &Model, space: &Space, word: usize) -> u64 {
    touch(model, space, Access::Read, |frame| model.load(frame, word))
}

/// Returns the frame.
pub(crate) fn store(model: &Model, space: &Space, word: usize, value: u64) -> Frame {
    touch(model, space, Access::Write, |frame| {
        model.store(frame, word, value);
        frame
    })
}

/// A call that takes something from the second page at [`AT`].
#[derive(Clone, Copy, PartialEq)]
enum Call {
    Unmap,
    Protect,
}

/// A first write during a call: no page is left in a hole, and none is writable after
/// the call took the right. With `table`, the lowest table exists before.
fn first_write_during(name: &'static str, call: Call, table: bool) {
    model(name, LEVELS, Some(2), move |model| {
        let space = new_space(model);
        if table {
            store(model, &space, 0, 1);
        }
        let here = Arc::clone(&space);
        let second = VirtAddr::new((AT + PAGE) as u64);
        let other = model.spawn(1, move || here.handle_fault(second, Access::Write));
        match call {
            Call::Unmap => space.munmap(AT + PAGE, PAGE).unwrap(),
            Call::Protect => space.mprotect(AT + PAGE, PAGE, 1, None).unwrap(),
        }
        let done = other.join().unwrap();
        let refused = match call {
            Call::Unmap => FaultError::Unmapped(second),
            Call::Protect => FaultError::Denied(second, Access::Write),
        };
        assert!(done.is_ok() || done == Err(refused), "{done:?}");
        let page = space.walk(&ModelGrace::pin()).get(second);
        assert!(call != Call::Unmap || page.is_none(), "a page is left in a hole");
        let writable = page.is_some_and(|page| page.attrs.flags.contains(Flags::WRITE));
        assert!(!writable, "a page is writable after mprotect");
        space.munmap(AT, 2 * PAGE).unwrap();
    });
}

#[test]
fn a_first_touch_during_an_unmapping() {
    first_write_during("first touch, munmap", Call::Unmap, true);
}

#[test]
fn a_first_touch_without_a_table_during_an_unmapping() {
    first_write_during("first touch, munmap, no table", Call::Unmap, false);
}

#[test]
fn a_first_touch_during_a_protection() {
    first_write_during("first touch, mprotect", Call::Protect, true);
}

#[test]
fn a_first_touch_without_a_table_during_a_protection() {
    first_write_during("first touch, mprotect, no table", Call::Protect, false);
}

/// munmap of a part of a VMA that no fault has used, during a fault there. The rest is
/// used before the fault goes on.
#[test]
fn a_first_touch_during_an_unmapping_of_a_part() {
    model("read, munmap of a part", LEVELS, Some(2), |model| {
        let space = new_space(model);
        let here = Arc::clone(&space);
        let second = VirtAddr::new((AT + PAGE) as u64);
        let other = model.spawn(1, move || here.handle_fault(second, Access::Read));
        space.munmap(AT + PAGE, PAGE).unwrap();
        assert_eq!(load(model, &space, 0), 0);
        let done = other.join().unwrap();
        assert!(done.is_ok() || done == Err(FaultError::Unmapped(second)), "{done:?}");
        let page = space.walk(&ModelGrace::pin()).get(second);
        assert!(page.is_none(), "a page is left in a hole");
        space.munmap(AT, 2 * PAGE).unwrap();
    });
}

/// A program writes during its fork. The child has the old word or the new one, and keeps it.
#[test]
fn a_write_during_a_fork() {
    model("write, fork", LEVELS, Some(2), |model| {
        let parent = new_space(model);
        store(model, &parent, 0, 1);
        let (machine, space) = (model.clone(), Arc::clone(&parent));
        model.as_cpu(1, || run(&space));
        let other = model.spawn(1, move || {
            store(&machine, &space, 0, 2);
        });
        let child = parent.fork(Asid(2)).unwrap();
        let look = || {
            model.as_cpu(2, || {
                run(&child);
                load(model, &child, 0)
            })
        };
        let first = look();
        other.join().unwrap();
        assert_eq!(look(), first, "a write of the parent reached the child");
        assert_eq!(load(model, &parent, 0), 2, "a write is lost");
        for space in [&*parent, &child] {
            space.munmap(AT, 2 * PAGE).unwrap();
        }
    });
}

/// Two CPUs write to a page that must be copied first. A third CPU has the old page in its TLB.
/// When either has written, it has not: it would read the old contents after the new ones.
#[test]
fn a_copy_is_written_after_its_flush() {
    model("copy, two writers", LEVELS, Some(2), |model| {
        let family = Family::new(model);
        model.as_cpu(IDLE, || {
            run(&family.parent);
            assert_eq!(load(model, &family.parent, 0), 1);
        });
        let write = |model: &Model, space: &Space, word| {
            let frame = store(model, space, word, 7);
            let stale = model.is_cached(IDLE, VirtAddr::new(AT as u64), |old| old != frame);
            assert!(!stale, "a CPU reads the old page after a write to the new one");
        };
        let (machine, parent) = (model.clone(), Arc::clone(&family.parent));
        let other = model.spawn(1, move || {
            run(&parent);
            write(&machine, &parent, 1);
        });
        write(model, &family.parent, 2);
        other.join().unwrap();
        let words = [0, 1, 2].map(|word| load(model, &family.parent, word));
        assert_eq!(words, [1, 7, 7], "a write is lost");
        model.as_cpu(2, || {
            run(&family.child);
            let words = [0, 1, 2].map(|word| load(model, &family.child, word));
            assert_eq!(words, [1, 0, 0], "the child sees a write of the parent");
        });
        family.end();
    });
}

/// Where the writer of [`a_copied_frame_has_another_use`] stops for the first time.
#[derive(Clone, Copy, PartialEq)]
enum Stop {
    /// After it has read the entry of the page.
    Look,
    /// After it has allocated the frame for the copy.
    Allocation,
}

/// The order of the turns: the writer (CPU 1) until it stops; the other CPU (0) until it maps a
/// page of zeros; the writer until it has a frame with contents, or waits; the other to its end.
struct Turns {
    stop: Stop,
    turn: Cell<u32>,
    /// Entries that the writer has read, as far as the turns depend on it.
    loads: Cell<u32>,
    allocated: Cell<bool>,
    /// Its steps in its second turn.
    steps: Cell<u32>,
}

impl Turns {
    fn begin(&self, turn: u32) {
        self.turn.set(self.turn.get().max(turn));
    }

    fn wait(&self, turn: u32) {
        while self.turn.get() < turn {
            Model::pause();
        }
    }

    /// The end of a turn, until another one.
    fn pass(&self, next: u32, until: u32) {
        self.begin(next);
        self.wait(until);
    }

    fn step(&self, cpu: usize, access: Option<Step>) {
        match (self.turn.get(), cpu, access) {
            (0, 1, access) => {
                self.allocated.set(access.is_none());
                // The entries of three levels.
                let looked = self.stop == Stop::Look && self.loads.get() == 3;
                if looked || access.is_none() {
                    self.pass(1, 2);
                }
                if let Some(Step::Entry { op: EntryOp::Load, .. }) = access {
                    self.loads.set(self.loads.get() + 1);
                }
            }
            // The page has no right to execute, unlike the entries of tables.
            (1, 0, Some(Step::Entry { op: EntryOp::Store(value), .. })) if value >> 63 != 0 => {
                self.pass(2, 3);
            }
            (2, 1, None) => self.allocated.set(true),
            (2, 1, Some(_)) => {
                self.steps.set(self.steps.get() + 1);
                // The frame has its contents now. Or the writer waits for the lock of the table.
                if self.allocated.get() || self.steps.get() > 100 {
                    self.pass(3, 4);
                }
            }
            _ => {}
        }
    }
}

/// A page that is to be copied is discarded, and its frame freed. The next page at the same address
/// gets the same frame, if nothing holds it, and a fork makes it a page to be copied again. The
/// writer, which has seen the first page, does not take its copy for one of the second.
fn a_copied_frame_has_another_use(name: &'static str, stop: Stop) {
    model(name, LEVELS, Some(0), move |model| {
        let Family { parent, child } = Family::new(model);
        let turns = Rc::new(Turns {
            stop,
            turn: Cell::new(0),
            loads: Cell::new(0),
            allocated: Cell::new(false),
            steps: Cell::new(0),
        });
        let (machine, space, end) = (model.clone(), Arc::clone(&parent), Rc::clone(&turns));
        let other = model.spawn(1, move || {
            run(&space);
            machine.on_step({
                let turns = Rc::clone(&end);
                move |cpu, access| turns.step(cpu, access)
            });
            space.handle_fault(VirtAddr::new(AT as u64), Access::Write).unwrap();
            end.begin(4);
            store(&machine, &space, 1, 9);
        });
        turns.wait(1);
        child.munmap(AT, 2 * PAGE).unwrap();
        parent.madvise(AT, PAGE, Advice::DontNeed).unwrap();
        store(model, &parent, 0, 7);
        let second = parent.fork(Asid(3)).unwrap();
        turns.begin(4);
        other.join().unwrap();
        let words = [0, 1].map(|word| load(model, &parent, word));
        assert_eq!(words, [7, 9], "a write is lost");
        for space in [&*parent, &second] {
            space.munmap(AT, 2 * PAGE).unwrap();
        }
    });
}

#[test]
fn a_frame_is_looked_at_again_when_it_is_held() {
    a_copied_frame_has_another_use("copy, held late", Stop::Look);
}

#[test]
fn a_frame_is_held_while_it_is_copied() {
    a_copied_frame_has_another_use("copy, not held", Stop::Allocation);
}
