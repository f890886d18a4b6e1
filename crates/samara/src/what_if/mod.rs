//! `samara replay --what-if`: the outcomes of a recording's calls under other rules.
//!
//! Each call is asked about alone, in the address space as it was recorded: a duplicate of it under
//! the other rules makes the call, and its outcome is compared with the recorded one. The duplicate
//! shares all VMAs and is dropped then. So a call that would have been refused does not make later
//! calls fail, and an address that would have been another one does not make later calls miss.
//! Therefore the counts are of calls, not of runs: a program may end after its first refused call.
//!
//! Costs about twice the replay.

mod options;
mod report;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use trace::{
    mirror::{File, Shadow, SpaceChange},
    record::{MmId, Record},
};
use vma::{AddressSpace, Error, Layout, Profile};

pub(crate) use options::Rule;
pub(crate) use report::Report;

/// The address spaces of a recording, with the rules that are asked about.
pub(crate) struct WhatIf<'a> {
    rules: &'a [Rule],
    spaces: HashMap<MmId, Space>,
    line: usize,
    report: Report,
}

struct Space {
    recorded: AddressSpace<File, grace::Single>,
    other: Profile,
}

impl<'a> WhatIf<'a> {
    pub(crate) fn new(rules: &'a [Rule]) -> WhatIf<'a> {
        WhatIf { rules, spaces: HashMap::new(), line: 0, report: Report::default() }
    }

    pub(crate) fn finish(self) -> Report {
        self.report
    }
}

impl Shadow for WhatIf<'_> {
    fn record(&mut self, line: usize, _: &Record) {
        self.line = line;
    }

    fn exec(&mut self, mm: MmId, profile: Profile, layout: Layout) {
        let other = self.rules.iter().fold(profile, |profile, rule| rule.change.apply(profile));
        self.spaces.insert(mm, Space { recorded: AddressSpace::new(profile, layout), other });
    }

    fn change(&mut self, mm: MmId, step: &SpaceChange<File>, result: Result<usize, Error>) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        let asked = name(step).and_then(|name| {
            let mut other = space.recorded.get_mut().duplicate(space.other).ok()?;
            let outcome = step.carry_out(&mut other.get_mut());
            Some((name, outcome, other.get_mut().count()))
        });
        let mut recorded = space.recorded.get_mut();
        let before = recorded.count();
        // The mirror has the same outcome.
        let _ = step.carry_out(&mut recorded);
        let count = recorded.count();
        self.report.vmas_peak = self.report.vmas_peak.max(count);
        if let Some((name, outcome, other_count)) = asked {
            let call = report::RecordedCall { line: self.line, name, vmas: before };
            self.report.add(call, (result, count), (outcome, other_count));
        }
    }

    fn fork(&mut self, mm: MmId, child: MmId) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        let (forked, other) = (space.recorded.get_mut().fork(), space.other);
        if let Ok(recorded) = forked {
            self.spaces.insert(child, Space { recorded, other });
        }
    }

    fn end(&mut self, mm: MmId) {
        self.spaces.remove(&mm);
    }
}

/// The call of a step. `None`: it is no call, or rules do not change it.
fn name(step: &SpaceChange<File>) -> Option<&'static str> {
    Some(match step {
        SpaceChange::Mmap(_) => "mmap",
        SpaceChange::Munmap { .. } => "munmap",
        SpaceChange::Mprotect { .. } => "mprotect",
        SpaceChange::Mremap(_) => "mremap",
        SpaceChange::Brk(_) => "brk",
        SpaceChange::Madvise { .. } => "madvise",
        SpaceChange::Mlock { .. } => "mlock",
        SpaceChange::Munlock { .. } => "munlock",
        SpaceChange::Mlockall(_) => "mlockall",
        SpaceChange::Munlockall => "munlockall",
        SpaceChange::Mbind { .. } => "mbind",
        SpaceChange::SetHomeNode { .. } => "set_mempolicy_home_node",
        SpaceChange::RemapFilePages { .. } => "remap_file_pages",
        SpaceChange::Mseal { .. } => "mseal",
        SpaceChange::Shmat(_) => "shmat",
        SpaceChange::Shmdt(_) => "shmdt",
        SpaceChange::Watch { .. } | SpaceChange::Unwatch { .. } => "ioctl",
        _ => return None,
    })
}
