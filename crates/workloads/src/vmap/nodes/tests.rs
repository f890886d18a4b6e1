use super::*;
use crate::vmap::testing::{
    Kernel, all_or_nothing, nothing_is_stale, range, touch, with_frames, with_kernel,
};
use sim::{Grace, Sim};

/// Pages of the range: enough for some aligned blocks.
const ROOM: u64 = 5 * 1024;

/// Areas of which no more than so many pages may wait for a flush, for each bit of the number of
/// CPUs.
fn areas(kernel: &Kernel, lazy: u64) -> NodeAreas<Sim, Grace> {
    NodeAreas { lazy, ..NodeAreas::new(Arc::clone(kernel), range(ROOM)) }
}

#[test]
fn free_ranges_join_and_the_smallest_that_fits_is_taken() {
    let mut free = Free::new(range(ROOM));
    let all = free.total();
    let took = [4, 2, 8, 1].map(|pages| (free.take(pages * PAGE, PAGE).unwrap(), pages * PAGE));
    free.give(took[1].0, took[1].1);
    free.give(took[2].0 + PAGE, took[2].1 - PAGE);
    assert_eq!(free.take(2 * PAGE, PAGE), Some(took[1].0), "not from the end, which is larger");
    let aligned = free.take(16 * PAGE, 16 * PAGE).unwrap();
    assert_eq!(aligned % (16 * PAGE), 0);
    assert_eq!(free.take(ROOM * PAGE, PAGE), None);
    let back = [took[0], took[1], (took[2].0, PAGE), took[3], (aligned, 16 * PAGE)];
    back.into_iter().for_each(|(at, bytes)| free.give(at, bytes));
    assert_eq!(free.total(), all);
    assert_eq!(all, (ROOM * PAGE, ROOM * PAGE));
}

#[test]
fn an_address_comes_back_to_its_pool_after_one_flush_of_all() {
    with_kernel(2, |sim, kernel| {
        let areas = areas(kernel, 8);
        with_frames(sim, 3, |frames| {
            let before = sim.stats().ipis_sent;
            // Each has 4 pages with the guard. On two CPUs 16 may wait, so the fifth flushes.
            let used: Vec<_> = (0..5)
                .map(|_| {
                    let at = areas.keep(frames).unwrap();
                    touch(sim, at, 3, 7).unwrap();
                    areas.give_up(at).unwrap();
                    assert_eq!(areas.give_up(at), Err(Error::NoArea(at)));
                    at
                })
                .collect();
            assert_eq!(areas.waiting.load(Ordering::Relaxed), 0);
            let again = areas.keep(frames).unwrap();
            assert!(used.contains(&again), "{again} was not in the pool");
            assert_eq!(areas.list(), 1);
            areas.give_up(again).unwrap();
            // CPU 1 has never used the tables. Whether it gets an IPI is up to the machine.
            assert!(sim.stats().ipis_sent - before <= 1);
            areas.purge_all();
            assert_eq!((areas.list(), areas.info()), (0, (0, ROOM * PAGE)));
        });
    });
}

#[test]
fn short_maps_are_runs_of_a_block_which_goes_with_the_last() {
    with_kernel(1, |sim, kernel| {
        let areas = areas(kernel, 1 << 20);
        with_frames(sim, 64, |frames| {
            let first = areas.vm_map_ram(&frames[..3]).unwrap();
            let next = areas.vm_map_ram(&frames[..4]).unwrap();
            assert_eq!(next.get(), first.get() + 4 * PAGE, "a run is a power of two of pages");
            areas.vm_unmap_ram(first, 3).unwrap();
            for _ in 0..2 * 1024 / 64 {
                let at = areas.vm_map_ram(frames).unwrap();
                touch(sim, at, 64, at.get()).unwrap();
                areas.vm_unmap_ram(at, 64).unwrap();
            }
            assert!(areas.waiting.load(Ordering::Relaxed) >= 1024, "a block has gone");
            areas.vm_unmap_ram(next, 4).unwrap();
            areas.purge_all();
            assert_eq!((areas.list(), areas.info()), (0, (0, ROOM * PAGE)));
        });
    });
}

#[test]
fn all_or_nothing_when_memory_gives_out() {
    all_or_nothing(60, |kernel| areas(kernel, 8));
    with_kernel(1, |_, kernel| {
        let made = areas(kernel, 8).alloc(ROOM as usize);
        assert!(matches!(made, Err(Error::Full { .. } | Error::Tables(_))));
    });
}

#[test]
fn nothing_is_stale_in_any_order() {
    // Two areas cause a flush, so addresses come back soon.
    nothing_is_stale(range(ROOM), |kernel| areas(kernel, 2));
}

/// A mutant without the flush: the machine's checks must notice it.
#[test]
fn a_purge_without_its_flush_is_caught() {
    let caught = std::panic::catch_unwind(|| {
        with_kernel(1, |sim, kernel| {
            // While the panic unwinds, the tables of a machine that has halted must not be dropped.
            core::mem::forget(Arc::clone(kernel));
            let areas = areas(kernel, 1 << 20);
            with_frames(sim, 1, |frames| {
                let at = areas.keep(frames).unwrap();
                touch(sim, at, 1, 7).unwrap();
                areas.give_up(at).unwrap();
                // As `purge_nodes`, but without the flush.
                let gone = lock(sim, &areas.node_of(at.get()).lazy.0).pop().unwrap();
                lock(sim, &areas.nodes[gone.home].pools.0)[gone.pages].push(gone.start);
                let _ = areas.keep(frames);
            });
        });
    });
    let message = caught.unwrap_err();
    let message = message.downcast_ref::<std::string::String>().map_or("", |text| text);
    assert!(message.contains("(I4)"), "a stale address was reused: {message}");
}
