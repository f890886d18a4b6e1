//! The end of a call, also of one whose closure panics: the memory that is promised is settled, and
//! pages whose grace period is over are given back.

use core::cell::Cell;

use grace::Concurrent;
use machine::Machine;
use paging::Format;

use crate::{
    change::page_host::PageHost,
    change::wait_lists::EndedWait,
    space::{Calls, MmapLock},
};

/// A call under way.
pub(crate) struct CallUnderWay<'a, M: Machine, F: Format, G: Concurrent> {
    pub(crate) host: PageHost<'a, M, F, G>,
    pub(crate) over: Option<EndedWait<M, F, G>>,
    /// The bytes that the VMAs of the space need more than before ([`CountedWriter`]).
    pub(crate) added: Cell<isize>,
}

impl<'a, M: Machine, F: Format, G: Concurrent> CallUnderWay<'a, M, F, G> {
    pub(crate) fn new(host: PageHost<'a, M, F, G>) -> Self {
        CallUnderWay { host, over: None, added: Cell::new(0) }
    }

    /// The call has released the mmap lock.
    pub(crate) fn settle(&mut self) {
        if let Some(over) = self.over.take() {
            over.give_back(&self.host.core.tables);
        }
        self.host.settle(self.added.take());
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for CallUnderWay<'_, M, F, G> {
    fn drop(&mut self) {
        self.settle();
    }
}

/// The writer of a call. When it is dropped, it says what the call has added.
pub(crate) struct CountedWriter<'w, 'h, 'a, 'c, M: Machine, F: Format, G: Concurrent> {
    pub(crate) writer: Calls<'w, 'h, 'a, M, F, G>,
    before: usize,
    added: &'c Cell<isize>,
}

impl<'w, 'h, 'a, 'c, M: Machine, F: Format, G: Concurrent> CountedWriter<'w, 'h, 'a, 'c, M, F, G> {
    /// Inlined, because a writer is large: it is made in its place and not moved there.
    #[inline(always)]
    pub(crate) fn new(
        lock: MmapLock<'w, M, G>,
        host: &'h mut PageHost<'a, M, F, G>,
        added: &'c Cell<isize>,
    ) -> Self {
        let before = lock.accounted();
        CountedWriter { writer: lock.writer(host), before, added }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for CountedWriter<'_, '_, '_, '_, M, F, G> {
    fn drop(&mut self) {
        self.added.set(self.writer.sizes().accounted.wrapping_sub(self.before) as isize);
    }
}
