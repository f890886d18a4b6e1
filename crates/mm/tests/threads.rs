//! Faults, calls, objects and swap on real threads, without checks in between.

mod common;
#[path = "common/ram.rs"]
mod ram;

use std::sync::{Arc, Mutex};

use common::{FIXED, PAGE};
use machine::{Asid, Frame, FrameSource, PageSize};
use mm::*;
use paging::{Paging, X86_64L4};
use ram::Ram;
use sim::{Bare, BareGrace as Grace, Program};

// Under Miri a round takes half a minute.
const ROUNDS: usize = if cfg!(miri) { 1 } else { 200 };
// All rounds together need fewer, so no frame has to be free again: a thread that the host does not
// run for a while keeps back what the others free.
const FRAMES: u64 = if cfg!(miri) { 512 } else { 8192 };
const AT: usize = 0x4000_0000;
const OBJECT: usize = AT + 16 * PAGE;
const FILE: usize = AT + 32 * PAGE;
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);

type Space = AddressSpace<Bare, X86_64L4, Grace>;

/// The pages of a file, ones at first.
struct Disk(Mutex<[[u8; PAGE]; 2]>);

impl PageSource for Disk {
    fn read(&self, index: u64, into: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        *into = self.0.lock().unwrap()[index as usize];
        Ok(())
    }

    fn write(&self, index: u64, from: &[u8; PAGE]) -> Result<(), ObjectError> {
        self.0.lock().unwrap()[index as usize] = *from;
        Ok(())
    }

    named!(1, "/disk");
}

fn byte(space: &Space, at: usize) -> u8 {
    let mut found = [0];
    space.read(at, &mut found).unwrap();
    found[0]
}

/// Frees pieces whose grace period is over.
fn wait() {
    Grace::quiescent_state();
    Grace::reclaim(usize::MAX);
}

/// Copies on write, pins, forks, guards and a debugger in pages of one's own.
fn own_pages(space: &Space, at: usize, cpu: usize) {
    space.mmap(at, 2 * PAGE, 3, FIXED).unwrap();
    assert_eq!(byte(space, at), 0);
    space.write(at, &[1; 16]).unwrap();
    let child = space.fork(Asid(2 + cpu as u16)).unwrap();
    space.write(at, &[2]).unwrap();
    assert_eq!((byte(space, at), byte(&child, at), byte(space, at + 1)), (2, 1, 1));
    child.poke(at, &[3]).unwrap();
    let mut frames = [Frame::default(); 2];
    assert_eq!(space.pin_pages(at, Access::Write, &mut frames).unwrap().frames().len(), 2);
    space.madvise(at, PAGE, Advice::GuardInstall).unwrap();
    assert!(space.read(at, &mut [0]).is_err());
    assert_eq!(byte(&child, at), 3);
    drop(child);
    space.munmap(at, 2 * PAGE).unwrap();
}

#[test]
fn threads() {
    let bare = Bare::new(3, FRAMES).unwrap();
    let ram = Arc::new(Ram::default());
    let swap = Some(ram.clone() as Arc<dyn Swap>);
    let paging =
        Paging::<Bare, X86_64L4>::try_with_swap(bare.clone(), PageSize::Size1G, swap).unwrap();
    let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
    let (space, memory, file) = bare.on_cpu(0, || {
        let profile = Profile::LINUX_6_18;
        let space = Space::try_new(&paging, Asid(1), None, profile, layout).unwrap();
        let memory = Shmem::memfd(&paging, "name", 1).unwrap();
        memory.set_size(2 * PAGE as u64).unwrap();
        let file =
            File::try_new(&paging, Disk(Mutex::new([[1; PAGE]; 2])), 2 * PAGE as u64).unwrap();
        let opened = Backing::open(memory.clone(), true).unwrap();
        space.mmap_object(OBJECT, 2 * PAGE, 3, SHARED, opened, 0).unwrap();
        let opened = Backing::open(file.clone(), true).unwrap();
        space.mmap_object(FILE, 2 * PAGE, 3, SHARED, opened, 0).unwrap();
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
        (space, memory, file)
    });
    let make = |cpu: usize| -> Program<'_> {
        let (space, memory, file) = (&space, &memory, &file);
        Box::new(move || {
            for round in 0..ROUNDS {
                let value = round as u8 | 1;
                match cpu {
                    0 => {
                        own_pages(space, AT + 2 * PAGE, cpu);
                        _ = space.reclaim(4).unwrap();
                    }
                    1 => {
                        space.write(OBJECT + PAGE, &[value]).unwrap();
                        memory.punch_hole(0..PAGE as u64).unwrap();
                        memory.write(PAGE as u64 + 1, &[value]).unwrap();
                        space.write(AT + 8, &[value]).unwrap();
                        assert_eq!(byte(space, AT + 8), value);
                    }
                    _ => {
                        space.write(FILE, &[value]).unwrap();
                        CachedPages::sync(&**file, 0..2).unwrap();
                        _ = CachedPages::evict(&**file, 1);
                        assert_eq!(byte(space, FILE), value);
                        let mut found = [0; 2];
                        file.read(PAGE as u64 - 1, &mut found).unwrap();
                        assert_eq!(found, [1; 2]);
                        _ = byte(space, OBJECT);
                    }
                }
                wait();
            }
        })
    };
    bare.threads((0..3).map(make).collect());
    bare.on_cpu(0, || {
        // Swapped out and back in.
        space.clear_referenced().unwrap();
        space.write(AT, &[9]).unwrap();
        for _ in 0..2 {
            _ = space.reclaim(1).unwrap();
        }
        assert_eq!(byte(&space, AT), 9);
        assert!(bare.settle());
        drop((space, memory, file));
    });
    assert_eq!(ram.used(), 0);
    // The lists of CPUs whose threads have ended.
    for cpu in 0..3 {
        bare.on_cpu(cpu, || {
            assert!(bare.settle());
            paging.quick().drain();
        });
    }
    assert_eq!(bare.on_cpu(0, || bare.free_frames() as u64), FRAMES);
}
