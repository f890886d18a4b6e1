//! How much memory is in use: the listing of `/proc/PID/smaps`, and totals.
//!
//! Nothing is counted while pages come and go, so that no two CPUs write one line for it. Each
//! answer is counted from the page tables when it is asked for. It is exact while nothing changes.
//!
//! The zero frame and frames of devices do not count, as in Linux.

use core::{fmt, ops::Range};

use arrayvec::ArrayString;
use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr};
use paging::{Flags, Format, Mapping, Share};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing,
    addresses::{HUGE, huge_around, virt},
    fault::frame_ref::{block_of, is_counted},
    listing::mapcount::MapCount,
    listing::mincore::bytes_in,
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

/// Whose a page is.
enum Held {
    /// The host keeps it elsewhere.
    Swapped,
    Anonymous,
    OfObject,
}

/// The place of a page in what its VMA maps, in pages.
fn offset<M: Machine>(page: &Mapping, vma: &Vma<Backing<M>>) -> u64 {
    vma.offset_at(page.page.get() as usize) as u64
}

/// A present page, as far as a listing needs it.
pub(super) struct Page {
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
    pub(super) fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    pub(super) fn is_mapped_once(&self) -> bool {
        self.maps == 1
    }
}

/// The binary places of a proportional size, as in Linux: its error is less than a byte for 4096
/// pages.
const FRACTION: u32 = 12;

/// The bytes of a sum of proportional parts.
pub(super) fn whole_bytes(parts: u64) -> usize {
    (parts >> FRACTION) as usize
}

/// A usage that is being added up.
#[derive(Default)]
pub(super) struct Sum {
    usage: Usage,
    /// In units of 2^-[`FRACTION`] bytes.
    proportional: u64,
    proportional_dirty: u64,
}

impl Sum {
    /// Adds a page. Returns its proportional part, in units of 2^-[`FRACTION`] bytes.
    pub(super) fn add(&mut self, page: &Page) -> u64 {
        self.usage.add(page);
        if page.swapped {
            return 0;
        }
        let part = ((page.bytes as u64) << FRACTION) / u64::from(page.maps);
        self.proportional += part;
        self.proportional_dirty += if page.dirty { part } else { 0 };
        part
    }

    pub(super) fn done(self) -> Usage {
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
    pub(super) fn lines_of_both(&self, locked: usize) -> [(&'static str, usize); 16] {
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
        let (mut sum, mut mapcount) = (Sum::default(), self.mapcount());
        for (part, vma) in self.core.vmas.iter(&guard, range.start) {
            if part.start >= range.end {
                break;
            }
            let part = part.start.max(range.start)..part.end.min(range.end);
            self.each_page(&guard, &mut mapcount, part, vma, |page| _ = sum.add(page));
        }
        sum.done()
    }

    /// The memory of the space. O(pages), some ten instructions for one of anonymous memory.
    pub fn totals(&self) -> Totals {
        let guard = G::pin();
        let mut totals = Totals::default();
        // Without swap, all frames of anonymous memory count but these. Each may come at any
        // moment: one that is not there yet is asked for again.
        let mut others = [None; 3];
        let mut counts = |frame| {
            let huge = || self.core.huge.known_zero()?.get();
            let [zero, guard, huge_zero] = &mut others;
            *zero = zero.or_else(|| self.core.zero_frame.get());
            *guard = guard.or_else(|| self.core.guard_frame.get());
            *huge_zero = huge_zero.or_else(huge);
            !others.contains(&Some(frame))
        };
        let has_swap = self.core.tables.paging().swap().is_some();
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
            let Some(range) = virt(range) else { continue };
            let walk = self.core.tables.walk(&guard);
            if vma.file.is_none() && !has_swap {
                let bytes = walk.bytes(range, &mut counts) as usize;
                totals.resident += bytes;
                totals.anonymous += bytes;
                continue;
            }
            for page in walk.pages(range) {
                let bytes = bytes_in(range, &page);
                match self.held(&page, vma) {
                    Some(Held::Swapped) => totals.swap += bytes,
                    Some(Held::Anonymous) => {
                        totals.resident += bytes;
                        totals.anonymous += bytes;
                    }
                    Some(Held::OfObject) => totals.resident += bytes,
                    None => {}
                }
            }
        }
        totals
    }

    /// Writes the listing of `/proc/PID/smaps`. Waits for the mmap lock.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_smaps(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.write_smaps_from(0, usize::MAX, out).map(|_| ())
    }

    /// As [`write_smaps`](Self::write_smaps), of at most `most` VMAs, those that end above `from`.
    /// Returns where a later call goes on, `None` at the end. So a host writes a long listing in
    /// parts, between which other calls have their turn. Each VMA is shown as it is then.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_smaps_from(
        &self,
        from: usize,
        most: usize,
        out: &mut dyn fmt::Write,
    ) -> Result<Option<usize>, fmt::Error> {
        let (mut written, mut mapcount, mut left) = (Ok(None), self.mapcount(), most);
        let outcome = self.change(|calls| {
            written = calls.write_maps_from(from, out, &mut |out, range, vma| {
                let (guard, mut sum) = (G::pin(), Sum::default());
                self.each_page(&guard, &mut mapcount, range.clone(), vma, |page| _ = sum.add(page));
                let aligned = range.start.next_multiple_of(HUGE);
                let eligible = self.core.huge.policy().allows(vma)
                    && huge_around(aligned, &range).is_some()
                    || self.may_have_block(&range, vma);
                write_usage(out, range.len(), &sum.done(), vma, eligible)?;
                left = left.saturating_sub(1);
                Ok(left > 0)
            });
            Ok::<_, vma::Error>(())
        });
        debug_assert!(outcome.is_ok(), "a listing changes nothing");
        written
    }

    /// Calls `each` for the pages of a part of a VMA that count.
    pub(super) fn each_page(
        &self,
        guard: &G::Guard,
        mapcount: &mut MapCount<'_, M>,
        range: Range<usize>,
        vma: &Vma<Backing<M>>,
        mut each: impl FnMut(&Page),
    ) {
        let Some(range) = virt(range) else { return };
        for page in self.core.tables.walk(guard).pages(range) {
            let bytes = bytes_in(range, &page);
            if let Some(page) = self.look_at(mapcount, &page, vma) {
                // A part of one counts as small pages: on Linux, a VMA's end splits it.
                let huge = page.huge && bytes == page.bytes;
                each(&Page { bytes, huge, ..page });
            }
        }
    }

    /// The spaces that may share tables with this one.
    pub(super) fn mapcount(&self) -> MapCount<'_, M> {
        let tables = &self.core.tables;
        MapCount::new(tables.forks().then_some(&*self.family), tables.machine())
    }

    /// Whose a page of this VMA is; `None` if it does not count. A page without an object costs
    /// some tens of instructions.
    fn held(&self, page: &Mapping, vma: &Vma<Backing<M>>) -> Option<Held> {
        let tables = &self.core.tables;
        if tables.paging().slot_of(page.frame).is_some() {
            return Some(Held::Swapped);
        }
        if !is_counted(tables.machine(), page.frame) {
            return None;
        }
        let is_current =
            |file: &Backing<M>| file.object().is_current(offset(page, vma), page.frame);
        let of_object = vma.file.as_ref().is_some_and(is_current);
        Some(if of_object { Held::OfObject } else { Held::Anonymous })
    }

    /// A page of this VMA as a listing needs it; `None` if it does not count.
    pub(super) fn look_at(
        &self,
        mapcount: &mut MapCount<'_, M>,
        page: &Mapping,
        vma: &Vma<Backing<M>>,
    ) -> Option<Page> {
        let held = self.held(page, vma)?;
        if let Held::Swapped = held {
            let bytes = page.size.bytes() as usize;
            let (dirty, referenced, huge) = (true, false, false);
            let page =
                Page { bytes, swapped: true, huge, maps: 1, dirty, referenced, anonymous: true };
            return Some(page);
        }
        let of_object = matches!(held, Held::OfObject);
        let (_, info) = block_of(self.core.tables.machine(), page.frame)?;
        // Anonymous memory has its first address as its offset.
        let origin = match vma.file {
            None => VirtAddr::new(offset(page, vma).wrapping_mul(PAGE_SIZE as u64)),
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
            maps: others.max(1).saturating_add(mapcount.more_maps(page.page, origin, page.frame)),
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
pub(super) fn write_lines(out: &mut dyn fmt::Write, lines: &[(&str, usize)]) -> fmt::Result {
    lines.iter().try_for_each(|(name, bytes)| out.write_str(&line(name, bytes / 1024)))
}

/// A line with a name and its KiB. `core::fmt` writes each blank by a call, and takes ten times as
/// long.
fn line(name: &str, kib: usize) -> ArrayString<64> {
    const BLANKS: &str = "                        ";
    let mut digits = ArrayString::<20>::new();
    let places = kib.checked_ilog10().unwrap_or(0);
    for place in (0..=places).rev() {
        let digit = kib / 10_usize.pow(place) % 10;
        digits.push(char::from(b'0' + digit as u8));
    }
    let mut line = ArrayString::new();
    line.push_str(name);
    line.push(':');
    // 16 columns of the name, and 8 of the number, which is never cut.
    let first = 24_usize.saturating_sub(digits.len()).max(16);
    line.push_str(&BLANKS[..first.saturating_sub(line.len())]);
    line.push_str(&digits);
    line.push_str(" kB\n");
    line
}
