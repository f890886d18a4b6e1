//! The changes of rules that `--what-if` names.

use std::str::FromStr;

use vma::{PAGE_SIZE, Profile};

/// A change of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The rules of another release.
    Kernel(Profile),
    /// The limit of VMAs.
    MaxMapCount(usize),
    /// Whether large anonymous maps are aligned to huge pages.
    HugeAlign(bool),
    /// The gap below stacks, in bytes.
    StackGap(usize),
    /// The lowest address.
    MinAddress(usize),
    /// Whether MAP_NORESERVE has an effect.
    Noreserve(bool),
}

/// A change as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    pub(crate) text: String,
    pub(crate) change: Change,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Rule { text: text.to_owned(), change: text.parse()? })
    }
}

const KNOWN: &str = "kernel=6.1, max_map_count=N, huge_align=on|off, stack_guard_gap=PAGES, \
                     mmap_min_addr=BYTES, overcommit=0|1|2";

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("write {KNOWN}"))?;
        let number = || {
            let (digits, base) =
                value.strip_prefix("0x").map_or((value, 10), |digits| (digits, 16));
            usize::from_str_radix(digits, base)
                .map_err(|_| format!("{name} takes a number, not {value}"))
        };
        let switch = |off: &[&str], on: &[&str]| match value {
            value if off.contains(&value) => Ok(false),
            value if on.contains(&value) => Ok(true),
            value => {
                Err(format!("{name} is {} or {}, not {value}", on.join(" or "), off.join(" or ")))
            }
        };
        match name {
            "kernel" => {
                let mut numbers = value.split('.').map(|number| number.parse::<u32>().is_ok());
                match (numbers.next(), numbers.next()) {
                    (Some(true), Some(true)) => Ok(Change::Kernel(Profile::for_release(value).0)),
                    _ => Err(format!("kernel takes a release such as 6.1, not {value}")),
                }
            }
            "max_map_count" => number().map(Change::MaxMapCount),
            "huge_align" => switch(&["off"], &["on"]).map(Change::HugeAlign),
            "stack_guard_gap" => {
                let bytes = number()?.checked_mul(PAGE_SIZE).filter(|bytes| *bytes < 1 << 47);
                bytes.map(Change::StackGap).ok_or_else(|| format!("{value} pages are too many"))
            }
            "mmap_min_addr" => {
                let address = number()?.checked_next_multiple_of(PAGE_SIZE);
                let address = address.filter(|address| *address < 1 << 47);
                address.map(Change::MinAddress).ok_or_else(|| format!("{value} is too high"))
            }
            "overcommit" => switch(&["2"], &["0", "1"]).map(Change::Noreserve),
            name => Err(format!("{name} is no rule; write {KNOWN}")),
        }
    }
}

impl Change {
    /// The profile with this change.
    pub(super) fn apply(self, profile: Profile) -> Profile {
        match self {
            Change::Kernel(release) => Profile {
                huge_aligned_anon: release.huge_aligned_anon,
                moves_many: release.moves_many,
                guard_flag: release.guard_flag,
                ..profile
            },
            Change::MaxMapCount(max_map_count) => Profile { max_map_count, ..profile },
            Change::HugeAlign(huge_aligned_anon) => Profile { huge_aligned_anon, ..profile },
            Change::StackGap(stack_guard_gap) => Profile { stack_guard_gap, ..profile },
            Change::MinAddress(min_address) => Profile { min_address, ..profile },
            Change::Noreserve(honours_noreserve) => Profile { honours_noreserve, ..profile },
        }
    }
}
