//! The search within a node with NEON, which every AArch64 CPU of an operating system has: it
//! compares all bounds of a node at once.
//!
//! NEON has no instruction that makes a bit of each lane. So the outcomes of the comparisons are
//! narrowed to bytes, each byte keeps one bit, and pairs of bytes are added until a word is left.
//!
//! Correctness: vectors read the whole room of a leaf, and so also bounds beyond the last. Those
//! lie inside the node, are initialised, and are masked out. The bounds of a published node never
//! change, so the loads race with no store.

#[cfg(test)]
#[path = "neon/tests.rs"]
mod tests;

use super::change::NodeEdits;
use super::inner::Seps;
use super::job::{Job, Scalar, Search};
use super::leaf::Body;
use super::starts::{LANES, Starts, after};
use crate::Index;
use crate::layout::{INNER_SLOTS, LEAF_CELLS};
use core::arch::aarch64::*;

const _: () = assert!(!super::word::MOVES_WORDS);

// 32 narrow bounds, or 24 wide ones, lie in the room.
const _: () = assert!(8 * LEAF_CELLS >= 192 && INNER_SLOTS == 16 && LANES == 32);

/// Runs a job with NEON, for which this file was chosen.
#[inline(always)]
pub(super) fn run<J: Job>(job: J) -> J::Out {
    if cfg!(target_feature = "neon") { job.run(Neon) } else { job.run(Scalar) }
}

/// The search and the unpacking with NEON.
#[derive(Clone, Copy)]
struct Neon;

impl NodeEdits for Neon {}

impl Search for Neon {
    /// Cost: two or three cache lines, about fifty instructions. A branch: the leaf's form.
    #[inline(always)]
    fn below(self, body: &Body, index: Index) -> u32 {
        let n = body.len() as u32 - 1;
        // SAFETY: the build has NEON. The bounds are inside the room.
        let lanes = unsafe {
            if body.wide { below_wide(body, index) } else { below_narrow(body, body.units(index)) }
        };
        lanes & ((1 << n) - 1)
    }

    /// Cost: two cache lines, about thirty instructions, no branch.
    #[inline(always)]
    fn inner(self, seps: &Seps, index: Index) -> usize {
        // SAFETY: the build has NEON.
        unsafe { inner(seps, index) }
    }

    #[inline(always)]
    fn unpack(self, body: &Body, to: &mut Starts) {
        // SAFETY: the build has NEON.
        unsafe { unpack(body, to) }
    }
}

/// Compares 32 narrow bounds: bit `i` is set if bound `i` is below `units`.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn below_narrow(body: &Body, units: u32) -> u32 {
    let wanted = vdupq_n_u32(units);
    // SAFETY: inside the room.
    bits(core::array::from_fn(|i| unsafe {
        vcltq_u32(vld1q_u32(body.narrow().add(4 * i)), wanted)
    }))
}

/// Compares 24 wide bounds: bit `i` is set if bound `i` is below `index`.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn below_wide(body: &Body, index: Index) -> u32 {
    let wanted = vdupq_n_u64(index as u64);
    let two = |i: usize| {
        // SAFETY: inside the room.
        let bounds = unsafe { vld1q_u64(body.words_wide().add(2 * i).cast()) };
        vreinterpretq_u32_u64(vcltq_u64(bounds, wanted))
    };
    let none = vdupq_n_u32(0);
    bits(core::array::from_fn(
        |i| {
            if i < 6 { vuzp1q_u32(two(2 * i), two(2 * i + 1)) } else { none }
        },
    ))
}

/// A bit for each of 32 lanes, all of whose bits are equal.
#[target_feature(enable = "neon")]
#[inline]
fn bits(lanes: [uint32x4_t; 8]) -> u32 {
    let halves: [uint8x16_t; 4] = core::array::from_fn(|i| {
        let [first, second] =
            [lanes[2 * i], lanes[2 * i + 1]].map(|four| vreinterpretq_u16_u32(four));
        vreinterpretq_u8_u16(vuzp1q_u16(first, second))
    });
    // Each byte of eight keeps another bit: the sum of eight bytes has them all.
    let one_each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let low = vandq_u8(vuzp1q_u8(halves[0], halves[1]), one_each);
    let high = vandq_u8(vuzp1q_u8(halves[2], halves[3]), one_each);
    let pairs = vpaddq_u8(low, high);
    let fours = vpaddq_u8(pairs, pairs);
    vgetq_lane_u32::<0>(vreinterpretq_u32_u8(vpaddq_u8(fours, fours)))
}

#[target_feature(enable = "neon")]
#[inline]
unsafe fn inner(seps: &Seps, index: Index) -> usize {
    let at = (&raw const *seps).cast::<u64>();
    let wanted = vdupq_n_u64(index as u64);
    let mut count = vdupq_n_u64(0);
    for i in 0..7 {
        // SAFETY: separators 0 to 13. It must not read past separator 14: the reference count there
        // may change.
        let bounds = unsafe { vld1q_u64(at.add(2 * i)) };
        // All bits of a lane are -1.
        count = vsubq_u64(count, vcltq_u64(bounds, wanted));
    }
    vaddvq_u64(count) as usize + usize::from(seps.bounds[14] < index)
}

#[target_feature(enable = "neon")]
#[inline]
unsafe fn unpack(body: &Body, to: &mut Starts) {
    let others = to.others().cast::<u64>();
    if body.wide {
        let one = vdupq_n_u64(1);
        for i in 0..12 {
            // SAFETY: 24 words lie in the room, and have a place in `others`.
            unsafe {
                let bounds = vld1q_u64(body.words_wide().add(2 * i).cast());
                vst1q_u64(others.add(2 * i), vaddq_u64(bounds, one));
            }
        }
        return;
    }
    let shift = vdupq_n_s64(body.shift.into());
    let after = vdupq_n_u64(after(body) as u64);
    for i in 0..LANES / 4 {
        // SAFETY: 32 bounds lie in the room, and have a place in `others`.
        unsafe {
            let bounds = vld1q_u32(body.narrow().add(4 * i));
            for (half, units) in
                [vmovl_u32(vget_low_u32(bounds)), vmovl_high_u32(bounds)].into_iter().enumerate()
            {
                let starts = vaddq_u64(vshlq_u64(units, shift), after);
                vst1q_u64(others.add(4 * i + 2 * half), starts);
            }
        }
    }
}
