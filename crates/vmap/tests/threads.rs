//! Areas on real threads, without a simulated machine in between; also under Miri.
//!
//! Two CPUs map by all common calls, pass their areas to each other, check the contents, and unmap.
//! A third CPU reads all the time: the listing, and bytes at addresses that other areas may have by
//! then.

mod common;

use common::{Ends, PAGE, SPACE, virt};
use machine::*;
use paging::{Attrs, PageTables, Paging, X86_64L4};
use sim::{Bare, BareGrace as Grace, Program};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vmap::{Options, TlbGrace, Vmap};

const ROUNDS: u64 = if cfg!(miri) { 8 } else { 2000 };
/// Frames of each owner, which it maps repeatedly. The first word of each holds its frame number.
const FRAMES: usize = 4;
/// The maximum number of areas that wait for one owner to unmap them.
const MAIL: usize = 6;

#[derive(Clone, Copy)]
enum MappedKind {
    /// Frames of this owner.
    Vmap(usize),
    Ram(usize),
    /// Memory with this value in the first word of each page.
    Memory(u64),
}

struct Mapped {
    at: VirtAddr,
    pages: usize,
    kind: MappedKind,
}

struct World {
    vmap: Vmap<Bare, X86_64L4, Grace>,
    frames: [Vec<Frame>; 2],
    mail: [Mutex<Vec<Mapped>>; 2],
    /// The address of the last area that was made: a hint for the reader.
    last: AtomicU64,
    ended: AtomicU32,
}

/// Tells the reader that an owner has ended, even if it panics.
struct Ended<'a>(&'a AtomicU32);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        // Relaxed: only the count matters.
        self.0.fetch_add(1, Relaxed);
    }
}

fn mark(owner: usize, round: u64) -> u64 {
    (owner as u64 + 1) << 32 | round
}

impl World {
    fn map(&self, owner: usize, round: u64) -> Mapped {
        let (vmap, rw) = (&self.vmap, Attrs::KERNEL_RW);
        let frames = &self.frames[owner][..1 + round as usize / 4 % FRAMES];
        let (pages, bytes) = (frames.len(), frames.len() as u64 * PAGE);
        let (at, kind) = match round % 4 {
            0 => (vmap.vmap(frames, rw).unwrap(), MappedKind::Vmap(owner)),
            1 => (vmap.vzalloc(bytes).unwrap(), MappedKind::Memory(mark(owner, round))),
            _ => (vmap.vm_map_ram(frames, rw).unwrap(), MappedKind::Ram(owner)),
        };
        // Relaxed: a hint, which may be outdated.
        self.last.store(at.get(), Relaxed);
        if let MappedKind::Memory(mark) = kind {
            for at in words(at, pages) {
                assert_eq!(self.read(at), Some(0));
                // SAFETY: no reference to it exists.
                assert_eq!(unsafe { vmap.vwrite(at, &mark.to_ne_bytes()) }, 8);
            }
        }
        Mapped { at, pages, kind }
    }

    /// Reads a word, if it is mapped.
    fn read(&self, at: VirtAddr) -> Option<u64> {
        let mut bytes = [0; 8];
        // SAFETY: mapped memory has been written before, or is written by `vwrite`.
        let read = unsafe { self.vmap.vread(at, &mut bytes) };
        (read == 8).then(|| u64::from_ne_bytes(bytes))
    }

    fn unmap(&self, Mapped { at, pages, kind }: Mapped) {
        for (page, at) in words(at, pages).enumerate() {
            let expected = match kind {
                MappedKind::Vmap(owner) | MappedKind::Ram(owner) => {
                    self.frames[owner][page].number()
                }
                MappedKind::Memory(mark) => mark,
            };
            assert_eq!(self.read(at), Some(expected), "page {page}");
        }
        match kind {
            MappedKind::Vmap(_) => self.vmap.end_vmap(at),
            MappedKind::Ram(_) => self.vmap.end_ram(at, pages),
            // SAFETY: no code uses it except `vread`.
            MappedKind::Memory(mark) if mark & 4 == 0 => unsafe { self.vmap.vfree_atomic(at) },
            // SAFETY: as above.
            MappedKind::Memory(_) => unsafe { self.vmap.vfree(at) },
        }
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// The work of a CPU in its timer interrupt and when it is idle.
    fn pass(&self) {
        self.vmap.tlb_grace().tick();
        Grace::quiescent_state();
        Grace::reclaim(usize::MAX);
    }

    fn start(&self) {
        self.vmap.tlb_grace().idle_exit();
    }

    fn stop(&self) {
        self.vmap.idle();
        // SAFETY: a CPU uses areas between `start` and `stop` only.
        unsafe { self.vmap.tlb_grace().idle_enter() };
    }

    fn own(&self, owner: usize) {
        let _ended = Ended(&self.ended);
        self.start();
        for round in 0..ROUNDS {
            let area = self.map(owner, round);
            let refused = {
                let mut mail = self.mail[1 - owner].lock().unwrap();
                if mail.len() < MAIL {
                    mail.push(area);
                    None
                } else {
                    Some(area)
                }
            };
            let got = { self.mail[owner].lock().unwrap().pop() };
            refused.into_iter().chain(got).for_each(|area| self.unmap(area));
            match round % 32 {
                7 => self.vmap.poll(),
                15 => self.vmap.purge(),
                23 => {
                    self.stop();
                    std::thread::yield_now();
                    self.start();
                }
                _ => self.pass(),
            }
        }
        self.stop();
    }

    fn look(&self) {
        self.start();
        // Relaxed: the end of their threads orders the rest.
        while self.ended.load(Relaxed) < 2 {
            let vmap = &self.vmap;
            let mut end = vmap.space().start();
            vmap.vmallocinfo(|info| {
                assert!(info.range.start() >= end && vmap.space().covers(&info.range), "{info}");
                end = info.range.end().unwrap_or(end);
            });
            let info = vmap.get_vmalloc_info();
            assert!(info.largest_free <= info.total, "{info:?}");
            // A word of either owner: never a page-table page or other memory.
            let known = |word: u64| match word >> 32 {
                0 => word == 0 || self.frames.iter().flatten().any(|frame| frame.number() == word),
                owner => owner <= 2 && word as u32 as u64 <= ROUNDS,
            };
            // No report in between: it would order these reads with the owners' writes.
            for _ in 0..8 {
                // Relaxed: as where it is stored.
                let at = virt(self.last.load(Relaxed));
                if let Some(area) = vmap.find_vm_area(at) {
                    assert!(area.range.contains(at), "{area}");
                }
                let word = self.read(at);
                assert!(word.is_none_or(known), "{word:x?}");
            }
            self.pass();
        }
        self.stop();
    }
}

/// The start of each page of an area.
fn words(at: VirtAddr, pages: usize) -> impl Iterator<Item = VirtAddr> {
    (0..pages as u64).map(move |page| virt(at.get() + page * PAGE))
}

#[test]
fn threads() {
    let bare = Bare::new(3, 512).unwrap();
    let paging = Paging::<Bare, X86_64L4>::try_new(bare.clone(), PageSize::Size1G).unwrap();
    let tlb_grace = TlbGrace::try_new(bare.clone()).unwrap();
    let frame = || {
        let frame = bare.alloc(0, NodePolicy::Local).unwrap();
        let word = bare.frame_ptr(frame).unwrap().cast::<u64>();
        // SAFETY: the frame is ours, and not yet shared.
        unsafe { word.write(frame.number()) };
        frame
    };
    let (tables, frames) = bare.on_cpu(0, || {
        let tables = Arc::new(PageTables::<_, _, Grace>::kernel(&paging).unwrap());
        (tables, [(); 2].map(|()| (0..FRAMES).map(|_| frame()).collect::<Vec<_>>()))
    });
    let space = VirtRange::new(virt(SPACE), 64 << 20).unwrap();
    // SAFETY: no other code uses these addresses.
    let vmap = bare.on_cpu(0, || unsafe {
        Vmap::try_new(tables, tlb_grace, space, Options::default()).unwrap()
    });
    let (mail, last, ended) = (Default::default(), AtomicU64::new(SPACE), AtomicU32::new(0));
    let world = World { vmap, frames, mail, last, ended };
    bare.threads(vec![
        Box::new(|| world.own(0)) as Program,
        Box::new(|| world.own(1)),
        Box::new(|| world.look()),
    ]);
    for cpu in 0..3 {
        bare.on_cpu(cpu, || {
            world.start();
            while let Some(area) = { world.mail[cpu % 2].lock().unwrap().pop() } {
                world.unmap(area);
            }
            world.vmap.purge();
            world.stop();
        });
    }
    bare.on_cpu(0, || {
        world.vmap.purge();
        let left = world.vmap.get_vmalloc_info();
        assert_eq!((left.used, left.kept, left.areas), (0, 0, 0));
        for frame in world.frames.iter().flatten() {
            // SAFETY: no translation to it exists.
            unsafe { bare.release(*frame) }.unwrap();
        }
        drop(world.vmap);
        assert!(bare.settle());
    });
    // Drains the lists of CPUs whose threads have ended.
    for cpu in 0..3 {
        bare.on_cpu(cpu, || paging.quick().drain());
    }
    assert_eq!(bare.on_cpu(0, || bare.free_frames()), 512);
}
