//! The cost of the machine itself on this host: subtract it from measurements on the machine.
//!
//! `cargo run --release -p samara-sim --example speed`

use machine::{
    Asid, CpuLocal, Cpus, Flush, FrameSource, Irqs, Memory, NodePolicy, Owner, SharedAccess, Step,
    Tlb, Translated, VirtAddr,
};
use sim::{Checks, Config, Grace, Program, Sim, seeded, threads};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let sim = Sim::new(Config::fast(2, 1 << 14)).expect("a machine");
    sim.on_cpu(0, || single(&sim));
    threads(
        &sim,
        (0..2)
            .map(|_| Box::new(|| each("alloc + free, 2 CPUs", 1_000_000, || page(&sim))) as Program)
            .collect(),
    )
    .unwrap_or_else(|failure| panic!("{failure}"));
    for checks in [Checks::NONE, Checks::ALL] {
        let run = |seed| {
            let sim = Sim::new(Config { checks, ..Config::default() }).expect("a machine");
            let program = || (0..500).for_each(|_| sim.step(SharedAccess::Other));
            seeded(&sim, seed, vec![Box::new(program), Box::new(program)])
                .expect("nothing to find");
        };
        let mut seed = 0;
        let name = if checks == Checks::ALL {
            "seed of 1000 steps, checks"
        } else {
            "seed of 1000 steps, no checks"
        };
        each(name, 2000, || {
            run(seed);
            seed += 1;
        });
    }
}

fn each<T>(name: &str, count: u32, mut what: impl FnMut() -> T) {
    let began = Instant::now();
    (0..count).for_each(|_| drop(black_box(what())));
    println!("{name:<32} {:>10.1} ns", began.elapsed().as_secs_f64() * 1e9 / f64::from(count));
}

fn page(sim: &Sim) {
    let frame = sim.alloc(0, NodePolicy::Local).expect("memory");
    // SAFETY: no pointer to it exists.
    unsafe { sim.free(frame) }.expect("just allocated");
}

fn single(sim: &Sim) {
    let count = 1_000_000;
    each("current", count, || sim.current());
    each("interrupts off and on", count, || drop(sim.irqs_off()));
    each("step", count, || sim.step(SharedAccess::Other));
    let local = CpuLocal::try_new(sim.clone(), |_| 0u64).expect("memory");
    each("CpuLocal::with", count, || local.with(|count| *count += 1));
    each("grace: guard", count, || drop(<Grace as grace::Reclaim>::pin()));
    each("alloc + free of a frame", count, || page(sim));

    // The last of these is the page, the others are the tables, by level.
    let frames: Vec<_> = (0..5).map(|_| sim.alloc(0, NodePolicy::Local).expect("memory")).collect();
    for level in (0..4).rev() {
        // SAFETY: the frame is ours, and holds words of any value.
        unsafe { sim.set_owner(frames[level], Owner::Table(level as u8)) }.expect("ours");
        let next = if level == 0 { frames[4] } else { frames[level - 1] };
        // SAFETY: the frame is a table.
        unsafe { sim.entry(frames[level], 1) }.expect("ours").store(next.start().get() | 3);
    }
    let at = VirtAddr::new(1 << 39 | 1 << 30 | 1 << 21 | 1 << 12);
    // SAFETY: the page is ordinary memory, and the table maps all accessed addresses.
    unsafe {
        sim.activate(frames[3], Asid(1), false);
        each("load, translation cached", count, || sim.load(at));
        let entry = sim.entry(frames[0], 1).expect("ours");
        each("load of an entry", count, || entry.load());
        each("flush of everything + load", count, || {
            sim.flush(Flush::All);
            sim.load(at).expect("mapped");
        });
    }
}
