//! Mappings that safe calls refuse: access by programs, writable code, RAM with another memory
//! type, RAM as a device. Each refusal leaves everything unchanged.

use crate::common::*;
use machine::*;
use paging::{Attrs, Cache, Flags};
use sim::Config;
use vmap::{Allocation, Contents, Error, Guard, Options, Request};

const RWX: Attrs = Attrs::new(Flags::RWX.union(Flags::GLOBAL));

fn world() -> World {
    World::new(Config { cpus: 2, frames: 4096, ..Config::default() }, 64, Options::default())
}

fn uncached(cache: Cache) -> Attrs {
    Attrs { cache, ..Attrs::KERNEL_RW }
}

/// Checks that all calls with these attributes fail with an error that `is_refused` accepts.
fn all_refuse(world: &World, attrs: Attrs, is_refused: impl Fn(Error) -> bool) {
    let (vmap, frames) = (world.vmap(), world.frames(70));
    let before = (vmap.get_vmalloc_info(), world.sim.free_count());
    let memory = |memory| Request::new(Contents::Memory(memory));
    let small = Allocation { attrs: Some(attrs), ..Allocation::new(5 * PAGE) };
    let unguarded = Request { guard: Some(Guard::None), ..Request::frames(&frames[..3], attrs) };
    let made = [
        vmap.vmap(&frames[..3], attrs),
        vmap.create(&unguarded),
        vmap.vm_map_ram(&frames[..3], attrs),
        vmap.vm_map_ram(&frames, attrs),
        vmap.create(&memory(small)),
        vmap.create(&memory(Allocation { huge: true, bytes: 4 << 20, ..small })),
    ];
    for (call, made) in made.into_iter().enumerate() {
        assert!(made.is_err_and(&is_refused), "call {call} with {attrs:?}: {made:?}");
    }
    assert_eq!((vmap.get_vmalloc_info(), world.sim.free_count()), before);
    let space = VirtRange::new(virt(SPACE + (1 << 30)), 1 << 30).unwrap();
    let options = Options { attrs, ..Options::default() };
    // SAFETY: no other code uses these addresses.
    let other = unsafe {
        vmap::Vmap::try_new(vmap.tables().clone(), world.tlb_grace.clone(), space, options)
    };
    assert!(other.is_err_and(&is_refused), "a space with {attrs:?}");
    world.release(&frames);
}

#[test]
fn pages_of_programs() {
    world().test(|world, vmap| {
        for attrs in [Attrs::USER_RW, Attrs::USER_RO, Attrs { flags: Flags::all(), ..RWX }] {
            all_refuse(world, attrs, |error| error == Error::UserAccess);
            let frames = world.frames(1);
            // SAFETY: the call is refused.
            let made = unsafe { vmap.create_unchecked(&Request::frames(&frames, attrs)) };
            assert_eq!(made, Err(Error::UserAccess));
            world.release(&frames);
        }
    });
}

#[test]
fn writable_code() {
    world().test(|world, vmap| {
        all_refuse(world, RWX, |error| error == Error::WritableCode);
        let frames = world.frames(2);
        let code = Attrs::new(Flags::READ | Flags::EXECUTE | Flags::GLOBAL);
        let at = vmap.vmap(&frames, code).unwrap();
        vmap.end_vmap(at).unwrap();
        // SAFETY: the code is not run.
        let at = unsafe { vmap.create_unchecked(&Request::frames(&frames, RWX)) }.unwrap();
        world.store(at, 5);
        vmap.end_vmap(at).unwrap();
        world.release(&frames);
    });
}

#[test]
fn memory_of_another_type() {
    world().test(|world, vmap| {
        let types = [Cache::WriteThrough, Cache::UncachedMinus, Cache::Uncached]
            .into_iter()
            .chain([Cache::WriteCombining, Cache::WriteProtect]);
        for cache in types {
            let is_refused =
                |error| matches!(error, Error::MemoryType { cache: c, .. } if c == cache);
            all_refuse(world, uncached(cache), is_refused);
        }
        // One frame of RAM among a device's frames.
        let ram = world.frames(1)[0];
        let device = Frame::new(0xfee00).unwrap();
        let attrs = uncached(Cache::Uncached);
        let error = Error::MemoryType { frame: Some(ram), cache: Cache::Uncached };
        assert_eq!(vmap.vmap(&[device, device, ram], attrs), Err(error));
        assert!(error.to_string().contains(&format!("frame {ram} is RAM")), "{error}");
        let at = vmap.vmap(&[device, device], attrs).unwrap();
        vmap.end_vmap(at).unwrap();
        // SAFETY: the frame is not used.
        let at = unsafe { vmap.create_unchecked(&Request::frames(&[ram], attrs)) }.unwrap();
        vmap.end_vmap(at).unwrap();
        world.release(&[ram]);
    });
}

#[test]
fn memory_as_a_device() {
    world().test(|world, vmap| {
        let frame = world.frames(1)[0];
        // The machine's memory, from its first frame to its last.
        let is_ram = |frame: &Frame| world.sim.info(*frame).is_some();
        let first = (0..).map(|number| Frame::new(number).unwrap()).find(is_ram).unwrap();
        let beyond = (first.number()..).map(|number| Frame::new(number).unwrap());
        let beyond = beyond.into_iter().find(|frame| !is_ram(frame)).unwrap();
        let last = Frame::new(beyond.number() - 1).unwrap();
        let free = (vmap.get_vmalloc_info(), world.sim.free_count());
        for cache in [Cache::Uncached, Cache::WriteCombining, Cache::WriteBack] {
            let map = |start, len| vmap.ioremap(PhysRange::new(start, len).unwrap(), cache);
            assert_eq!(map(frame.start(), PAGE), Err(Error::Ram(frame)));
            // One byte of RAM at each end; and a range that contains all RAM.
            assert_eq!(map(last.start().checked_add(PAGE - 1).unwrap(), 2), Err(Error::Ram(last)));
            assert_eq!(map(last.start(), 8 << 20), Err(Error::Ram(last)));
            if let Some(before) = first.number().checked_sub(1).and_then(Frame::new) {
                assert_eq!(map(before.start(), PAGE + 1), Err(Error::Ram(first)));
            }
        }
        assert_eq!((vmap.get_vmalloc_info(), world.sim.free_count()), free);
        let behind = PhysRange::new(beyond.start(), 3 * PAGE).unwrap();
        let at = vmap.ioremap(behind, Cache::Uncached).unwrap();
        vmap.end_io(at).unwrap();
        world.release(&[frame]);
    });
}

/// A CPU that maps an area takes part in the grace periods, even if it did not call `idle_exit`.
#[test]
fn a_cpu_that_maps_takes_part() {
    let world = world();
    let frames = world.sim.on_cpu(0, || world.frames(70));
    type Make<'a> = &'a dyn Fn(&Vmap) -> Result<VirtAddr, Error>;
    let calls: [Make; 4] = [
        &|vmap| vmap.vmap(&frames, Attrs::KERNEL_RW),
        &|vmap| vmap.vm_map_ram(&frames[..2], Attrs::KERNEL_RW),
        &|vmap| vmap.vm_map_ram(&frames, Attrs::KERNEL_RW),
        &|vmap| vmap.vmalloc(PAGE),
    ];
    for make in calls {
        world.sim.on_cpu(1, || {
            let vmap = world.vmap();
            // SAFETY: the test needs no other mapping.
            unsafe { vmap.tables().activate() };
            assert!(world.tlb_grace.is_idle());
            let at = make(vmap).unwrap();
            assert!(!world.tlb_grace.is_idle());
            world.store(at, 1);
            let area = vmap.find_vm_area(at).unwrap();
            match area.made {
                vmap::Made::Vmap => vmap.end_vmap(at),
                vmap::Made::Block => vmap.end_ram(at, 2),
                vmap::Made::Ram => vmap.end_ram(at, 70),
                // SAFETY: no code uses it any more.
                _ => unsafe { vmap.vfree(at) },
            }
            .unwrap();
            world.stop();
        });
    }
    world.on(0, || world.release(&frames));
    world.end().unwrap();
}
