//! No vectors here, but maybe the instructions that count bits and shift by any register (`popcnt`,
//! `bmi1`, `bmi2`).
//!
//! Those work on general registers alone, so a kernel may use them wherever it runs. Any processor
//! since 2013 has them, yet compilers do not count on it: so it is asked, once. Where asking is not
//! possible, or not allowed, the build decides.

use super::load::{Job, Scalar};
pub(super) use super::search::inner_scalar as inner;
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
pub(super) use x86::run;

/// Does a job by what any processor has.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
#[inline(always)]
pub(super) fn run<J: Job>(job: J) -> J::Out {
    job.run(Scalar)
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
mod x86 {
    use super::*;
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    use core::sync::atomic::{AtomicU8, Ordering};

    /// What the processor was found to have; [`UNKNOWN`] as long as nobody asked.
    static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NOTHING: u8 = 1;
    const BITS: u8 = 2;

    /// Does a job by what this processor has.
    ///
    /// Cost of the question: nothing where the build knows, else a load and a predictable branch.
    #[inline(always)]
    pub(in super::super) fn run<J: Job>(job: J) -> J::Out {
        let sure =
            cfg!(all(target_feature = "popcnt", target_feature = "bmi1", target_feature = "bmi2"));
        // Relaxed: the byte is all there is to know.
        if sure || FOUND.load(Ordering::Relaxed) == BITS {
            // SAFETY: the processor has them.
            unsafe { with(job) }
        } else {
            without(job)
        }
    }

    /// # Safety
    /// The processor has them.
    #[target_feature(enable = "popcnt,bmi1,bmi2")]
    #[inline]
    unsafe fn with<J: Job>(job: J) -> J::Out {
        job.run(Scalar)
    }

    /// Not inlined, and the question is asked in here: so the usual way is all that there is before
    /// a branch.
    #[cold]
    #[inline(never)]
    fn without<J: Job>(job: J) -> J::Out {
        // Relaxed: as above.
        if FOUND.load(Ordering::Relaxed) == UNKNOWN && ask() {
            // SAFETY: the processor has them.
            unsafe { with(job) }
        } else {
            job.run(Scalar)
        }
    }

    /// Whoever asks at the same time finds the same.
    fn ask() -> bool {
        let bit = |word: u32, bit: u32| word >> bit & 1 == 1;
        let has = __cpuid(0).eax >= 7 && bit(__cpuid(1).ecx, 23) && {
            let more = __cpuid_count(7, 0).ebx;
            bit(more, 3) && bit(more, 8)
        };
        // Relaxed: see `run`.
        FOUND.store(if has { BITS } else { NOTHING }, Ordering::Relaxed);
        has
    }
}

/// Lets a word into a leaf: without vectors it is moved as a pointer, and nothing is to be done.
#[inline(always)]
pub(super) fn put_in(word: *mut ()) -> *mut () {
    word
}

/// A word as it is read out of a leaf.
#[inline(always)]
pub(super) fn taken_out(word: *mut ()) -> *mut () {
    word
}
