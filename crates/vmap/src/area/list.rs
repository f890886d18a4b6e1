//! Lists of areas that wait.

use super::Ours;
use crate::sync::Ordering;
use core::ptr::{self, NonNull};

/// A FIFO of areas, linked through their records: no operation allocates or fails. The owner of the
/// list owns its areas.
#[derive(Default)]
pub(crate) struct List {
    first: Option<Ours>,
    last: Option<Ours>,
    len: usize,
}

impl List {
    pub(crate) fn push(&mut self, area: Ours) {
        // Relaxed, here and below: only the owner of the list uses the links.
        area.next.store(ptr::null_mut(), Ordering::Relaxed);
        match self.last.replace(area) {
            Some(last) => last.next.store(area.0.as_ptr(), Ordering::Relaxed),
            None => self.first = Some(area),
        }
        self.len += 1;
    }

    /// Puts an area back where it was popped.
    pub(crate) fn push_first(&mut self, area: Ours) {
        let next = self.first.map_or(ptr::null_mut(), |first| first.0.as_ptr());
        area.next.store(next, Ordering::Relaxed);
        self.first = Some(area);
        self.last.get_or_insert(area);
        self.len += 1;
    }

    pub(crate) fn first(&self) -> Option<Ours> {
        self.first
    }

    pub(crate) fn last(&self) -> Option<Ours> {
        self.last
    }

    pub(crate) fn pop(&mut self) -> Option<Ours> {
        let area = self.first?;
        self.first = NonNull::new(area.next.load(Ordering::Relaxed)).map(Ours);
        if self.first.is_none() {
            self.last = None;
        }
        self.len -= 1;
        Some(area)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
