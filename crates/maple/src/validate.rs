//! The validator, which checks every structural invariant of a tree.

use crate::Index;
use crate::descent::{Descent, Pick, Step};
use crate::layout::{INNER_MIN, INNER_SLOTS};
use crate::node::Link;
use core::fmt;

/// An invariant of the structure of a tree.
///
/// ```
/// use maple::{MapleTree, Rule, Violation};
///
/// /// The rule that a test would print.
/// fn first_word(violation: &Violation) -> Rule {
///     violation.rule
/// }
/// let mut tree = MapleTree::<u32>::new();
/// tree.get_mut().store_range(1..=2, 3)?;
/// assert!(tree.get_mut().validate().map_err(|violation| first_word(&violation)).is_ok());
/// # Ok::<(), maple::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// An inner node has at least its minimum of children (the root: two), and at most as many as
    /// fit. A leaf has at least one entry, and at most as many slots as fit.
    Occupancy,
    /// The bounds of a node increase, from its first index to its last.
    Order,
    /// Unused separators are the largest index and unused children are null. The mask of a leaf has
    /// no bit for slots that do not exist. Only holes have a null word.
    Padding,
    /// Every child exists and is one level below its parent.
    Depth,
    /// The gap stored for a child is the length of its largest hole.
    Gap,
    /// No two holes touch, within a leaf or across leaves.
    AdjacentHoles,
    /// A tree without entries has no nodes.
    EmptyRoot,
    /// The nodes of a level cover every index from 0 to the largest.
    Coverage,
}

/// A broken invariant and its place; from [`Writer::validate`](crate::Writer::validate).
///
/// ```
/// use maple::MapleTree;
/// let mut tree = MapleTree::<u32>::new();
/// let mut writer = tree.get_mut();
/// for i in 0..1000 {
///     writer.store_range(i * 3..=i * 3 + 1, i as u32).unwrap();
/// }
/// assert_eq!(writer.validate(), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub rule: Rule,
    /// The level of the node; 0 for a leaf.
    pub level: usize,
    /// The first index of the node.
    pub min: Index,
    /// The last index of the node.
    pub max: Index,
    /// The slot in the node.
    pub slot: usize,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { rule, level, min, max, slot } = self;
        write!(f, "{rule:?} does not hold at level {level}, node {min:#x}..={max:#x}, slot {slot}")
    }
}

impl core::error::Error for Violation {}

/// # Safety
/// The caller is the writer.
pub(crate) unsafe fn validate(root: Link) -> Result<(), Violation> {
    if root.is_null() {
        return Ok(());
    }
    // From the top down: a level is walked only if the levels above it are sound. Then the gaps,
    // which need all bounds.
    for level in (0..=root.level()).rev() {
        let mut path = Descent::new();
        // SAFETY: the caller's promise.
        unsafe { path.walk_part(root, 0, Index::MAX, level, Pick::First) };
        let mut seen = Seen { next: Some(0), hole: false, entries: 0 };
        loop {
            let step = *path.step(level);
            let is_root = level == root.level();
            if level == 0 {
                leaf(&step, is_root, &mut seen)?
            } else {
                inner(&step, is_root, &mut seen)?
            }
            if path.next_node().is_none() {
                if seen.next.is_some() {
                    return Err(at(&step, Rule::Coverage, 0));
                }
                if level == 0 && seen.entries == 0 {
                    return Err(at(&step, Rule::EmptyRoot, 0));
                }
                break;
            }
        }
    }
    for level in 1..=root.level() {
        let mut path = Descent::new();
        // SAFETY: the caller's promise.
        unsafe { path.walk_part(root, 0, Index::MAX, level, Pick::First) };
        loop {
            gaps(path.step(level))?;
            if path.next_node().is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// The state of the check of one level.
struct Seen {
    /// The first index that the next node must have; `None` after the largest index.
    next: Option<Index>,
    /// Whether the last slot was a hole.
    hole: bool,
    entries: usize,
}

fn at(step: &Step, rule: Rule, slot: usize) -> Violation {
    Violation { rule, level: step.link.level(), min: step.min, max: step.max, slot }
}

fn cover(step: &Step, seen: &mut Seen) -> Result<(), Violation> {
    if seen.next != Some(step.min) {
        return Err(at(step, Rule::Coverage, 0));
    }
    seen.next = step.max.checked_add(1);
    Ok(())
}

/// The bounds increase and end at the node's end; the rest is padding.
fn bounds(step: &Step, bounds: &[Index], len: usize) -> Result<(), Violation> {
    let mut min = step.min;
    for (slot, &bound) in bounds.iter().enumerate() {
        let last = slot + 1 == len;
        if slot < len {
            if bound < min || (last && bound != step.max) || (!last && bound >= step.max) {
                return Err(at(step, Rule::Order, slot));
            }
            min = bound.wrapping_add(1);
        } else if bound != Index::MAX {
            return Err(at(step, Rule::Padding, slot));
        }
    }
    if min > step.max && len > bounds.len() {
        return Err(at(step, Rule::Order, len - 1));
    }
    Ok(())
}

fn leaf(step: &Step, is_root: bool, seen: &mut Seen) -> Result<(), Violation> {
    // SAFETY: the promise of `validate`.
    let body = unsafe { step.link.as_leaf().body() };
    let (len, entries) = (body.len(), body.entries());
    // The mask comes first: bits for slots that do not exist would count as entries.
    if entries >> len != 0 {
        return Err(at(step, Rule::Padding, len));
    }
    if entries == 0 && !is_root || !body.is_within_room() {
        return Err(at(step, Rule::Occupancy, len));
    }
    cover(step, seen)?;
    let mut min = step.min;
    for slot in 0..len {
        let end = body.end(slot, step.max);
        if end < min || (slot + 1 < len && end >= step.max) {
            return Err(at(step, Rule::Order, slot));
        }
        min = end.wrapping_add(1);
        if body.is_hole(slot) && seen.hole {
            return Err(at(step, Rule::AdjacentHoles, slot));
        }
        if body.is_hole(slot) != body.word(slot).is_null() {
            return Err(at(step, Rule::Padding, slot));
        }
        seen.hole = body.is_hole(slot);
        seen.entries += usize::from(!seen.hole);
    }
    Ok(())
}

fn inner(step: &Step, is_root: bool, seen: &mut Seen) -> Result<(), Violation> {
    // SAFETY: the promise of `validate`.
    let (node, seps) = unsafe { (step.link.as_inner(), step.link.as_inner().seps()) };
    let min = if is_root { 2 } else { INNER_MIN };
    if !(min..=INNER_SLOTS).contains(&seps.len()) {
        return Err(at(step, Rule::Occupancy, seps.len()));
    }
    cover(step, seen)?;
    bounds(step, &seps.bounds, seps.len())?;
    for slot in 0..INNER_SLOTS {
        let child = node.child(slot);
        if slot >= seps.len() {
            if !child.is_null() || node.gap(slot) != 0 {
                return Err(at(step, Rule::Padding, slot));
            }
            continue;
        }
        if child.is_null() || child.level() + 1 != step.link.level() {
            return Err(at(step, Rule::Depth, slot));
        }
    }
    Ok(())
}

fn gaps(step: &Step) -> Result<(), Violation> {
    // SAFETY: the promise of `validate`.
    let (node, seps) = unsafe { (step.link.as_inner(), step.link.as_inner().seps()) };
    for slot in 0..seps.len() {
        let (child, min) = (node.child(slot), seps.start(slot, step.min));
        // SAFETY: the promise of `validate`; the child's level was checked.
        let gap = unsafe {
            if child.level() == 0 {
                child.as_leaf().body().largest_gap((min, seps.end(slot, step.max)))
            } else {
                child.as_inner().max_gap(Index::MAX)
            }
        };
        if gap != node.gap(slot) {
            return Err(at(step, Rule::Gap, slot));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MapleTree;
    use crate::descent::Descent;

    /// Makes a sound tree of two levels, and calls `damage` with the path to its second leaf. Then
    /// the validator must report a violation, which is returned. After `repair` the tree must be
    /// sound again.
    fn found<T>(damage: impl Fn(&Descent) -> T, repair: impl Fn(&Descent, T)) -> Violation {
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        for i in 0..20 {
            writer.store_range(i * 10 + 5..=i * 10 + 9, i as u32).unwrap();
        }
        writer.validate().unwrap();
        let root = writer.root();
        assert!(root.level() > 0);
        let mut path = Descent::new();
        // SAFETY: we are the writer for the whole test.
        unsafe { path.walk(root, Pick::First) };
        path.next_node().unwrap();
        let kept = damage(&path);
        let violation = writer.validate().unwrap_err();
        repair(&path, kept);
        writer.validate().unwrap();
        violation
    }

    #[allow(clippy::mut_from_ref)]
    fn body(path: &Descent) -> &mut crate::node::Body {
        // SAFETY: no other reference into the tree is in use.
        unsafe { path.step(0).link.as_leaf().body_mut() }
    }

    fn parent(path: &Descent) -> &crate::node::Inner {
        // SAFETY: the node is in the tree.
        unsafe { path.step(1).link.as_inner() }
    }

    #[test]
    fn order() {
        // Two neighbouring bounds of the second leaf.
        let swap = |path: &Descent| body(path).swap_bounds(0, 1);
        let violation = found(swap, |path, ()| swap(path));
        assert_eq!((violation.rule, violation.level, violation.slot), (Rule::Order, 0, 1));
    }

    #[test]
    fn occupancy() {
        let violation = found(
            |path| body(path).replace_mask(0),
            |path, mask| {
                body(path).replace_mask(mask);
            },
        );
        assert_eq!((violation.rule, violation.level), (Rule::Occupancy, 0));
    }

    #[test]
    fn gap() {
        let violation = found(
            |path| {
                let gap = parent(path).gap(path.step(1).slot);
                parent(path).set_gap(path.step(1).slot, gap + 1);
                gap
            },
            |path, gap| parent(path).set_gap(path.step(1).slot, gap),
        );
        assert_eq!((violation.rule, violation.level), (Rule::Gap, 1));
        assert_eq!(violation.slot, 1);
    }

    #[test]
    fn adjacent_holes() {
        // One entry less: it becomes a hole before a hole.
        let violation = found(
            |path| {
                let mask = body(path).entries();
                body(path).replace_mask(mask & (mask - 1))
            },
            |path, mask| {
                body(path).replace_mask(mask);
            },
        );
        assert_eq!((violation.rule, violation.level), (Rule::AdjacentHoles, 0));
    }

    /// The root leaf of a tree with one leaf. Each test borrows it again after the validator has
    /// read it.
    fn root_body<'b>(
        writer: &crate::Writer<'_, u32, grace::Single, crate::Nodes>,
    ) -> &'b mut crate::node::Body {
        // SAFETY: the test is alone with the tree and drops the reference at once.
        unsafe { writer.root().as_leaf().body_mut() }
    }

    #[test]
    fn padding() {
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        writer.store_range(0..=Index::MAX, 1).unwrap();
        let mask = root_body(&writer).replace_mask(0b11);
        assert_eq!(writer.validate().unwrap_err().rule, Rule::Padding);
        root_body(&writer).replace_mask(mask);
        writer.validate().unwrap();
    }

    #[test]
    fn an_empty_root() {
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        writer.store_range(0..=Index::MAX, 1).unwrap();
        let mask = root_body(&writer).replace_mask(0);
        assert_eq!(writer.validate().unwrap_err().rule, Rule::EmptyRoot);
        root_body(&writer).replace_mask(mask);
        writer.validate().unwrap();
    }

    #[test]
    fn depth() {
        let violation = found(
            |path| {
                let slot = path.step(1).slot;
                let child = parent(path).child(slot);
                parent(path).publish(slot, Link::NULL);
                child
            },
            |path, child| parent(path).publish(path.step(1).slot, child),
        );
        assert_eq!((violation.rule, violation.slot), (Rule::Depth, 1));
    }
}
