//! Map, unmap, pin and walk on real threads, without checks in between; also under Miri.

#[path = "common/own.rs"]
mod own;

use machine::*;
use own::Own;
use paging::*;
use sim::{Bare, BareGrace as Grace, Program};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const ROUNDS: u64 = if cfg!(miri) { 3 } else { 500 };

fn pages(at: u64, pages: u64) -> VirtRange {
    VirtRange::new(VirtAddr::new(at), pages << 12).unwrap()
}

/// Lets other threads run, and frees pieces whose grace period is over.
fn wait() {
    std::thread::yield_now();
    Grace::quiescent_state();
    Grace::reclaim(usize::MAX);
}

/// Tells the pinner that an owner has ended, also when the owner panics.
struct Ended<'a>(&'a AtomicU32);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Two CPUs map and unmap neighbouring pages. A third pins and walks until they are done.
#[test]
fn threads() {
    let bare = Bare::new(3, 256).unwrap();
    let paging = Paging::<Bare, X86_64L4>::try_new(bare.clone(), PageSize::Size1G).unwrap();
    let space = || PageTables::<Bare, X86_64L4, Grace>::user(&paging, Asid(1), None).unwrap();
    let space = bare.on_cpu(0, space);
    let ended = AtomicU32::new(0);
    let owner = |cpu: u64| {
        let (bare, space, ended) = (&bare, &space, &ended);
        move || {
            let _ended = Ended(ended);
            for round in 0..ROUNDS {
                let range = pages(0x3fff_e000 + (cpu << 12) + ((round & 3) << 21), 1);
                let frame = loop {
                    match bare.alloc(0, NodePolicy::Local) {
                        Ok(frame) => break frame,
                        Err(_) => wait(),
                    }
                };
                // All free frames may be tables that wait for a thread that does not run.
                while let Err(failed) = space.map_own(range, frame, Attrs::USER_RW) {
                    assert!(matches!(failed.error, Error::Frames(_)), "{failed}");
                    drop(failed);
                    wait();
                }
                space.protect_own(range, Flags::READ | Flags::USER).unwrap().flush();
                space.unmap_own(range, |page| assert_eq!(page.frame, frame)).unwrap().flush();
                // SAFETY: no translation to it is left.
                unsafe { bare.release(frame) }.unwrap();
                Grace::quiescent_state();
                Grace::reclaim(usize::MAX);
            }
        }
    };
    let pinner = || {
        let mut frames = [Frame::default(); 4];
        while ended.load(SeqCst) < 2 {
            let start = VirtAddr::new(0x3fff_e000);
            if let Ok(pins) = space.get_user_pages_fast(start, false, &mut frames, |_, _| false) {
                assert!(pins.frames().len() <= 2);
            }
            {
                let guard = <Grace as grace::Reclaim>::pin();
                assert!(space.walk(&guard).pages(pages(0x3fff_e000, 2048)).count() <= 8);
            }
            Grace::quiescent_state();
        }
    };
    bare.threads(vec![Box::new(owner(0)) as Program, Box::new(owner(1)), Box::new(pinner)]);
    bare.on_cpu(0, || {
        assert!(bare.settle());
        drop(space);
    });
    // The lists of CPUs whose threads have ended.
    for cpu in 0..3 {
        bare.on_cpu(cpu, || paging.quick().drain());
    }
    assert_eq!(bare.on_cpu(0, || bare.free_frames()), 256);
}
