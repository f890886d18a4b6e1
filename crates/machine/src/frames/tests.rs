mod scripts;

use super::*;
use crate::FrameSource;
use crate::Owner;
use crate::testing::Host;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::vec;
use std::vec::Vec;

fn frame(number: u64) -> Frame {
    Frame::new(number).unwrap()
}

fn range(start: u64, len: u64) -> FrameRange {
    FrameRange::new(frame(start), len).unwrap()
}

/// Two nodes with a hole between them. CPU 0 is near the first node, CPU 1 near the second.
fn source() -> (Host, Frames) {
    let mut frames = Frames::try_new(range(1000, 1000), 2).unwrap();
    // SAFETY: no code uses the memory in these tests.
    unsafe {
        frames.add(range(1024, 256), NodeId(0)).unwrap();
        frames.add(range(1536, 256), NodeId(1)).unwrap();
    }
    frames.set_home(CpuId::new(1).unwrap(), NodeId(1)).unwrap();
    (Host::new(2), frames)
}

/// A frame of this CPU's node.
fn one(frames: &Frames, host: &Host) -> Frame {
    frames.alloc(host, 0, NodePolicy::Local).unwrap()
}

/// All single frames that there are.
fn all(frames: &Frames, host: &Host) -> Vec<Frame> {
    core::iter::from_fn(|| frames.alloc(host, 0, NodePolicy::Local).ok()).collect()
}

fn free_all(frames: &Frames, host: &Host, held: impl IntoIterator<Item = Frame>) {
    held.into_iter().for_each(|frame| free(frames, host, frame).unwrap());
}

/// A source whose tables are in this memory.
fn in_memory(cpus: usize, memory: &mut [u8]) -> Result<Frames, FramesError> {
    // SAFETY: the tests keep the memory longer than the source, and do not use it.
    unsafe { Frames::in_memory(range(1000, 1000), cpus, NonNull::from(memory)) }
}

fn free(frames: &Frames, host: &Host, frame: Frame) -> Result<(), FrameError> {
    // SAFETY: no code uses the memory in these tests.
    unsafe { frames.on(host).free(frame) }
}

#[test]
fn bad_ranges_are_refused() {
    let (_, mut frames) = source();
    // SAFETY: as above.
    let mut add = |start, len, node| unsafe { frames.add(range(start, len), NodeId(node)) };
    assert_eq!(add(999, 2, 0), Err(FramesError::BeyondSpan(range(999, 2))));
    assert_eq!(add(1999, 2, 0), Err(FramesError::BeyondSpan(range(1999, 2))));
    assert_eq!(add(1000, 25, 0), Err(FramesError::Twice(frame(1024))));
    assert_eq!(add(1000, 24, 8), Err(FramesError::NoSuchNode(NodeId(8))));
    assert_eq!(add(1000, 24, 0), Ok(()));
    assert_eq!(
        frames.set_home(CpuId::new(2).unwrap(), NodeId(0)),
        Err(FramesError::NoSuchCpu(CpuId::new(2).unwrap()))
    );
}

#[test]
fn a_node_that_has_run_out_is_not_helped_out_if_only_that_will_do() {
    let (host, frames) = source();
    for (order, len) in [(0, 256), (3, 32)] {
        let only = || frames.alloc(&host, order, NodePolicy::Only(NodeId(1)));
        let all: vec::Vec<_> = (0..len).map(|_| only().unwrap()).collect();
        assert!(all.iter().all(|at| frames.info(*at).unwrap().node() == NodeId(1)));
        assert_eq!(only(), Err(FrameError::OutOfFrames { order }));
        let preferred = frames.alloc(&host, order, NodePolicy::Prefer(NodeId(1))).unwrap();
        assert_eq!(frames.info(preferred).unwrap().node(), NodeId(0));
        all.into_iter().chain([preferred]).for_each(|at| free(&frames, &host, at).unwrap());
    }
}

#[test]
fn a_frame_that_is_allocated_has_a_word_of_its_own() {
    let (host, frames) = source();
    let old = one(&frames, &host);
    // SAFETY: the test owns the frame, and no code relies on its word.
    unsafe { frames.info(old).unwrap().word() }.store(7, Ordering::Relaxed);
    free(&frames, &host, old).unwrap();
    let new = one(&frames, &host);
    assert_eq!(new, old, "the frame that was freed last is not reused first");
    // SAFETY: as above.
    assert_eq!(unsafe { frames.info(new).unwrap().word() }.load(Ordering::Relaxed), 0);
}

#[test]
fn each_cpu_has_its_own_node_first() {
    let (host, frames) = source();
    for (cpu, node) in [(0, NodeId(0)), (1, NodeId(1))] {
        host.be(cpu);
        assert_eq!(frames.local_node(&host), node);
        for order in [0, 3] {
            let got = frames.alloc(&host, order, NodePolicy::Local).unwrap();
            let info = frames.info(got).unwrap();
            assert_eq!((info.node(), info.order(), info.refs()), (node, order, 1));
            assert_eq!(info.owner(), Owner::Raw);
        }
        let other = NodeId(1 - node.0);
        let got = frames.alloc(&host, 0, NodePolicy::Only(other)).unwrap();
        assert_eq!(frames.info(got).unwrap().node(), other);
    }
    assert_eq!(
        frames.alloc(&host, 0, NodePolicy::Only(NodeId(2))),
        Err(FrameError::NoSuchNode(NodeId(2)))
    );
    assert_eq!(frames.alloc(&host, 19, NodePolicy::Local), Err(FrameError::TooLarge { order: 19 }));
}

/// CPUs of nodes without memory: a node below those with memory, one between them, and one above.
#[test]
fn a_cpu_of_a_node_without_memory_has_all_of_it() {
    let homes = [0, 2, 5, 7].map(NodeId);
    let host = Host::new(homes.len());
    // The order of a node's memory.
    let order = if cfg!(miri) { 4 } else { 6 };
    let len = 1 << order;
    let mut frames = Frames::try_new(range(1024, 2 * len), homes.len()).unwrap();
    for (cpu, home) in homes.into_iter().enumerate() {
        frames.set_home(CpuId::new(cpu).unwrap(), home).unwrap();
    }
    // SAFETY: no code uses the memory in these tests.
    unsafe {
        frames.add(range(1024, len), NodeId(1)).unwrap();
        frames.add(range(1024 + len, len), NodeId(3)).unwrap();
    }
    for (cpu, near) in [1, 3, 1, 3].map(NodeId).into_iter().enumerate() {
        host.be(cpu);
        assert_eq!(frames.local_node(&host), near, "of cpu{cpu}");
        let got: Vec<_> = (0..2 * len).map(|_| one(&frames, &host)).collect();
        assert_eq!(frames.info(got[0]).unwrap().node(), near);
        free_all(&frames, &host, got);
        let near = frames.alloc(&host, order, NodePolicy::Local).unwrap();
        let far =
            frames.alloc(&host, order, NodePolicy::Prefer(homes[cpu])).unwrap_or_else(|error| {
                assert_eq!(error, FrameError::NoSuchNode(homes[cpu]));
                frames.alloc(&host, order, NodePolicy::Local).unwrap()
            });
        free_all(&frames, &host, [near, far]);
    }
}

/// A CPU's cached frames go back to their node when the CPU's near node changes.
#[test]
fn a_nearer_node_may_come_later() {
    let host = Host::new(1);
    let mut frames = Frames::try_new(range(1024, 128), 1).unwrap();
    frames.set_home(CpuId::default(), NodeId(1)).unwrap();
    host.be(0);
    // SAFETY: no code uses the memory in these tests.
    unsafe { frames.add(range(1024, 64), NodeId(0)) }.unwrap();
    let got = one(&frames, &host);
    // SAFETY: as above.
    unsafe { frames.add(range(1088, 64), NodeId(1)) }.unwrap();
    let two = one(&frames, &host);
    assert_eq!((got.number() / 64, two.number() / 64), (16, 17));
    free_all(&frames, &host, [got, two]);
    for node in [0, 1] {
        assert!(
            frames.alloc(&host, 6, NodePolicy::Only(NodeId(node))).is_ok(),
            "the node's frames did not come back"
        );
    }
}

/// Reading the number of free frames takes no lock.
#[test]
fn counting_takes_no_lock() {
    let (_, frames) = source();
    let _caches: Vec<_> = frames.caches.iter().map(|cache| cache.lock()).collect();
    let _nodes: Vec<_> = frames.nodes.iter().map(|node| node.lock()).collect();
    assert_eq!(frames.free_frames(), 512);
}

/// While a CPU searches for frames, no cache takes any, and all frames can still be allocated.
#[test]
fn closed_caches_stay_empty() {
    let (host, frames) = source();
    for cpu in [0, 1] {
        host.be(cpu);
        let got = one(&frames, &host);
        free(&frames, &host, got).unwrap();
    }
    frames.close();
    frames.close();
    frames.open();
    for cpu in [0, 1] {
        host.be(cpu);
        let got = one(&frames, &host);
        assert_eq!(frames.info(got).unwrap().node(), frames.local_node(&host));
        free(&frames, &host, got).unwrap();
        assert!(frames.caches.iter().all(|cache| cache.len() == 0));
    }
    assert_eq!(frames.nodes.iter().map(|node| node.free()).sum::<usize>(), 512);
    frames.open();
    let got = one(&frames, &host);
    assert_eq!(frames.caches.iter().map(Cache::len).sum::<usize>(), CACHE_BATCH - 1);
    free(&frames, &host, got).unwrap();
}

/// Two CPUs allocate and two free, never more than 8 frames at once. No allocation may fail,
/// however frames move between caches meanwhile.
#[test]
fn no_frame_hides_in_a_cache() {
    use core::sync::atomic::{AtomicU64, Ordering};
    let rounds = if cfg!(miri) { 100 } else { 20_000 };
    for len in [16, 24, 40, 60] {
        let host = Host::new(4);
        let mut frames = Frames::try_new(range(1024, len), 4).unwrap();
        // SAFETY: no code uses the memory in these tests.
        unsafe { frames.add(range(1024, len), NodeId(0)) }.unwrap();
        let slots = [const { AtomicU64::new(0) }; 4];
        std::thread::scope(|scope| {
            for cpu in 0..4 {
                let (host, frames, slots) = (&host, &frames, &slots);
                scope.spawn(move || {
                    host.be(cpu);
                    for round in 0..rounds {
                        // Each allocating CPU has every other slot to itself. A slot holds one
                        // frame.
                        let slot = &slots[(round * 2 + cpu) % 4];
                        if cpu >= 2 {
                            // AcqRel: only a number is passed, and the slot orders it.
                            let taken = slots[round % 4].swap(0, Ordering::AcqRel);
                            if taken != 0 {
                                free(frames, host, frame(taken)).unwrap();
                                continue;
                            }
                        } else if slot.load(Ordering::Acquire) == 0 {
                            let got = one(frames, host);
                            slot.store(got.number(), Ordering::Release);
                            continue;
                        }
                        std::thread::yield_now();
                    }
                });
            }
        });
        let left = slots.iter().filter(|slot| slot.load(Ordering::Relaxed) != 0).count();
        assert_eq!(frames.free_frames(), len as usize - left);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn every_frame_can_be_had() {
    let (host, frames) = source();
    // Some frames lie in the caches of both CPUs.
    for cpu in [1, 0] {
        host.be(cpu);
        let some: Vec<_> = (0..40).map(|_| one(&frames, &host)).collect();
        free_all(&frames, &host, some);
    }
    assert_eq!(frames.free_frames(), 512);
    let mut held = all(&frames, &host);
    assert_eq!(
        frames.alloc(&host, 0, NodePolicy::Local),
        Err(FrameError::OutOfFrames { order: 0 })
    );
    assert_eq!(frames.free_frames(), 0);
    held.sort();
    held.dedup();
    assert_eq!(held.len(), 512);
    free_all(&frames, &host, held);
    // The frames merge again, also out of the caches.
    let big: Vec<_> = (0..2).map(|_| frames.alloc(&host, 8, NodePolicy::Local).unwrap()).collect();
    assert!(big.iter().all(|frame| frame.number() % 256 == 0));
    assert_eq!(
        frames.alloc(&host, 0, NodePolicy::Local),
        Err(FrameError::OutOfFrames { order: 0 })
    );
}

#[test]
fn wrong_frees_are_told() {
    let (host, frames) = source();
    let block = frames.alloc(&host, 2, NodePolicy::Local).unwrap();
    let inside = frame(block.number() + 1);
    assert_eq!(free(&frames, &host, inside), Err(FrameError::NotAllocated(inside)));
    assert_eq!(free(&frames, &host, frame(5)), Err(FrameError::NotOurs(frame(5))));
    assert!(frames.info(block).unwrap().try_pin(2));
    assert_eq!(
        free(&frames, &host, block),
        Err(FrameError::InUse { frame: block, refs: 3, pins: 2 })
    );
    // SAFETY: the test owns the block.
    let split = unsafe { frames.on(&host).split(block) };
    assert_eq!(split, Err(FrameError::InUse { frame: block, refs: 3, pins: 2 }));
    // SAFETY: no code uses the memory in these tests.
    unsafe {
        assert_eq!(frames.on(&host).release(block), Ok(false));
        assert_eq!(
            frames.on(&host).release(block),
            Err(FrameError::NotAllocated(block)),
            "only pins are left"
        );
        assert_eq!(frames.on(&host).unpin(block, 3), Err(FrameError::NotAllocated(block)));
        assert_eq!(frames.on(&host).unpin(block, 2), Ok(true));
    }
    assert_eq!(free(&frames, &host, block), Err(FrameError::NotAllocated(block)), "twice");
    assert_eq!(frames.free_frames(), 512);
}

#[test]
fn a_block_is_split() {
    let (host, frames) = source();
    let block = frames.alloc(&host, 3, NodePolicy::Local).unwrap();
    // SAFETY: the test owns the frame, and no code uses the memory.
    let is = |owner| unsafe { frames.info(block).unwrap().set_owner(owner) };
    for owner in [Owner::Table(0), Owner::Quick(1)] {
        is(owner);
        // SAFETY: the test owns the block, and it is not a table in fact.
        assert_eq!(unsafe { frames.on(&host).split(block) }, Err(FrameError::Table(block)));
    }
    assert_eq!(frames.info(block).map(|info| (info.refs(), info.order())), Some((1, 3)));
    is(Owner::Kernel);
    // SAFETY: the test owns the block.
    unsafe { frames.on(&host).split(block) }.unwrap();
    for number in block.number()..block.number() + 8 {
        let info = frames.info(frame(number)).unwrap();
        assert_eq!((info.refs(), info.order(), info.owner()), (1, 0, Owner::Kernel));
        free(&frames, &host, frame(number)).unwrap();
    }
    assert_eq!(frames.free_frames(), 512);
    // SAFETY: no block begins there.
    assert_eq!(unsafe { frames.on(&host).split(block) }, Err(FrameError::NotAllocated(block)));
}

#[test]
fn threads_share_all_of_it() {
    let (host, frames) = source();
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let (host, frames) = (&host, &frames);
            scope.spawn(move || {
                host.be(cpu);
                let mut held = vec![];
                for round in 0..rounds {
                    let place =
                        [NodePolicy::Local, NodePolicy::Prefer(NodeId(round as u8 % 2))][round % 2];
                    if let Ok(got) = frames.alloc(host, (round % 7 / 6) as u8, place) {
                        held.push(got);
                    }
                    if held.len() > 200 || round % 3 == 0 {
                        free(frames, host, held.swap_remove(round % held.len())).unwrap();
                    }
                }
                free_all(frames, host, held);
            });
        }
    });
    assert_eq!(frames.free_frames(), 512);
}

/// A source that was made before there is a heap, in memory of its own, is as one on the heap.
#[test]
fn memory_that_the_host_gives_is_enough() {
    const RANGES: [(u64, u64); 3] = [(1536, 256), (1024, 256), (1300, 7)];
    for cpus in if cfg!(miri) { 1..2 } else { 1..4 } {
        let bytes = Frames::bytes(1000, cpus, RANGES.len());
        // Wherever it begins.
        for skipped in if cfg!(miri) { 5..6 } else { 0..17 } {
            let mut memory = vec![0xee_u8; skipped + bytes];
            let mut frames = in_memory(cpus, &mut memory[skipped..]).unwrap();
            for (first, len) in RANGES {
                // SAFETY: no code uses the memory in these tests.
                unsafe { frames.add(range(first, len), NodeId(0)) }.unwrap();
            }
            assert_eq!(frames.free_frames(), 256 + 256 + 7);
            let host = Host::new(cpus);
            let held = all(&frames, &host);
            assert_eq!(held.len(), 256 + 256 + 7);
            free_all(&frames, &host, held);
            assert!(frames.alloc(&host, 8, NodePolicy::Local).is_ok(), "they have merged");
        }
        let mut memory = vec![0_u8; 16 * 1000];
        assert_eq!(in_memory(cpus, &mut memory).err(), Some(FramesError::OutOfMemory));
    }
}

/// So that no allocation by it is too short.
#[test]
fn a_count_of_bytes_does_not_wrap() {
    let more = |frames, cpus, ranges| Frames::bytes(frames, cpus, ranges);
    assert_eq!(more(u64::MAX, 1, 1), more(Frame::LIMIT, 1, 1));
    assert!(more(Frame::LIMIT, 1, 1) > (Frame::LIMIT as usize) * size_of::<FrameInfo>());
    let most = [more(1, usize::MAX, 1), more(1, 1, usize::MAX), more(1, 1 << 60, 1)];
    assert_eq!(most, [usize::MAX; 3]);
}

/// Memory that runs out while a range is added leaves everything as it was.
#[test]
fn a_range_that_finds_no_memory_is_not_added() {
    let bytes = Frames::bytes(1000, 1, 1);
    let mut memory = vec![0_u8; bytes];
    let mut frames = in_memory(1, &mut memory).unwrap();
    // SAFETY: no code uses the memory in these tests.
    let mut add = |first, len| unsafe { frames.add(range(first, len), NodeId(0)) };
    let added = (0..100).take_while(|at| add(1000 + 10 * at, 9).is_ok()).count() as u64;
    assert!(added < 100, "the memory was enough");
    let again = add(1000 + 10 * added, 9);
    assert_eq!(again, Err(FramesError::OutOfMemory), "it is not there, so not twice");
    assert_eq!(frames.free_frames(), 9 * added as usize);
}

/// A range may be added while CPUs allocate, also to a node that is nearer than the one before.
#[test]
fn a_range_may_be_added_later() {
    let (host, mut frames) = source();
    host.be(1);
    frames.set_home(CpuId::new(1).unwrap(), NodeId(2)).unwrap();
    let before = frames.free_frames();
    let got = one(&frames, &host);
    assert_ne!(frames.info(got).unwrap().node(), NodeId(2));
    // SAFETY: no code uses the memory in these tests.
    let add = |first, len| unsafe { frames.add_later(&host, range(first, len), NodeId(2)) };
    assert_eq!(add(1850, 100), Ok(()));
    assert_eq!(add(1949, 2), Err(FramesError::Twice(frame(1949))));
    assert_eq!(frames.free_frames(), before + 100 - 1);
    let near = one(&frames, &host);
    assert_eq!(frames.info(near).unwrap().node(), NodeId(2));
    assert_eq!((frames.nodes(), frames.local_node(&host)), (3, NodeId(2)));
    free_all(&frames, &host, [got, near]);
    assert_eq!(frames.free_frames(), before + 100);
}

/// Low memory is a node of its own, to which no CPU is near.
#[test]
fn a_zone_is_used_last() {
    let (host, mut frames) = source();
    let low = NodeId(2);
    // SAFETY: no code uses the memory in these tests.
    unsafe { frames.add(range(1000, 16), low) }.unwrap();
    let on = |at: &Frame| frames.info(*at).unwrap().node();
    let for_device = frames.alloc(&host, 2, NodePolicy::Only(low)).unwrap();
    assert_eq!(on(&for_device), low);
    let held = all(&frames, &host);
    assert_eq!(held.len(), 512 + 12);
    assert!(held[..512].iter().all(|at| on(at) != low), "ordinary memory first");
    assert!(held[512..].iter().all(|at| on(at) == low));
}
