//! The outcome of the calls of one kind: their bytes, and their errors.

use std::collections::BTreeMap;

use super::call;
use crate::record::{Call, Op};

const PAGE: usize = 4096;

/// The outcome of the calls of one kind.
///
/// ```
/// use trace::{record::{Call, Op}, report::Outcome};
/// let mut outcome = Outcome::default();
/// for result in [0, -22] {
///     outcome.add(&Call::new(1, 7, Op::Munmap, &[0x1000, 100], result), 0);
/// }
/// assert_eq!((outcome.bytes, outcome.failed(), outcome.errors()), (4096, 1, "EINVAL".into()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The bytes of the ranges that the successful calls were about, in whole pages.
    pub bytes: u64,
    /// The number of failures by error.
    pub(crate) errors: BTreeMap<u16, u64>,
}

impl Outcome {
    /// Adds a call. `brk`: the end of the heap before it.
    pub fn add(&mut self, call: &Call, brk: usize) {
        if call.failed() {
            *self.errors.entry(call.result.unsigned_abs() as u16).or_default() += 1;
            return;
        }
        let length = match call.op {
            Op::Brk => (call.result as usize).abs_diff(brk),
            Op::Mremap => call.args[2],
            op if op.takes_range() || op == Op::Mmap => call.args[1],
            _ => 0,
        };
        let pages = length.div_ceil(PAGE).saturating_mul(PAGE);
        self.bytes = self.bytes.saturating_add(pages as u64);
    }

    /// The number of failures.
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// The errors, the most frequent first: `2 ENOMEM, 1 EINVAL`, without a number if there is one.
    pub fn errors(&self) -> String {
        let mut errors: Vec<(u64, String)> =
            self.named().map(|(name, count)| (count, name)).collect();
        errors.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let several = errors.len() > 1;
        let one = |(count, name)| if several { format!("{count} {name}") } else { name };
        errors.into_iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// The errors by name with their numbers.
    pub(super) fn named(&self) -> impl Iterator<Item = (String, u64)> {
        self.errors.iter().map(|(&error, &count)| {
            let name = call::result(-isize::from(error.cast_signed()));
            (name.trim_start_matches('-').to_owned(), count)
        })
    }

    pub(super) fn merge(&mut self, other: &Outcome) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        for (&error, count) in &other.errors {
            *self.errors.entry(error).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_whole_pages_of_successful_calls() {
        let mut outcome = Outcome::default();
        let mut add = |op, args: &[usize], result, brk| {
            outcome.add(&Call::new(1, 1, op, args, result), brk);
            outcome.bytes / 4096
        };
        assert_eq!(add(Op::Mmap, &[0, 1, 3, 0x22], 0x7000, 0), 1);
        assert_eq!(add(Op::Mremap, &[0x7000, 4096, 8193], 0x9000, 0), 4);
        assert_eq!(add(Op::Brk, &[0x5000], 0x5000, 0x3000), 6);
        assert_eq!(add(Op::Brk, &[0], 0x3000, 0x3000), 6);
        assert_eq!(add(Op::Mlock2, &[0x7000, 4096, 1], 0, 0), 7);
        for error in [-12, -12, -22, -4095] {
            assert_eq!(add(Op::Mmap, &[0, 1 << 30, 3, 0x22], error, 0), 7);
        }
        assert_eq!(outcome.failed(), 4);
        assert_eq!(outcome.errors(), "2 ENOMEM, 1 4095, 1 EINVAL");
    }
}
