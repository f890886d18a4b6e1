//! The expected contents of the pages of a process: a plain map from pages to words.

use std::{collections::BTreeMap, ops::Range};

use mm::{Backing, RemapRequest};
use sim::Sim;
use vma::{PAGE_SIZE, Vma};

use super::objects::{Objects, key_of};

/// The words at the start of the private pages of an address space that were written; `None` if a
/// call that failed half-way may have moved or dropped the page.
#[derive(Clone, Default)]
pub(super) struct Model(BTreeMap<usize, Option<u64>>);

impl Model {
    /// The word at the start of a page in a VMA; `None` if it is not known.
    pub(super) fn expected(
        &self,
        objects: &Objects,
        vma: &Vma<Backing<Sim>>,
        page: usize,
    ) -> Option<u64> {
        let index = vma.offset_at(page) as u64;
        if !vma.is_private() {
            let word = |file| objects.word(key_of(file), index);
            return vma.file.as_ref().map_or(Some(0), word);
        }
        match (self.0.get(&page), &vma.file) {
            (Some(word), _) => *word,
            (None, None) => Some(0),
            // A call may have copied the page before a shared map wrote to it.
            (None, Some(file)) if objects.was_written(key_of(file), index) => None,
            (None, Some(file)) => objects.word(key_of(file), index),
        }
    }

    pub(super) fn write(&mut self, page: usize, word: u64) {
        self.0.insert(page, Some(word));
    }

    /// The pages of a range are empty, or not mapped.
    pub(super) fn forget(&mut self, range: Range<usize>) {
        if range.start < range.end {
            let rest = self.0.split_off(&range.start).split_off(&range.end);
            self.0.extend(rest);
        }
    }

    /// The contents of the written pages of a range are not known.
    pub(super) fn doubt(&mut self, range: Range<usize>) {
        if range.start < range.end {
            self.0.range_mut(range).for_each(|(_, word)| *word = None);
        }
    }

    /// mremap moved or resized a range, which consisted of the VMAs `parts`. A move of several VMAs
    /// leaves the target alone where the old range had holes.
    pub(super) fn remap(&mut self, request: &RemapRequest, to: usize, parts: &[Range<usize>]) {
        let (addr, old, new) = ends(request);
        if to == addr {
            self.forget(addr + old.min(new)..addr + old.max(new));
        } else if old != new {
            self.move_pages(addr..addr + old, to..to + new);
        } else {
            for part in parts {
                let start = part.start - addr + to;
                self.move_pages(part.clone(), start..start + part.len());
            }
        }
    }

    fn move_pages(&mut self, from: Range<usize>, to: Range<usize>) {
        let mut rest = self.0.split_off(&from.start);
        let after = rest.split_off(&from.end);
        self.0.extend(after);
        self.forget(to.clone());
        let kept = rest.into_iter().filter(|(page, _)| page - from.start < to.len());
        self.0.extend(kept.map(|(page, word)| (page - from.start + to.start, word)));
    }

    /// mremap failed, perhaps half-way.
    pub(super) fn doubt_remap(&mut self, request: &RemapRequest) {
        let (addr, old, new) = ends(request);
        let to = request.fixed.unwrap_or(addr);
        if !addr.is_multiple_of(PAGE_SIZE) || !to.is_multiple_of(PAGE_SIZE) {
            // Refused before anything was done.
            return;
        }
        if let Some(to) = request.fixed {
            let moved: Vec<usize> =
                self.0.range(addr..addr.saturating_add(old)).map(|(page, _)| *page).collect();
            let moved = moved.into_iter().filter_map(|page| (page - addr).checked_add(to));
            self.0.extend(moved.map(|page| (page, None)));
            self.doubt(to..to.saturating_add(new));
        }
        self.doubt(addr..addr.saturating_add(old));
    }

    /// The first pages that were written, at most `most`.
    pub(super) fn pages(&self, most: usize) -> Vec<usize> {
        self.0.keys().take(most).copied().collect()
    }

    /// Drops the pages that `keeps` does not want.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(usize) -> bool) {
        self.0.retain(|page, _| keeps(*page));
    }
}

/// The address and the two lengths of a request, in whole pages.
fn ends(request: &RemapRequest) -> (usize, usize, usize) {
    let whole = |len: usize| len.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
    (request.addr, whole(request.old_len), whole(request.new_len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(addr: usize, old_len: usize, new_len: usize, fixed: Option<usize>) -> RemapRequest {
        RemapRequest { addr, old_len, new_len, may_move: true, fixed, dont_unmap: None }
    }

    #[test]
    fn a_move_takes_the_pages_along_and_a_shrink_drops_the_rest() {
        let mut model = Model::default();
        for page in [0x1000, 0x2000, 0x3000, 0x9000] {
            model.write(page, page as u64);
        }
        model.remap(&request(0x1000, 0x3000, 0x2000, Some(0x8000)), 0x8000, &[]);
        assert_eq!(model.0, BTreeMap::from([(0x8000, Some(0x1000)), (0x9000, Some(0x2000))]));
        model.remap(&request(0x8000, 0x2000, 0x1000, None), 0x8000, &[]);
        assert_eq!(model.pages(9), [0x8000]);
    }

    #[test]
    fn a_hole_in_the_old_range_leaves_the_target_alone() {
        let mut model = Model::default();
        for page in [0x1000, 0x3000, 0x8000, 0x9000] {
            model.write(page, page as u64);
        }
        let parts = [0x1000..0x2000, 0x3000..0x4000];
        model.remap(&request(0x1000, 0x3000, 0x3000, Some(0x8000)), 0x8000, &parts);
        let moved = [(0x8000, Some(0x1000)), (0x9000, Some(0x9000)), (0xa000, Some(0x3000))];
        assert_eq!(model.0, BTreeMap::from(moved));
    }

    #[test]
    fn a_failed_move_leaves_both_ranges_in_doubt() {
        let mut model = Model::default();
        model.write(0x1000, 2);
        model.write(0x8000, 4);
        model.write(0x5000, 6);
        model.doubt_remap(&request(0x1000, 0x1000, 0x1000, Some(0x7000)));
        let doubted = [(0x1000, None), (0x5000, Some(6)), (0x7000, None), (0x8000, Some(4))];
        assert_eq!(model.0, BTreeMap::from(doubted));
        model.doubt_remap(&request(0x5000, 0x1000, 0x1000, Some(0x6001)));
        assert_eq!(model.0, BTreeMap::from(doubted), "an unaligned target is refused at once");
    }
}
