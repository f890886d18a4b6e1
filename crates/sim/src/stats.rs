//! Counts of the machine's operations, which do not depend on the host.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counts of one CPU, or of all together. Subtract two readings.
        ///
        /// ```
        /// use machine::{SharedAccess, Step};
        /// use sim::{Config, Sim};
        /// let sim = Sim::new(Config::default()).unwrap();
        /// let before = sim.stats();
        /// sim.on_cpu(0, || sim.step(SharedAccess::Other));
        /// assert_eq!((sim.stats() - before).steps, 1);
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct SimStats {
            $($(#[$doc])* pub $name: u64,)+
        }

        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)+
        }

        impl Counters {
            pub(crate) fn read(&self) -> SimStats {
                SimStats { $($name: self.$name.get(),)+ }
            }
        }

        impl Add for SimStats {
            type Output = SimStats;
            fn add(self, other: SimStats) -> SimStats {
                SimStats { $($name: self.$name + other.$name,)+ }
            }
        }

        impl Sub for SimStats {
            type Output = SimStats;
            /// The difference of two readings. Counts only grow; it is at least 0.
            fn sub(self, older: SimStats) -> SimStats {
                SimStats { $($name: self.$name.saturating_sub(older.$name),)+ }
            }
        }
    };
}

stats! {
    /// Steps: points at which another CPU may run.
    steps,
    /// Flushes that hardware broadcast to other CPUs, with no interrupt.
    broadcasts,
    /// Calls of [`published`](machine::Tlb::published).
    published,
    /// Interrupts sent to other CPUs.
    ipis_sent,
    /// Interrupts taken from other CPUs.
    ipis_taken,
    /// Timer interrupts taken.
    ticks,
    /// Flushes performed on a CPU's own caches, for itself or by request.
    flushes,
    /// Translations that flushes dropped.
    dropped,
    /// Accesses that the TLB translated.
    hits,
    /// Page walks.
    walks,
    /// Entries that page walks read.
    entries_walked,
    /// Page walks that began at a cached upper-level entry.
    upper_hits,
    /// Translations cached without an access.
    speculated,
    /// Faults.
    faults,
    /// Iterations of waiting loops.
    waits,
}

/// A count that one CPU changes, or several that hold its lock; all may read it.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, count: u64) -> u64 {
        // Relaxed: a statistic. A load and a store suffice: there is one writer at a time.
        let now = self.0.load(Ordering::Relaxed) + count;
        self.0.store(now, Ordering::Relaxed);
        now
    }

    fn get(&self) -> u64 {
        // Relaxed: a statistic.
        self.0.load(Ordering::Relaxed)
    }
}
