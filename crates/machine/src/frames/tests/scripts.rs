//! Random calls, compared with a model of the free frames.

use super::*;
use alloc::collections::BTreeMap;
use proptest::prelude::*;

/// Miri is slow.
const STEPS: usize = if cfg!(miri) { 60 } else { 300 };

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: if cfg!(miri) { 1 } else { 256 }, ..ProptestConfig::default()
    })]
    /// Compares with a map of blocks: blocks do not overlap, each is aligned, and the number of
    /// free frames is right.
    #[test]
    fn as_a_map(script in proptest::collection::vec((0u8..2, 0u8..7, 0usize..64), 0..STEPS)) {
        let (host, frames) = source();
        let mut held = BTreeMap::new();
        for (cpu, what, which) in script {
            host.be(usize::from(cpu));
            if what < 4 {
                let order = what * 2;
                match frames.alloc(&host, order, if which % 2 == 0 { NodePolicy::Local } else { NodePolicy::Only(NodeId(1)) }) {
                    Ok(got) => {
                        let (start, len) = (got.number(), 1u64 << order);
                        prop_assert!(start % len == 0 && (1024..1792).contains(&start));
                        prop_assert!(held.range(..start + len).next_back().is_none_or(|(at, held)| at + held <= start));
                        held.insert(start, len);
                    }
                    Err(error) => prop_assert_eq!(error, FrameError::OutOfFrames { order }),
                }
            } else if let Some(start) = held.keys().nth(which % held.len().max(1)).copied() {
                held.remove(&start);
                prop_assert_eq!(free(&frames, &host, frame(start)), Ok(()));
            }
            prop_assert_eq!(frames.free_frames() as u64, 512 - held.values().sum::<u64>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..ProptestConfig::default()
    })]

    /// A block at a chosen place is given exactly if all its frames are free, and then they are
    /// taken, and no others.
    #[test]
    #[cfg_attr(miri, ignore = "takes too long")]
    fn blocks_at_chosen_places(calls in proptest::collection::vec((0u64..270, 0u8..7, any::<bool>()), 1..60)) {
        let (host, frames) = source();
        let mut taken: Vec<(Frame, u8)> = Vec::new();
        let mut is_free = [true; 256];
        for (at, order, gives) in calls {
            if gives && !taken.is_empty() {
                let (block, order) = taken.swap_remove(at as usize % taken.len());
                free(&frames, &host, block).unwrap();
                let first = (block.number() - 1024) as usize;
                is_free[first..first + (1 << order)].fill(true);
                continue;
            }
            let (len, first) = (1usize << order, at as usize);
            let result = frames.alloc_at(&host, frame(1024 + at), order);
            if first + len > 256 {
                let beyond = if first < 256 { at + len as u64 - 1 } else { at };
                prop_assert_eq!(result, Err(FrameError::NotOurs(frame(1024 + beyond))));
                continue;
            }
            let fits = first.is_multiple_of(len) && is_free[first..first + len].iter().all(|free| *free);
            let expected = if fits { Ok(()) } else { Err(FrameError::NotFree(frame(1024 + at))) };
            prop_assert_eq!(result, expected);
            if fits {
                is_free[first..first + len].fill(false);
                taken.push((frame(1024 + at), order));
                prop_assert_eq!(frames.info(frame(1024 + at)).map(FrameInfo::refs), Some(1));
            }
        }
        let left = is_free.iter().filter(|free| **free).count();
        prop_assert_eq!(frames.free_frames(), left + 256);
        taken.into_iter().for_each(|(block, _)| free(&frames, &host, block).unwrap());
        prop_assert!(frames.alloc(&host, 8, NodePolicy::Only(NodeId(0))).is_ok(), "they have merged");
    }
}
