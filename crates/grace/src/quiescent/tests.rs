use super::*;
use crate::batch::tests::NO_MEMORY;
use core::cell::Cell;
use std::boxed::Box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::vec::Vec;

/// An engine whose CPUs are host threads. Each thread sets its CPU in [`HERE`].
struct State {
    shared: Shared,
    slots: Vec<CpuSlot>,
    freed: AtomicUsize,
}

std::thread_local! {
    static HERE: Cell<Option<(&'static State, usize)>> = const { Cell::new(None) };
}

struct Host;

// SAFETY: each test gives every CPU to one thread. There are no interrupts.
unsafe impl Domain for Host {
    type Exclusive = ();
    fn cpu() -> usize {
        HERE.get().unwrap().1
    }
    fn exclusive() {}
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        let (state, _) = HERE.get().unwrap();
        f(Periods::new(&state.shared, &state.slots))
    }
}

type Grace = Quiescent<Host>;

impl State {
    /// A state that is never freed, like a static.
    fn new(cpus: usize) -> &'static State {
        let slots = (0..cpus).map(|_| CpuSlot::new()).collect();
        Box::leak(Box::new(State { shared: Shared::new(), slots, freed: AtomicUsize::new(0) }))
    }

    fn on<T>(&'static self, cpu: usize, f: impl FnOnce() -> T) -> T {
        let before = HERE.replace(Some((self, cpu)));
        let result = f();
        HERE.set(before);
        result
    }

    fn freed(&self) -> usize {
        self.freed.load(SeqCst)
    }
}

unsafe fn count(ptr: NonNull<()>) {
    // SAFETY: the tests retire counters that are never freed.
    unsafe { ptr.cast::<AtomicUsize>().as_ref() }.fetch_add(1, SeqCst);
}

fn retire(state: &'static State, pieces: usize) {
    let guard = Grace::pin();
    for _ in 0..pieces {
        // SAFETY: `count` fits, and frees nothing.
        unsafe { Grace::retire(&guard, NonNull::from(&state.freed).cast(), count) };
    }
}

/// The heap is exhausted before the first piece is retired. A CPU that has started still records a
/// block of pieces.
#[test]
fn a_cpu_that_has_started_loses_nothing() {
    let state = State::new(2);
    assert!(state.on(0, Grace::start) && state.on(0, Grace::start));
    NO_MEMORY.set(true);
    assert!(!state.on(1, Grace::start), "it returns that there is no block");
    assert!(state.on(0, Grace::start), "it already has a block");
    for round in 1..4 {
        state.on(0, || {
            retire(state, BATCH);
            (0..3).for_each(|_| assert!(Grace::quiescent_state()));
            Grace::reclaim(usize::MAX);
        });
        assert_eq!((state.freed(), state.shared.lost()), (round * BATCH, 0));
    }
    // A CPU that has no block counts the lost piece.
    state.on(1, || retire(state, 1));
    NO_MEMORY.set(false);
    assert_eq!(state.shared.lost(), 1);
}

/// A CPU can record as many pieces as it has freed, even in a block that still holds others.
#[test]
fn freed_pieces_make_room() {
    const REST: usize = 5;
    let state = State::new(1);
    state.on(0, || {
        assert!(Grace::start());
        NO_MEMORY.set(true);
        retire(state, BATCH);
        (0..3).for_each(|_| assert!(Grace::quiescent_state()));
        assert_eq!(Grace::reclaim(BATCH - REST), BATCH - REST);
        retire(state, BATCH - REST);
        assert_eq!((state.freed(), state.shared.lost()), (BATCH - REST, 0));
        // The block is full.
        retire(state, 1);
        assert_eq!(state.shared.lost(), 1);
        NO_MEMORY.set(false);
        assert_eq!(Grace::reclaim(1), 0, "all wait for a later period");
        (0..3).for_each(|_| assert!(Grace::quiescent_state()));
        assert_eq!(Grace::reclaim(usize::MAX), BATCH);
        assert!(!Grace::is_pending());
    });
}

/// A CPU that becomes idle keeps its spare block, and leaves its retired pieces to others.
#[test]
fn a_cpu_that_was_idle_loses_nothing() {
    let state = State::new(2);
    assert!(state.on(0, Grace::start));
    for _ in 0..3 {
        state.on(0, || {
            retire(state, 1);
            assert!(Grace::idle_enter());
        });
    }
    NO_MEMORY.set(true);
    state.on(0, || retire(state, BATCH));
    NO_MEMORY.set(false);
    assert_eq!(state.shared.lost(), 0);
}

#[test]
fn freed_when_all_cpus_have_reported() {
    let state = State::new(3);
    (0..3).for_each(|cpu| assert!(state.on(cpu, Grace::quiescent_state)));
    state.on(0, || retire(state, 3));
    let tries = |cpu| {
        state.on(cpu, || {
            Grace::quiescent_state();
            Grace::reclaim(usize::MAX)
        })
    };
    // The first call begins the period. All three CPUs must report before it ends, and then the
    // first sees the end.
    assert_eq!([0, 1, 0].map(tries), [0, 0, 0]);
    assert_eq!(state.freed(), 0);
    assert_eq!([2, 0].map(tries), [0, 3]);
    assert_eq!((state.freed(), state.on(0, Grace::is_pending)), (3, false));
}

#[test]
fn not_freed_while_an_older_guard_lives() {
    let state = State::new(2);
    let (outer, inner) = state.on(1, || (Grace::pin(), Grace::pin()));
    state.on(0, || retire(state, BATCH + 1));
    let round = || {
        for _ in 0..4 {
            state.on(1, Grace::quiescent_state);
            state.on(0, || {
                Grace::quiescent_state();
                Grace::reclaim(usize::MAX);
            });
        }
        state.freed()
    };
    assert!(!state.on(1, Grace::quiescent_state) && !state.on(1, Grace::idle_enter));
    assert_eq!(round(), 0);
    state.on(1, || drop(outer));
    assert_eq!(round(), 0, "nested");
    state.on(1, || drop(inner));
    assert_eq!(round(), BATCH + 1);
    assert_eq!(state.shared.lost(), 0);
}

#[test]
fn an_idle_cpu_delays_no_period() {
    let state = State::new(64);
    state.on(5, || {
        retire(state, 1);
        (0..3).for_each(|_| assert!(Grace::quiescent_state()));
        assert_eq!(Grace::reclaim(usize::MAX), 1);
    });
    // A guard makes the CPU active, and then it delays the period.
    let guard = state.on(63, Grace::pin);
    state.on(5, || {
        retire(state, 1);
        (0..5).for_each(|_| assert!(Grace::quiescent_state()));
        assert_eq!(Grace::reclaim(usize::MAX), 0);
    });
    state.on(63, || drop(guard));
    assert!(state.on(63, Grace::idle_enter));
    state.on(5, || {
        assert!(Grace::quiescent_state());
        assert_eq!(Grace::reclaim(usize::MAX), 1);
    });
}

/// A CPU becomes idle while an older guard exists. The pieces that it leaves wait for that guard,
/// on every CPU.
#[test]
fn left_pieces_wait_for_older_guards() {
    for before in 0..3 {
        let state = State::new(3);
        // Begin with different periods.
        for _ in 0..before {
            (0..3).for_each(|cpu| assert!(state.on(cpu, Grace::quiescent_state)));
            state.on(2, || retire(state, 1));
            (0..2).for_each(|_| {
                (0..3).for_each(|cpu| assert!(state.on(cpu, Grace::quiescent_state)));
            });
            assert_eq!(state.on(2, || Grace::reclaim(usize::MAX)), 1);
        }
        let guard = state.on(1, Grace::pin);
        state.on(0, || {
            retire(state, 1);
            assert!(Grace::idle_enter());
        });
        for _ in 0..4 {
            state.on(2, || {
                assert_eq!(Grace::reclaim(usize::MAX), 0, "freed under an older guard");
                assert!(Grace::quiescent_state() && Grace::is_pending());
            });
        }
        state.on(1, || {
            drop(guard);
            assert!(Grace::quiescent_state());
        });
        state.on(2, || {
            assert!(Grace::quiescent_state());
            assert_eq!(Grace::reclaim(usize::MAX), 1);
        });
    }
}

/// The same for pieces that are flushed, with and without full batches before them.
#[test]
fn flushed_pieces_wait_for_older_guards() {
    for pieces in [1, BATCH, BATCH + 1] {
        let state = State::new(3);
        let guard = state.on(1, Grace::pin);
        state.on(0, || {
            retire(state, pieces);
            for _ in 0..4 {
                Grace::flush(&Grace::pin());
                assert!(Grace::quiescent_state());
            }
            assert_eq!(state.freed(), 0, "{pieces}");
            assert!(Grace::idle_enter());
        });
        state.on(2, || (0..4).for_each(|_| assert!(Grace::quiescent_state())));
        assert_eq!(state.on(2, || Grace::reclaim(usize::MAX)), 0, "{pieces}");
        state.on(1, || drop(guard));
        assert!(state.on(1, Grace::idle_enter));
        state.on(2, || (0..2).for_each(|_| assert!(Grace::quiescent_state())));
        assert_eq!(state.on(2, || Grace::reclaim(usize::MAX)), pieces);
    }
}

/// The counter of sections is as wide as a word. At its limit a new guard panics, and the counter
/// never wraps to 0.
#[test]
fn no_number_of_forgotten_guards_ends_a_section() {
    let state = State::new(2);
    state.on(0, || {
        core::mem::forget(Grace::pin());
        // The largest number.
        state.slots[0].depth.store(usize::MAX, Relaxed);
        let more = std::panic::catch_unwind(Grace::pin);
        assert!(more.is_err() && !Grace::quiescent_state() && !Grace::idle_enter());
        assert!(state.slots[0].is_in_section());
    });
}

#[test]
fn left_pieces_are_freed_by_others() {
    let state = State::new(2);
    state.on(0, || {
        retire(state, 2 * BATCH + 5);
        assert!(Grace::idle_enter());
    });
    state.on(1, || {
        assert!(Grace::is_pending());
        assert_eq!(Grace::reclaim(usize::MAX), 0);
        (0..3).for_each(|_| assert!(Grace::quiescent_state()));
        assert_eq!(Grace::reclaim(10), 10);
        assert_eq!(Grace::reclaim(usize::MAX), 2 * BATCH - 5);
        assert!(!Grace::is_pending());
    });
}

#[test]
fn flush_begins_the_period_of_a_partial_batch() {
    let state = State::new(2);
    state.on(1, Grace::quiescent_state);
    state.on(0, || {
        Grace::quiescent_state();
        retire(state, 1);
        Grace::flush(&Grace::pin());
    });
    state.on(1, Grace::quiescent_state);
    state.on(0, || {
        Grace::quiescent_state();
        Grace::flush(&Grace::pin());
    });
    assert_eq!(state.freed(), 1);
}

#[test]
fn a_free_may_retire() {
    unsafe fn again(ptr: NonNull<()>) {
        let guard = Grace::pin();
        // SAFETY: as in `retire`.
        unsafe { Grace::retire(&guard, ptr, count) };
    }
    let state = State::new(1);
    state.on(0, || {
        for _ in 0..3 * BATCH {
            let guard = Grace::pin();
            // SAFETY: as in `retire`.
            unsafe { Grace::retire(&guard, NonNull::from(&state.freed).cast(), again) };
        }
        for _ in 0..20 {
            Grace::quiescent_state();
            Grace::reclaim(usize::MAX);
        }
        assert_eq!((state.freed(), Grace::is_pending()), (3 * BATCH, false));
    });
}

/// A free that asks for more frees does not run them within itself, by whichever call. All pieces
/// are freed eventually.
#[test]
fn frees_do_not_nest() {
    std::thread_local! {
        static DEPTH: Cell<usize> = const { Cell::new(0) };
    }
    unsafe fn greedy(ptr: NonNull<()>) {
        DEPTH.set(DEPTH.get() + 1);
        assert_eq!(DEPTH.get(), 1, "a free within a free");
        assert_eq!(Grace::reclaim(usize::MAX), 0);
        Grace::flush(&Grace::pin());
        // SAFETY: as in `retire`.
        unsafe { count(ptr) }
        DEPTH.set(DEPTH.get() - 1);
    }
    unsafe fn panics(ptr: NonNull<()>) {
        // SAFETY: as in `retire`.
        unsafe { count(ptr) }
        panic!("a panic in a free");
    }
    let state = State::new(2);
    state.on(0, || {
        let guard = Grace::pin();
        // SAFETY: as in `retire`.
        unsafe { Grace::retire(&guard, NonNull::from(&state.freed).cast(), panics) };
        for _ in 0..BATCH {
            // SAFETY: as above.
            unsafe { Grace::retire(&guard, NonNull::from(&state.freed).cast(), greedy) };
        }
        drop(guard);
        (0..6).for_each(|_| assert!(Grace::quiescent_state()));
        // A free that panics ends this call to `reclaim` only.
        assert!(std::panic::catch_unwind(|| Grace::reclaim(usize::MAX)).is_err());
        assert_eq!((state.freed(), Grace::reclaim(usize::MAX)), (1, BATCH));
        assert_eq!((state.freed(), Grace::is_pending()), (1 + BATCH, false));
    });
}

/// Readers access pieces under guards while writers replace and retire them, and CPUs become idle
/// and active.
#[test]
fn threads_with_real_memory() {
    const KEY: usize = 0x5ca1_ab1e;
    struct Node(usize, usize);
    unsafe fn free(ptr: NonNull<()>) {
        // SAFETY: each node is retired once.
        let mut node = unsafe { Box::from_raw(ptr.cast::<Node>().as_ptr()) };
        assert_eq!(node.0 ^ KEY, node.1, "freed twice");
        node.1 = !node.1;
    }
    let rounds = if cfg!(miri) { 60 } else { 30_000 };
    let state = State::new(4);
    let node = |n: usize| Box::into_raw(Box::new(Node(n, n ^ KEY)));
    let place = Arc::new(core::sync::atomic::AtomicPtr::new(node(0)));
    thread::scope(|scope| {
        for cpu in 0..4 {
            let place = &place;
            scope.spawn(move || {
                state.on(cpu, || {
                    for round in 0..rounds {
                        let guard = Grace::pin();
                        if cpu < 2 {
                            let old = place.swap(node(round), SeqCst);
                            // SAFETY: the writer that swaps it out retires it.
                            unsafe {
                                Grace::retire(&guard, NonNull::new(old).unwrap().cast(), free)
                            };
                        } else {
                            // SAFETY: it was there after the guard was taken.
                            let seen = unsafe { &*place.load(SeqCst) };
                            assert_eq!(seen.0 ^ KEY, seen.1, "accessed after it was freed");
                        }
                        drop(guard);
                        match round % 7 {
                            0 => assert!(Grace::idle_enter()),
                            1 | 4 => assert!(Grace::quiescent_state()),
                            _ => {}
                        }
                        if round % 5 == 0 {
                            Grace::reclaim(100);
                        }
                    }
                    assert!(Grace::idle_enter());
                });
            });
        }
    });
    state.on(0, || {
        (0..3).for_each(|_| assert!(Grace::quiescent_state()));
        Grace::reclaim(usize::MAX);
        assert!(!Grace::is_pending());
    });
    // SAFETY: all other threads have ended.
    drop(unsafe { Box::from_raw(place.load(Relaxed)) });
}

/// The heap is exhausted while a guard delays the grace period. The CPU still records a block of
/// pieces, however many reports it makes. Further pieces are counted as lost. No piece is freed too
/// early.
#[test]
fn without_memory() {
    let state = State::new(2);
    (0..2).for_each(|cpu| assert!(state.on(cpu, Grace::quiescent_state)));
    let guard = state.on(1, Grace::pin);
    let step = |pieces| {
        state.on(0, || {
            retire(state, pieces);
            assert!(Grace::quiescent_state());
            Grace::reclaim(usize::MAX)
        })
    };
    assert_eq!(step(1), 0);
    NO_MEMORY.set(true);
    for piece in 1..=BATCH {
        assert_eq!((step(1), state.shared.lost()), (0, 0), "piece {piece}");
    }
    assert_eq!((step(1), state.shared.lost()), (0, 1));
    assert_eq!(state.freed(), 0);
    state.on(1, || {
        drop(guard);
        assert!(Grace::quiescent_state());
    });
    let settle = || {
        for _ in 0..3 {
            (0..2).for_each(|cpu| assert!(state.on(cpu, Grace::quiescent_state)));
            state.on(0, || Grace::reclaim(usize::MAX));
        }
    };
    settle();
    assert_eq!(state.freed(), 1 + BATCH);
    // With its empty blocks, the CPU continues without the heap.
    for _ in 0..5 {
        step(BATCH / 2);
        settle();
    }
    NO_MEMORY.set(false);
    assert_eq!((state.freed(), state.shared.lost()), (1 + BATCH + 5 * (BATCH / 2), 1));
    assert!(!state.on(0, Grace::is_pending));
}
