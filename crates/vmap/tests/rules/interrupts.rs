//! Unmappings interrupt other CPUs only when too much waits.

use crate::common::{PAGE, World, free};
use sim::Config;
use vmap::Options;

/// Unmaps areas of one page and a guard page, while another CPU takes part in the grace periods and
/// has no timer interrupt. Returns the number of unmappings until that CPU is interrupted.
fn unmappings_before_an_interrupt(mib: u64, options: Options) -> u64 {
    let config = Config { cpus: 2, frames: 4096, ..Config::default() };
    let world = World::ticking(config, mib, options, 0);
    world.sim.on_cpu(1, || world.start());
    let unmapped = world.on(0, || {
        for unmapped in 1..10_000 {
            let at = world.vmap().vmalloc(PAGE).unwrap();
            free(&world, at);
            if world.sim.stats().ipis_sent > 0 {
                return unmapped;
            }
        }
        panic!("no unmapping has interrupted a CPU")
    });
    world.sim.on_cpu(1, || world.stop());
    world.end().unwrap();
    unmapped
}

#[test]
fn an_unmapping_interrupts_once_more_waits_than_the_limit() {
    // Two CPUs take part, so 200 pages may wait: not yet 96 areas, but 128, at the next look.
    let options = Options { bytes_per_interrupt: 100 * PAGE, ..Options::default() };
    assert_eq!(unmappings_before_an_interrupt(64, options), 128);
}

#[test]
fn an_unmapping_interrupts_once_half_of_the_share_of_a_cpu_waits() {
    let pages = 2 * unmappings_before_an_interrupt(16, Options::default());
    assert!(pages > 512, "at least 4 MiB are the share of a CPU: {pages} pages");
    assert!(pages < 2048, "half of all addresses waits: {pages} pages");
}
