//! The search within a node.

/// Bounds in a group: one in so many is looked at first, then those of one group.
const GROUP: usize = 3;

/// How many of `bounds`, which ascend, are smaller than `index`: the slot that holds it, when unused
/// bounds are `usize::MAX`.
///
/// Two short counts instead of one long one: the last bounds of all groups but the last tell which group,
/// then its own bounds are counted (its last adds nothing, unless the group is the last). For 15 bounds
/// that is seven comparisons, each with an `adc`. A single count over 15 is what LLVM turns into vectors,
/// which without AVX-512 cost four times as much; a binary search has four loads in a row instead of two.
/// No loop has an exit, so there is nothing to mispredict.
///
/// Cost: one or two cache lines, no branch.
#[inline(always)]
pub(super) fn rank<const N: usize>(bounds: &[usize; N], index: usize) -> usize {
    const { assert!(N.is_multiple_of(GROUP), "groups of equal size") }
    let mut group = 0;
    for after in 1..N / GROUP {
        group += usize::from(bounds[after * GROUP - 1] < index);
    }
    let first = group * GROUP;
    let mut rank = first;
    for &bound in &bounds[first..first + GROUP] {
        rank += usize::from(bound < index);
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_smaller_bounds() {
        let bounds = [3, 3 + 1, 9, usize::MAX, usize::MAX, usize::MAX];
        for (index, slot) in [(0, 0), (3, 0), (4, 1), (5, 2), (9, 2), (10, 3), (usize::MAX, 3)] {
            assert_eq!(rank(&bounds, index), slot, "{index}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "long, and plain arithmetic")]
    fn at_every_fill() {
        fn fills<const N: usize>() {
            for len in 0..=N {
                let bounds =
                    core::array::from_fn::<_, N, _>(|i| if i < len { 10 * i } else { usize::MAX });
                for index in (0..10 * N + 2).chain([usize::MAX]) {
                    let smaller = bounds.iter().filter(|&&bound| bound < index).count();
                    assert_eq!(rank(&bounds, index), smaller, "{index} of {len}");
                }
            }
        }
        fills::<3>();
        fills::<9>();
        fills::<15>();
    }
}
