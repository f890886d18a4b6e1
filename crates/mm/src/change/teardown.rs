//! The end of a space: all that waits is flushed, and all pages are removed.

use grace::Concurrent;
use machine::Machine;
use paging::Format;

use crate::{AddressSpace, Shared, addresses::lower_half, change::page_host::PageHost};

impl<M: Machine, F: Format, G: Concurrent> Drop for AddressSpace<M, F, G> {
    fn drop(&mut self) {
        // No fault is under way: it would borrow the space. The mmap lock keeps objects away that
        // take pages back.
        let calls = self.core.writer();
        self.core.waiting.flush(&self.core.tables);
        PageHost::new(&self.core, None).remove(0..lower_half::<F>());
        if let Some(commitment) = self.core.commitment.get() {
            commitment.settle(-(calls.sizes().accounted as isize));
        }
        drop(calls);
        // The last user of an object may end here, and write it out. An object that visits this
        // space holds a lock, so the visit does not end here.
        let machine = self.core.tables.machine();
        Shared::close(&self.core, || machine.relax());
    }
}
