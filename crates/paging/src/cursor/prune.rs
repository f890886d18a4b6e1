//! Tables that have become empty are unlinked.

use crate::debt::Debt;
use crate::format::{Decoded, Format};
use crate::lock::lock;
use crate::tables::PageTables;
use crate::walk::Walk;
use grace::Concurrent;
use machine::{Machine, VirtAddr};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Unlinks the table of this level on the way to `at`, if it is empty, and those above that become empty by that. Whoever
    /// else has done so meanwhile has done it.
    ///
    /// The caller adds a page that the table decides about to what is owed.
    pub(super) fn prune(&self, walk: &Walk<'_, M, F>, at: VirtAddr, level: u8, debt: &mut Debt) {
        // The top stays; and what all top-level tables lead to, of the kernel.
        let top = if self.space().is_some() { F::LEVELS - 1 } else { F::LEVELS - 2 };
        for level in level..top {
            let Some(spot) = walk.find(at, level + 1).filter(|spot| spot.level == level + 1) else {
                return;
            };
            let Ok(Some(mut upper)) = lock(self.machine(), spot.entry.table(), at) else { return };
            // Again, with the lock.
            let Decoded::Table(table) = F::decode(spot.entry.load(), level + 1) else { return };
            let Ok(Some(lower)) = lock(self.machine(), table, at) else { return };
            if lower.count != 0 {
                return;
            }
            spot.entry.store(0);
            upper.count -= 1;
            lower.kill();
            let empty = upper.count == 0;
            drop(upper);
            debt.add_table(self.machine(), table);
            if !empty {
                return;
            }
        }
    }

    /// Unlinks what tables there are on the way to `at` that are empty.
    pub(super) fn prune_way(&self, at: VirtAddr, debt: &mut Debt) {
        let guard = G::pin();
        let walk = self.walk(&guard);
        if let Some(spot) = walk.find(at, 0) {
            self.prune(&walk, at, spot.level, debt);
        }
    }
}
