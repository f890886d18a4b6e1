//! Readers concurrent with writers, and in interrupts that hit writers: the listing, single areas,
//! the statistics, and bytes.

use super::{Ends, PAGE, World, machine, on, race, right};
use crate::{AreaInfo, AreaState, Made, Options};
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use machine::{Frame, Memory, SharedAccess, Step, VirtAddr};
use paging::Attrs;
use sim::Failure;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// Words of a page that are examined.
const WORDS: usize = 8;
const MINE: u64 = 0x1111_2222_3333_4444;
const OTHERS: u64 = 0x5555_6666_7777_8888;

fn word(world: &World, frame: Frame, word: usize) -> &AtomicU64 {
    let words: NonNull<AtomicU64> = world.sim.frame_ptr(frame).unwrap().cast();
    // SAFETY: a word of a frame; all accesses to it are atomic.
    unsafe { words.add(word).as_ref() }
}

/// Writes a mark to the first words of a frame.
fn mark(world: &World, frame: Frame, with: u64) {
    (0..WORDS).for_each(|number| word(world, frame, number).store(with, Relaxed));
}

fn words(world: &World, frame: Frame) -> impl Iterator<Item = u64> {
    (0..WORDS).map(move |number| word(world, frame, number).load(Relaxed))
}

/// State that all programs share.
#[derive(Default)]
struct Shared {
    /// The address at which CPU 0 maps marked frames.
    at: AtomicU64,
    /// An area that exists throughout.
    lives: AtomicU64,
    done: AtomicBool,
    /// An interrupt was sent and is still pending.
    sent: AtomicBool,
}

/// CPU 0: maps its own frames, marked as such, and unmaps them. The next owner of a frame writes
/// another mark.
fn mapper(world: &World, shared: &Shared) {
    let vmap = world.vmap();
    let lives = vmap.vmalloc(3 * PAGE).unwrap();
    shared.lives.store(lives.get(), SeqCst);
    for _ in 0..12 {
        let frames = [world.frame(), world.frame()];
        frames.iter().for_each(|frame| mark(world, *frame, MINE));
        let at = vmap.vmap(&frames, Attrs::KERNEL_RW).unwrap();
        shared.at.store(at.get(), SeqCst);
        (0..20).for_each(|_| world.sim.step(SharedAccess::Other));
        vmap.end_vmap(at).unwrap();
        world.release(&frames);
        let others = [world.frame(), world.frame()];
        for other in others.iter().filter(|other| frames.contains(other)) {
            mark(world, *other, OTHERS);
        }
        (0..40).for_each(|_| world.sim.step(SharedAccess::Other));
        for other in others.iter().filter(|other| frames.contains(other)) {
            assert!(
                words(world, *other).all(|word| word == OTHERS),
                "a page was written after it was unmapped"
            );
        }
        world.release(&others);
    }
    shared.done.store(true, SeqCst);
}

/// CPU 1: areas, each with a distinct size in bytes, that grow, shrink and are freed.
fn allocator(world: &World, shared: &Shared) {
    let vmap = world.vmap();
    let mut serial = 0;
    while !shared.done.load(SeqCst) {
        serial += 1;
        let at = vmap.vmalloc(3 * PAGE - serial).unwrap();
        let bytes = [5 * PAGE, 2 * PAGE][(serial % 2) as usize] - serial;
        // SAFETY: no code uses it except `vread`.
        let at = unsafe { vmap.vrealloc(at, bytes) }.unwrap();
        (0..10).for_each(|_| world.sim.step(SharedAccess::Other));
        // SAFETY: as above.
        unsafe { vmap.vfree(at) }.unwrap();
    }
}

/// CPU 2: reads, and interrupts the other CPUs, which then read, too.
fn reader(world: &Arc<World>, shared: &Arc<Shared>) {
    let mut cpu = 0;
    while !shared.done.load(SeqCst) {
        world.sim.relax();
        look(world, shared);
        if !shared.sent.swap(true, SeqCst) {
            let (world_there, shared) = (world.clone(), shared.clone());
            world.sim.interrupt(cpu % 2, move || {
                look(&world_there, &shared);
                shared.sent.store(false, SeqCst);
            });
            cpu += 1;
        }
    }
}

fn look(world: &World, shared: &Shared) {
    let vmap = world.vmap();
    let lives = VirtAddr::new(shared.lives.load(SeqCst));
    let mut list: Vec<AreaInfo> = Vec::new();
    vmap.vmallocinfo(|info| {
        list.push(*info);
        world.sim.step(SharedAccess::Other);
    });
    let in_order = |two: &[AreaInfo]| two[0].range.end() <= Some(two[1].range.start());
    assert!(list.windows(2).all(in_order), "not in order: {list:#?}");
    if lives.get() != 0 {
        let found: Vec<_> = list.iter().filter(|info| info.range.start() == lives).collect();
        let [info] = found[..] else { panic!("listed {} times", found.len()) };
        assert_eq!((info.state, info.pages, info.bytes), (AreaState::Live, 3, 3 * PAGE));
        assert_eq!(vmap.find_vm_area(lives).as_ref(), Some(info));
    }
    let vmalloc = |info: &&AreaInfo| info.state == AreaState::Live && info.made == Made::Vmalloc;
    list.iter().filter(vmalloc).for_each(|info| whole(world, info));
    let info = vmap.get_vmalloc_info();
    assert!(info.used <= info.total && info.waiting <= info.used, "{info:?}");
    let at = shared.at.load(SeqCst);
    if at != 0 {
        bytes(world, VirtAddr::new(at));
    }
}

/// A live area is mapped completely, unless it has been unmapped meanwhile.
fn whole(world: &World, info: &AreaInfo) {
    let start = info.range.start();
    let at = |page: usize| start.checked_add(page as u64 * PAGE).unwrap();
    let Some(hole) = (0..info.pages).find(|page| world.vmap().vmalloc_to_page(at(*page)).is_none())
    else {
        return;
    };
    let now = world.vmap().find_vm_area(start);
    // No other area has the same size in bytes.
    let same = now.filter(|now| (now.state, now.bytes) == (AreaState::Live, info.bytes));
    assert_eq!(same, None, "page {hole} of an area that is live is not mapped");
}

/// Each page is a hole or has CPU 0's mark, which this function also writes.
fn bytes(world: &World, at: VirtAddr) {
    // SAFETY: the owners of the frames access them atomically.
    unsafe { world.vmap().vwrite(at, &MINE.to_ne_bytes()) };
    let mut read = [0; PAGE as usize + 64];
    // SAFETY: words are written through translations only, or before they are mapped.
    unsafe { world.vmap().vread(at, &mut read) };
    for page in read.chunks(PAGE as usize) {
        let words =
            page[..8 * WORDS].as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        for word in words {
            assert!(word == 0 || word == MINE, "{word:#x} is another owner's");
        }
    }
}

fn readers(seed: u64) -> Result<(), Failure> {
    let (config, ticking) = machine(seed, 3);
    let options = Options { bytes_per_interrupt: 200 * PAGE, ..Options::default() };
    let world = World::ticking(config, 32, options, ticking);
    let shared = Arc::new(Shared::default());
    let programs = |world: &Arc<World>| {
        let program = |run: fn(&Arc<World>, &Arc<Shared>)| {
            let shared = shared.clone();
            on(world, move |world| run(world, &shared))
        };
        vec![program(|w, s| mapper(w, s)), program(|w, s| allocator(w, s)), program(reader)]
    };
    let finish = |world: &World| {
        let lives = VirtAddr::new(shared.lives.load(SeqCst));
        // SAFETY: no code uses it any more.
        unsafe { world.vmap().vfree(lives) }.unwrap();
    };
    race(seed, world, programs, finish)
}

#[test]
fn beside_writers() {
    right(readers);
}
