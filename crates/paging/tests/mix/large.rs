//! A large page is mapped, split, and unmapped in pieces or as a whole.

use crate::change;
use crate::common::{OnSim, pages_of};
use crate::space::{LargePage, LiveSpace, PIECES, Tag};
use crate::world::Cpu;
use machine::*;
use paging::*;

impl<F: OnSim> Cpu<'_, F> {
    pub(crate) fn large(&mut self) {
        if self.current.is_kernel() {
            return;
        }
        let live = self.current.clone();
        let Some(large) = live.claim_large() else { return };
        let next = match large.frame {
            None => self.map_large(&live),
            Some(frame) => self.change_large(&live, large, frame),
        };
        live.set_large(next);
        live.unclaim_large();
    }

    fn map_large(&mut self, live: &LiveSpace<F>) -> LargePage {
        let sim = &self.world.sim;
        let Ok(frame) = sim.alloc(F::LARGE.order(), NodePolicy::Local) else {
            return LargePage::default();
        };
        // SAFETY: it is ours.
        unsafe { sim.set_owner(frame, Owner::User) }.unwrap();
        let mut written = self.world.written.lock().unwrap();
        for piece in 0..PIECES {
            let part = part::<F>(frame, piece);
            Tag::set(sim, part, live.large_tag(piece));
            written.remove(&part);
        }
        drop(written);
        let range = whole(live);
        self.world.check_reuse(live, range);
        match change::map(live, range, frame, Attrs::USER_RW) {
            Ok(()) => {
                live.set_large(LargePage { frame: Some(frame), ..LargePage::default() });
                self.touch_large();
                LargePage { frame: Some(frame), ..LargePage::default() }
            }
            Err(Error::Frames(_)) => {
                self.world.flushed(live, range);
                self.world.release(frame);
                LargePage::default()
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn change_large(
        &mut self,
        live: &LiveSpace<F>,
        mut large: LargePage,
        frame: Frame,
    ) -> LargePage {
        let piece = self.rng.below(PIECES);
        let small = pages_of::<F>(live.large_at(piece).get(), 1);
        match (self.rng.below(4), large.split) {
            (0, _) => return self.unmap_large(live, large, frame),
            (1, _) => {
                let rights = [Flags::READ, Flags::READ | Flags::WRITE][self.rng.below(2)];
                let pending = change::protect(live, whole(live), rights | Flags::USER);
                change::flush(&live.tables, pending, self.rng.below(4));
                self.world.flushed(live, whole(live));
            }
            (_, false) => {
                let cut = change::try_unmap(live, small);
                assert_eq!(cut, Err(Error::Cut(live.large_at(0), F::LARGE)));
                let Some(pending) = change::split(live, small.start()) else { return large };
                change::flush(&live.tables, pending, self.rng.below(4));
                large = LargePage { split: true, mapped: [true; PIECES], ..large };
                self.world.flushed(live, whole(live));
            }
            (_, true) if large.mapped[piece] => {
                let pending = change::unmap(live, small, |page| {
                    assert_eq!(self.gone(live, page), part::<F>(frame, piece));
                });
                change::flush(&live.tables, pending, self.rng.below(4));
                large.mapped[piece] = false;
                self.world.flushed(live, small);
            }
            (_, true) => {
                self.world.check_reuse(live, small);
                self.world.written.lock().unwrap().remove(&part::<F>(frame, piece));
                let mapped = change::map(live, small, part::<F>(frame, piece), Attrs::USER_RW);
                assert_eq!(mapped, Ok(()), "the table is there");
                large.mapped[piece] = true;
            }
        }
        self.touch_large();
        large
    }

    fn unmap_large(&mut self, live: &LiveSpace<F>, large: LargePage, frame: Frame) -> LargePage {
        let range = whole(live);
        let mut count = 0;
        let written = |piece| self.world.written.lock().unwrap().contains(&part::<F>(frame, piece));
        let pending = change::unmap(live, range, |page| {
            count += page.size.frames();
            let dirty = page.attrs.flags.contains(Flags::DIRTY);
            let here = |piece: &usize| {
                page.frame_of(live.large_at(*piece)) == Some(part::<F>(frame, *piece))
            };
            let inside =
                |piece: &usize| page.size == F::LARGE || page.page == live.large_at(*piece);
            let lost = (0..PIECES).filter(inside).find(|piece| written(*piece) && !dirty);
            assert_eq!(lost, None, "a dirty bit was lost");
            assert!((0..PIECES).filter(inside).all(|piece| here(&piece)), "another frame");
        });
        change::flush(&live.tables, pending, self.rng.below(4));
        let holes = large.mapped.iter().filter(|mapped| large.split && !**mapped).count();
        assert_eq!(count, F::LARGE.frames() - holes as u64 * F::PAGE.frames());
        live.set_large(LargePage::default());
        self.world.flushed(live, range);
        self.world.release(frame);
        LargePage::default()
    }
}

fn part<F: Format>(frame: Frame, piece: usize) -> Frame {
    frame.checked_add(piece as u64 * F::PAGE.frames()).unwrap()
}

fn whole<F: OnSim>(live: &LiveSpace<F>) -> VirtRange {
    VirtRange::new(live.large_at(0), F::LARGE.bytes()).unwrap()
}
