//! Frames that run out: the host is asked to make room, and takes back the pages of a program that
//! is to end.
//!
//! A fault that finds no frame first empties what waits in its own space, then the stocks of
//! tables. Only then it asks the host. The host may end a program. It need not wait for it: any CPU
//! takes the pages back by [`AddressSpace::reap`], while the program's own CPUs are still on their
//! way out.
//!
//! # Correctness
//! To the pages, a reap is MADV_DONTNEED of everything: locked and sealed memory, guard pages and
//! the marks of monitors included. The VMAs stay, so a touch that comes later finds zeros, or the
//! object's page, and never a frame that was given back: each gather flushes before it gives frames
//! back ([`Gather`]). A fault that the reap meets compares the entry with what it saw, under the
//! lock of the table, so it comes before the reap or after it. The mmap lock keeps all calls
//! away. Tables that a fork shares are unlinked, and stay the other space's: no memory is needed.

use alloc::sync::Arc;
use core::ops::Range;

use grace::Concurrent;
use machine::Machine;
use paging::Format;

use crate::{
    AddressSpace, CollapseError, Error, FaultError, ObjectError, OnLimit,
    addresses::{lower_half, virt},
    change::gather::Gather,
    change::page_host::ALL,
    change::sweep::CutPage,
    space::Core,
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Sets what makes room when the frame source has no frame for a fault, or for a call that
    /// touches memory. Later calls change nothing; a forked child has the same one. A fork does not
    /// ask: it fails instead.
    pub fn set_shortage_handler(&mut self, handler: Arc<dyn OnLimit>) {
        self.core.shortage.call_once(|| handler);
    }

    /// Makes a call, also again as long as it [ends a wait](Self::ends_wait).
    pub(crate) fn with_what_waits<T>(
        &self,
        mut call: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            match call() {
                Err(error) if self.ends_wait(&error) => {}
                done => return done,
            }
        }
    }

    /// Whether a call that has failed is to be made again: it has lacked memory, and unmapped pages
    /// have waited for a grace period, which are given back now.
    pub(crate) fn ends_wait(&self, error: &Error) -> bool {
        let lacks_memory = matches!(
            error,
            Error::Vma(vma::Error::OutOfMemory)
                | Error::Tables(paging::Error::Frames(_))
                | Error::Fault(FaultError::OutOfMemory(_) | FaultError::GroupLimit)
                | Error::Object(ObjectError::OutOfMemory(_) | ObjectError::GroupLimit)
                | Error::Collapse(CollapseError::OutOfMemory | CollapseError::GroupLimit)
        );
        lacks_memory && self.purge() > 0
    }

    /// Takes back pages of a program that has ended, or is to end: at least `most` of them, in
    /// pages of 4 KiB and up to a whole flush more, or all there are. Returns how many; 0 means
    /// that no page is left. The VMAs stay. The contents of the pages are lost.
    ///
    /// Any CPU may call it, also while the program runs: pages that the program touches meanwhile
    /// come anew. It holds the mmap lock, flushes TLBs, and needs no memory. Not for an interrupt
    /// handler. O(tables in use + pages taken).
    ///
    /// # Misuse
    /// The program finds zeros, or the object's pages. Spaces that share pages or tables keep them.
    pub fn reap(&self, most: usize) -> usize {
        let lock = self.core.lock();
        self.core.waiting.flush(&self.core.tables);
        let all = 0..lower_half::<F>();
        // A failure means tables that are corrupt: pages that cannot be reached stay.
        let left = self.core.leave_shared(all.clone());
        let taken = left.map_or(0, |()| self.core.take_some(all, most));
        drop(lock);
        taken
    }
}

impl<M: Machine, F: Format, G: Concurrent> Core<M, F, G> {
    /// Unlinks the tables of a range that a fork shares: they stay the other space's.
    pub(crate) fn leave_shared(&self, range: Range<usize>) -> Result<(), paging::Error> {
        self.each_part(range, CutPage::IsLater, |part| {
            let mut pending = self.tables.no_flush();
            // SAFETY: the space needs the pages no more. Their frames stay.
            unsafe { self.tables.leave_shared(part, &mut pending) }
        })
    }

    /// Takes pages out of a range, from its start, until `most` are taken.
    fn take_some(&self, mut range: Range<usize>, most: usize) -> usize {
        let (mut taken, mut clears) = (0, ALL);
        while taken < most
            && let Some(part) = virt(range.clone())
        {
            let mut gather = Gather::new(&self.tables);
            let next = gather.take_out(part, &mut clears);
            taken += gather.pages();
            match next {
                Ok(Some(next)) => range.start = next.get() as usize,
                Ok(None) | Err(_) => break,
            }
        }
        taken
    }
}
