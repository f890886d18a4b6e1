//! How long maps lived, by their sizes: a histogram of bounded size.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The maps of a run, by size and lifetime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LifetimeClasses(BTreeMap<(u32, Option<u32>), ClassSum>);

/// The maps of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClassSum {
    maps: u64,
    bytes: u64,
}

impl LifetimeClasses {
    /// Adds a map that lived so many nanoseconds, or until the end.
    pub(crate) fn add(&mut self, bytes: usize, lived: Option<u64>) {
        let class = (bytes.max(1).ilog2(), lived.map(|ns| ns.max(1).ilog10()));
        self.add_to(class, ClassSum { maps: 1, bytes: bytes as u64 });
    }

    pub(super) fn merge(&mut self, other: &LifetimeClasses) {
        other.0.iter().for_each(|(&class, &maps)| self.add_to(class, maps));
    }

    fn add_to(&mut self, class: (u32, Option<u32>), more: ClassSum) {
        let sum = self.0.entry(class).or_default();
        sum.maps += more.maps;
        sum.bytes = sum.bytes.saturating_add(more.bytes);
    }

    /// An object for each class: of at least 2^`size_log2` bytes and 10^`lived_log10` nanoseconds,
    /// which is null if they lived until the end.
    pub(super) fn object(&self) -> Value {
        let one = |(&(size, lived), ClassSum { maps, bytes }): (&(u32, Option<u32>), &ClassSum)| json!({ "size_log2": size, "lived_log10": lived, "maps": maps, "bytes": bytes });
        self.0.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two_and_of_ten() {
        let mut lives = LifetimeClasses::default();
        for (bytes, lived) in [(4096, Some(999)), (8191, Some(100)), (8192, None), (0, Some(0))] {
            lives.add(bytes, lived);
        }
        let mut twice = lives.clone();
        twice.merge(&lives);
        let one = |size: u32, lived: Option<u32>, maps: u64, bytes: u64| json!({ "size_log2": size, "lived_log10": lived, "maps": maps, "bytes": bytes });
        let expected = [one(0, Some(0), 2, 0), one(12, Some(2), 4, 24574), one(13, None, 2, 16384)];
        assert_eq!(twice.object(), Value::from(expected.to_vec()));
    }
}
