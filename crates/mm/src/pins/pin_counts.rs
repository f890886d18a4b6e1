//! The counts by which forks see pins for writing, and pins see forks.
//!
//! Each side stores first and then looks, with a SeqCst fence between. So if a fork misses a pin
//! that begins, the pin sees the fork, and gives itself up.
//!
//! A space counts the pins that were taken and those that have ended, on several lines, so that
//! CPUs that pin in one space rarely write the same line. A fork reads all ends first, and then all
//! beginnings. Each end that it has read comes after its beginning, which it then reads, too. So if
//! both sums are equal, each pin whose beginning was to be seen has ended.

use core::array;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, fence};

use core::sync::atomic::Ordering;
use machine::{Cpus, Step};

/// The lines of a space.
const LINES: usize = 8;

#[derive(Default)]
#[repr(align(64))]
struct Line {
    taken: AtomicU64,
    ended: AtomicU64,
}

/// The pins and the forks of a space.
pub(crate) struct PinCounts {
    lines: [Line; LINES],
    /// Twice the number of forks; odd while one is under way.
    forks: AtomicU64,
}

impl PinCounts {
    pub(crate) fn new() -> PinCounts {
        PinCounts { lines: array::from_fn(|_| Line::default()), forks: AtomicU64::new(0) }
    }

    fn line(&self, machine: &impl Cpus) -> &Line {
        &self.lines[machine.current().index() % LINES]
    }

    /// A pin begins. Returns the count of forks, if none is under way. One locked instruction.
    pub(crate) fn begin(&self, machine: &(impl Cpus + Step)) -> Option<u64> {
        machine.step(machine::SharedAccess::Other);
        // Relaxed: the fence in `stays` orders it before the look.
        self.line(machine).taken.fetch_add(1, Ordering::Relaxed);
        machine.step(machine::SharedAccess::Other);
        // Acquire: pairs with the end of a fork: the entries that it has shared are seen.
        Some(self.forks.load(Ordering::Acquire)).filter(|forks| forks.is_multiple_of(2))
    }

    /// Whether no fork has begun since [`begin`](Self::begin). The pages are pinned. A fence.
    pub(crate) fn stays(&self, machine: &impl Step, forks: u64) -> bool {
        // SeqCst: pairs with the fence in `fork`; the count and the pins come before the look.
        fence(Ordering::SeqCst);
        machine.step(machine::SharedAccess::Other);
        // Relaxed: the fences order it.
        self.forks.load(Ordering::Relaxed) == forks
    }

    /// A pin has ended, on any CPU. One locked instruction.
    pub(crate) fn end(&self, machine: &impl Cpus) {
        // Release: pairs with the Acquire in `fork`. Writes through the pin, and its end, come
        // before.
        self.line(machine).ended.fetch_add(1, Ordering::Release);
    }

    /// A fork begins, with the mmap lock. Returns whether a page may be pinned; the other value
    /// ends the fork when it is dropped.
    pub(crate) fn fork(&self, machine: &impl Step) -> (bool, impl Drop + '_) {
        struct Ends<'s>(&'s AtomicU64, u64);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                // Release: a pin that sees it sees what the fork has shared.
                self.0.store(self.1 + 2, Ordering::Release);
            }
        }
        machine.step(machine::SharedAccess::Other);
        // Relaxed: only the holder of the mmap lock changes it.
        let forks = self.forks.load(Ordering::Relaxed);
        self.forks.store(forks + 1, Ordering::Relaxed);
        // SeqCst: pairs with the fences of pins.
        fence(Ordering::SeqCst);
        machine.step(machine::SharedAccess::Other);
        let sum = |count: fn(&Line) -> &AtomicU64, ordering| {
            let counts = self.lines.iter().map(|line| count(line).load(ordering));
            counts.fold(0, u64::wrapping_add)
        };
        // Acquire: pairs with the Release of `end`: the beginnings are read later.
        let ended = sum(|line| &line.ended, Ordering::Acquire);
        // Relaxed: the fences order those that count.
        let taken = sum(|line| &line.taken, Ordering::Relaxed);
        (taken != ended, Ends(&self.forks, forks))
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use alloc::sync::Arc;
    use machine::{CpuId, CpuSet};

    /// A CPU by its number.
    #[derive(Clone)]
    struct Cpu(usize);

    // SAFETY: each thread of a model is another CPU.
    unsafe impl Cpus for Cpu {
        fn count(&self) -> usize {
            LINES
        }

        fn current(&self) -> CpuId {
            CpuId::new(self.0).unwrap()
        }

        fn online(&self) -> CpuSet {
            CpuSet::only(self.current())
        }
    }

    // SAFETY: it does nothing.
    // SAFETY: it does nothing.
    unsafe impl Step for Cpu {}

    /// A pin that is kept, one that ends on another CPU, and a fork.
    #[test]
    fn a_fork_sees_each_pin_that_stays() {
        loom::model(|| {
            let counts = Arc::new(PinCounts::new());
            let (kept, ends) = (Arc::clone(&counts), Arc::clone(&counts));
            let kept = loom::thread::spawn(move || {
                // One that begins after the fork is not its concern.
                let begun = kept.begin(&Cpu(0)).filter(|forks| *forks == 0);
                begun.is_some_and(|forks| kept.stays(&Cpu(0), forks))
            });
            let ended = loom::thread::spawn(move || {
                let _ = ends.begin(&Cpu(1));
                ends.end(&Cpu(2));
            });
            let (found, under_way) = counts.fork(&Cpu(3));
            drop(under_way);
            assert!(found || !kept.join().unwrap(), "the fork shares a page that is pinned");
            ended.join().unwrap();
        });
    }

    /// The writes through a pin that the fork does not see are there.
    #[test]
    fn a_fork_sees_what_pins_have_written() {
        loom::model(|| {
            let counts = Arc::new(PinCounts::new());
            let page = Arc::new(loom::cell::UnsafeCell::new(0));
            let (pins, written) = (Arc::clone(&counts), Arc::clone(&page));
            let pin = loom::thread::spawn(move || {
                let stays = pins.begin(&Cpu(0)).is_some_and(|forks| pins.stays(&Cpu(0), forks));
                if stays {
                    // SAFETY: the fork reads it only if it sees no pin.
                    written.with_mut(|page| unsafe { *page = 1 });
                }
                pins.end(&Cpu(0));
            });
            let (found, under_way) = counts.fork(&Cpu(1));
            if !found {
                // SAFETY: as above.
                page.with(|page| unsafe { *page });
            }
            drop(under_way);
            pin.join().unwrap();
        });
    }
}
