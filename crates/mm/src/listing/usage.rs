//! How much memory is in use: the listing of `/proc/PID/smaps`, the entries of
//! `/proc/PID/pagemap`, and totals.
//!
//! Nothing is counted while pages come and go, so that no two CPUs write one line for it. Each
//! answer is counted from the page tables when it is asked for. It is exact while nothing changes.
//!
//! The zero frame and frames of devices do not count, as in Linux.

use core::{fmt, ops::Range};

use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr};
use paging::{Flags, Format, Mapping, Share};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing,
    change::hook::virt,
    fault::huge::{HUGE, huge_around},
    fault::reference::{block_of, is_counted},
    listing::kin::Kin,
    listing::look::bytes_in,
    monitor::absent::is_mark,
    monitor::track::{CLEAN, POISON, WP},
};

/// The memory of a range, in bytes, with the names of `/proc/PID/smaps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Rss: present pages.
    pub resident: usize,
    /// Pss: each page divided by the number of its maps. Exact within the spaces that forks have
    /// made of one; other spaces count as many maps of an object's page as they have tables.
    pub proportional: usize,
    /// The part of `proportional` that was written.
    pub proportional_dirty: usize,
    /// Shared_Clean.
    pub shared_clean: usize,
    /// Shared_Dirty.
    pub shared_dirty: usize,
    /// Private_Clean.
    pub private_clean: usize,
    /// Private_Dirty.
    pub private_dirty: usize,
    /// Referenced.
    pub referenced: usize,
    /// Anonymous: pages that belong to no object.
    pub anonymous: usize,
    /// AnonHugePages: the part of `anonymous` in huge pages that lie wholly in the range and in one
    /// VMA.
    pub huge: usize,
    /// Swap: pages that the host keeps elsewhere.
    pub swap: usize,
}

/// The memory of a space, in bytes, with the names of `/proc/PID/status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// VmSize: mapped addresses.
    pub size: usize,
    /// VmLck: locked addresses.
    pub locked: usize,
    /// VmData: private writable addresses, without stacks.
    pub data: usize,
    /// VmStk: addresses of stacks.
    pub stack: usize,
    /// VmExe and VmLib: executable addresses that are not writable.
    pub executable: usize,
    /// VmRSS: present pages.
    pub resident: usize,
    /// RssAnon: those that belong to no object. The others are RssFile and RssShmem.
    pub anonymous: usize,
    /// VmSwap: pages that the host keeps elsewhere.
    pub swap: usize,
}

/// Bits of an entry of `/proc/PID/pagemap`; the frame is in bits 0 to 54.
pub mod pagemap {
    /// The page is present.
    pub const PRESENT: u64 = 1 << 63;
    /// The page was written since the last
    /// [`clear_soft_dirty`](crate::AddressSpace::clear_soft_dirty), or it or its VMA is new.
    pub const SOFT_DIRTY: u64 = 1 << 55;
    /// The page is write-protected by a userfaultfd.
    pub const WRITE_PROTECTED: u64 = 1 << 57;
    /// The page is in swap; bits 5 to 54 are its slot.
    pub const SWAPPED: u64 = 1 << 62;
    /// The page belongs to an object.
    pub const OF_OBJECT: u64 = 1 << 61;
    /// A guard page, which is not present.
    pub const GUARD: u64 = 1 << 58;
    /// The page is mapped once.
    pub const EXCLUSIVE: u64 = 1 << 56;
}

/// What is known of a present page.
pub(crate) struct Page {
    /// The part of it that lies in the range.
    bytes: usize,
    swapped: bool,
    huge: bool,
    maps: u32,
    dirty: bool,
    referenced: bool,
    anonymous: bool,
}

impl Page {
    pub(crate) fn is_anonymous(&self) -> bool {
        self.anonymous
    }
}

/// The binary places of a proportional size, as in Linux: its error is less than a byte for 4096
/// pages.
const FRACTION: u32 = 12;

/// The bytes of a sum of proportional parts.
pub(crate) fn whole_bytes(parts: u64) -> usize {
    (parts >> FRACTION) as usize
}

/// A usage that is being added up.
#[derive(Default)]
pub(crate) struct Sum {
    usage: Usage,
    /// In units of 2^-[`FRACTION`] bytes.
    proportional: u64,
    proportional_dirty: u64,
}

impl Sum {
    /// Adds a page. Returns its proportional part, in units of 2^-[`FRACTION`] bytes.
    pub(crate) fn add(&mut self, page: &Page) -> u64 {
        self.usage.add(page);
        if page.swapped {
            return 0;
        }
        let part = ((page.bytes as u64) << FRACTION) / u64::from(page.maps);
        self.proportional += part;
        self.proportional_dirty += if page.dirty { part } else { 0 };
        part
    }

    pub(crate) fn done(self) -> Usage {
        Usage {
            proportional: whole_bytes(self.proportional),
            proportional_dirty: whole_bytes(self.proportional_dirty),
            ..self.usage
        }
    }
}

impl Usage {
    /// Adds what is not proportional.
    fn add(&mut self, page: &Page) {
        if page.swapped {
            self.swap += page.bytes;
            return;
        }
        let one = page.bytes;
        self.resident += one;
        self.referenced += if page.referenced { one } else { 0 };
        self.anonymous += if page.anonymous { one } else { 0 };
        self.huge += if page.huge { one } else { 0 };
        *match (page.maps > 1, page.dirty) {
            (true, false) => &mut self.shared_clean,
            (true, true) => &mut self.shared_dirty,
            (false, false) => &mut self.private_clean,
            (false, true) => &mut self.private_dirty,
        } += one;
    }

    /// The lines that smaps and smaps_rollup have in common, in their order.
    pub(crate) fn lines_of_both(&self, locked: usize) -> [(&'static str, usize); 16] {
        [
            ("Shared_Clean", self.shared_clean),
            ("Shared_Dirty", self.shared_dirty),
            ("Private_Clean", self.private_clean),
            ("Private_Dirty", self.private_dirty),
            ("Referenced", self.referenced),
            ("Anonymous", self.anonymous),
            ("KSM", 0),
            ("LazyFree", 0),
            ("AnonHugePages", self.huge),
            ("ShmemPmdMapped", 0),
            ("FilePmdMapped", 0),
            ("Shared_Hugetlb", 0),
            ("Private_Hugetlb", 0),
            ("Swap", self.swap),
            ("SwapPss", self.swap),
            ("Locked", locked),
        ]
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// The memory of a range. O(pages).
    pub fn usage(&self, range: Range<usize>) -> Usage {
        let guard = G::pin();
        let (mut sum, mut kin) = (Sum::default(), self.kin());
        for (part, vma) in self.core.vmas.iter(&guard, range.start) {
            if part.start >= range.end {
                break;
            }
            let part = part.start.max(range.start)..part.end.min(range.end);
            self.each_page(&guard, &mut kin, part, vma, |page| _ = sum.add(page));
        }
        sum.done()
    }

    /// The memory of the space. O(pages).
    pub fn totals(&self) -> Totals {
        let guard = G::pin();
        let (mut totals, mut kin) = (Totals::default(), Kin::new(None, self.core.tables.machine()));
        for (range, vma) in self.core.vmas.iter(&guard, 0) {
            let (len, flags) = (range.len(), vma.flags);
            let has = |flag| flags.contains(flag);
            totals.size += len;
            totals.locked += if has(VmFlags::LOCKED) { len } else { 0 };
            match (has(VmFlags::GROWSDOWN), has(VmFlags::WRITE)) {
                (true, _) => totals.stack += len,
                (false, true) if !has(VmFlags::SHARED) => totals.data += len,
                (false, false) if has(VmFlags::EXEC) => totals.executable += len,
                _ => {}
            }
            self.each_page(&guard, &mut kin, range, vma, |page| {
                if page.swapped {
                    totals.swap += page.bytes;
                    return;
                }
                totals.resident += page.bytes;
                totals.anonymous += if page.anonymous { page.bytes } else { 0 };
            });
        }
        totals
    }

    /// The entries of `/proc/PID/pagemap` for the pages from `addr` on; see [`pagemap`].
    pub fn pagemap(&self, addr: usize, into: &mut [u64]) {
        let mut kin = self.kin();
        let first = addr & !(PAGE_SIZE - 1);
        for (entry, number) in into.iter_mut().zip(0_usize..) {
            let at = first.wrapping_add(number.wrapping_mul(PAGE_SIZE));
            *entry = self.when_still(|guard| self.pagemap_entry(guard, &mut kin, at));
        }
    }

    /// The entry of one page; `None` if it is absent and a call changes its VMA.
    fn pagemap_entry(&self, guard: &G::Guard, kin: &mut Kin<M>, at: usize) -> Option<u64> {
        let Some((_, vma)) = self.core.vmas.lookup(guard, at) else { return Some(0) };
        let tracks = Self::check_marks().is_ok();
        let mark = |dirty| if tracks && dirty { pagemap::SOFT_DIRTY } else { 0 };
        let mut entry = mark(self.is_new(vma));
        let Some(page) = self.core.tables.walk(guard).get(VirtAddr::new(at as u64)) else {
            return (!vma.is_busy()).then_some(entry);
        };
        if self.core.is_guard(page.frame) {
            let protected = is_mark(page.attrs) && vma.flags.contains(VmFlags::UFFD_WP);
            entry |= match (protected, page.attrs.soft & (WP | POISON)) {
                (true, _) => pagemap::WRITE_PROTECTED,
                (false, 0) => pagemap::GUARD,
                _ => 0,
            };
            return Some(entry);
        }
        entry |= mark(page.attrs.soft & CLEAN == 0);
        let is_protected =
            tracks && page.attrs.soft & WP != 0 && vma.flags.contains(VmFlags::UFFD_WP);
        let protected = if is_protected { pagemap::WRITE_PROTECTED } else { 0 };
        if let Some(slot) = self.core.tables.paging().slot_of(page.frame) {
            entry |= pagemap::SWAPPED | (slot & ((1 << 50) - 1)) << 5 | protected;
            return Some(entry);
        }
        let frame = page.frame_of(VirtAddr::new(at as u64)).unwrap_or(page.frame);
        entry |= pagemap::PRESENT | frame.number() | protected;
        if let Some(known) = self.look_at(kin, &page, vma) {
            entry |= if known.anonymous { 0 } else { pagemap::OF_OBJECT };
            entry |= if known.maps == 1 { pagemap::EXCLUSIVE } else { 0 };
        }
        Some(entry)
    }

    /// Writes the listing of `/proc/PID/smaps`. Waits for the write right.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_smaps(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let (mut written, mut kin) = (Ok(()), self.kin());
        let outcome = self.change(|calls| {
            written = calls.write_maps_with(out, &mut |out, range, vma| {
                let (guard, mut sum) = (G::pin(), Sum::default());
                self.each_page(&guard, &mut kin, range.clone(), vma, |page| _ = sum.add(page));
                let aligned = range.start.next_multiple_of(HUGE);
                let eligible = self.core.huge.policy().allows(vma)
                    && huge_around(aligned, &range).is_some()
                    || self.may_have_block(&range, vma);
                write_usage(out, range.len(), &sum.done(), vma, eligible)
            });
            Ok::<_, vma::Error>(())
        });
        debug_assert!(outcome.is_ok(), "a listing changes nothing");
        written
    }

    /// Calls `each` for the pages of a part of a VMA that count.
    pub(crate) fn each_page(
        &self,
        guard: &G::Guard,
        kin: &mut Kin<'_, M>,
        range: Range<usize>,
        vma: &Vma<Backing<M>>,
        mut each: impl FnMut(&Page),
    ) {
        let Some(range) = virt(range) else { return };
        for page in self.core.tables.walk(guard).pages(range) {
            let bytes = bytes_in(range, &page);
            if let Some(page) = self.look_at(kin, &page, vma) {
                // A part of one counts as small pages: on Linux, a VMA's end splits it.
                let huge = page.huge && bytes == page.bytes;
                each(&Page { bytes, huge, ..page });
            }
        }
    }

    /// The spaces that may share tables with this one.
    pub(crate) fn kin(&self) -> Kin<'_, M> {
        let tables = &self.core.tables;
        Kin::new(tables.forks().then_some(&*self.family), tables.machine())
    }

    fn look_at(&self, kin: &mut Kin<'_, M>, page: &Mapping, vma: &Vma<Backing<M>>) -> Option<Page> {
        let machine = self.core.tables.machine();
        if self.core.tables.paging().slot_of(page.frame).is_some() {
            let bytes = page.size.bytes() as usize;
            let (dirty, referenced, huge) = (true, false, false);
            let page =
                Page { bytes, swapped: true, huge, maps: 1, dirty, referenced, anonymous: true };
            return Some(page);
        }
        if !is_counted(machine, page.frame) {
            return None;
        }
        let (_, info) = block_of(machine, page.frame)?;
        let index = vma.offset_at(page.page.get() as usize) as u64;
        let file = vma.file.as_ref();
        let of_object = file.is_some_and(|file| file.object().is_current(index, page.frame));
        // Anonymous memory has its first address as its offset.
        let origin = match vma.file {
            None => VirtAddr::new(index.wrapping_mul(PAGE_SIZE as u64)),
            Some(_) => page.page,
        };
        // Each entry has a reference, and so has the object. Pins are references, too.
        let others = info.refs().saturating_sub(info.pins() + u32::from(of_object));
        let huge = page.size != PageSize::Size4K;
        // A part of a block that was split has as many references as all its parts.
        let others = match (huge, page.attrs.share()) {
            (false, Share::Exclusive) => 1,
            (false, _) => others.div_ceil(1 << info.order()),
            (true, _) => others,
        };
        Some(Page {
            bytes: page.size.bytes() as usize,
            swapped: false,
            huge,
            maps: others.max(1).saturating_add(kin.more_maps(page.page, origin, page.frame)),
            // A page of its own was written, by the program or for it.
            dirty: !of_object || page.attrs.flags.contains(Flags::DIRTY),
            referenced: page.attrs.flags.contains(Flags::ACCESSED),
            anonymous: !of_object,
        })
    }
}

/// The lines of one VMA.
fn write_usage<M: Machine>(
    out: &mut dyn fmt::Write,
    size: usize,
    usage: &Usage,
    vma: &Vma<Backing<M>>,
    eligible: bool,
) -> fmt::Result {
    let locked = if vma.flags.contains(VmFlags::LOCKED) { usage.proportional } else { 0 };
    write_lines(
        out,
        &[
            ("Size", size),
            ("KernelPageSize", PAGE_SIZE),
            ("MMUPageSize", PAGE_SIZE),
            ("Rss", usage.resident),
            ("Pss", usage.proportional),
            ("Pss_Dirty", usage.proportional_dirty),
        ],
    )?;
    write_lines(out, &usage.lines_of_both(locked))?;
    writeln!(out, "THPeligible:    {:8}", u8::from(eligible))?;
    out.write_str("VmFlags: ")?;
    vma.flags.names().try_for_each(|name| write!(out, "{name} "))?;
    out.write_char('\n')
}

/// Writes lines of names and bytes.
pub(crate) fn write_lines(out: &mut dyn fmt::Write, lines: &[(&str, usize)]) -> fmt::Result {
    lines.iter().try_for_each(|(name, bytes)| {
        let after = 15 - name.len();
        writeln!(out, "{name}:{:after$}{:8} kB", "", bytes / 1024)
    })
}
