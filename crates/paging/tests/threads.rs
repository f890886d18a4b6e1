//! All of it on real threads, with nothing in between; also under Miri.

mod host;

use host::{Grace, Host};
use machine::*;
use paging::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const ROUNDS: u64 = if cfg!(miri) { 3 } else { 500 };

fn pages(at: u64, pages: u64) -> VirtRange {
    VirtRange::new(VirtAddr::new(at), pages << 12).unwrap()
}

/// Lets others run, and frees what has come due.
fn wait() {
    std::thread::yield_now();
    Grace::announce();
    Grace::reclaim(usize::MAX);
}

/// Tells the others to stop, also when this thread panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Two CPUs map and unmap next to each other, a third pins and walks, until they are done.
#[test]
fn threads() {
    Host::be(0);
    let host = Host::new(3, 256);
    let paging = Paging::<Host, X86_64L4>::try_new(host.clone(), PageSize::Size1G).unwrap();
    let space = PageTables::<Host, X86_64L4, Grace>::user(&paging, Asid(1), None).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let owner = |cpu: u64| {
            let (host, space) = (&host, &space);
            move || {
                Host::be(cpu as usize);
                for round in 0..ROUNDS {
                    let range = pages(0x3fff_e000 + (cpu << 12) + ((round & 3) << 21), 1);
                    let frame = loop {
                        match host.alloc(0, Place::Local) {
                            Ok(frame) => break frame,
                            Err(_) => wait(),
                        }
                    };
                    // Tables that wait for a thread that does not run may be all that is left.
                    while let Err(failed) = space.map(range, frame, Attrs::USER_RW) {
                        assert!(matches!(failed.error, Error::Frames(_)), "{failed}");
                        drop(failed);
                        wait();
                    }
                    space.protect(range, Flags::READ | Flags::USER).unwrap().flush();
                    space.unmap(range, |page| assert_eq!(page.frame, frame)).unwrap().flush();
                    // SAFETY: nothing translates to it.
                    unsafe { host.release(frame) }.unwrap();
                    Grace::announce();
                    Grace::reclaim(usize::MAX);
                }
                Grace::away();
            }
        };
        let stop = Stop(&done);
        let owners = [scope.spawn(owner(0)), scope.spawn(owner(1))];
        let (space, done) = (&space, &done);
        scope.spawn(move || {
            Host::be(2);
            let mut frames = [Frame::default(); 4];
            while !done.load(SeqCst) {
                let start = VirtAddr::new(0x3fff_e000);
                if let Ok(pins) = space.get_user_pages_fast(start, false, &mut frames, |_, _| false)
                {
                    assert!(pins.frames().len() <= 2);
                }
                {
                    let guard = <Grace as grace::Reclaim>::pin();
                    assert!(space.walk(&guard).pages(pages(0x3fff_e000, 2048)).count() <= 8);
                }
                Grace::announce();
            }
            Grace::away();
        });
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        drop(stop);
    });
    Host::settle();
    drop(space);
    // Lists of CPUs whose threads are gone: this thread is each in turn.
    for cpu in 0..3 {
        Host::be(cpu);
        paging.quick().drain();
    }
    assert_eq!(host.free_frames(), 256);
}
