//! The end of page tables: their tables are given back.

use super::PageTables;
use crate::format::{Decoded, Format, Geometry, entry};
use crate::leave_table::leave_table;
use crate::quick::{QUICK_ROOT, QUICK_TABLE};
use crate::tags::Tagged;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{Flush, Frame, Machine};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Empties `table`, and frees all tables below it. Of a table that another space shares, it
    /// ends the share.
    fn take_down(&self, table: Frame, level: u8) {
        let machine = self.machine();
        let shared = level == F::LEVELS - 1 && self.kernel.is_some();
        let own = if shared { F::ENTRIES / 2 } else { F::ENTRIES };
        let mut left = machine.info(table).map_or(0, |info| {
            // SAFETY: a table of ours: its count. Relaxed: no other CPU uses the tables.
            crate::lock::count_of::<F>(unsafe { info.word() }.load(Ordering::Relaxed))
        });
        for index in 0..own {
            if left == 0 {
                break;
            }
            // SAFETY: a table of ours, which no CPU walks.
            let Some(entry) = (unsafe { entry::<M, F>(machine, table, index) }) else { return };
            let value = entry.load();
            if value == 0 {
                continue;
            }
            left -= 1;
            entry.store(0);
            if let Decoded::Table(below) = F::decode(value, level) {
                if value & F::OWN == 0 {
                    leave_table::<M, F, G>(&self.paging, below, level - 1);
                    continue;
                }
                self.take_down(below, level - 1);
                // SAFETY: it is empty and unlinked. No CPU walks it: `drop` has flushed, and has
                // `self` exclusively.
                let _ = unsafe { self.paging.lists().free(QUICK_TABLE, below) };
            }
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for PageTables<M, F, G> {
    fn drop(&mut self) {
        let machine = self.machine();
        if let Some(kernel) = &self.kernel
            && machine.active().is_some_and(|(root, _)| root == self.root)
        {
            // SAFETY: tables were active here by this method, and these lead to the same kernel.
            unsafe { kernel.activate() };
        }
        let list = if self.kernel.is_some() { QUICK_ROOT } else { QUICK_TABLE };
        // No walk in software is under way: `self` is not borrowed. Hardware has the tables
        // inactive (the contract of `activate`), and no cached upper-level entries after this
        // flush. With an assigned tag it needs none: a CPU that uses the tag again drops what it
        // has cached.
        match &self.tagged {
            Tagged::Kernel => machine.flush_on(&machine.online(), Flush::All),
            Tagged::Own(space) => self.paging.tags.give_back(machine, space),
            Tagged::Fixed(asid) | Tagged::Shared(asid) => {
                machine.flush_on(&self.users().0, Flush::Space(*asid));
            }
        }
        if matches!(self.tagged, Tagged::Kernel) && self.paging.kernel().get() == Some(self.root) {
            self.paging.kernel().mark_dropped();
        }
        self.take_down(self.root, F::LEVELS - 1);
        // SAFETY: it is in its constructed state: its own entries are gone, and the kernel's
        // entries in it do not change.
        let _ = unsafe { self.paging.lists().free(list, self.root) };
    }
}
