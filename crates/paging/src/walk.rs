//! The lock-free walk: from an address down to the entry that decides about it.
//!
//! All code that reads page tables does it here: lookups, listings,
//! [`get_user_pages_fast`](crate::PageTables::get_user_pages_fast), and the cursor on its way to
//! the table that it will lock.
//!
//! # Why it is right
//! - A walk follows the same entries as hardware does. It needs one thing: a table that it was led
//!   to must stay a table (I3). For hardware, TLB flushes ensure this. For software, the guard
//!   does: a table is unlinked, then retired through the engine `G`, and given back after every
//!   guard that existed then is gone.
//! - A walk may still read from a table that has been unlinked. It reads *absent* entries there,
//!   since only empty tables are unlinked. So each entry that a walk reads has the value it had at
//!   some moment since the walk began (I1).
//! - A table that a fork shared may go to the other space while a walk is in it, which may then
//!   change it (`cursor::share`). A space that has left a table never comes back to it. So a walk
//!   that has read an entry reads the way again: if it still leads there, the entry was this
//!   space's when it was read. Otherwise the walk begins anew. The second look is not needed if all
//!   tables on the way were this space's own, and no fork has begun since before the first load:
//!   only a fork of this space shares them ([`Walk::is_still`]).
//! - A walk writes nothing, waits for nothing, and may run in an interrupt (I2).
//!
//! Cost: one load per level, and two of the count of forks. In tables that are shared, or during a
//! fork, the loads of a second walk.

mod pages;

pub use pages::Pages;

use crate::format::{Attrs, Decoded, Flags, Format, Geometry, alone, is_grouped, load, start_at};
use crate::sync::AtomicU64;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use machine::{Entries, Entry, Frame, Machine, PageSize, VirtAddr, VirtRange};

/// A mapped page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first address of the page.
    pub page: VirtAddr,
    /// The size of the page.
    pub size: PageSize,
    /// The first frame.
    pub frame: Frame,
    /// Its attributes. Without READ, WRITE and EXECUTE it is a `PROT_NONE` page: no access
    /// translates.
    pub attrs: Attrs,
}

impl Mapping {
    /// The frame that holds `at`. `None` if `at` does not lie in the page.
    ///
    /// ```
    /// use machine::{Frame, PageSize, VirtAddr};
    /// use paging::{Attrs, Mapping};
    /// let frame = Frame::new(0x200).unwrap();
    /// let (page, size) = (VirtAddr::new(0x60_0000), PageSize::Size2M);
    /// let page = Mapping { page, size, frame, attrs: Attrs::USER_RW };
    /// assert_eq!(page.frame_of(VirtAddr::new(0x60_5123)), Frame::new(0x205));
    /// assert_eq!(page.frame_of(VirtAddr::new(0x80_0000)), None);
    /// ```
    pub fn frame_of(&self, at: VirtAddr) -> Option<Frame> {
        if at.align_down(self.size) != self.page {
            return None;
        }
        self.frame.checked_add(at.offset_in(self.size) >> 12)
    }
}

/// Where a walk ended: an entry, its level, and its decoded value.
pub(crate) struct WalkEnd<'m, M> {
    pub(crate) entry: Entry<'m, M>,
    pub(crate) level: u8,
    pub(crate) found: Decoded,
    /// Whether all tables on the way, this one included, belong to this space alone.
    pub(crate) own: bool,
    /// The count of forks before the way was read.
    forks: u64,
}

impl<M: Machine> WalkEnd<'_, M> {
    /// The table of the entry.
    #[inline]
    fn table(&self) -> FoundTable {
        FoundTable { table: self.entry.table(), own: self.own, forks: self.forks }
    }
}

/// An entry on the way to an address that leads to a shared table.
pub(crate) struct SharedLink<'m, M> {
    pub(crate) at: VirtAddr,
    pub(crate) entry: Entry<'m, M>,
    pub(crate) level: u8,
    pub(crate) table: Frame,
}

/// A table that a walk was led to.
#[derive(Clone, Copy)]
pub(crate) struct FoundTable {
    pub(crate) table: Frame,
    /// Whether all tables on the way, this one included, belonged to this space alone.
    own: bool,
    /// The count of forks before the way was read.
    forks: u64,
}

impl FoundTable {
    /// Whether the table is this space's own at the count `now`: no fork was under way when the way
    /// was read, and none has begun since. Tables that have never forked have no other space.
    #[inline]
    pub(crate) fn is_own_at(self, now: u64) -> bool {
        now == 0 || self.own && self.forks == now && now.is_multiple_of(2)
    }
}

/// The result of a walk to an address without a lock. The lowest table stays a table while the
/// guard is held, so [`PageTables::with_found`](crate::PageTables::with_found) need not walk again.
pub struct Found<'g> {
    pub(crate) page: VirtAddr,
    pub(crate) root: Frame,
    /// The lowest table, if there is one.
    pub(crate) table: Option<FoundTable>,
    mapping: Option<Mapping>,
    guard: PhantomData<&'g ()>,
}

impl Found<'_> {
    /// Whether there was a table of the lowest level.
    pub fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// The page that contained the address, as [`Walk::get`] returns it.
    pub fn mapping(&self) -> Option<Mapping> {
        self.mapping
    }
}

/// A view of page tables, valid while a guard is held.
pub struct Walk<'g, M, F> {
    machine: &'g M,
    root: Frame,
    /// The count of forks. `None`: the looks are hints.
    forks: Option<&'g AtomicU64>,
    format: PhantomData<F>,
}

impl<M, F> Clone for Walk<'_, M, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, F> Copy for Walk<'_, M, F> {}

impl<'g, M: Machine, F: Format> Walk<'g, M, F> {
    /// # Safety
    /// `root` is a top-level table. While `'g` lasts, no table that can be reached from it, now or
    /// later, is used for anything else.
    pub(crate) unsafe fn new(machine: &'g M, root: Frame) -> Self {
        Walk { machine, root, forks: None, format: PhantomData }
    }

    /// From now on, what the walk tells was so at some moment, also if the tables fork: `forks`
    /// counts the forks.
    #[inline]
    pub(crate) fn with_forks(self, forks: &'g AtomicU64) -> Self {
        Walk { forks: Some(forks), ..self }
    }

    /// A walk whose looks are hints, for a caller that looks again with the table's lock: it may
    /// tell of a page of another space that shared the table a moment ago. Its looks walk once,
    /// also if the tables have forked.
    #[inline]
    pub fn as_hint(self) -> Self {
        Walk { forks: None, ..self }
    }

    /// Whether the way to `at` still leads to the entry that was found there and has been read. A
    /// load if the tables on the way are this space's own.
    #[inline]
    pub(crate) fn is_still(&self, at: VirtAddr, spot: &WalkEnd<'g, M>) -> bool {
        let Some(forks) = self.forks else { return true };
        // Acquire: pairs with the Release of `fork`. The entry was loaded with Acquire: a walk that
        // has read what another space stored there sees that a fork has begun. No step of the
        // machine before it: tables that never fork have no second look.
        let now = forks.load(Ordering::Acquire);
        spot.table().is_own_at(now) || self.leads_to(at, spot.level, spot.entry.table(), spot.own)
    }

    /// The count of forks, before a way is read. A hint needs none.
    #[inline]
    fn forks(&self) -> u64 {
        // Acquire: pairs with the Release of a fork's end. Where the count is even, the walk reads
        // the marks of all forks that it counts.
        self.forks.map_or(0, |forks| forks.load(Ordering::Acquire))
    }

    /// Takes values, so that a caller that does not come here keeps them in registers.
    #[cold]
    fn leads_to(self, at: VirtAddr, level: u8, table: Frame, was_own: bool) -> bool {
        let now = self.descend(at, level);
        // A page of a table that is shared by now is not writable any more.
        now.is_some_and(|(entry, _, _, own)| entry.table() == table && (own || !was_own))
    }

    /// Calls `read` with the entry that decides about `at`, when the way still leads to it after it
    /// was read. `None`: no page can be there.
    #[inline]
    fn settled<T>(&self, at: VirtAddr, read: impl Fn(Option<&WalkEnd<'g, M>>) -> T) -> T {
        let spot = if F::is_canonical(at) { self.find(at, 0) } else { None };
        match &spot {
            Some(spot) if !self.is_still(at, spot) => self.settled_later(at, read),
            spot => read(spot.as_ref()),
        }
    }

    /// The way has changed. The result is made here, so that the usual look keeps all it has read
    /// in registers.
    #[cold]
    fn settled_later<T>(self, at: VirtAddr, read: impl Fn(Option<&WalkEnd<'g, M>>) -> T) -> T {
        loop {
            let spot = self.find(at, 0);
            if spot.as_ref().is_none_or(|spot| self.is_still(at, spot)) {
                return read(spot.as_ref());
            }
        }
    }

    /// Entry `index` of a table that the walk was led to.
    #[inline]
    pub(crate) fn entry(&self, table: Frame, index: usize) -> Option<Entry<'g, M>> {
        self.entries(table)?.get(index)
    }

    /// The entries of a table that the walk was led to.
    #[inline]
    pub(crate) fn entries(&self, table: Frame) -> Option<Entries<'g, M>> {
        // SAFETY: it stays a table while `'g` lasts.
        unsafe { crate::format::entries::<M, F>(self.machine, table) }
    }

    /// Goes down to the entry for `at` at level `stop`, or to where the tables end above that
    /// level. Returns the entry, its level, the value that was read, as if its page were in no
    /// group, and whether all tables on the way belong to this space alone. `None` if an entry on
    /// the way leads to no memory.
    #[inline]
    pub(crate) fn descend(&self, at: VirtAddr, stop: u8) -> Option<(Entry<'g, M>, u8, u64, bool)> {
        let (mut table, mut level, mut way) = (self.root, F::LEVELS - 1, F::OWN);
        loop {
            let entry = self.entry(table, F::index(at, level))?;
            let value = entry.load();
            match F::next(value, level) {
                Some(next) if level > stop => {
                    way &= value;
                    table = next;
                    level -= 1;
                }
                _ => {
                    let value = alone::<F>(value, level, entry.index());
                    return Some((entry, level, value, way != 0));
                }
            }
        }
    }

    /// The first entry on the way to `at`, above level `stop`, that leads to a shared table.
    pub(crate) fn first_shared(&self, at: VirtAddr, stop: u8) -> Option<SharedLink<'g, M>> {
        let (mut table, mut level) = (self.root, F::LEVELS - 1);
        while level > stop {
            let entry = self.entry(table, F::index(at, level))?;
            let value = entry.load();
            let next = F::next(value, level)?;
            if value & F::OWN == 0 {
                return Some(SharedLink { at, entry, level, table: next });
            }
            table = next;
            level -= 1;
        }
        None
    }

    /// The address after the absent entries from the one for `at` on, as far as their table goes.
    /// A load for each.
    pub(crate) fn beyond_absent(&self, table: Frame, at: VirtAddr, level: u8) -> Option<VirtAddr> {
        let Some(entries) = self.entries(table) else { return beyond::<F>(at, level) };
        let index = F::index(at, level);
        let next = entries.first_set(index + 1..F::ENTRIES);
        let entries = next.map_or(F::ENTRIES, |(next, _)| next.index()) - index;
        start_at::<F>(at, level).checked_add((entries as u64) << F::shift(level))
    }

    /// As [`descend`](Self::descend), with the value decoded.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn find(&self, at: VirtAddr, stop: u8) -> Option<WalkEnd<'g, M>> {
        let forks = self.forks();
        let (entry, level, value, own) = self.descend(at, stop)?;
        Some(WalkEnd { entry, level, found: F::decode(value, level), own, forks })
    }

    /// The page that contains `at`, if one is mapped, with the rights that all levels allow. It was
    /// so at some moment of the call; it may be out of date when it is returned.
    pub fn get(&self, at: VirtAddr) -> Option<Mapping> {
        self.settled(at, |spot| mapping::<M, F>(at, spot?))
    }

    /// The table whose entry decides about `at`: the lowest one, or the one of a huge page. `None`
    /// if no page can be there. Spaces that a fork has made share the page if they share the table.
    /// Out of date when it returns, as [`get`](Self::get).
    pub fn table_at(&self, at: VirtAddr) -> Option<Frame> {
        self.settled(at, |spot| {
            let spot = spot?;
            let has_pages = spot.level == 0 || matches!(spot.found, Decoded::Page(..));
            has_pages.then(|| spot.entry.table())
        })
    }

    /// The addresses of the group of pages ([`Format::GROUP`]) that contains `at`, if there is one:
    /// hardware may cache them as one translation. Out of date when it returns, as
    /// [`get`](Self::get).
    pub fn group_of(&self, at: VirtAddr) -> Option<VirtRange> {
        let size = F::GROUP.filter(|_| F::is_canonical(at))?;
        let (entry, level, ..) = self.descend(at, 0)?;
        let is_group = is_grouped::<F>(entry.load(), level);
        is_group.then(|| VirtRange::new(at.align_down(size), size.bytes())).flatten()
    }

    /// As [`get`](Self::get), with the table that the walk has reached.
    ///
    /// # Misuse
    /// A `Found` that is out of date, or of other tables, changes nothing: `with_found` takes the
    /// table only if the look began at the same top-level table, and asks again with the table's
    /// lock held.
    pub fn look(&self, at: VirtAddr) -> Found<'g> {
        let (page, root) = (at.align_down(F::PAGE), self.root);
        self.settled(at, |spot| {
            let mapping = spot.and_then(|spot| mapping::<M, F>(at, spot));
            let table = spot.filter(|spot| spot.level == 0).map(WalkEnd::table);
            Found { page, root, table, mapping, guard: PhantomData }
        })
    }

    /// The absent pages of a range: a bit for each page of [`Format::PAGE`], the lowest for the
    /// first; also those whose entries `counts` accepts. At most 64 pages that one lowest table
    /// decides about. Out of date when it returns, as [`get`](Self::get).
    ///
    /// Cost: a walk, and a load for each page. Without `counts`, no entry is decoded.
    ///
    /// A page of another space may count that shared the table a moment ago: use it as a hint.
    pub fn absent(&self, range: VirtRange, counts: Option<impl Fn(&Mapping) -> bool>) -> u64 {
        let start = range.start();
        let way = if F::is_canonical(start) { self.find(start, 0) } else { None };
        let pages = (range.len() >> F::PAGE.shift()).min(u64::BITS.into());
        let (first, own, forks) = match way {
            Some(WalkEnd { entry, level: 0, own, forks, .. }) => (entry, own, forks),
            // Without a table, all are.
            Some(WalkEnd { found: Decoded::Absent, .. }) => {
                return !u64::MAX.checked_shl(pages as u32).unwrap_or(0);
            }
            _ => return 0,
        };
        let Some(entries) = self.entries(first.table()) else { return 0 };
        let is_absent = |at: u64, entry: Entry<'g, M>| match (load::<M, F>(&entry, 0), &counts) {
            (0, _) => true,
            (_, None) => false,
            (value, Some(counts)) => {
                let at = VirtAddr::new(start.get() + (at << F::PAGE.shift()));
                let spot = WalkEnd { entry, level: 0, found: F::decode(value, 0), own, forks };
                mapping::<M, F>(at, &spot).is_some_and(|page| counts(&page))
            }
        };
        let pages = (0..).zip(entries.range(first.index()..first.index() + pages as usize));
        pages.filter(|&(at, entry)| is_absent(at, entry)).fold(0, |all, (at, _)| all | 1 << at)
    }

    /// The bytes of `range` in pages whose first frames `counts` accepts. Out of date when it
    /// returns, as [`get`](Self::get).
    ///
    /// Cost: a walk for each table, and a load for each page. `counts` may be asked again about a
    /// table that the space has left meanwhile.
    pub fn bytes(&self, range: VirtRange, mut counts: impl FnMut(Frame) -> bool) -> u64 {
        let (mut bytes, mut next) = (0, Some(range.start()));
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            if !F::is_canonical(at) {
                next = beyond_hole::<F>(at);
                continue;
            }
            let Some(spot) = self.find(at, 0) else { break };
            next = beyond::<F>(at, spot.level);
            let left = range.len() - (at.get() - range.start().get());
            if spot.level > 0 {
                let end = next.map_or(left, |next| left.min(next.get() - at.get()));
                match spot.found {
                    _ if !self.is_still(at, &spot) => next = Some(at),
                    Decoded::Page(frame, _) if counts(frame) => bytes += end,
                    _ => {}
                }
                continue;
            }
            let Some(entries) = self.entries(spot.entry.table()) else { continue };
            let (shift, first) = (F::PAGE.shift(), F::index(at, 0));
            let most = left.div_ceil(1 << shift).min((F::ENTRIES - first) as u64);
            let mut found = 0;
            for (entry, value) in entries.set(first..first + most as usize) {
                let value = alone::<F>(value, 0, entry.index());
                // Most are readable pages, which need no decoding.
                let frame = F::usable(value, 0, false).or_else(|| match F::decode(value, 0) {
                    Decoded::Page(frame, _) => Some(frame),
                    _ => None,
                });
                found += if frame.is_some_and(&mut counts) { F::PAGE.bytes() } else { 0 };
            }
            if !self.is_still(at, &spot) {
                next = Some(at);
                continue;
            }
            bytes += found;
            next = at.checked_add(most << shift);
        }
        bytes
    }

    /// The pages that overlap `range`, in ascending order; each as it is when the iterator reaches
    /// it.
    ///
    /// Cost: one load for each entry, and one walk from the top for each table. In tables that are
    /// shared, or during a fork, one more for each table and each page.
    pub fn pages(self, range: VirtRange) -> Pages<'g, M, F> {
        Pages::new(self, range)
    }
}

pub(crate) fn mapping<M, F: Format>(at: VirtAddr, spot: &WalkEnd<'_, M>) -> Option<Mapping> {
    let (Decoded::Page(frame, mut attrs), Some(size)) = (spot.found, F::size_at(spot.level)) else {
        return None;
    };
    if F::SHARED_IS_READ_ONLY && !spot.own {
        attrs.flags -= Flags::WRITE;
    }
    Some(Mapping { page: at.align_down(size), size, frame, attrs })
}

/// The first address after the range that the entry for `at` at this level decides about.
#[inline]
pub(crate) fn beyond<F: Format>(at: VirtAddr, level: u8) -> Option<VirtAddr> {
    start_at::<F>(at, level).checked_add(1 << F::shift(level))
}

/// The first canonical address after `at`, which lies in the hole in the middle: that of the upper
/// half.
fn beyond_hole<F: Format>(at: VirtAddr) -> Option<VirtAddr> {
    Some(F::upper_half()).filter(|upper| *upper > at)
}
