//! What is known of areas: `vmallocinfo`, `get_vmalloc_info`, `find_vm_area`. All without a lock.
//!
//! # What each promises
//! *The listing* is of no one moment, as it lets writers go on. It promises: an area that is there
//! from its beginning to its end is listed once; what is listed was there at some moment since its
//! section began, and all that is said of it was true when it was listed, of that one area; areas
//! come in the order of their addresses. It is in sections of some dozens of areas, so that no
//! grace period waits for it.
//!
//! *The numbers* of [`get_vmalloc_info`](crate::Vmap::get_vmalloc_info) are sums over zones: each
//! number of each zone is what it was at some moment during the call. Beside writers those moments
//! differ.

use crate::area::{Area, Made, State};
use crate::vmap::{PAGE, Vmap};
use core::fmt;
use core::ops::RangeInclusive;
use core::panic::Location;
use grace::Concurrent;
use machine::{Machine, PhysAddr, VirtAddr, VirtRange};
use paging::Format;

/// What is known of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaInfo {
    /// Its addresses, with its guard page.
    pub range: VirtRange,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Pages that are mapped; of a block, those in use.
    pub pages: usize,
    /// The call that made it.
    pub made: Made,
    /// What has become of it.
    pub state: State,
    /// The physical address of its first byte, if it maps a physical range.
    pub phys: Option<PhysAddr>,
    /// Who made it; not known in release builds without the feature `listing`.
    pub caller: Option<&'static Location<'static>>,
}

impl AreaInfo {
    fn new(range: RangeInclusive<usize>, area: &Area) -> Option<AreaInfo> {
        let (what, state) = area.look()?;
        let start = VirtAddr::new(*range.start() as u64);
        let len = (range.end() - range.start()) as u64 + 1;
        Some(AreaInfo {
            range: VirtRange::new(start, len)?,
            bytes: what.bytes,
            pages: area.bits().map_or(what.pages, |bits| bits.count().0),
            made: what.made,
            state,
            phys: what.phys,
            caller: what.caller,
        })
    }
}

/// A line of the listing.
impl fmt::Display for AreaInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.range.start().get();
        write!(
            f,
            "{start:#018x}-{:#018x} {:>9}",
            start.wrapping_add(self.range.len()),
            self.range.len()
        )?;
        if let Some(by) = self.caller {
            write!(f, " {}:{}", by.file(), by.line())?;
        }
        write!(f, " pages={}", self.pages)?;
        if let Some(at) = self.phys {
            write!(f, " phys={at}")?;
        }
        f.write_str(match self.made {
            Made::Vmap => " vmap",
            Made::Ram => " vm_map_ram",
            Made::Vmalloc => " vmalloc",
            Made::Ioremap => " ioremap",
            Made::Block => " block",
        })?;
        f.write_str(match self.state {
            State::Ready | State::Live => "",
            State::Mapping => " (mapping)",
            State::PendingFree | State::Unmapping => " (unmapping)",
            State::Waiting => " (unpurged)",
        })
    }
}

/// A space in numbers; see [`Vmap::get_vmalloc_info`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VmallocInfo {
    /// Bytes of the space.
    pub total: u64,
    /// Bytes that are taken, by areas with their guard pages, blocks, and what waits.
    pub used: u64,
    /// Bytes among them that wait for a TLB grace period; what waits in blocks does not count.
    pub waiting: u64,
    /// Bytes besides that are free, and kept together for who wants an area of the same size; they
    /// are had when no others are.
    pub kept: u64,
    /// The largest area that there is room for, its guard page included.
    pub largest_free: u64,
    /// Areas, blocks and areas that wait included.
    pub areas: u64,
}

/// Areas that are listed in one section.
#[cfg(feature = "listing")]
const SECTION: usize = 64;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// The space in numbers, in time that does not depend on the number of areas: some loads for
    /// each CPU. Takes no lock; any context.
    pub fn get_vmalloc_info(&self) -> VmallocInfo {
        let none = VmallocInfo { total: self.space.len(), ..VmallocInfo::default() };
        self.zones.iter().fold(none, |sum, zone| VmallocInfo {
            used: sum.used + zone.used(),
            waiting: sum.waiting + zone.waiting(),
            kept: sum.kept + zone.kept(),
            largest_free: sum.largest_free.max(zone.largest_gap() / PAGE * PAGE),
            areas: sum.areas + zone.areas(),
            ..sum
        })
    }

    /// The area that an address lies in, whatever has become of it. Takes no lock; any context. A
    /// lookup in a tree.
    pub fn find_vm_area(&self, at: VirtAddr) -> Option<AreaInfo> {
        let guard = G::pin();
        let (range, area) = self.zone_of(at)?.tree().lookup(&guard, at.get() as usize)?;
        AreaInfo::new(range, area.get())
    }

    /// Calls `each` with all areas in the order of their addresses, and with nothing held but a
    /// read-side section. An area that is there throughout is listed once; see the text at the head
    /// of `info.rs` for the others. `each` may make any call, and may panic. Takes no lock and
    /// slows nobody down; any context that may take its time.
    #[cfg(feature = "listing")]
    pub fn vmallocinfo(&self, mut each: impl FnMut(&AreaInfo)) {
        for zone in &self.zones {
            let Some(last) = zone.range().last() else { continue };
            let last = last.get() as usize;
            let mut next = Some(zone.range().start().get() as usize);
            while let Some(from) = next.take() {
                let guard = G::pin();
                let mut at = from;
                for (range, area) in zone.tree().iter(&guard, from..=last).take(SECTION) {
                    // One that has been made meanwhile may reach back to where others were that
                    // have been listed.
                    let follows = *range.start() >= at;
                    next = range.end().checked_add(1).filter(|next| *next <= last);
                    at = next.unwrap_or(last);
                    if let Some(info) = AreaInfo::new(range, area.get()).filter(|_| follows) {
                        each(&info);
                    }
                }
            }
        }
    }
}
