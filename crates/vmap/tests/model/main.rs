//! Random calls compared with a model, on CPUs that start and stop, in spaces of several sizes:
//! results, readable bytes, the listing, the statistics; and nothing is left at the end.

mod check;
#[path = "../common/mod.rs"]
mod common;
mod expected;
mod script;

use common::*;
use expected::Model;
use machine::*;
use proptest::prelude::*;
use script::{Op, guard, op};
use sim::Config;
use vmap::{Guard, Options};

const CPUS: usize = 3;

/// Start relative to [`SPACE`], and size, of each space in bytes.
const SPACES: [(u64, u64); 7] = [
    (0, 4 << 20),
    (0, 8 << 20),
    (0, 33 << 20),
    (0, 300 << 20),
    (0, 1 << 20),
    (0x5000, 0x9000),
    ((1 << 20) + 0x1000, (9 << 20) + 0x3000),
];

fn run(script: &[Op], space: usize, guard: Guard, tick: Option<u64>) {
    let (offset, len) = SPACES[space];
    let range = VirtRange::new(virt(SPACE + offset), len).unwrap();
    let config = Config {
        cpus: CPUS,
        frames: 6000,
        nodes: 2,
        tlb_entries: 256,
        speculation: 50,
        tick,
        ..Config::default()
    };
    // Low enough that the limit of waiting addresses is sometimes exceeded.
    let options = Options { guard, bytes_per_interrupt: 100 * PAGE, ..Options::default() };
    let world = World::over(config, range, options);
    let mut model = Model::new(&world, guard);
    let (mut ops, mut cpu) = (script.iter(), 0);
    loop {
        let next = world.sim.on_cpu(cpu, || {
            world.start();
            for op in ops.by_ref() {
                if let Op::Cpu { cpu: next, stop } = *op {
                    if stop {
                        world.stop();
                        model.forget_pending(cpu);
                    }
                    return Some(next);
                }
                model.call(&world, cpu, op);
                model.look_for_pending(&world);
                model.check(&world);
            }
            None
        });
        match next {
            Some(next) => cpu = next,
            None => break,
        }
    }
    world.on(CPUS - 1, || {
        model.check_contents(&world);
        model.unmap_all(&world, CPUS - 1);
        model.check(&world);
    });
    world.end().unwrap_or_else(|report| panic!("{report}"));
}

/// `PROPTEST_CASES` overrides it.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 3000, ..ProptestConfig::with_cases(cases()) })]
    #[test]
    fn areas_are_a_map_of_pages(
        script in prop::collection::vec(op(), 1..80),
        space in 0..SPACES.len(),
        guard in guard(),
        tick in prop::sample::select(vec![None, Some(50), Some(3000)]),
    ) {
        run(&script, space, guard, tick);
    }
}
