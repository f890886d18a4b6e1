//! The owner of mapped bytes: the call that mapped them last.

use std::num::NonZeroUsize;

use crate::record::{Op, StackId};

/// The owner of mapped bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// execve, or another way before the first call with a stack.
    Program,
    /// It is not known, after a mismatch.
    Unknown,
    /// A kind of call with its stack; 0 if its stack was not recorded.
    Call(StackId, Op),
}

impl Owner {
    const PROGRAM: usize = 62;
    const UNKNOWN: usize = 63;

    /// As one word for the tree.
    pub(crate) fn word(self) -> NonZeroUsize {
        let word = match self {
            Owner::Program => Self::PROGRAM,
            Owner::Unknown => Self::UNKNOWN,
            Owner::Call(stack, op) => ((stack as usize) << 6) | op as usize,
        };
        NonZeroUsize::MIN.saturating_add(word)
    }

    pub(crate) fn of(word: NonZeroUsize) -> Owner {
        let word = word.get() - 1;
        match Op::ALL.get(word & 63) {
            Some(&op) => Owner::Call((word >> 6) as StackId, op),
            None if word == Self::PROGRAM => Owner::Program,
            None => Owner::Unknown,
        }
    }
}

/// Every call has a number below those of the other owners.
const _: () = assert!(Op::ALL.len() <= Owner::PROGRAM);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_word() {
        let all = Op::ALL.iter().map(|&op| Owner::Call(StackId::MAX >> 6, op));
        for owner in all.chain([Owner::Program, Owner::Unknown, Owner::Call(0, Op::Mmap)]) {
            assert_eq!(Owner::of(owner.word()), owner);
        }
    }
}
