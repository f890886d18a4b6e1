//! The protection keys that an address space has allocated.

/// The number of keys.
pub(crate) const KEYS: u8 = 16;

/// The keys of an address space. Key 0 is that of all memory without another one. As in Linux, a
/// program may free it, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pkeys {
    /// A bit for each key.
    pub(crate) allocated: u16,
    /// The key of execute-only memory, which is among those that are allocated.
    pub(crate) exec_only: Option<u8>,
}

impl Pkeys {
    /// Those of a new program.
    pub(crate) const NEW: Pkeys = Pkeys { allocated: 1, exec_only: None };

    /// As a word, which is 0 for [`NEW`](Self::NEW).
    pub(crate) fn to_word(self) -> usize {
        let exec_only = self.exec_only.map_or(0, |key| usize::from(key) + 1);
        usize::from(self.allocated ^ Self::NEW.allocated) | exec_only << 16
    }

    /// The reverse of [`to_word`](Self::to_word).
    pub(crate) fn from_word(word: usize) -> Self {
        let allocated = word as u16 ^ Self::NEW.allocated;
        Pkeys { allocated, exec_only: ((word >> 16) as u8).checked_sub(1) }
    }

    /// Whether a program may use this key.
    pub(crate) fn may_use(self, key: u8) -> bool {
        key < KEYS && self.allocated & 1 << key != 0 && self.exec_only != Some(key)
    }

    /// Allocates the lowest free key.
    pub(crate) fn take_lowest(&mut self) -> Option<u8> {
        let lowest = self.allocated.trailing_ones() as u8;
        (lowest < KEYS).then(|| {
            self.allocated |= 1 << lowest;
            lowest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_every_state() {
        assert_eq!((Pkeys::NEW.to_word(), Pkeys::from_word(0)), (0, Pkeys::NEW));
        for allocated in [0, 1, 2, 0x8001, u16::MAX] {
            for exec_only in [None, Some(0), Some(1), Some(15)] {
                let keys = Pkeys { allocated, exec_only };
                assert_eq!(Pkeys::from_word(keys.to_word()), keys);
            }
        }
    }
}
