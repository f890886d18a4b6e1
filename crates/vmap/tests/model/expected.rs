//! A simple model of all areas and all bytes, which predicts the result of each call.

mod ends;

use crate::common::*;
use crate::script::{Demands, Op, Which};
use machine::*;
use paging::{Attrs, Cache, Flags};
use std::collections::BTreeMap;
use vmap::{Allocation, AreaState, Contents, Error, Guard, Made, Request};

/// Frames for `vmap` and `vm_map_ram`.
const POOL: usize = 100;

/// An area, or a run of a block.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    /// Its addresses, guard pages included.
    pub(crate) range: VirtRange,
    pub(crate) guard: Guard,
    /// The requested alignment.
    pub(crate) align: u64,
    /// The address that the call returned.
    pub(crate) at: VirtAddr,
    pub(crate) bytes: u64,
    pub(crate) pages: usize,
    pub(crate) made: Made,
    pub(crate) in_block: bool,
    /// The frames of its memory.
    pub(crate) frames: Vec<Frame>,
    pub(crate) write: bool,
    pub(crate) phys: Option<PhysAddr>,
    /// The CPU on which an interrupt handler has freed it.
    pub(crate) pending_free: Option<usize>,
}

impl Area {
    /// The area that a call should make, still without an address.
    fn wanted(made: Made, pages: usize, bytes: u64) -> Area {
        let (range, at) = (VirtRange::new(virt(SPACE), 0).unwrap(), virt(SPACE));
        let (frames, write, phys) = (Vec::new(), true, None);
        Area {
            range,
            guard: Guard::None,
            align: PAGE,
            at,
            bytes,
            pages,
            made,
            in_block: false,
            frames,
            write,
            phys,
            pending_free: None,
        }
    }

    /// The address of its first page.
    pub(crate) fn start(&self) -> VirtAddr {
        self.at.align_down(PageSize::Size4K)
    }

    /// As wanted, with these demands.
    fn on(self, demands: &Request<'_>, usual: Guard) -> Area {
        Area { guard: demands.guard.unwrap_or(usual), align: demands.align, ..self }
    }
}

pub(crate) struct Model {
    /// Keyed by the addresses of their first pages.
    pub(crate) areas: BTreeMap<u64, Area>,
    /// The contents of each frame that some area maps.
    pub(crate) memory: BTreeMap<Frame, Vec<u8>>,
    pool: Vec<Frame>,
    /// Addresses that were once valid.
    freed: Vec<VirtAddr>,
    /// The guard pages of areas unless the call says otherwise.
    guard: Guard,
    pub(crate) turn: usize,
}

/// The variant of an error, without its fields.
fn kind(error: &Error) -> String {
    let text = format!("{error:?}");
    text.split(['(', ' ']).next().unwrap_or_default().to_owned()
}

pub(crate) fn page_of(at: VirtAddr, page: usize) -> VirtAddr {
    at.checked_add(page as u64 * PAGE).unwrap()
}

/// The contents of a frame that was just allocated.
fn contents(world: &World, frame: Frame) -> Vec<u8> {
    let memory = world.sim.frame_ptr(frame).unwrap();
    // SAFETY: the bytes of a frame. It is mapped, but no CPU runs, so nothing changes them.
    unsafe { std::slice::from_raw_parts(memory.as_ptr(), PAGE as usize) }.to_vec()
}

/// Bytes of the guard pages below and above.
fn guards(guard: Guard) -> (u64, u64) {
    match guard {
        Guard::None => (0, 0),
        Guard::Above => (0, PAGE),
        Guard::Below => (PAGE, 0),
        Guard::Both => (PAGE, PAGE),
    }
}

/// Whether a request demands nothing of its addresses, so that a shorter call makes it.
fn is_usual(request: &Request<'_>) -> bool {
    (request.at, request.align, request.guard) == (None, PAGE, None)
}

fn overlap(one: VirtRange, other: VirtRange) -> bool {
    one.contains(other.start()) || other.contains(one.start())
}

fn has_large_pages(world: &World, range: VirtRange) -> bool {
    let guard = <sim::Grace as grace::Reclaim>::pin();
    world.vmap().tables().walk(&guard).pages(range).any(|page| page.size > PageSize::Size4K)
}

impl Model {
    pub(crate) fn new(world: &World, guard: Guard) -> Model {
        let pool = world.sim.on_cpu(0, || world.frames(POOL));
        let memory = pool.iter().map(|frame| (*frame, vec![0; PAGE as usize])).collect();
        Model { areas: BTreeMap::new(), memory, pool, freed: vec![virt(SPACE)], guard, turn: 0 }
    }

    fn pick(&self, pick: usize) -> Option<&Area> {
        self.areas.values().nth(pick % self.areas.len().max(1))
    }

    fn address(&self, world: &World, which: Which) -> VirtAddr {
        let live = |pick| self.pick(pick).map_or(virt(SPACE), |area| area.at);
        match which {
            Which::Live(pick) => live(pick),
            Which::Inside(pick, offset) => virt(live(pick).get() + offset),
            Which::Freed(pick) => self.freed[pick % self.freed.len()],
            Which::Raw(offset) => virt(world.vmap().space().start().get().wrapping_add(offset)),
        }
    }

    /// The area in whose mapped pages an address lies, and the frame there.
    pub(crate) fn page_at(&self, at: u64) -> Option<(&Area, Option<Frame>)> {
        let area = self.areas.range(..=at).next_back()?.1;
        let page = (at - area.start().get()) / PAGE;
        (page < area.pages as u64).then(|| (area, area.frames.get(page as usize).copied()))
    }

    /// Makes a call, and compares its result with the model.
    pub(crate) fn call(&mut self, world: &World, cpu: usize, op: &Op) {
        let (vmap, free) = (world.vmap(), world.sim.free_count());
        let attrs = |write| match write {
            true => Attrs::KERNEL_RW,
            false => Attrs::new(Flags::READ | Flags::GLOBAL),
        };
        match *op {
            Op::Vmap { first, stride, pages, write, demands } => {
                let frames = self.frames(first, stride, pages);
                let request = Request::frames(&frames, attrs(write));
                let request = self.demanding(world, demands, request);
                let made = match is_usual(&request) {
                    true => vmap.vmap(&frames, attrs(write)),
                    false => vmap.create(&request),
                };
                let wanted = Area::wanted(Made::Vmap, pages, pages as u64 * PAGE);
                let wanted = wanted.on(&request, self.guard);
                let (at, frames) = (request.at, frames.clone());
                self.made(world, free, made, (at, false), Area { frames, write, ..wanted });
            }
            Op::Ram { first, pages, write } => {
                let frames = self.frames(first, 1, pages);
                let made = vmap.vm_map_ram(&frames, attrs(write));
                let wanted = Area::wanted(Made::Ram, pages, pages as u64 * PAGE);
                self.made(world, free, made, (None, false), Area { frames, write, ..wanted });
            }
            Op::Malloc { bytes, zero, huge, node, demands } => {
                let place = if node { NodePolicy::Prefer(NodeId(1)) } else { NodePolicy::Local };
                let memory = Allocation { zero, huge, place, ..Allocation::new(bytes) };
                let request = Request::new(Contents::Memory(memory));
                let request = self.demanding(world, demands, request);
                let usual = is_usual(&request);
                let made = match (zero, huge, node) {
                    (false, false, false) if usual => vmap.vmalloc(bytes),
                    (true, false, false) if usual => vmap.vzalloc(bytes),
                    (false, true, false) if usual => vmap.vmalloc_huge(bytes),
                    (false, false, true) if usual => vmap.vmalloc_node(bytes, NodeId(1)),
                    _ => vmap.create(&request),
                };
                let pages = bytes.div_ceil(PAGE) as usize;
                let wanted = Area::wanted(Made::Vmalloc, pages, bytes).on(&request, self.guard);
                let at = made.ok();
                self.made(world, free, made, (request.at, huge && pages >= 512), wanted);
                if let Some(at) = at.filter(|_| zero) {
                    let area = &self.areas[&at.get()];
                    let all = area.frames.iter().flat_map(|frame| &self.memory[frame]);
                    assert!(all.into_iter().all(|byte| *byte == 0));
                }
            }
            Op::Ioremap { at, len, demands } => {
                // Ends below 4 GiB, where the RAM of the machine begins.
                let len = if at >> 32 == 0 { len.min((1 << 32) - at) } else { len };
                let Some(range) = PhysRange::new(PhysAddr::new(at), len) else { return };
                let request = Request::device(range, Cache::Uncached);
                let request = self.demanding(world, demands, request);
                let made = match is_usual(&request) {
                    true => vmap.ioremap(range, Cache::Uncached),
                    false => vmap.create(&request),
                };
                if len == 0 || range.last().unwrap().get() >> 52 != 0 {
                    assert_eq!(made, Err(Error::NotPhysical(range.start())));
                    return;
                }
                let pages = (range.last().unwrap().get() / PAGE - at / PAGE + 1) as usize;
                let wanted = Area::wanted(Made::Ioremap, pages, len).on(&request, self.guard);
                let large = at % (2 << 20) < PAGE && pages >= 512;
                let wanted = Area { phys: Some(range.start()), ..wanted };
                self.made(world, free, made, (request.at, large), wanted);
            }
            Op::Reserve { bytes, demands } => {
                let request = self.demanding(world, demands, Request::addresses(bytes));
                let made = match is_usual(&request) {
                    true => vmap.reserve(bytes),
                    false => vmap.create(&request),
                };
                let pages = bytes.div_ceil(PAGE) as usize;
                let wanted = Area::wanted(Made::Reserved, pages, bytes).on(&request, self.guard);
                self.made(world, free, made, (request.at, false), wanted);
            }
            Op::Refused { first, pages, ram } => {
                let attrs = Attrs::new(Flags::WRITE);
                let frames = self.frames(first.unwrap_or(0), 1, pages);
                let memory =
                    Allocation { attrs: Some(attrs), ..Allocation::new(pages as u64 * PAGE) };
                let made = match first {
                    None => vmap.create(&Request::new(Contents::Memory(memory))),
                    Some(_) if ram => vmap.vm_map_ram(&frames, attrs),
                    Some(_) => vmap.vmap(&frames, attrs),
                };
                let kind = kind(&made.expect_err("there are no such pages"));
                let before = ["ZeroSize", "TooLarge", "NoSpace", "Frames"].contains(&kind.as_str());
                assert!(before || kind == "Tables", "{kind}");
                let used = world.sim.free_count();
                assert!(free.saturating_sub(used) < 16, "{free} frames were free, and now {used}");
            }
            Op::Unmap { call, which } => self.unmap(world, cpu, call, self.address(world, which)),
            Op::Realloc { which, bytes } => {
                self.realloc(world, free, self.address(world, which), bytes);
            }
            Op::Store { pick, page, value } => {
                let Some(area) = self.pick(pick) else { return };
                let has_memory = area.phys.is_none() && area.made != Made::Reserved;
                if area.pending_free.is_some() || !has_memory {
                    return;
                }
                let page = page % area.pages;
                let at = virt(page_of(area.at, page).get() + value % 512 * 8);
                if !area.write {
                    // SAFETY: ordinary memory.
                    assert!(unsafe { world.sim.store(at, value) }.is_err());
                    return;
                }
                world.store(at, value);
                let (frame, offset) = (area.frames[page], (at.get() % PAGE) as usize);
                let memory = self.memory.get_mut(&frame).unwrap();
                memory[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
            }
            Op::Bytes { pick, before, len, write } => {
                let Some(area) = self.pick(pick) else { return };
                let at = virt(page_of(area.start(), area.pages).get().wrapping_sub(before));
                self.bytes(world, at, len, write);
            }
            Op::Poll => {
                vmap.poll();
                self.forget_pending(cpu);
            }
            Op::Idle => {
                vmap.idle();
                self.forget_pending(cpu);
            }
            Op::Nap => {
                world.stop();
                world.start();
                self.forget_pending(cpu);
            }
            Op::Purge => {
                vmap.purge();
                assert_eq!(vmap.get_vmalloc_info().waiting, 0);
            }
            Op::Aliases => {
                vmap.vm_unmap_aliases();
                world.sim.check_flushed(vmap.tables().root(), None, vmap.space());
            }
            Op::Tick => world.tlb_grace.tick(),
            Op::Cpu { .. } => unreachable!("it is not for this CPU"),
        }
    }

    fn frames(&self, first: usize, stride: usize, pages: usize) -> Vec<Frame> {
        (0..pages).map(|page| self.pool[(first % POOL + page * stride) % POOL]).collect()
    }

    /// The request with these demands.
    fn demanding<'a>(&self, world: &World, demands: Demands, request: Request<'a>) -> Request<'a> {
        let Demands { at, align, guard } = demands;
        let at = at.map(|which| match which {
            Which::Raw(_) => self.address(world, which),
            which => self.address(world, which).align_down(PageSize::Size4K),
        });
        Request { at, align, guard, ..request }
    }

    /// Checks a call that makes an area, possibly at an address and with large pages; `free` frames
    /// were free before. Frames that the call did not name are newly allocated.
    fn made(
        &mut self,
        world: &World,
        free: u64,
        made: Result<VirtAddr, Error>,
        (wanted, large): (Option<VirtAddr>, bool),
        mut area: Area,
    ) {
        self.look_for_pending(world);
        let vmap = world.vmap();
        let mapped = (area.pages as u64).saturating_mul(PAGE);
        let (below, above) = guards(area.guard);
        let taken = mapped.saturating_add(below + above);
        let align = if large { area.align.max(2 << 20) } else { area.align.max(PAGE) };
        let wanted_range =
            wanted.and_then(|at| VirtRange::new(virt(at.get().checked_sub(below)?), taken));
        let at = match made {
            Err(error) if area.pages == 0 => return assert_eq!(error, Error::ZeroSize),
            Err(error) if mapped > vmap.space().len() => {
                return assert_eq!(kind(&error), "TooLarge");
            }
            Err(Error::BadAlign(align)) => {
                assert_eq!(align, area.align);
                return assert!(!align.is_power_of_two());
            }
            Err(Error::Unaligned { at, align }) => {
                assert_eq!((Some(at), align), (wanted, area.align.max(PAGE)));
                return assert_ne!(at.get() % align, 0);
            }
            Err(Error::Outside { at, bytes, space }) => {
                assert_eq!((Some(at), bytes), (wanted, taken));
                assert!(vmap.space().covers(&space) && vmap.space().end() == space.end());
                return assert!(!wanted_range.is_some_and(|range| space.covers(&range)));
            }
            Err(Error::AcrossZones { at, border }) => {
                assert_eq!(Some(at), wanted);
                let range = wanted_range.unwrap();
                assert!(border.is_aligned(PageSize::Size2M));
                return assert!(range.contains(border) && range.start() != border);
            }
            Err(Error::InTheWay(culprit)) => {
                assert_eq!(Some(culprit.at), wanted);
                // An area that is in use: one that was given back makes way.
                let mut list = Vec::new();
                vmap.vmallocinfo(|info| list.push(*info));
                let range = wanted_range.unwrap();
                let is_there = |info: &&vmap::AreaInfo| overlap(info.range, range);
                let there: Vec<_> = list.iter().filter(is_there).collect();
                assert!(there.iter().any(|info| info.first == culprit.start), "{culprit:?}");
                return assert!(
                    there.iter().any(|info| info.state != AreaState::Waiting),
                    "{there:?}"
                );
            }
            Err(Error::NoSpace(bytes)) => {
                let info = vmap.get_vmalloc_info();
                // A size that no zone can hold is refused at once.
                let waits = if taken > vmap.space().len() / 2 { info.waiting } else { 0 };
                assert_eq!((bytes, info.waiting), (taken, waits), "some waits, {info:?}");
                assert!(wanted.is_none() || taken > vmap.space().len() / 2);
                let enough = taken.saturating_add(align - PAGE);
                return assert!(info.largest_free < enough, "{info:?}");
            }
            Err(Error::FewFrames { wanted, free }) => {
                return assert!(wanted > free - free / 32, "{wanted} of {free} frames");
            }
            Err(Error::Frames(FrameError::OutOfFrames { .. })) => {
                return assert!(free < area.pages as u64 + 64, "{free} frames were free");
            }
            Err(error) => panic!("{error}"),
            Ok(at) => at,
        };
        let info = vmap.find_vm_area(at).unwrap();
        area.at = at;
        area.in_block = info.made == Made::Block;
        let start = area.start();
        area.range = VirtRange::new(virt(start.get() - below), taken).unwrap();
        assert!(area.align.is_power_of_two() && start.get().is_multiple_of(area.align), "{area:?}");
        assert!(wanted.is_none_or(|wanted| wanted == start), "{area:?}");
        if area.in_block {
            assert!(area.made == Made::Ram && area.pages <= 64 && info.range.covers(&area.range));
        } else {
            assert_eq!((info.range, info.first), (area.range, start));
        }
        assert!(vmap.space().covers(&area.range));
        // If no aligned range was free, the pages are small.
        assert!(
            start.get().is_multiple_of(align) || !has_large_pages(world, area.range),
            "{start}"
        );
        assert_eq!(at.get() % PAGE, area.phys.map_or(0, |at| at.get() % PAGE));
        let other = self.areas.values().find(|other| overlap(other.range, area.range));
        assert!(other.is_none(), "{other:?}");
        let pages = [(below, area.range.start()), (above, page_of(start, area.pages))];
        for (_, page) in pages.into_iter().filter(|(bytes, _)| *bytes != 0) {
            // No access: this CPU may not have seen the page tables there published.
            assert_eq!(vmap.vmalloc_to_page(page), None);
        }
        if area.made == Made::Vmalloc {
            let known = area.frames.len();
            for page in known..area.pages {
                let at = page_of(start, page);
                let frame = vmap.vmalloc_to_page(at).unwrap();
                let bytes = contents(world, frame);
                assert_eq!(self.memory.insert(frame, bytes), None, "the frame is in use already");
                area.frames.push(frame);
            }
        }
        self.areas.insert(start.get(), area);
        self.check_area(world, start.get(), true);
    }

    fn realloc(&mut self, world: &World, free: u64, at: VirtAddr, bytes: u64) {
        let vmap = world.vmap();
        let expected = match bytes {
            0 => vec!["ZeroSize"],
            _ if bytes > vmap.space().len() => vec!["TooLarge"],
            _ => self.unmapping(world, Made::Vmalloc, at, 0),
        };
        // The end of the last page that is kept.
        let end = at.get().wrapping_add(bytes.wrapping_sub(1));
        let last = {
            let guard = <sim::Grace as grace::Reclaim>::pin();
            vmap.tables().walk(&guard).get(virt(end))
        };
        let old = self.areas.get(&at.get()).cloned();
        let large = old.as_ref().is_some_and(|old| has_large_pages(world, old.range));
        // SAFETY: only the preserved memory is used.
        let done = unsafe { vmap.vrealloc(at, bytes) };
        if !expected.is_empty() {
            let kind = kind(&done.expect_err("it is not to be moved"));
            return assert!(expected.contains(&kind.as_str()), "{at}: {kind}, not {expected:?}");
        }
        let old = old.unwrap();
        let pages = bytes.div_ceil(PAGE) as usize;
        if pages > old.pages {
            self.areas.remove(&at.get());
            if done.is_ok() {
                self.freed.push(at);
            }
            let wanted = Area::wanted(Made::Vmalloc, pages, bytes);
            let (guard, align, frames) = (old.guard, old.align, old.frames.clone());
            let wanted = Area { guard, align, frames, ..wanted };
            self.made(world, free, done, (None, large), wanted);
            if done.is_err() {
                self.areas.insert(at.get(), old);
            }
            return;
        }
        assert_eq!(done, Ok(at));
        let kept = match last {
            Some(page) => (page.page.get() + page.size.bytes() - at.get()) / PAGE,
            None => panic!("{at} has no page at its end"),
        };
        let area = self.areas.get_mut(&at.get()).unwrap();
        area.bytes = bytes;
        let len = area.range.len() - (area.pages as u64 - kept) * PAGE;
        area.range = VirtRange::new(area.range.start(), len).unwrap();
        area.pages = kept as usize;
        for frame in area.frames.split_off(kept as usize) {
            self.memory.remove(&frame);
        }
    }
}
