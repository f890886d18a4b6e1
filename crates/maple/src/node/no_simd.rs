//! The scalar build: no SIMD, but instructions that count bits and shift by any register (`popcnt`,
//! `bmi1`, `bmi2`) where the CPU has them.
//!
//! Those instructions use general registers only, so a kernel may use them anywhere. Every x86-64
//! CPU since 2013 has them, but compilers do not assume them. So the first call asks `cpuid`. Where
//! that is impossible or forbidden, the build decides. So it does with the feature `small`, which
//! compiles each operation once.

use super::job::{Job, Scalar};
#[cfg(all(target_arch = "x86_64", not(any(miri, loom, feature = "small"))))]
pub(super) use x86::run;

const _: () = assert!(!super::word::MOVES_WORDS);

/// Runs a job with the instructions that every CPU has.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, feature = "small")))))]
#[inline(always)]
pub(super) fn run<J: Job>(job: J) -> J::Out {
    job.run(Scalar)
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom, feature = "small"))))]
mod x86 {
    use super::*;
    use core::arch::x86_64::__cpuid_count;
    use core::sync::atomic::{AtomicU8, Ordering};

    /// The result of `ask`; [`UNKNOWN`] before the first call.
    static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NOTHING: u8 = 1;
    const BITS: u8 = 2;

    /// Runs a job with the instructions that this CPU has.
    ///
    /// Cost: none if the build guarantees the instructions, else a load and a predictable branch.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in super::super) fn run<J: Job>(job: J) -> J::Out {
        let sure =
            cfg!(all(target_feature = "popcnt", target_feature = "bmi1", target_feature = "bmi2"));
        // Relaxed: no other data depends on the byte.
        if sure || FOUND.load(Ordering::Relaxed) == BITS {
            // SAFETY: the CPU has the instructions.
            unsafe { with(job) }
        } else {
            without(job)
        }
    }

    /// # Safety
    /// The CPU has the instructions.
    #[target_feature(enable = "popcnt,bmi1,bmi2")]
    #[inline]
    unsafe fn with<J: Job>(job: J) -> J::Out {
        job.run(Scalar)
    }

    /// Not inlined, and asks in here: so only the usual path is inlined, with one branch.
    #[cold]
    #[inline(never)]
    fn without<J: Job>(job: J) -> J::Out {
        // Relaxed: as above.
        if FOUND.load(Ordering::Relaxed) == UNKNOWN && ask() {
            // SAFETY: the CPU has the instructions.
            unsafe { with(job) }
        } else {
            job.run(Scalar)
        }
    }

    /// Asks `cpuid`. Concurrent calls find the same.
    fn ask() -> bool {
        let bit = |word: u32, bit: u32| word >> bit & 1 == 1;
        #[allow(unused_unsafe, reason = "safe since Rust 1.94")]
        // SAFETY: each processor of this architecture has the instruction.
        let leaf = |leaf| unsafe { __cpuid_count(leaf, 0) };
        let has = leaf(0).eax >= 7 && bit(leaf(1).ecx, 23) && {
            let more = leaf(7).ebx;
            bit(more, 3) && bit(more, 8)
        };
        // Relaxed: see `run`.
        FOUND.store(if has { BITS } else { NOTHING }, Ordering::Relaxed);
        has
    }
}
