use super::*;
use crate::vmap::testing::{
    Kernel, all_or_nothing, nothing_is_stale, page, range, touch, with_frames, with_kernel,
};
use sim::{Grace, Sim};

fn areas(kernel: &Kernel, pages: u64) -> OneLockAreas<Sim, Grace> {
    OneLockAreas::new(Arc::clone(kernel), range(pages))
}

#[test]
fn the_first_hole_with_a_guard_behind_it() {
    with_kernel(2, |sim, kernel| {
        let areas = areas(kernel, 16);
        with_frames(sim, 4, |frames| {
            let map = |pages: usize| areas.keep(&frames[..pages]);
            assert_eq!([map(4), map(2), map(4)], [Ok(page(0)), Ok(page(5)), Ok(page(8))]);
            assert_eq!(areas.info(), (13 << 12, 3 << 12));
            touch(sim, page(0), 4, 7).unwrap();
            assert_eq!(touch(sim, page(4), 1, 7).unwrap_err().address, page(4), "a guard");
            areas.give_up(page(5)).unwrap();
            assert_eq!(areas.give_up(page(5)), Err(Error::NoArea(page(5))));
            assert_eq!(areas.give_up(page(1)), Err(Error::NoArea(page(1))));
            // Three pages, with the guard, fit neither into the hole of two nor at the end.
            assert_eq!(map(3), Err(Error::Full { pages: 3 }));
            assert_eq!([map(2), map(1)], [Ok(page(5)), Ok(page(13))]);
            let list = lock(sim, &areas.list);
            let all: Vec<_> =
                list.iter().map(|area| (VirtAddr::new(area.start), area.pages)).collect();
            drop(list);
            assert_eq!(all, [(page(0), 4), (page(5), 2), (page(8), 4), (page(13), 1)]);
            all.into_iter().for_each(|(at, _)| areas.give_up(at).unwrap());
            assert_eq!(areas.info(), (0, 16 << 12));
        });
    });
}

#[test]
fn all_or_nothing_when_memory_gives_out() {
    all_or_nothing(600, |kernel| areas(kernel, 1024));
}

#[test]
fn nothing_is_stale_in_any_order() {
    // Room for eight areas of two pages, so addresses come back at once.
    nothing_is_stale(range(24), |kernel| areas(kernel, 24));
}
