//! The search within a node.

/// How many of `bounds` are smaller than `index`: the slot that holds it, when unused bounds are
/// `usize::MAX`.
///
/// Branch-free: the loop has a fixed length and no exit, so there is nothing to mispredict, and the
/// compiler may use vectors where the target has them. Cost: one or two cache lines, no branch.
#[inline(always)]
pub(super) fn rank<const N: usize>(bounds: &[usize; N], index: usize) -> usize {
    let mut rank = 0;
    for &bound in bounds {
        rank += usize::from(bound < index);
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_smaller_bounds() {
        let bounds = [3, 3 + 1, 9, usize::MAX, usize::MAX];
        for (index, slot) in [(0, 0), (3, 0), (4, 1), (5, 2), (9, 2), (10, 3), (usize::MAX, 3)] {
            assert_eq!(rank(&bounds, index), slot, "{index}");
        }
    }
}
