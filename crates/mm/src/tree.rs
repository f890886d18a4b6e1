//! interim
use alloc::collections::BTreeMap;

use crate::{Error, MappedFile, Vma};

/// A VMA with its range: `start` to just below `end`, bytes.
#[derive(Clone, Debug)]
pub struct Area<F> {
    /// First byte.
    pub start: usize,
    /// Past last byte.
    pub end: usize,
    /// Contents.
    pub vma: Vma<F>,
}

pub(crate) struct VmaTree<F> {
    map: BTreeMap<usize, (usize, Vma<F>)>,
}

impl<F: MappedFile> VmaTree<F> {
    pub(crate) fn new() -> Self {
        VmaTree { map: BTreeMap::new() }
    }
    pub(crate) fn count(&self) -> usize {
        self.map.len()
    }
    pub(crate) fn covering(&self, addr: usize) -> Option<Area<F>> {
        self.at_or_after(addr).filter(|a| a.start <= addr)
    }
    pub(crate) fn at_or_after(&self, addr: usize) -> Option<Area<F>> {
        if let Some((&s, (e, v))) = self.map.range(..=addr).next_back() {
            if *e > addr {
                return Some(Area { start: s, end: *e, vma: v.clone() });
            }
        }
        self.map.range(addr..).next().map(|(&s, (e, v))| Area { start: s, end: *e, vma: v.clone() })
    }
    pub(crate) fn before(&self, addr: usize) -> Option<Area<F>> {
        self.map.range(..addr).next_back().map(|(&s, (e, v))| Area {
            start: s,
            end: *e,
            vma: v.clone(),
        })
    }
    fn cut(&mut self, at: usize) {
        if let Some((&s, (e, v))) = self.map.range(..at).next_back() {
            let (e, v) = (*e, v.clone());
            if e > at {
                v.anon.link();
                self.map.insert(s, (at, v.clone()));
                self.map.insert(at, (e, v));
            }
        }
    }
    pub(crate) fn store(&mut self, start: usize, end: usize, vma: Vma<F>) -> Result<(), Error> {
        vma.anon.link();
        self.erase(start, end)?;
        self.map.insert(start, (end, vma));
        Ok(())
    }
    pub(crate) fn erase(&mut self, start: usize, end: usize) -> Result<(), Error> {
        self.cut(start);
        self.cut(end);
        let keys: alloc::vec::Vec<_> = self.map.range(start..end).map(|(k, _)| *k).collect();
        for k in keys {
            self.map.remove(&k).unwrap().1.anon.unlink();
        }
        Ok(())
    }
    /// The highest gap of at least `len` bytes inside `low..high`, clipped to it.
    pub(crate) fn highest_gap(
        &self,
        low: usize,
        high: usize,
        len: usize,
    ) -> Option<(usize, usize)> {
        let mut top = high;
        for (&s, (e, _)) in self.map.range(..high).rev() {
            let bottom = (*e).max(low);
            if bottom < top && top - bottom >= len {
                return Some((bottom, top));
            }
            top = s;
            if top <= low {
                return None;
            }
        }
        (top > low && top - low >= len).then_some((low, top))
    }

    /// lowest
    pub(crate) fn lowest_gap(&self, low: usize, high: usize, len: usize) -> Option<(usize, usize)> {
        let mut bottom = low;
        for (&s, (e, _)) in self.map.range(..high) {
            let top = s.min(high);
            if top > bottom && top - bottom >= len {
                return Some((bottom, top));
            }
            bottom = bottom.max(*e);
        }
        (high > bottom && high - bottom >= len).then_some((bottom, high))
    }
}
