//! Checks after each call: bytes by translation and by `vread`, the listing, and the statistics.

use crate::common::*;
use crate::expected::{Area, Model, page_of};
use machine::*;
use vmap::{AreaInfo, AreaState, Made};

/// The maximum number of pages of an area that are read in full at the end.
const READ: usize = 16;

fn read(world: &World, at: VirtAddr, len: usize) -> (usize, Vec<u8>) {
    let mut bytes = vec![0xee; len];
    // SAFETY: the tests write through translations only, or before they map.
    (unsafe { world.vmap().vread(at, &mut bytes) }, bytes)
}

impl Model {
    pub(crate) fn bytes(&mut self, world: &World, at: VirtAddr, len: usize, write: Option<u8>) {
        let mut expected = vec![0; len];
        let mut count = 0;
        let (mut next, mut done) = (at.get(), 0);
        while done < len {
            let offset = (next % PAGE) as usize;
            let some = (PAGE as usize - offset).min(len - done);
            let page = self.page_at(next).filter(|(area, _)| write.is_none() || area.write);
            if let Some(frame) = page.and_then(|(_, frame)| frame) {
                count += some;
                let memory = &mut self.memory.get_mut(&frame).unwrap()[offset..offset + some];
                match write {
                    Some(value) => memory.fill(value),
                    None => expected[done..done + some].copy_from_slice(memory),
                }
            }
            (next, done) = (next + some as u64, done + some);
        }
        match write {
            // SAFETY: no code depends on the contents.
            Some(value) => assert_eq!(unsafe { world.vmap().vwrite(at, &vec![value; len]) }, count),
            None => assert_eq!(read(world, at, len), (count, expected)),
        }
    }

    /// Checks the listing of an area, and the contents of some or all of its pages.
    pub(crate) fn check_area(&self, world: &World, start: u64, all: bool) {
        let (vmap, area) = (world.vmap(), &self.areas[&start]);
        let middle = self.turn % area.pages;
        let pages = if all { (0..area.pages).collect() } else { vec![0, middle, area.pages - 1] };
        for page in pages {
            let at = page_of(area.start(), page);
            if let Some(phys) = area.phys {
                let phys = phys.align_down(PageSize::Size4K).get() + page as u64 * PAGE;
                assert_eq!(vmap.vmalloc_to_phys(virt(at.get() + 7)).unwrap().get(), phys + 7);
                continue;
            }
            if area.made == Made::Reserved {
                assert_eq!(vmap.vmalloc_to_page(at), None, "{area:?}");
                continue;
            }
            assert_eq!(vmap.vmalloc_to_page(at), Some(area.frames[page]));
            let memory = &self.memory[&area.frames[page]];
            let offset = self.turn % 512 * 8;
            let word = &memory[offset..offset + 8];
            let at = virt(at.get() + offset as u64);
            assert_eq!(read(world, at, 8), (8, word.to_vec()), "page {page} of {area:?}");
            if area.pending_free.is_none() {
                assert_eq!(world.load(at).to_ne_bytes(), *word, "page {page} of {area:?}");
            }
        }
    }

    /// Checks every byte of the first pages.
    pub(crate) fn check_contents(&mut self, world: &World) {
        let all: Vec<_> = self.areas.values().map(|area| (area.start(), area.pages)).collect();
        all.into_iter()
            .for_each(|(at, pages)| self.bytes(world, at, pages.min(READ) * PAGE as usize, None));
    }

    /// After each call: checks the listing, the statistics, and every area.
    pub(crate) fn check(&mut self, world: &World) {
        self.turn += 1;
        let vmap = world.vmap();
        let mut list: Vec<AreaInfo> = Vec::new();
        vmap.vmallocinfo(|info| list.push(*info));
        for pair in list.windows(2) {
            assert!(pair[0].range.end().unwrap() <= pair[1].range.start(), "{pair:?}");
        }
        let info = vmap.get_vmalloc_info();
        let sum =
            |list: &mut dyn Iterator<Item = &AreaInfo>| list.map(|info| info.range.len()).sum();
        let waits = |info: &&AreaInfo| info.state == AreaState::Waiting;
        let (used, waiting): (u64, u64) =
            (sum(&mut list.iter()), sum(&mut list.iter().filter(waits)));
        assert_eq!((info.used, info.waiting, info.areas), (used, waiting, list.len() as u64));
        assert_eq!(info.total, vmap.space().len());
        let mut gaps = vec![vmap.space().start()];
        for area in &list {
            assert!(vmap.space().covers(&area.range));
            assert_eq!(vmap.find_vm_area(area.range.last().unwrap()), Some(*area));
            gaps.extend([area.range.start(), area.range.end().unwrap()]);
        }
        gaps.push(vmap.space().end().unwrap());
        let largest = gaps.chunks(2).map(|gap| gap[1].get() - gap[0].get()).max();
        assert!(info.largest_free <= largest.unwrap(), "{info:?}");

        for start in self.areas.keys() {
            self.check_area(world, *start, false);
        }
        let mut expected: Vec<&Area> = self.areas.values().filter(|area| !area.in_block).collect();
        for found in list.iter().filter(|info| info.state != AreaState::Waiting) {
            if found.made == Made::Block {
                let runs = self.areas.values().filter(|area| area.in_block);
                let runs = runs.filter(|run| found.range.contains(run.at));
                assert_eq!(found.pages, runs.map(|run| run.pages).sum());
                assert_eq!(found.state, AreaState::Live);
                continue;
            }
            let area = expected.remove(0);
            let state =
                if area.pending_free.is_some() { AreaState::PendingFree } else { AreaState::Live };
            let pages = if area.made == Made::Reserved { 0 } else { area.pages };
            assert_eq!(
                (found.range, found.first, found.bytes, found.pages, found.made),
                (area.range, area.start(), area.bytes, pages, area.made)
            );
            assert_eq!((found.phys, found.state), (area.phys, state));
            assert!(found.caller.unwrap().file().ends_with("expected.rs"));
        }
        assert!(expected.is_empty(), "not listed: {expected:?}");
    }
}
