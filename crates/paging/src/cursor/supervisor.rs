//! Pages for the kernel alone in the lower half of a user space: data of one CPU, trampolines.
//!
//! Their entries lack USER. All other calls refuse such entries in a user space, so a caller that
//! forgets USER gets an error.
//!
//! # Why it is right
//! - *No program uses them.* Hardware faults in user mode. [`get_user_pages_fast`] and its kin test
//!   each entry for USER ([`Format::usable`]). [`protect`](PageTables::protect) refuses them.
//! - *No other space gets them.* Tables that have had such a page are not forked.
//! - *The kernel's accesses do not fault.* Entries on the way may have been absent, and a CPU may
//!   have cached that, or the way to a table that was unlinked. So the call flushes the range on
//!   all CPUs that use the space. The pages are in no group, which would be parted
//!   (`group`), and their tables, which are not empty, stay linked.
//!
//! Cost: that of [`map`](PageTables::map), and a flush. Calls in a space without such pages pay
//! nothing, except for a load in `protect` and in `fork`.
//!
//! [`get_user_pages_fast`]: PageTables::get_user_pages_fast

use super::map::consecutive;
use super::{Error, Result};
use crate::format::{Attrs, Flags, Format};
use crate::tables::PageTables;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{Flush, Frame, Machine, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// As [`map`](Self::map), for pages that the kernel alone may use, in the lower half of a user
    /// space: for data of one CPU, or trampolines. `attrs` have rights, but not [`Flags::USER`]. In
    /// the kernel's tables it does what `map` does.
    ///
    /// - No pin of user pages succeeds there: they are holes for
    ///   [`get_user_pages_fast`](Self::get_user_pages_fast).
    ///   [`pin_mapped`](Self::pin_mapped), which is for the kernel's own mappings, pins them.
    /// - The tables cannot be [forked](Self::fork) any more, even after the pages were unmapped
    ///   ([`Error::SupervisorFork`]).
    /// - [`protect`](Self::protect) refuses them ([`Error::Supervisor`]). [`unmap`](Self::unmap)
    ///   takes them like others. Calls with a closure show them without USER.
    /// - They become no [group](Format::GROUP).
    ///
    /// When it returns, each CPU that uses the space can use the pages: none faults because of what
    /// was there before. Deferred frees may run: see [Context](Self#context).
    ///
    /// Cost: as [`map`](Self::map), and a flush on the CPUs that use the space.
    ///
    /// ```
    /// use machine::{Asid, FrameSource, PageSize, NodePolicy, VirtAddr, VirtRange};
    /// use paging::{Attrs, Error, Flags, PageTables, Paging, X86_64L4};
    /// use sim::{Config, Grace, Sim};
    ///
    /// let sim = Sim::new(Config::default()).unwrap();
    /// let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    /// sim.on_cpu(0, || {
    ///     let tables = PageTables::<_, _, Grace>::user(&paging, Asid(1), None).unwrap();
    ///     let page = sim.alloc(0, NodePolicy::Local).unwrap();
    ///     let range = VirtRange::new(VirtAddr::new(0x1000), 0x1000).unwrap();
    ///     let attrs = Attrs::new(Flags::READ | Flags::WRITE);
    ///     // SAFETY: the addresses and the page are ours, and no CPU uses the tables.
    ///     unsafe {
    ///         let failed = tables.map(range, page, attrs).unwrap_err();
    ///         assert_eq!(failed.error, Error::NotUser(range.start()));
    ///         drop(failed);
    ///         tables.map_supervisor(range, page, attrs).unwrap();
    ///         tables.unmap(range, |_| ()).unwrap().flush();
    ///         sim.release(page).unwrap();
    ///     }
    /// });
    /// ```
    ///
    /// # Errors
    /// As for [`map`](Self::map), but for [`Error::NotUser`]; [`Error::NotSupervisor`];
    /// [`Error::Format`]: a second stage has no such pages.
    ///
    /// # Safety
    /// As for [`map`](Self::map). Besides, the kernel handles no fault there: no CPU uses a page
    /// while a call splits it, joins it, replaces it, or changes its memory type.
    pub unsafe fn map_supervisor(
        &self,
        range: VirtRange,
        first: Frame,
        attrs: Attrs,
    ) -> Result<'_, (), M, F, G> {
        let check = |_: &Self, at, flags: Flags| {
            if flags.contains(Flags::USER) || !flags.intersects(Flags::RWX) {
                return Err(Error::NotSupervisor(at));
            }
            if self.space().is_some() {
                if flags.contains(Flags::GLOBAL) {
                    return Err(Error::Global(at));
                }
                // Release: pairs with the Acquire of `has_supervisor`. It comes before the pages.
                self.supervisor.store(true, Ordering::Release);
            }
            Ok(())
        };
        self.map_checked(range, attrs, consecutive::<F>(range, first), check)?;
        if self.space().is_some() {
            let (cpus, space) = self.users();
            let what = Flush::Range { space, range, stride: F::PAGE, tables: true };
            self.machine().flush_on(&cpus, what);
        }
        Ok(())
    }

    /// Whether these are a program's tables that have, or had, pages for the kernel alone. A load.
    #[inline]
    pub(super) fn has_supervisor(&self) -> bool {
        // Acquire: pairs with the Release of `map_supervisor`.
        self.supervisor.load(Ordering::Acquire)
    }

    /// Checks that no page of a range is for the kernel alone. A load, in tables without such
    /// pages; else one for each entry.
    #[inline]
    pub(super) fn check_no_supervisor(&self, range: VirtRange) -> core::result::Result<(), Error> {
        if !self.has_supervisor() {
            return Ok(());
        }
        let guard = G::pin();
        let is_supervisor =
            |flags: Flags| flags.intersects(Flags::RWX) && !flags.contains(Flags::USER);
        let found = self.walk(&guard).pages(range).find(|page| is_supervisor(page.attrs.flags));
        found.map_or(Ok(()), |page| Err(Error::Supervisor(page.page)))
    }
}
