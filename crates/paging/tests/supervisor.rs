//! Pages for the kernel alone in the lower half of a program's tables.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Config, Failure, Grace, Program, Sim, Want, seeded};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

type Tables<F> = PageTables<Sim, F, Grace>;

const BASE: u64 = 0x4000_0000;
const KERNELS: Attrs = Attrs::new(Flags::READ.union(Flags::WRITE));

fn machine<F: OnSim>(cpus: usize) -> (Sim, Arc<Paging<Sim, F>>) {
    let frames = 2 * F::LARGE.frames() + 1024;
    machine_of(Config { cpus, frames, caches_absent: true, ..Config::default() })
}

fn map<F: Format>(
    tables: &Tables<F>,
    range: VirtRange,
    first: Frame,
    attrs: Attrs,
) -> Result<(), Error> {
    // SAFETY: see `Own`.
    unsafe { tables.map_supervisor(range, first, attrs) }.map_err(|failed| failed.error)
}

/// The kernel uses the pages, a program cannot, and nothing pins them as a program's.
fn the_kernels_alone<F: OnSim>() {
    let (sim, paging) = machine::<F>(1);
    let tables = sim.on_cpu(0, || {
        let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
        let order = F::PAGE.order();
        let (own, kernels) = (block(&sim, order), block(&sim, order));
        let large = block(&sim, F::LARGE.order());
        let each = F::PAGE.bytes();
        let (first, second) = (pages_of::<F>(BASE, 1), pages_of::<F>(BASE + each, 1));
        let big = VirtRange::new(virt(BASE + F::LARGE.bytes()), F::LARGE.bytes()).unwrap();
        tables.map_own(first, own, Attrs::USER_RW).unwrap();
        map(&tables, second, kernels, KERNELS).unwrap();
        map(&tables, big, large, KERNELS).unwrap();
        tables.activate_own();
        let user = |write| Want { user: true, write, ..Want::default() };
        for at in [second.start(), big.start()] {
            sim.store_own(at, 7).unwrap();
            for write in [false, true] {
                let fault = sim.translate(at, user(write)).unwrap_err();
                assert_eq!(fault.kind, FaultKind::Protection);
            }
            for write in [false, true] {
                let mut into = [Frame::default()];
                let hole = GupError::Hole(at);
                let mut asked = 0;
                let mut ask = |_, _| {
                    asked += 1;
                    false
                };
                assert_eq!(
                    tables.get_user_pages_fast(at, write, &mut into, &mut ask).err(),
                    Some(hole)
                );
                assert_eq!(tables.get_user_pages(at, write, &mut into, &mut ask).err(), Some(hole));
                assert_eq!(tables.get_user_pages_fast_only(at, write, &mut into).err(), Some(hole));
                assert_eq!(asked, 2);
            }
        }
        // A program's page before them, as far as it goes.
        let count = F::PAGE.frames() as usize;
        let mut into = vec![Frame::default(); 2 * count];
        let pins = tables.get_user_pages_fast(first.start(), true, &mut into, |_, _| false);
        assert_eq!(pins.unwrap().frames().len(), count);
        for frame in [own, kernels, large] {
            assert_eq!(sim.info(frame).unwrap().pins(), 0);
        }
        // No call makes them a program's.
        let rights = Flags::READ | Flags::USER;
        let both = pages_of::<F>(BASE, 2);
        for (range, at) in [(both, second.start()), (second, second.start()), (big, big.start())] {
            let failed = tables.protect_own(range, rights).unwrap_err();
            assert_eq!(failed.error, Error::Supervisor(at));
            drop(failed);
            assert_eq!(refused(tables.protect_own(range, Flags::empty())), Error::Supervisor(at));
        }
        tables.protect_own(first, rights).unwrap().flush();
        tables.split_own(big.start(), F::PAGE).unwrap().flush();
        let piece = tables.walk(&Grace::pin()).get(big.start()).unwrap();
        assert_eq!((piece.size, piece.attrs.flags & Flags::RIGHTS), (F::PAGE, KERNELS.flags));
        // SAFETY: no other call is under way.
        let forked = unsafe { tables.fork(Asid(2), false) }.map(drop);
        assert_eq!(forked.map_err(|failed| failed.error), Err(Error::SupervisorFork));
        let all = VirtRange::new(virt(0), 1 << F::LOWER_BITS).unwrap();
        tables.unmap_own(all, |_| ()).unwrap().flush();
        // Even now: a copy may be left somewhere.
        // SAFETY: as above.
        let forked = unsafe { tables.fork(Asid(2), false) }.map(drop);
        assert_eq!(forked.map_err(|failed| failed.error), Err(Error::SupervisorFork));
        [own, kernels, large].into_iter().for_each(|frame| release(&sim, frame));
        tables
    });
    sim.on_cpu(0, || drop(tables));
    all_given_back(&sim, &paging).unwrap();
}

#[test]
fn no_program_uses_them() {
    the_kernels_alone::<X86_64L4>();
    the_kernels_alone::<X86_64L5>();
    the_kernels_alone::<Sv39>();
    the_kernels_alone::<Sv48Napot>();
    the_kernels_alone::<Aarch64>();
    the_kernels_alone::<Aarch64G16>();
}

/// The bits that keep user mode out, by the manuals.
#[test]
fn encodings() {
    let entry = |page: Result<u64, FormatError>| page.unwrap();
    let frame = Frame::default();
    let code = Attrs::new(Flags::READ | Flags::EXECUTE);
    for attrs in [KERNELS, code] {
        let x86 = entry(X86_64L4::page(PageSize::Size4K, frame, attrs));
        assert_eq!(x86 & (1 << 2), 0, "U/S");
        let riscv = entry(Sv48::page(PageSize::Size4K, frame, attrs));
        assert_eq!(riscv & (1 << 4), 0, "U");
        let aarch64 = entry(Aarch64::page(PageSize::Size4K, frame, attrs));
        assert_eq!(aarch64 & (1 << 6), 0, "AP[1]");
        assert_ne!(aarch64 & (1 << 54), 0, "UXN");
        let executes = attrs.flags.contains(Flags::EXECUTE);
        assert_eq!(aarch64 & (1 << 53) == 0, executes, "PXN");
        assert_ne!(aarch64 & (1 << 11), 0, "nG");
    }
}

#[test]
fn bad_input() {
    let (sim, paging) = machine::<X86_64L4>(1);
    sim.on_cpu(0, || {
        let kernel = Arc::new(Space::<Grace>::kernel(&paging).unwrap());
        let space = Space::user(&paging, Asid(1), Some(kernel.clone())).unwrap();
        let (range, page) = (pages(BASE, 1), block(&sim, 0));
        let at = range.start();
        let with = |flags| Attrs::new(flags);
        let fails = |range, first, attrs, error| {
            assert_eq!(map(&space, range, first, attrs), Err(error));
            assert_eq!(space.walk(&Grace::pin()).get(at), None);
        };
        fails(range, page, Attrs::USER_RW, Error::NotSupervisor(at));
        fails(range, page, with(Flags::USER), Error::NotSupervisor(at));
        fails(range, page, with(Flags::empty()), Error::NotSupervisor(at));
        fails(range, page, Attrs::KERNEL_RW, Error::Global(at));
        fails(pages(BASE, 0), page, KERNELS, Error::Empty);
        let top = pages(0xffff_8000_0000_0000, 1);
        fails(top, page, KERNELS, Error::Kernel(top.start()));
        let table = Error::Frame(at, space.root(), Owner::Table(3));
        // SAFETY: no other call is under way. Bad input has mapped nothing.
        let forked = unsafe { space.fork(Asid(2), false) }.map_err(|failed| failed.error);
        forked.unwrap().1.flush();
        fails(range, space.root(), KERNELS, table);
        // Without the call, a page without USER is an error as before.
        assert_eq!(refused(space.map_own(range, page, KERNELS)), Error::NotUser(at));
        map(&space, range, page, KERNELS).unwrap();
        assert_eq!(map(&space, range, page, KERNELS), Err(Error::Occupied(at)));
        space.unmap_own(range, |_| ()).unwrap().flush();
        drop(space);
        release(&sim, page);
    });
    let (sim, paging) = machine::<X86_64L4>(1);
    sim.on_cpu(0, || {
        let kernel = Space::<Grace>::kernel(&paging).unwrap();
        let (range, page) = (pages(0xffff_8000_0000_0000, 1), block(&sim, 0));
        map(&kernel, range, page, Attrs::KERNEL_RW).unwrap();
        kernel.protect_own(range, Flags::READ).unwrap().flush();
        kernel.unmap_own(range, |_| ()).unwrap().flush();
        assert_eq!(
            map(&kernel, range, page, Attrs::USER_RW),
            Err(Error::NotSupervisor(range.start()))
        );
        release(&sim, page);
    });
}

/// The tables of guests make no such distinction.
#[test]
fn not_for_guests() {
    fn check<F: OnSim>() {
        let (sim, paging) = machine::<F>(1);
        sim.on_cpu(0, || {
            let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            let page = block(&sim, F::PAGE.order());
            let rights = FormatError::Rights(KERNELS.flags);
            let range = pages_of::<F>(BASE, 1);
            assert_eq!(map(&tables, range, page, KERNELS), Err(Error::Format(rights)));
            drop(tables);
            release(&sim, page);
        });
    }
    check::<Ept4>();
    check::<Npt4>();
    check::<Aarch64Stage2>();
}

/// Another CPU has cached that nothing is there, or the way to a table that was unlinked, whose
/// flush is pending. The kernel has no handler for a fault there.
#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn no_access_of_the_kernel_faults() {
    fn run<F: OnSim>(seed: u64) -> Result<(), Failure> {
        let (sim, paging) = machine::<F>(2);
        let (tables, frame) = sim.on_cpu(0, || {
            let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            (tables, block(&sim, F::PAGE.order()))
        });
        let range = pages_of::<F>(BASE, 1);
        let next_to = pages_of::<F>(BASE + F::PAGE.bytes(), 1);
        // The CPUs take turns.
        let turns = AtomicUsize::new(0);
        let turn = |number: usize| {
            while turns.load(SeqCst) != number {
                sim.relax();
            }
        };
        let next = || {
            turns.fetch_add(1, SeqCst);
        };
        let user = || {
            let load = |at| sim.load_own(at);
            tables.activate_own();
            assert!(load(range.start()).is_err());
            next();
            turn(2);
            load(range.start()).unwrap();
            next();
            turn(4);
            tables.flush_page_here(next_to.start(), F::PAGE);
            load(next_to.start()).unwrap();
            next();
            turn(6);
            load(range.start()).unwrap();
            next();
        };
        let mapper = || {
            turn(1);
            map(&tables, range, frame, KERNELS).unwrap();
            next();
            turn(3);
            tables.unmap_own(range, |_| ()).unwrap().flush();
            tables.map_own(next_to, frame, Attrs::USER_RW).unwrap();
            next();
            turn(5);
            let pending = tables.unmap_own(next_to, |_| ()).unwrap().defer();
            assert_eq!(pending.tables(), usize::from(F::LEVELS) - 1);
            map(&tables, range, frame, KERNELS).unwrap();
            next();
            turn(7);
            tables.flush_deferred(pending);
            tables.unmap_own(range, |_| ()).unwrap().flush();
            release(&sim, frame);
        };
        seeded(&sim, seed, vec![Box::new(mapper) as Program, Box::new(user) as Program])?;
        sim.on_cpu(0, || drop(tables));
        Ok(())
    }
    right(4, run::<X86_64L4>);
    right(4, run::<Sv48>);
    right(4, run::<Aarch64>);
}

/// While a group is parted, its pages fault.
#[test]
fn they_are_in_no_group() {
    fn check<F: OnSim>() {
        let (sim, paging) = machine::<F>(1);
        sim.on_cpu(0, || {
            let tables = Tables::<F>::user(&paging, Asid(1), None).unwrap();
            let size = F::GROUP.unwrap();
            let frames = block(&sim, size.order());
            let marks = Flags::ACCESSED | Flags::DIRTY;
            let group = VirtRange::new(virt(BASE), size.bytes()).unwrap();
            let is_group = || tables.walk(&Grace::pin()).group_of(virt(BASE)).is_some();
            tables.map_own(group, frames, Attrs::new(Attrs::USER_RW.flags | marks)).unwrap();
            assert!(is_group());
            tables.unmap_own(group, |_| ()).unwrap().flush();
            map(&tables, group, frames, Attrs::new(KERNELS.flags | marks)).unwrap();
            assert!(!is_group());
            drop(tables);
            release(&sim, frames);
        });
    }
    check::<Aarch64>();
    check::<Aarch64G64>();
    check::<Sv39Napot>();
}
