//! Listing and statistics without locks: `vmallocinfo`, `get_vmalloc_info`, `find_vm_area`.
//!
//! # Guarantees
//! *The listing* is not an atomic snapshot, because writers continue. It guarantees:
//!
//! - An area that exists during the whole listing is listed once.
//! - A listed area existed at some moment since its read-side section began. All its fields were
//!   valid together when it was listed.
//! - Areas are listed in the order of their addresses.
//!
//! Each read-side section covers some dozens of areas, so the listing does not delay grace periods.
//!
//! *The statistics* of [`get_vmalloc_info`](crate::Vmap::get_vmalloc_info) are sums over zones.
//! Each number of each zone is its value at some moment during the call. With concurrent writers
//! these moments differ.

use crate::PAGE;
use crate::area::{Area, AreaState, Made};
use crate::space::Vmap;
use core::fmt;
use core::ops::RangeInclusive;
use core::panic::Location;
use grace::Concurrent;
use machine::{Machine, PhysAddr, VirtAddr, VirtRange};
use maple::Index;
use paging::Format;

/// A snapshot of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaInfo {
    /// Its addresses, guard pages included.
    pub range: VirtRange,
    /// The address of its first page: the one that the mapping call returned or, for a device, the
    /// start of its page.
    pub first: VirtAddr,
    /// Requested bytes.
    pub bytes: u64,
    /// Mapped pages; for a block, pages in use; for reserved addresses, 0.
    pub pages: usize,
    /// The call that made it.
    pub made: Made,
    /// Its state.
    pub state: AreaState,
    /// The physical address of its first byte, if it maps a physical range.
    pub phys: Option<PhysAddr>,
    /// The call site that made it; unknown in release builds without the feature `listing`.
    pub caller: Option<&'static Location<'static>>,
}

impl AreaInfo {
    fn new(range: RangeInclusive<Index>, area: &Area) -> Option<AreaInfo> {
        let (what, state) = area.look()?;
        let start = VirtAddr::new(*range.start() as u64);
        let len = (range.end() - range.start()) as u64 + 1;
        Some(AreaInfo {
            range: VirtRange::new(start, len)?,
            first: what.first(start),
            bytes: what.bytes,
            pages: match what.made {
                Made::Reserved => 0,
                _ => area.bits().map_or(what.pages, |bits| bits.count().0),
            },
            made: what.made,
            state,
            phys: what.phys,
            caller: what.caller,
        })
    }
}

/// One line of the listing.
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
            Made::Reserved => " reserved",
        })?;
        f.write_str(match self.state {
            AreaState::Ready | AreaState::Live => "",
            AreaState::Mapping => " (mapping)",
            AreaState::PendingFree | AreaState::Unmapping => " (unmapping)",
            AreaState::Waiting => " (unpurged)",
        })
    }
}

/// Statistics of a space; see [`Vmap::get_vmalloc_info`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VmallocInfo {
    /// Size of the space in bytes.
    pub total: u64,
    /// Bytes of areas with their guard pages, of blocks, and of waiting areas.
    pub used: u64,
    /// Those of `used` that wait for a TLB grace period. Does not count pages that wait in blocks.
    pub waiting: u64,
    /// Further bytes, not in `used`: free ranges that are kept in one piece for the next area of
    /// the same size. Other areas get them when nothing else is free.
    pub kept: u64,
    /// The largest area that fits, guard pages included.
    pub largest_free: u64,
    /// The number of areas, blocks and waiting areas included.
    pub areas: u64,
}

/// Areas that are listed in one read-side section.
#[cfg(feature = "listing")]
const SECTION: usize = 64;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Statistics of the space. The time does not depend on the number of areas: some loads per
    /// CPU. Takes no lock; any context.
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

    /// The area that contains an address, in any state but Ready. Takes no lock; any context. Cost:
    /// a tree lookup.
    pub fn find_vm_area(&self, at: VirtAddr) -> Option<AreaInfo> {
        let guard = G::pin();
        let (range, area) = self.zone_of(at)?.tree().lookup(&guard, at.get() as Index)?;
        AreaInfo::new(range, area.get())
    }

    /// Calls `each` with all areas in the order of their addresses, in a read-side section and
    /// without a lock.
    ///
    /// An area that exists throughout is listed once. The listing is not an atomic snapshot: areas
    /// that are made or unmapped meanwhile may or may not be listed. `each` may make any call and
    /// may panic. Writers do not wait for a listing. Any context that may take long.
    ///
    /// # Misuse
    /// `each` may call the space, and may panic: only a guard is held. One that does not return
    /// holds up memory, as any guard does.
    #[cfg(feature = "listing")]
    pub fn vmallocinfo(&self, mut each: impl FnMut(&AreaInfo)) {
        for zone in &self.zones {
            let Some(last) = zone.range().last() else { continue };
            let last = last.get() as Index;
            let mut next = Some(zone.range().start().get() as Index);
            while let Some(from) = next.take() {
                let guard = G::pin();
                let mut at = from;
                for (range, area) in zone.tree().iter(&guard, from..=last).take(SECTION) {
                    // An area that was made meanwhile may begin before the addresses that are still
                    // to be listed.
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
