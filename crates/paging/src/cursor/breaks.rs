//! Break-before-make: replacing a valid entry where the architecture forbids to do it at once
//! ([`Format::BREAK_BEFORE_MAKE`]).
//!
//! The entry becomes that of a page without rights, by an atomic operation that keeps the bits
//! which hardware has set. Then the TLBs are flushed, and the new entry is stored. On AArch64 these
//! are the store, DSB, TLBI, DSB, and the store of the new entry; the barriers are the machine's
//! part of a flush.
//!
//! # Why it is correct
//! - *Other changes wait.* The lock of the entry's table is held from the break to the make. A CPU
//!   that waits for it answers flushes, as each waiting loop does, so the flush ends.
//! - *Walks without a lock* find a `PROT_NONE` page with the frame of the old or the new page: not
//!   an absent entry, so that an unmapping or a protection takes the lock, too, and then finds the
//!   new entry. A pin takes its slow path, which takes the lock. A page fault finds nothing to do,
//!   and the access is made again.
//! - *Hardware* faults. The kernel cannot tolerate that: it uses no page of its own half while it
//!   splits it, changes its memory type, or makes it global.
//!
//! An entry that a sweep or a decision clears may get another page as soon as the lock of its table
//! is given up, by a fault. So may the entry of a shared table that the space leaves. So the flush
//! is done before that, too (`PendingFlush::flush_broken`).
//! A table that becomes empty by that is unlinked with its flush pending: CPUs may have cached the
//! way to it. A new table may take its place, since no entry of the old one translates. A large
//! page may not, so its way is flushed before it is stored. [`PageTables::unmap`] leaves the flush
//! pending: its caller does not map the range again before it.
//!
//! Cost: nothing for formats that do not need it. Otherwise a flush at once, in the place of the
//! one that would be pending.

use super::Error;
use crate::format::{Attrs, Decoded, Flags, Format, Geometry, span_at};
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{Entry, Flush, Frame, Machine, PageSize, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Breaks the entry of a valid page, if its value is still `value`, and flushes the page. The
    /// caller holds the lock of its table.
    ///
    /// # Errors
    /// The entry's value, if it is another one.
    #[cold]
    pub(super) fn break_page(
        &self,
        at: VirtAddr,
        level: u8,
        entry: &Entry<'_, M>,
        value: u64,
    ) -> core::result::Result<(), u64> {
        let (Decoded::Page(frame, attrs), Some(size)) =
            (F::decode(value, level), F::size_at(level))
        else {
            return Err(entry.load());
        };
        entry.compare_exchange(value, without_rights::<F>(size, frame, attrs))?;
        self.flush_broken(at, size, size);
        Ok(())
    }

    /// Puts the entry of a page in the place of one that leads to a table, and flushes its range,
    /// where small pages were. The caller holds the lock of its table.
    #[cold]
    pub(super) fn break_table(
        &self,
        at: VirtAddr,
        size: PageSize,
        entry: &Entry<'_, M>,
        value: u64,
    ) -> core::result::Result<(), Error> {
        if let Some(level) = F::level_of(size)
            && let Decoded::Page(frame, attrs) = F::decode(value, level)
        {
            entry.store(without_rights::<F>(size, frame, attrs));
        }
        self.flush_broken(at, size, F::PAGE);
        entry.store(value);
        Ok(())
    }

    /// Before a large page is stored where nothing is: flushes the way to a table that was there,
    /// whose flush may be pending. The caller holds the lock of the entry's table.
    #[inline]
    pub(super) fn break_way(&self, at: VirtAddr, level: u8) {
        if F::BREAK_BEFORE_MAKE
            && level != 0
            && let Some(range) = span_at::<F>(at, 0)
        {
            // Any page will do, as in `prune_up_to`.
            let (cpus, space) = self.users();
            let what = Flush::Range { space, range, stride: F::PAGE, tables: true };
            self.machine().flush_on(&cpus, what);
        }
    }

    fn flush_broken(&self, at: VirtAddr, size: PageSize, stride: PageSize) {
        let Some(range) = VirtRange::new(at.align_down(size), size.bytes()) else { return };
        let (cpus, space) = self.users();
        let tables = stride != size;
        self.machine().flush_on(&cpus, Flush::Range { space, range, stride, tables });
    }

    /// Whether a page with the old attributes must be broken before another one replaces it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn must_break(old: Attrs, new: Attrs, same_frame: bool) -> bool {
        let writable = |attrs: Attrs| attrs.flags.contains(Flags::WRITE);
        // To hardware, a page that becomes shared with the host, or private, has another address.
        let same_frame = same_frame && !(old.flags ^ new.flags).contains(Flags::DECRYPTED);
        F::BREAK_BEFORE_MAKE
            && old.flags.intersects(Flags::RWX)
            && (old.cache != new.cache
                || (new.flags - old.flags).contains(Flags::GLOBAL)
                || !same_frame && (writable(old) || writable(new)))
    }
}

/// The entry of a page with this frame, without rights. Every page has one.
pub(super) fn without_rights<F: Format>(size: PageSize, frame: Frame, attrs: Attrs) -> u64 {
    let flags = attrs.flags & (Flags::ACCESSED | Flags::DIRTY);
    F::page(size, frame, Attrs { flags, ..attrs }).unwrap_or(0)
}
