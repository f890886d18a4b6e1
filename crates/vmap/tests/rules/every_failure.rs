//! Every call fails at every possible place, again and again in one space. Afterwards the whole
//! space and all memory except page-table pages are available (I7). A test of a single failure
//! would not notice that each failure leaks some addresses, a run or a frame.

use crate::common::*;
use machine::*;
use paging::{Attrs, Cache};
use sim::Config;
use vmap::{Allocation, Contents, Error, Guard, Options, Request};

/// Two per-CPU zones and the common zone.
const MIB: u64 = 8;
/// More failures than the space has runs or areas of one page.
const TIMES: usize = 1200;

fn world() -> World {
    let options = Options { bytes_per_interrupt: 200 * PAGE, ..Options::default() };
    World::new(Config { cpus: 2, frames: 4096, events: 0, ..Config::default() }, MIB, options)
}

/// Takes all of the space, in areas of 1 MiB, and gives it back.
fn whole_space(world: &World) {
    let vmap = world.vmap();
    // Otherwise waiting addresses lie between the areas.
    vmap.idle();
    vmap.purge();
    let info = vmap.get_vmalloc_info();
    assert_eq!((info.used, info.areas, info.kept), (0, 0, 0));
    let frame = world.frames(1);
    let mib = frame.repeat(256);
    let all: Vec<_> = core::iter::from_fn(|| {
        let request = Request::frames(&mib, Attrs::KERNEL_RW);
        vmap.create(&Request { guard: Some(Guard::None), ..request })
            .inspect_err(|error| assert!(matches!(error, Error::NoSpace(_)), "{error}"))
            .ok()
    })
    .collect();
    assert_eq!(all.len() as u64, MIB, "MiB of the space are free");
    all.into_iter().for_each(|at| vmap.end_vmap(at).unwrap());
    vmap.purge();
    world.release(&frame);
}

type Make<'a> = &'a dyn Fn(&World) -> Result<VirtAddr, Error>;
type Unmake<'a> = &'a dyn Fn(&World, VirtAddr);

/// Lets a call fail many times, because of `prepare` or of its arguments, in a space with other
/// users.
fn fails(world: &World, times: usize, prepare: impl Fn(usize), make: Make<'_>, unmake: Unmake<'_>) {
    let (mut failed, mut done) = (0, 0);
    for time in 0..times {
        prepare(time);
        let made = make(world);
        world.sim.alloc_failed();
        match made {
            Ok(at) => {
                unmake(world, at);
                done += 1;
            }
            Err(Error::NoSpace(_)) => panic!("after {failed} failures there is no space"),
            Err(_) => failed += 1,
        }
    }
    assert!(failed * 2 > times, "{failed} of {times} failed, {done} did not");
}

/// Frames and attributes that the format cannot represent, after a first valid page.
#[test]
fn pages_that_cannot_be() {
    let world = world();
    let frames = world.sim.on_cpu(0, || world.frames(80));
    let beyond = Frame::new(Frame::LIMIT - 1).unwrap();
    let wrong = Attrs { key: 200, ..Attrs::KERNEL_RW };
    for small in [true, false] {
        let calls: [Make; 7] = [
            &|world| world.vmap().vm_map_ram(&[frames[0], beyond], Attrs::KERNEL_RW),
            &|world| world.vmap().vm_map_ram(&frames[..64], wrong),
            &|world| {
                let last = [&frames[..70], &[beyond]].concat();
                world.vmap().vm_map_ram(&last, Attrs::KERNEL_RW)
            },
            &|world| world.vmap().vmap(&[frames[0], beyond], Attrs::KERNEL_RW),
            &|world| world.vmap().vmap(&frames, wrong),
            &|world| {
                let attrs = Some(wrong);
                let memory = Allocation { attrs, ..Allocation::new(9 * PAGE) };
                world.vmap().create(&Request::new(Contents::Memory(memory)))
            },
            &|world| {
                let attrs = Some(wrong);
                let memory = Allocation { attrs, huge: true, ..Allocation::new(2 << 20) };
                world.vmap().create(&Request::new(Contents::Memory(memory)))
            },
        ];
        for (call, make) in calls.into_iter().enumerate() {
            // On one CPU, then on the other, so that each has blocks with given-back runs.
            let cpu = usize::from(small);
            world.on(cpu, || {
                fails(&world, TIMES / 4, |_| (), make, &|_, at| panic!("call {call}: {at}"));
            });
        }
        world.on(0, || whole_space(&world));
    }
    // On one CPU without a pause: more runs of two pages than the space has.
    world.on(1, || {
        let make = |world: &World| world.vmap().vm_map_ram(&[frames[0], beyond], Attrs::KERNEL_RW);
        fails(&world, TIMES, |_| (), &make, &|_, at| panic!("{at}"));
        whole_space(&world);
    });
    world.on(0, || world.release(&frames));
    world.end().unwrap();
}

#[test]
fn frames_that_are_missing() {
    let world = world();
    let frames = world.sim.on_cpu(0, || world.frames(80));
    let device = PhysRange::new(PhysAddr::new(0xfee0_0123), 3 << 20).unwrap();
    let unmap = |world: &World, at| world.vmap().end_vmap(at).unwrap();
    let unmap_ram = |world: &World, at| {
        let pages = if world.vmap().find_vm_area(at).unwrap().pages == 80 { 80 } else { 5 };
        world.vmap().end_ram(at, pages).unwrap();
    };
    let unmap_io = |world: &World, at| world.vmap().end_io(at).unwrap();
    let grow = |world: &World, to: u64| {
        let alloc = world.vmap().vmalloc(3 * PAGE)?;
        // SAFETY: no code uses it.
        let moved = unsafe { world.vmap().vrealloc(alloc, to) };
        moved.inspect_err(|_| free(world, alloc))
    };
    let calls: [(Make, Unmake, usize); 8] = [
        (&|world| world.vmap().vmap(&frames, Attrs::KERNEL_RW), &unmap, 1),
        (&|world| world.vmap().vm_map_ram(&frames[..5], Attrs::KERNEL_RW), &unmap_ram, 1),
        (&|world| world.vmap().vm_map_ram(&frames, Attrs::KERNEL_RW), &unmap_ram, 1),
        (&|world| world.vmap().vmalloc(70 * PAGE), &free, 70),
        (&|world| world.vmap().vmalloc_huge((2 << 20) + 1), &free, 3),
        (&|world| world.vmap().vzalloc(600 * PAGE), &free, 600),
        (&|world| world.vmap().ioremap(device, Cache::Uncached), &unmap_io, 2),
        (&|world| grow(world, 90 * PAGE), &free, 90),
    ];
    for (call, (make, unmake, allocations)) in calls.into_iter().enumerate() {
        let times = if allocations > 100 { 15 } else { 80 };
        for cpu in [0, 1] {
            world.on(cpu, || {
                // A call that needs only page-table pages needs none while they exist. Whatever it
                // returns, it leaves the space whole.
                let (mut failed, mut time) = (0, 0);
                while time < times {
                    let nth = 1 + (time * 7) % allocations;
                    world.sim.fail_alloc(nth as u64, time % 2 == 0);
                    let made = make(&world);
                    world.sim.alloc_failed();
                    match made {
                        Ok(at) => unmake(&world, at),
                        Err(Error::Frames(_)) => failed += 1,
                        Err(error) => panic!("call {call}, after {failed} failures: {error}"),
                    }
                    time += 1;
                }
                assert!(failed > 0 || allocations < 3, "call {call}");
                whole_space(&world);
            });
        }
    }
    world.on(0, || world.release(&frames));
    world.end().unwrap();
}

/// Calls with invalid arguments, and unmappings of addresses that are not mapped.
#[test]
fn nonsense() {
    let world = world();
    let frames = world.sim.on_cpu(0, || world.frames(4));
    world.on(0, || {
        let vmap = world.vmap();
        let keep = vmap.vmalloc(3 * PAGE).unwrap();
        let run = vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap();
        let before = vmap.get_vmalloc_info();
        for time in 0..TIMES as u64 / 4 {
            assert!(vmap.vmap(&[], Attrs::KERNEL_RW).is_err());
            assert!(vmap.vm_map_ram(&[], Attrs::KERNEL_RW).is_err());
            assert!(vmap.vmap(&frames, Attrs::USER_RW).is_err());
            assert!(vmap.vm_map_ram(&frames, Attrs::USER_RW).is_err());
            assert!(vmap.vmalloc(u64::MAX - time).is_err());
            assert!(vmap.vmalloc((MIB << 20) - PAGE).is_err());
            assert!(vmap.end_vmap(keep).is_err());
            assert!(vmap.end_io(keep).is_err());
            assert!(vmap.end_ram(keep, 3).is_err());
            assert!(vmap.end_ram(run, 3).is_err());
            let at = run.checked_add((1 + time % 3) * PAGE).unwrap();
            assert!(vmap.end_ram(at, 1).is_err());
            // SAFETY: the calls are refused.
            unsafe {
                assert!(vmap.vfree(run).is_err());
                assert!(vmap.vrealloc(run, 1).is_err());
                assert!(vmap.vrealloc(keep, (MIB << 20) + time).is_err());
                assert!(vmap.vrealloc(keep, 0).is_err());
            }
        }
        let after = vmap.get_vmalloc_info();
        assert_eq!((after.used, after.areas), (before.used, before.areas));
        vmap.end_ram(run, 4).unwrap();
        free(&world, keep);
        whole_space(&world);
        world.release(&frames);
    });
    world.end().unwrap();
}
