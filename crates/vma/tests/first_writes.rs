//! First writes without the mmap lock, during calls that change the VMA.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use grace::Epoch;
use vma::{
    AddressSpace, Advice, CallStep, Error, Host, Layout, MapFlags, MapRequest, NoFile, Profile,
};

const AT: usize = 0x1000_0000;
const PAGE: usize = 4096;
/// Maps made at the place.
const LIVES: usize = if cfg!(miri) { 5 } else { 20_000 };

fn request(pages: usize, prot: u32) -> MapRequest<NoFile> {
    let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
    let len = pages * PAGE;
    MapRequest { addr: AT, flags, ..MapRequest::anonymous(len, prot) }
}

/// An unmapping that a sealed VMA refuses leaves the VMA before it split. A first write in one part
/// does not mark the other.
#[test]
fn parts_are_written_apart() {
    let space = AddressSpace::<NoFile, Epoch>::new(Profile::LINUX_6_18, Layout::default());
    space.write().mmap(request(2, 3)).unwrap();
    space.write().mmap(MapRequest { addr: AT + 2 * PAGE, ..request(2, 1) }).unwrap();
    space.write().mseal(AT + 2 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(space.write().munmap(AT + PAGE, 2 * PAGE), Err(Error::Sealed));
    assert_eq!(space.write().count(), 3);
    let guard = space.pin();
    let (range, seen) = space.lookup(&guard, AT).unwrap();
    assert_eq!(range, AT..AT + PAGE);
    if !space.first_write(&guard, AT, seen) {
        space.write().first_write(AT).unwrap();
    }
    let faulted = |addr| space.lookup(&guard, addr).map(|(_, vma)| vma.is_faulted());
    assert_eq!([faulted(AT), faulted(AT + PAGE)], [Some(true), Some(false)]);
}

/// Faults with a first write at `AT` in each step of a call; notes whether it needed no lock.
struct Faulting<'s>(&'s AddressSpace<NoFile, Epoch>, Vec<bool>);

impl Host<NoFile, Epoch> for Faulting<'_> {
    fn apply(&mut self, mut step: CallStep<'_, '_, NoFile, Epoch>) -> Result<(), Error> {
        step.hold()?;
        step.close(false)?;
        let guard = self.0.pin();
        let (_, seen) = self.0.lookup(&guard, AT).unwrap();
        self.1.push(self.0.first_write(&guard, AT, seen));
        step.open();
        Ok(())
    }
}

/// A part that a call has changed takes no first write until the call has changed the others: it
/// would decide what joins the next part.
#[test]
fn a_call_of_several_steps_takes_no_first_write_between_them() {
    let space = AddressSpace::<NoFile, Epoch>::new(Profile::LINUX_6_18, Layout::default());
    space.write().mmap(request(2, 1)).unwrap();
    space.write().madvise(AT + PAGE, PAGE, Advice::Random).unwrap();
    let mut host = Faulting(&space, Vec::new());
    space.write().with_host(&mut host).mprotect(AT, 2 * PAGE, 3, None).unwrap();
    assert_eq!(host.1, [false, false]);
}

/// A first write that succeeded is never lost: the VMA stays written until it is unmapped, however
/// often its contents are replaced, and whatever it merges with.
#[test]
fn no_first_write_is_lost() {
    let space = AddressSpace::<NoFile, Epoch>::new(Profile::LINUX_6_18, Layout::default());
    // Odd while the map is being replaced.
    let life = AtomicUsize::new(1);
    let start = Barrier::new(2);
    let written = thread::scope(|scope| {
        let faults = scope.spawn(|| {
            let mut written = 0;
            start.wait();
            loop {
                let now = life.load(SeqCst);
                if now > 2 * LIVES {
                    return written;
                }
                if !now.is_multiple_of(2) {
                    continue;
                }
                let guard = space.pin();
                let Some((_, seen)) = space.lookup(&guard, AT) else { continue };
                let was = seen.is_faulted();
                if !space.first_write(&guard, AT, seen) {
                    continue;
                }
                let after = space.lookup(&guard, AT).map(|(_, vma)| vma.is_faulted());
                if life.load(SeqCst) == now {
                    assert_eq!(after, Some(true), "a first write of life {now} is lost");
                    written += usize::from(!was);
                }
            }
        });
        start.wait();
        for _ in 0..=LIVES {
            space.write().munmap(AT, 2 * PAGE).unwrap();
            space.write().mmap(request(2, 3)).unwrap();
            life.fetch_add(1, SeqCst);
            for prot in [1, 3, 1, 3] {
                space.write().mprotect(AT, PAGE, prot, None).unwrap();
            }
            life.fetch_add(1, SeqCst);
        }
        faults.join().unwrap()
    });
    assert!(written > 0 || cfg!(miri), "no first write came during the calls");
}
