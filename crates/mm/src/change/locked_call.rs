//! A call with the mmap lock, and its cleanup even if its closure panics: promised memory is
//! settled, and pages whose grace period is over are given back.

use grace::Concurrent;
use machine::Machine;
use paging::Format;

use crate::{
    AddressSpace, Backing, Error, change::page_host::PageHost, change::wait_lists::EndedWait,
    space::MmapLock,
};

/// The calls on the VMAs of a space, with the pages behind them ([`AddressSpace::with_vmas`]).
pub type Calls<'w, 'h, 'a, M, F, G> = vma::Writer<'w, Backing<M>, G, &'h mut PageHost<'a, M, F, G>>;

/// A call under way.
struct CallUnderWay<'a, M: Machine, F: Format, G: Concurrent> {
    host: PageHost<'a, M, F, G>,
    over: Option<EndedWait<M, F, G>>,
}

impl<'a, M: Machine, F: Format, G: Concurrent> CallUnderWay<'a, M, F, G> {
    fn new(host: PageHost<'a, M, F, G>) -> Self {
        CallUnderWay { host, over: None }
    }

    /// The call has released the mmap lock.
    fn settle(&mut self) {
        if let Some(over) = self.over.take() {
            over.give_back(&self.host.core.tables);
        }
        self.host.settle();
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for CallUnderWay<'_, M, F, G> {
    fn drop(&mut self) {
        self.settle();
    }
}

/// The writer of a call. When it is dropped, its host counts what the call has added.
struct CountedWriter<'w, 'h, 'a, M: Machine, F: Format, G: Concurrent> {
    writer: Calls<'w, 'h, 'a, M, F, G>,
}

impl<'w, 'h, 'a, M: Machine, F: Format, G: Concurrent> CountedWriter<'w, 'h, 'a, M, F, G> {
    /// Inlined, because a writer is large: it is made in its place and not moved there.
    #[inline(always)]
    fn new(lock: MmapLock<'w, M, G>, host: &'h mut PageHost<'a, M, F, G>) -> Self {
        host.begin();
        CountedWriter { writer: lock.writer(host) }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for CountedWriter<'_, '_, '_, M, F, G> {
    fn drop(&mut self) {
        self.writer.host().count_added();
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Calls `change` with the mmap lock, and with the pages behind the VMAs.
    pub(crate) fn change<T, E: Into<Error>>(
        &self,
        change: impl FnOnce(&mut Calls<'_, '_, '_, M, F, G>) -> Result<T, E>,
    ) -> Result<T, Error> {
        // Another CPU may come between two calls of this one.
        self.core.tables.machine().step(machine::SharedAccess::Other);
        self.change_with(change, |_| ())
    }

    /// As [`change`](Self::change); `after` gets what the calls have left in the [`PageHost`]. It
    /// runs without the mmap lock.
    pub(crate) fn change_with<T, E: Into<Error>>(
        &self,
        change: impl FnOnce(&mut Calls<'_, '_, '_, M, F, G>) -> Result<T, E>,
        after: impl FnOnce(&mut PageHost<'_, M, F, G>),
    ) -> Result<T, Error> {
        let mut call = CallUnderWay::new(PageHost::new(&self.core, Some(&self.family)));
        let done = {
            let lock = self.core.lock();
            call.over = self.core.waiting.take_over(&self.core.tables);
            let mut calls = CountedWriter::new(lock, &mut call.host);
            change(&mut calls.writer)
        };
        call.settle();
        after(&mut call.host);
        call.host.outcome(done.map_err(Into::into))
    }
}
