//! Large pages that are pinned during a fork, and moves when memory is out.

use super::*;

/// A large page that is pinned for writing stays the parent's, and the child gets its own bytes.
#[test]
fn a_fork_copies_a_pinned_large_page() {
    fn copied<F: OnSim>() {
        let (sim, paging) = machine::<F>(64, 3 * F::LARGE.frames());
        let exclusive = Attrs::USER_RW.with_share(Share::Exclusive);
        let range = VirtRange::new(virt(F::LARGE.bytes()), 2 * F::LARGE.bytes()).unwrap();
        let second = virt(range.start().get() + F::LARGE.bytes());
        let [pinned, shared] = [range.start(), second].map(|at| pages_of::<F>(at.get(), 512));
        let (parent, child, first) = sim.on_cpu(0, || {
            let parent = user(&paging);
            let first = block(&sim, F::LARGE.order());
            parent.map_own(pinned, first, exclusive).unwrap();
            (0..512).for_each(|page| put(&sim, first.checked_add(page).unwrap(), 8, page));
            let other = block(&sim, F::LARGE.order());
            parent.map_own(shared, other, exclusive).unwrap();
            let mut frame = [Frame::default()];
            let at = virt(range.start().get() + 3 * F::PAGE.bytes());
            let pins = parent.get_user_pages_fast(at, true, &mut frame, |_, _| false).unwrap();
            let child = parent.fork_own(Asid(2), true);
            drop(pins);
            (parent, child, first)
        });
        sim.on_cpu(0, || {
            let page = get(&parent, range.start());
            assert_eq!(
                (page.frame, page.size, page.attrs.share()),
                (first, F::LARGE, Share::Exclusive)
            );
            assert!(F::SHARED_IS_READ_ONLY || page.attrs.flags.contains(Flags::WRITE));
            for page in 0..512 {
                let copy = get(&child, virt(range.start().get() + page * F::PAGE.bytes()));
                assert_eq!((copy.size, word(&sim, copy.frame, 8)), (F::PAGE, page));
                assert_ne!(copy.frame, first.checked_add(page).unwrap());
            }
            assert_eq!(get(&child, second), get(&parent, second));
            unmap_counted(&parent, range);
            unmap_counted(&child, range);
        });
        end(&sim, &paging, [parent, child]);
    }
    copied::<X86_64L4>();
    copied::<Aarch64>();
    copied::<Sv39>();
    copied::<Sv48>();
}

/// Pins that end while a fork is under way: the child has each page, shared or copied.
#[test]
fn a_fork_loses_no_large_page_whose_pin_ends() {
    fn kept<F: OnSim>() {
        let (sim, paging) = machine::<F>(64, 5 * F::LARGE.frames());
        let exclusive = Attrs::USER_RW.with_share(Share::Exclusive);
        let large = F::LARGE.bytes();
        let range = VirtRange::new(virt(large), 2 * large).unwrap();
        let (parent, child) = sim.on_cpu(0, || {
            let parent = user(&paging);
            for at in [large, 2 * large] {
                let first = block(&sim, F::LARGE.order());
                put(&sim, first, 8, at);
                parent.map_own(pages_of::<F>(at, 512), first, exclusive).unwrap();
            }
            let mut frames = [[Frame::default()]; 2];
            let pins = frames.iter_mut().zip([large, 2 * large]).map(|(frame, at)| {
                parent.get_user_pages_fast(virt(at), true, frame, |_, _| false).unwrap()
            });
            let held = std::cell::RefCell::new(pins.collect::<Vec<_>>());
            let copies = |_: VirtAddr| {
                held.borrow_mut().clear();
                Ok(Some(block(&sim, F::PAGE.order())))
            };
            // SAFETY: the calls of the child are this test's, and so are the frames.
            let (child, pending) = unsafe { parent.fork_with(Asid(2), Some(&copies)) }.unwrap();
            pending.flush();
            drop(held);
            (parent, child)
        });
        sim.on_cpu(0, || {
            for at in [large, 2 * large] {
                assert_eq!(word(&sim, get(&child, virt(at)).frame, 8), at);
            }
            unmap_counted(&parent, range);
            unmap_counted(&child, range);
        });
        end(&sim, &paging, [parent, child]);
    }
    kept::<X86_64L4>();
    kept::<Aarch64>();
    kept::<Sv39>();
    kept::<Sv48>();
}

/// A move has the tables in hand that it may need, also if a fault that was under way unlinks an
/// empty one of the target once the move is prepared.
#[test]
fn a_move_needs_no_memory_where_a_table_goes() {
    type F = X86_64L4;
    let (sim, paging) = machine::<F>(64, 0);
    let (from, to) = (pages_of::<F>(2 * border::<F>(), 3), pages_of::<F>(border::<F>(), 3));
    let tables = sim.on_cpu(0, || {
        let tables = user::<F>(&paging);
        let frame = Frame::new((1 << 24) - 8).unwrap();
        tables.map_own(to, frame, Attrs::USER_RW).unwrap();
        let mut pending = tables.no_flush();
        pending.keep_tables(true);
        // SAFETY: the addresses are this test's.
        unsafe { tables.sweep(to, &mut pending, |_| SweepChange::Clear) }.unwrap();
        pending.flush();
        tables.map_own(from, frame, Attrs::USER_RW).unwrap();
        let plan = tables.prepare_relocation(from, to.start()).unwrap();
        let mut pending = tables.no_flush();
        tables.unlink_empty(to, &mut pending).unwrap();
        pending.flush();
        assert!(sim.settle());
        paging.quick().drain();
        let taken: Vec<_> = core::iter::from_fn(|| sim.alloc(0, NodePolicy::Local).ok()).collect();
        let mut pending = tables.no_flush();
        // SAFETY: the addresses are this test's.
        assert_eq!(unsafe { tables.relocate(plan, &mut pending) }, Ok(()));
        pending.flush();
        taken.into_iter().for_each(|frame| release(&sim, frame));
        assert_eq!(tables.walk(&Grace::pin()).pages(from).count(), 0);
        assert_eq!(tables.walk(&Grace::pin()).pages(to).count(), 3);
        tables.unmap_own(to, |_| ()).unwrap().flush();
        tables
    });
    end(&sim, &paging, [tables]);
}
