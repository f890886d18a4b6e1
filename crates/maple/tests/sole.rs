//! [`SoleTree`]: alone, shared, and alone again, against a model; with references to entries that
//! have left the tree, and with duplicates that share nodes. Under Miri this finds a node that is
//! changed or freed too early.

use grace::Reclaim;
use grace::quiescent::{CpuSlot, Domain, Periods, Quiescent, Shared};
use maple::{Index, Nodes, SoleTree};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

const CPUS: usize = 3;

/// The engine of one test. It stays, like a static.
struct Engine {
    shared: Shared,
    slots: [CpuSlot; CPUS],
}

thread_local! {
    static HERE: Cell<Option<(&'static Engine, usize)>> = const { Cell::new(None) };
}

struct Host;

// SAFETY: each CPU is one thread at a time, and nothing interrupts it.
unsafe impl Domain for Host {
    const PREEMPTED: bool = false;
    type Exclusive = ();
    fn cpu() -> usize {
        HERE.get().expect("the thread is a CPU").1
    }
    fn exclusive() {}
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        let (engine, _) = HERE.get().expect("the thread is a CPU");
        f(Periods::new(&engine.shared, &engine.slots))
    }
}

type Grace = Quiescent<Host>;
type Tree = SoleTree<Arc<(Index, Index)>, Grace, Nodes>;

impl Engine {
    fn new() -> &'static Engine {
        let slots = [const { CpuSlot::new() }; CPUS];
        Box::leak(Box::new(Engine { shared: Shared::new(), slots }))
    }

    fn on<T>(&'static self, cpu: usize, f: impl FnOnce() -> T) -> T {
        let before = HERE.replace(Some((self, cpu)));
        let result = f();
        HERE.set(before);
        result
    }
}

/// Lets what was retired be freed, if no guard is held.
fn quiet() {
    Grace::quiescent_state();
    Grace::reclaim(usize::MAX);
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

const CELL: Index = 0x1000;
const CELLS: u64 = if cfg!(miri) { 80 } else { 200 };

/// Ranges of whole cells, by their first cell: the end and the number of the entry.
type Model = BTreeMap<u64, (u64, Index)>;

/// Makes a range of the model a hole.
fn clear(model: &mut Model, from: u64, to: u64) {
    let all: Vec<_> = model.range(..to).map(|(&start, &entry)| (start, entry)).collect();
    for (start, (end, id)) in all {
        if end <= from {
            continue;
        }
        model.remove(&start);
        if start < from {
            model.insert(start, (from, id));
        }
        if end > to {
            model.insert(to, (end, id));
        }
    }
}

fn same(tree: &Tree, model: &Model) {
    let guard = tree.pin();
    let found: Vec<_> = tree
        .iter(&guard, 0..=Index::MAX)
        .map(|(range, entry)| (*range.start(), *range.end(), entry.0))
        .collect();
    let expected: Vec<_> = model
        .iter()
        .map(|(&start, &(end, id))| (start as Index * CELL, end as Index * CELL - 1, id))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn as_the_model_says_alone_and_shared() {
    let engine = Engine::new();
    let steps = if cfg!(miri) { 200 } else { 20_000 };
    let (mut dice, mut alone) = (Dice(5), [0; 2]);
    let mut model = Model::new();
    let mut twins: Vec<(Tree, Model)> = Vec::new();
    let tree = engine.on(0, Tree::new_in);
    for step in 0..steps {
        // The writer moves now and then.
        let cpu = (step / 97 % 2) as usize;
        engine.on(cpu, || {
            alone[usize::from(tree.is_alone())] += 1;
            let from = dice.roll(CELLS);
            let to = from + 1 + dice.roll(6);
            let range = from as Index * CELL..=to as Index * CELL - 1;
            // A reference that outlives the write.
            let guard = tree.pin();
            let held = tree.find(&guard, range.clone());
            let before = held.as_ref().map(|(_, entry)| (entry.0, entry.1));
            let mut writer = tree.lock();
            match dice.roll(8) {
                0 if from > 0 && model.contains_key(&from) => {
                    let (end, id) = model[&from];
                    let next = model.range(end..).next().map_or(CELLS + 10, |(&start, _)| start);
                    let to = (from + 1 + dice.roll(10)).min(next);
                    let last = to as Index * CELL - 1;
                    let moved = writer.set_end(from as Index * CELL, last).unwrap();
                    assert_eq!(moved, Some(from as Index * CELL..=last));
                    model.insert(from, (to, id));
                }
                1..=4 => {
                    let id = step as Index;
                    if dice.roll(4) == 0 {
                        writer.preallocate_writes(1).unwrap();
                    }
                    writer.store_range(range, Arc::new((id, !id))).unwrap();
                    clear(&mut model, from, to);
                    model.insert(from, (to, id));
                }
                5 if twins.len() < 4 => {
                    twins.push((writer.duplicate().unwrap(), model.clone()));
                }
                _ => {
                    writer.erase_range(range).unwrap();
                    clear(&mut model, from, to);
                }
            }
            if !cfg!(miri) || step % 16 == 0 {
                writer.validate().unwrap();
            }
            drop(writer);
            if let (Some((_, entry)), Some((id, not))) = (&held, before) {
                assert_eq!((entry.0, entry.1, !id), (id, not, not));
            }
        });
        if dice.roll(3) == 0 {
            (0..CPUS).for_each(|cpu| engine.on(cpu, quiet));
        }
        // A reader elsewhere, a write to a duplicate, or its end.
        if dice.roll(if cfg!(miri) { 40 } else { 150 }) == 0 {
            engine.on(2, || same(&tree, &model));
            if let Some((twin, its)) = twins.pop() {
                engine.on(1, || same(&twin, &its));
                engine.on(2, || {
                    twin.lock().erase_range(0..=9 * CELL - 1).unwrap();
                    clear(&mut its.clone(), 0, 9);
                    twin.lock().validate().unwrap();
                    drop(twin);
                });
            }
        }
    }
    engine.on(0, || same(&tree, &model));
    engine.on(1, || drop(twins));
    engine.on(0, || drop(tree));
    (0..3 * CPUS).for_each(|turn| engine.on(turn % CPUS, quiet));
    assert!(alone.iter().all(|&times| times > steps / 20), "shared and alone: {alone:?}");
}

#[test]
fn keep_shared_lasts() {
    let engine = Engine::new();
    engine.on(0, || {
        let tree = Tree::new_in();
        tree.lock().store_range(0..=9, Arc::new((1, !1))).unwrap();
        assert!(tree.is_alone());
        tree.keep_shared();
        for i in 0..10_000 {
            tree.lock().store_range(i..=i + 9, Arc::new((i, !i))).unwrap();
            assert!(!tree.is_alone());
            quiet();
            if cfg!(miri) && i > 20 {
                break;
            }
        }
    });
}

#[test]
#[should_panic(expected = "keep_shared")]
fn a_read_in_an_interrupt_of_the_write_is_found_out() {
    let engine = Engine::new();
    engine.on(0, || {
        let sole = grace::sole::Sole::<Grace>::new();
        let guard = Grace::pin();
        let _alone = sole.write(&guard, &grace::sole::Tries::new());
        sole.read(&guard);
    });
}

#[test]
fn readers_beside_a_writer_that_is_alone_in_between() {
    let engine = Engine::new();
    let rounds = if cfg!(miri) { 1 } else { 200 };
    let tree = engine.on(0, Tree::new_in);
    let (stop, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut alone = 0;
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            engine.on(1, || {
                assert!(Grace::start());
                let mut dice = Dice(9);
                // Relaxed: a flag.
                while !stop.load(Ordering::Relaxed) {
                    // Many reads, then none for a while.
                    for _ in 0..30 {
                        let guard = tree.pin();
                        let at = dice.roll(CELLS) as Index * CELL;
                        if let Some((range, entry)) = tree.lookup(&guard, at) {
                            assert!(range.contains(&at) && entry.1 == !entry.0);
                            // Relaxed: a count.
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                        drop(guard);
                        quiet();
                    }
                    assert!(Grace::idle_enter());
                    thread::sleep(std::time::Duration::from_micros(200));
                }
                while !Grace::idle_enter() {}
            });
        });
        engine.on(0, || {
            assert!(Grace::start());
            let mut dice = Dice(3);
            for round in 0..rounds {
                for call in 0..100 {
                    // Readers may come between the writes of one call.
                    let mut writer = tree.lock();
                    for write in 0..4 {
                        let from = dice.roll(CELLS) as Index * CELL;
                        let range = from..=from + (1 + dice.roll(4) as Index) * CELL - 1;
                        let id = (round * 1000 + call * 4 + write) as Index;
                        if dice.roll(3) == 0 {
                            writer.erase_range(range).unwrap();
                        } else {
                            writer.store_range(range, Arc::new((id, !id))).unwrap();
                        }
                    }
                    drop(writer);
                    alone += usize::from(tree.is_alone());
                    quiet();
                }
            }
            // Relaxed: a flag.
            stop.store(true, Ordering::Relaxed);
        });
        reader.join().unwrap();
    });
    engine.on(0, || {
        tree.lock().validate().unwrap();
        drop(tree);
    });
    (0..3 * CPUS).for_each(|turn| engine.on(turn % CPUS, quiet));
    if !cfg!(miri) {
        let seen = seen.into_inner();
        assert!(alone > 0 && alone < rounds * 100 && seen > 0, "{alone} alone, {seen} reads");
    }
}

/// An entry whose drop reads its tree, and takes no lock.
struct Looks(bool);

static OWN: LazyLock<SoleTree<Arc<Looks>, Grace, Nodes>> = LazyLock::new(SoleTree::new_in);
static LOOKED: AtomicUsize = AtomicUsize::new(0);

impl Drop for Looks {
    fn drop(&mut self) {
        if self.0 {
            let guard = OWN.pin();
            assert!(OWN.find(&guard, 0..=Index::MAX).is_some());
            // Relaxed: a count.
            LOOKED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "a large tree")]
fn a_due_drop_reads_the_tree_of_which_much_is_removed() {
    let engine = Engine::new();
    let entries = 3000;
    engine.on(0, || {
        for i in 0..entries {
            OWN.lock().store_range(i * 16..=i * 16 + 7, Arc::new(Looks(false))).unwrap();
        }
        OWN.lock().store_range(0..=7, Arc::new(Looks(true))).unwrap();
        OWN.lock().erase_range(0..=7).unwrap();
        (0..4).for_each(|_| assert!(Grace::quiescent_state()));
        assert!(OWN.is_alone());
        // The removal of a subtree lets the engine free what is due.
        OWN.lock().erase_range(0..=(entries - 20) * 16).unwrap();
        // Relaxed: as above.
        assert_eq!(LOOKED.load(Ordering::Relaxed), 1);
    });
}
