//! The writer of a transaction, with keys.

use super::key::{Key, indices, keys};
use super::writes::writes;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::erased::Erased;
use crate::error::{Error, Refused};
use crate::writer::Writer;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{RangeBounds, RangeInclusive};
use grace::Reclaim;

/// The next version of a map, which [`SharedMap::transaction`](crate::SharedMap::transaction)
/// makes: it reads and writes as the map does, and readers of the map see none of it before the
/// end.
pub struct Version<'w, 't, K, E: Entry, R: Reclaim, A: NodeAlloc> {
    writer: &'w mut Writer<'t, E, R, A>,
    _key: PhantomData<fn(K) -> K>,
}

impl<'w, 't, K: Key, E: Entry, R: Reclaim, A: NodeAlloc> Version<'w, 't, K, E, R, A> {
    pub(super) fn new(writer: &'w mut Writer<'t, E, R, A>) -> Self {
        Version { writer, _key: PhantomData }
    }

    writes!((&mut self), self => self.writer);

    /// The entry that holds `key`.
    pub fn get(&self, key: K) -> Option<E::Ref<'_>> {
        self.writer.load(key.to_index())
    }

    /// The entry that holds `key`, with its whole range.
    pub fn lookup(&self, key: K) -> Option<(RangeInclusive<K>, E::Ref<'_>)> {
        self.writer.lookup(key.to_index()).map(|(range, entry)| (keys(&range), entry))
    }

    /// The entries that overlap `range`, each with its whole range, in order.
    pub fn range(&self, range: impl RangeBounds<K>) -> super::Entries<'_, K, E> {
        super::Entries::new(self.writer.iter(indices(&range)))
    }

    /// Removes the entry that holds `key`, and returns it with its range; `None` if the key is
    /// free.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[allow(clippy::type_complexity)]
    pub fn erase(&mut self, key: K) -> Result<Option<(RangeInclusive<K>, Erased<E, R>)>, Error> {
        let erased = self.writer.erase(key.to_index())?;
        Ok(erased.map(|(range, entry)| (keys(&range), entry)))
    }

    /// The writer inside, which takes indices ([`Key::to_index`]).
    pub fn writer(&mut self) -> &mut Writer<'t, E, R, A> {
        self.writer
    }
}

impl<K, E: Entry, R: Reclaim, A: NodeAlloc> fmt::Debug for Version<'_, '_, K, E, R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.writer.fmt(f)
    }
}
