//! Printing a tree.

use crate::descent::{Descent, Pick};
use crate::node::Link;
use core::fmt;
use core::marker::PhantomData;

/// Prints a tree, one line per node and per slot; made by [`Writer::dump`](crate::Writer::dump).
///
/// ```
/// use maple::MapleTree;
/// let mut tree = MapleTree::<u16>::new();
/// let mut writer = tree.get_mut();
/// writer.store_range(0x10..=0x1f, 6).unwrap();
/// let text = writer.dump().to_string();
/// assert!(text.starts_with("leaf 0x0..=0xffffffffffffffff (3 slots)\n"));
/// assert!(text.contains("\n  0x10..=0x1f: 0x7\n"));
/// ```
pub struct Dump<'g> {
    root: Link,
    _life: PhantomData<&'g ()>,
}

impl Dump<'_> {
    /// # Safety
    /// The caller is the writer for the dump's lifetime.
    pub(crate) unsafe fn new(root: Link) -> Self {
        Dump { root, _life: PhantomData }
    }
}

impl fmt::Display for Dump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.root.is_null() {
            return writeln!(f, "empty");
        }
        let top = self.root.level();
        let mut path = Descent::new();
        // SAFETY: the promise of `new`.
        unsafe { path.walk(self.root, Pick::First) };
        let mut turned = top + 1;
        loop {
            for level in (0..turned).rev() {
                node(f, &path, level, (top - level) * 2)?;
            }
            match path.next_node() {
                Some(level) => turned = level,
                None => return Ok(()),
            }
        }
    }
}

fn node(f: &mut fmt::Formatter<'_>, path: &Descent, level: usize, indent: usize) -> fmt::Result {
    let step = path.step(level);
    let (min, max, len) = (step.min, step.max, step.len());
    if level > 0 {
        // SAFETY: the path's invariant.
        let inner = unsafe { step.link.as_inner() };
        write!(f, "{:indent$}node {min:#x}..={max:#x} level {level} ({len} children), gaps", "")?;
        for slot in 0..len {
            write!(f, " {:#x}", inner.gap(slot))?;
        }
        return writeln!(f);
    }
    writeln!(f, "{:indent$}leaf {min:#x}..={max:#x} ({len} slots)", "")?;
    // SAFETY: the path's invariant.
    let body = unsafe { step.link.as_leaf().body() };
    for slot in 0..len {
        let (start, end) = (body.start(slot, min), body.end(slot, max));
        write!(f, "{:indent$}  {start:#x}..={end:#x}: ", "")?;
        if body.is_hole(slot) {
            writeln!(f, "hole")?;
        } else {
            writeln!(f, "{:#x}", body.word(slot).addr())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::MapleTree;
    use std::{format, string::ToString};

    #[test]
    fn every_slot_has_a_line() {
        let mut tree = MapleTree::<u16>::new();
        let mut writer = tree.get_mut();
        assert_eq!(writer.dump().to_string(), "empty\n");
        let n = if cfg!(miri) { 20 } else { 100 };
        for i in 0..n {
            writer.store_range(i * 16..=i * 16 + 7, i as u16).unwrap();
        }
        let (text, stats) = (writer.dump().to_string(), writer.stats());
        let count =
            |what: &str| text.lines().filter(|line| line.trim_start().starts_with(what)).count();
        assert_eq!((count("leaf"), count("node")), (stats.leaves, stats.nodes - stats.leaves));
        assert_eq!(text.lines().filter(|line| line.ends_with(": hole")).count(), stats.holes);
        assert_eq!(text.lines().count(), stats.nodes + stats.entries + stats.holes);
        let last = format!("  {:#x}..={:#x}: {n:#x}\n", (n - 1) * 16, (n - 1) * 16 + 7);
        assert!(text.contains(&last), "{text}");
    }
}
