//! Serialisation: a map is a sequence of triples, the first key, the last key and the entry.

use super::{Key, RangeMap};
use crate::alloc::NodeAlloc;
use crate::entry::{ArcRef, Entry};
use core::fmt;
use core::marker::PhantomData;
use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

impl<T: ?Sized + Serialize> Serialize for ArcRef<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<K: Key + Serialize, E: Entry, A: NodeAlloc> Serialize for RangeMap<K, E, A>
where
    for<'g> E::Ref<'g>: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries = serializer.serialize_seq(Some(self.len()))?;
        for (range, entry) in self {
            entries.serialize_element(&(range.start(), range.end(), entry))?;
        }
        entries.end()
    }
}

impl<'de, K, E, A> Deserialize<'de> for RangeMap<K, E, A>
where
    K: Key + Deserialize<'de>,
    E: Entry + Deserialize<'de>,
    A: NodeAlloc,
{
    /// Entries in any order. They must not overlap.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Triples(PhantomData))
    }
}

struct Triples<K, E, A>(PhantomData<(K, E, A)>);

impl<'de, K, E, A> Visitor<'de> for Triples<K, E, A>
where
    K: Key + Deserialize<'de>,
    E: Entry + Deserialize<'de>,
    A: NodeAlloc,
{
    type Value = RangeMap<K, E, A>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence of first keys, last keys and entries")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut entries: S) -> Result<Self::Value, S::Error> {
        let mut map = RangeMap::new_in();
        while let Some((first, last, entry)) = entries.next_element::<(K, K, E)>()? {
            map.insert(first..=last, entry).map_err(|refused| S::Error::custom(refused.error))?;
        }
        Ok(map)
    }
}
