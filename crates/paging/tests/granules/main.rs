//! Calls whose sizes follow from the granule, with all granules: forks, moves, dirty logging, pins,
//! counted references, kept tables, and memory in which there are frames but no table.

#[path = "../common/mod.rs"]
mod common;
mod large;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Checks, Config, Grace, Sim, Stale};
use std::sync::Arc;

type Tables<F> = PageTables<Sim, F, Grace>;

/// Runs a test with each granule.
macro_rules! with_each {
    ($($test:ident)*) => {
        $(#[test]
        fn $test() {
            each::$test::<Aarch64>();
            each::$test::<Aarch64G16L3>();
            each::$test::<Aarch64G16>();
            each::$test::<Aarch64G16Lpa2>();
            each::$test::<Aarch64G64>();
            each::$test::<Aarch64G64Lpa>();
        })*
    };
}

with_each! {
    a_fork_copies_whole_pages
    pages_move
    writes_are_logged
    pins_are_of_frames
    pieces_hold_references
    a_leaf_is_one_table
    frames_without_a_table
    lists_keep_their_share
}

/// A piece of several frames has one reference: so a block of 1 GiB stays one, and so does a block
/// that is larger than the page, also when no other page leads there any more.
#[test]
fn blocks_larger_than_a_table_stay() {
    type F = X86_64L4;
    let giant = PageSize::Size1G;
    let (sim, paging) = machine::<F>(64, 2 * giant.frames());
    let tables = sim.on_cpu(0, || {
        let tables = user::<F>(&paging);
        let split = |at| {
            // SAFETY: the memory is this test's, and the entry holds its reference.
            unsafe { tables.split_counted(at, F::PAGE) }.unwrap().flush();
        };
        let range = VirtRange::new(virt(giant.bytes()), giant.bytes()).unwrap();
        let first = block(&sim, giant.order());
        tables.map_own(range, first, Attrs::USER_RW).unwrap();
        split(virt(range.start().get() + 7 * F::LARGE.bytes()));
        assert_eq!(sim.info(first).unwrap().refs(), 512 + 511);
        assert_eq!(unmap_counted(&tables, range), 511 + 512);
        assert_eq!(sim.info(first).unwrap().refs(), 0);
        let range = VirtRange::new(range.start(), F::LARGE.bytes()).unwrap();
        let first = block(&sim, F::LARGE.order() + 1);
        tables.map_own(range, first, Attrs::USER_RW).unwrap();
        split(range.start());
        assert_eq!(sim.info(first).unwrap().refs(), 512);
        assert_eq!(unmap_counted(&tables, range), 512);
        tables
    });
    end(&sim, &paging, [tables]);
}

/// A machine with so many frames more than `pages` pages need.
fn machine<F: OnSim>(pages: u64, more: u64) -> (Sim, Arc<Paging<Sim, F>>) {
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let frames = pages * F::PAGE.frames() + more;
    machine_of(Config { cpus: 1, frames, checks, ..Config::default() })
}

fn user<F: OnSim>(paging: &Arc<Paging<Sim, F>>) -> Tables<F> {
    Tables::<F>::user(paging, Asid(1), None).unwrap()
}

/// Drops the tables, and checks that no frame is left.
fn end<F: OnSim>(
    sim: &Sim,
    paging: &Arc<Paging<Sim, F>>,
    tables: impl IntoIterator<Item = Tables<F>>,
) {
    sim.on_cpu(0, || {
        tables.into_iter().for_each(drop);
        assert!(sim.settle());
        paging.quick().drain();
    });
    sim.check_leaks().unwrap();
}

/// The border of two lowest tables.
fn border<F: Format>() -> u64 {
    3 * F::LARGE.bytes()
}

fn get<F: OnSim>(tables: &Tables<F>, at: VirtAddr) -> Mapping {
    tables.walk(&Grace::pin()).get(at).expect("it is mapped")
}

/// A word of a page, by its frame.
fn word(sim: &Sim, page: Frame, byte: u64) -> u64 {
    let frame = page.checked_add(byte / 4096).unwrap();
    // SAFETY: a word of a frame, which no other thread uses.
    unsafe { sim.frame_ptr(frame).unwrap().add(byte as usize % 4096).cast::<u64>().read() }
}

fn put(sim: &Sim, page: Frame, byte: u64, value: u64) {
    let frame = page.checked_add(byte / 4096).unwrap();
    // SAFETY: as in `word`.
    unsafe { sim.frame_ptr(frame).unwrap().add(byte as usize % 4096).cast::<u64>().write(value) }
}

/// Unmaps a range, and drops the references of its entries.
fn unmap_counted<F: OnSim>(tables: &Tables<F>, range: VirtRange) -> usize {
    let mut gone = Vec::new();
    tables.unmap_own(range, |page| gone.push(page.frame)).unwrap().flush();
    for frame in &gone {
        // SAFETY: the entry is gone, and flushed.
        unsafe { tables.paging().release_entry(*frame) };
    }
    gone.len()
}

mod each {
    use super::*;

    /// Pages on both sides of a border of tables are shared, a pinned one is copied at once, and
    /// one is copied by a write of the child. Each copy has all words of its page.
    pub(super) fn a_fork_copies_whole_pages<F: OnSim>() {
        let (sim, paging) = machine::<F>(64, 0);
        let exclusive = Attrs::USER_RW.with_share(Share::Exclusive);
        let size = F::PAGE.bytes();
        let range = pages_of::<F>(border::<F>() - 2 * size, 4);
        let at = |page: u64| virt(range.start().get() + page * size);
        let (parent, child) = sim.on_cpu(0, || {
            let parent = user(&paging);
            for page in 0..4 {
                let frame = block(&sim, F::PAGE.order());
                for byte in [0, size / 2, size - 8] {
                    put(&sim, frame, byte, page << 32 | byte);
                }
                parent.map_own(pages_of::<F>(at(page).get(), 1), frame, exclusive).unwrap();
            }
            let mut frame = [Frame::default()];
            let pins = parent.get_user_pages_fast(at(2), true, &mut frame, |_, _| false).unwrap();
            let child = parent.fork_own(Asid(2), true);
            drop(pins);
            (parent, child)
        });
        sim.on_cpu(0, || {
            for page in 0..4 {
                let (old, new) = (get(&parent, at(page)), get(&child, at(page)));
                assert_eq!((old.size, new.size), (F::PAGE, F::PAGE));
                assert_eq!(old.frame != new.frame, page == 2, "page {page}");
                assert!(page == 2 || !new.attrs.flags.contains(Flags::WRITE));
                for byte in [0, size / 2, size - 8] {
                    assert_eq!(word(&sim, new.frame, byte), page << 32 | byte);
                }
            }
            // A write of the child.
            let copy = block(&sim, F::PAGE.order());
            let decide = |page: Option<Mapping>| {
                let old = page.expect("it is mapped");
                assert_eq!((old.page, old.attrs.share()), (at(1), Share::CopyOnWrite));
                (EntryChange::Replace(copy, exclusive), old.frame)
            };
            let old = child.with_entry_own(&Grace::pin(), at(1), decide);
            let (old, pending) = old.unwrap();
            pending.flush();
            // SAFETY: the entry leads elsewhere, and is flushed.
            unsafe { paging.release_entry(old) };
            assert_eq!((get(&parent, at(1)).frame, get(&child, at(1)).frame), (old, copy));
            assert_eq!(sim.info(old).unwrap().refs(), 1, "the parent's");
            assert_eq!(sim.info(get(&child, at(0)).frame).unwrap().refs(), 2, "of both");
            assert_eq!(unmap_counted(&parent, range), 4);
            assert_eq!(unmap_counted(&child, range), 4);
        });
        end(&sim, &paging, [parent, child]);
    }

    /// A large page moves whole where both places lie alike, and small ones one by one.
    pub(super) fn pages_move<F: OnSim>() {
        let (sim, paging) = machine::<F>(64, 0);
        let (large, size) = (F::LARGE.bytes(), F::PAGE.bytes());
        // Frames beyond the machine's memory.
        let first = Frame::new((1 << 24) - F::PAGE.frames()).unwrap();
        let tables = sim.on_cpu(0, || {
            let tables = user(&paging);
            let moved = |from: u64, to: u64, len: u64| {
                let from = VirtRange::new(virt(from), len).unwrap();
                let plan = tables.prepare_relocation(from, virt(to))?;
                tables.relocate_own(plan).unwrap();
                Ok(VirtRange::new(virt(to), len).unwrap())
            };
            let at = 4 * large - size;
            let range = VirtRange::new(virt(at), large + size).unwrap();
            tables.map_own(range, first, Attrs::USER_RW).unwrap();
            let sizes = |range| {
                let pages = tables.walk(&Grace::pin()).pages(range).collect::<Vec<_>>();
                assert!(pages.iter().all(|page| {
                    let distance = page.page.get() - range.start().get();
                    page.frame.number() == first.number() + distance / 4096
                }));
                pages.iter().map(|page| page.size).collect::<Vec<_>>()
            };
            let to = moved(at, at + 8 * large, large + size).unwrap();
            assert_eq!(sizes(to), [F::PAGE, F::LARGE]);
            // Not alike: the large page is refused, and its pieces move.
            let cut = Error::Cut(virt(at + 8 * large + size), F::LARGE);
            let odd = at + 16 * large + 5 * size;
            assert_eq!(moved(to.start().get(), odd, large + size), Err(cut));
            tables.split_own(virt(at + 8 * large + size), F::PAGE).unwrap().flush();
            let to = moved(to.start().get(), odd, large + size).unwrap();
            assert_eq!(sizes(to), vec![F::PAGE; F::ENTRIES + 1]);
            tables.unmap_own(to, |_| ()).unwrap().flush();
            assert!(sim.settle());
            assert_eq!(common::tables(&sim), 1);
            tables
        });
        end(&sim, &paging, [tables]);
    }

    /// Of a large page, the written pieces are reported, and put together again.
    pub(super) fn writes_are_logged<F: OnSim>() {
        let (sim, paging) = machine::<F>(64, 2 * F::LARGE.frames());
        let (large, size) = (F::LARGE.bytes(), F::PAGE.bytes());
        let range = VirtRange::new(virt(2 * large), large).unwrap();
        let piece = |number: u64| virt(range.start().get() + number * size);
        let tables = sim.on_cpu(0, || {
            let tables = user(&paging);
            let first = block(&sim, F::LARGE.order());
            tables.map_own(range, first, Attrs::USER_RW).unwrap();
            tables.activate_own();
            let mut pending = tables.no_flush();
            // SAFETY: the pages are this test's.
            unsafe { tables.log_start(range, Logging::DirtyBits, &mut pending) }.unwrap();
            pending.flush();
            let last = F::ENTRIES as u64 - 1;
            for number in [0, 7, last] {
                sim.store_own(virt(piece(number).get() + size - 8), number).unwrap();
            }
            let mut dirty = Vec::new();
            let each = |page: Mapping| {
                assert_eq!(page.size, F::PAGE);
                dirty.push(page.page);
            };
            let mut pending = tables.no_flush();
            // SAFETY: as above.
            unsafe { tables.collect_dirty(range, Logging::DirtyBits, &mut pending, each) }.unwrap();
            pending.flush();
            assert_eq!(dirty, [piece(0), piece(7), piece(last)]);
            assert_eq!(tables.rejoin_own(range.start()), Ok(true));
            let page = get(&tables, piece(7));
            assert_eq!((page.page, page.size, page.frame), (range.start(), F::LARGE, first));
            tables.unmap_own(range, |_| ()).unwrap().flush();
            release(&sim, first);
            tables
        });
        end(&sim, &paging, [tables]);
    }

    /// A pin is of a frame of 4 KiB. They begin and end within pages, and keep the pages.
    pub(super) fn pins_are_of_frames<F: OnSim>() {
        let (sim, paging) = machine::<F>(64, 0);
        let (each, size) = (F::PAGE.frames(), F::PAGE.bytes());
        let tables = sim.on_cpu(0, || {
            let tables = user(&paging);
            let range = pages_of::<F>(border::<F>() - size, 2);
            let blocks = [block(&sim, F::PAGE.order()), block(&sim, F::PAGE.order())];
            tables.map_frames_own(range.start(), &blocks, Attrs::USER_RW).unwrap();
            let frames: Vec<_> = blocks
                .into_iter()
                .flat_map(|block| (0..each).map(move |number| block.checked_add(number).unwrap()))
                .collect();
            for locked in [false, true] {
                // From the last frame of the first page on, to the first of the last.
                let start = virt(range.start().get() + size - 4096 + 123);
                let mut into = [Frame::default(); 2];
                let pins = match locked {
                    true => tables.get_user_pages(start, true, &mut into, |_, _| false),
                    false => tables.get_user_pages_fast(start, true, &mut into, |_, _| false),
                };
                let pins = pins.unwrap();
                assert_eq!(pins.frames(), &frames[each as usize - 1..][..2]);
                assert_eq!(blocks.map(|block| sim.info(block).unwrap().pins()), [1, 1]);
                drop(pins);
                let mut into = vec![Frame::default(); 2 * each as usize + 1];
                let pins = match locked {
                    true => tables.get_user_pages(range.start(), false, &mut into, |_, _| false),
                    false => tables.get_user_pages_fast_only(range.start(), false, &mut into),
                };
                // Up to the hole.
                assert_eq!(pins.unwrap().frames(), frames);
            }
            tables.unmap_own(range, |_| ()).unwrap().flush();
            blocks.into_iter().for_each(|block| release(&sim, block));
            tables
        });
        end(&sim, &paging, [tables]);
    }

    /// The pieces of a large page hold a reference each. With pages of one frame the block is
    /// split, with others it stays one.
    pub(super) fn pieces_hold_references<F: OnSim>() {
        let (sim, paging) = machine::<F>(64, 2 * F::LARGE.frames());
        let range = VirtRange::new(virt(F::LARGE.bytes()), F::LARGE.bytes()).unwrap();
        let tables = sim.on_cpu(0, || {
            let tables = user(&paging);
            let first = block(&sim, F::LARGE.order());
            tables.map_own(range, first, Attrs::USER_RW).unwrap();
            // SAFETY: the memory is this test's, and the entry holds its reference.
            unsafe { tables.split_counted(range.start(), F::PAGE) }.unwrap().flush();
            let refs = if F::PAGE.order() == 0 { 1 } else { F::ENTRIES as u32 };
            assert_eq!(sim.info(first).unwrap().refs(), refs);
            let one = pages_of::<F>(range.start().get(), 1);
            assert_eq!(unmap_counted(&tables, one), 1);
            assert_eq!(sim.info(first).unwrap().refs(), refs - 1);
            assert_eq!(unmap_counted(&tables, range), F::ENTRIES - 1);
            tables
        });
        end(&sim, &paging, [tables]);
    }

    /// The kernel's fast path: its table has the pages up to a border of large pages.
    pub(super) fn a_leaf_is_one_table<F: OnSim>() {
        let (sim, paging) = machine::<F>(64, 0);
        let kernel = sim.on_cpu(0, || {
            let kernel = Tables::<F>::kernel(&paging).unwrap();
            let base = F::upper_half().get() + F::LARGE.bytes();
            let size = F::PAGE.bytes();
            let leaf = kernel.leaf(virt(base)).unwrap();
            assert_eq!(kernel.leaf(virt(base + F::LARGE.bytes() - 1)).unwrap(), leaf);
            assert_ne!(kernel.leaf(virt(base + F::LARGE.bytes())).unwrap(), leaf);
            let frames: Vec<_> = (0..3).map(|_| block(&sim, F::PAGE.order())).collect();
            let at = virt(base + F::LARGE.bytes() - 3 * size);
            // SAFETY: the table is the leaf's, and stays.
            unsafe { kernel.map_leaf(leaf, at, &frames, Attrs::KERNEL_RW) }.unwrap();
            let last = virt(base + F::LARGE.bytes() - size);
            assert_eq!((get(&kernel, last).frame, get(&kernel, last).size), (frames[2], F::PAGE));
            // SAFETY: the memory is this test's, and no CPU has used it.
            let gone = unsafe { kernel.unmap_leaf(leaf, at, 3, || true) }.unwrap();
            assert_eq!(gone, Some(3));
            // Across the border.
            let at = virt(base + F::LARGE.bytes() - 2 * size);
            kernel.map_frames_own(at, &frames, Attrs::KERNEL_RW).unwrap();
            assert_eq!(get(&kernel, virt(base + F::LARGE.bytes())).frame, frames[2]);
            let mut gone = Vec::new();
            let range = pages_of::<F>(at.get(), 3);
            let each = |frame, size| {
                assert_eq!(size, F::PAGE);
                gone.push(frame);
            };
            // SAFETY: as above.
            assert_eq!(unsafe { kernel.unmap_lazily(range, each) }, Ok(3));
            assert_eq!(gone, frames);
            frames.into_iter().for_each(|frame| release(&sim, frame));
            let all = VirtRange::new(F::upper_half(), 4 * F::LARGE.bytes()).unwrap();
            kernel.prune_own(all).unwrap().flush();
            kernel
        });
        end(&sim, &paging, [kernel]);
    }

    /// The share of a list is counted in tables.
    pub(super) fn lists_keep_their_share<F: OnSim>() {
        let (sim, paging) = machine::<F>(128, 0);
        sim.on_cpu(0, || {
            let quick = paging.quick();
            // SAFETY: the list has no kernel's tables.
            let pages = (0..16).map(|_| unsafe { quick.alloc(QUICK_TABLE) }.unwrap());
            let pages: Vec<_> = pages.collect();
            for page in pages {
                // SAFETY: it is empty, as it came.
                unsafe { quick.free(QUICK_TABLE, page) }.unwrap();
            }
            let free = sim.free_frames() as u64 / F::PAGE.frames();
            let keep = free as usize / QUICK_FRACTION;
            assert_eq!(quick.trim(QUICK_TABLE, 0, usize::MAX), 16 - keep);
            assert_eq!(quick.len(QUICK_TABLE), keep);
        });
        end(&sim, &paging, []);
    }

    /// Half of the frames are free, but no two that make a table: the call fails and changes
    /// nothing (I7). With tables of one frame it works.
    pub(super) fn frames_without_a_table<F: OnSim>() {
        let (sim, paging) = machine::<F>(24, 0);
        let tables = sim.on_cpu(0, || {
            let tables = user(&paging);
            let mut taken = Vec::new();
            while let Ok(frame) = sim.alloc(0, NodePolicy::Local) {
                taken.push(frame);
            }
            let (odd, even): (Vec<_>, Vec<_>) =
                taken.into_iter().partition(|frame| frame.number() % 2 == 1);
            even.into_iter().for_each(|frame| release(&sim, frame));
            assert!(sim.free_frames() > 4);
            let device = Frame::new(1 << 24).unwrap();
            let range = pages_of::<F>(border::<F>(), 1);
            let mapped = tables.map_own(range, device, Attrs::USER_RW);
            let failed = mapped.map_err(|failed| failed.error);
            if F::PAGE.order() == 0 {
                assert_eq!(failed, Ok(()));
                tables.unmap_own(range, |_| ()).unwrap().flush();
            } else {
                let order = F::PAGE.order();
                assert_eq!(failed, Err(Error::Frames(FrameError::OutOfFrames { order })));
                assert!(!tables.reclaim(), "there is no block for a table");
                assert_eq!(common::tables(&sim), 1);
            }
            odd.into_iter().for_each(|frame| release(&sim, frame));
            tables.map_own(range, device, Attrs::USER_RW).unwrap();
            tables.unmap_own(range, |_| ()).unwrap().flush();
            tables
        });
        end(&sim, &paging, [tables]);
    }
}
