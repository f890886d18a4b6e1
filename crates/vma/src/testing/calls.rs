//! The calls on the model that change VMAs where they are.

use super::{maps::access, model::*};
use crate::{Advice, Policy, Uffd, VmFlags as V};

impl Model {
    pub(super) fn mprotect(&mut self, start: usize, end: usize, prot: u32) -> Outcome {
        for (s, e) in self.parts(start, end) {
            // Is there a hole before this part?
            if (start..s).any(|page| self.at(page).is_none()) {
                return Err(ENOMEM);
            }
            let m = &self.vmas[self.at(s).unwrap()];
            let mut new = (m.flags - access(7)) | access(prot);
            let may = [(V::READ, V::MAYREAD), (V::WRITE, V::MAYWRITE), (V::EXEC, V::MAYEXEC)];
            if may.iter().any(|&(is, may)| new.contains(is) && !new.contains(may)) {
                return Err(EACCES);
            }
            if m.flags.contains(V::SEALED) {
                return Err(EPERM);
            }
            if new == m.flags {
                continue;
            }
            let exempt = V::ACCOUNT | V::WRITE | V::SHARED | V::NORESERVE;
            if new.contains(V::WRITE) && !m.flags.intersects(exempt) {
                new |= V::ACCOUNT;
            }
            if !new.contains(V::WRITE) && m.acts_anonymous() && m.anon.is_none() {
                new -= V::ACCOUNT;
            }
            let faults_in = m.flags.contains(V::LOCKED)
                && !m.flags.intersects(V::WRITE | V::SHARED)
                && new.contains(V::WRITE);
            self.change(s, e, |m| m.flags = new);
            if faults_in {
                self.populate(s, e);
            }
        }
        if self.has_hole(start, end) { Err(ENOMEM) } else { Ok(0) }
    }

    pub(super) fn madvise(&mut self, start: usize, end: usize, advice: Advice) -> Outcome {
        for (s, e) in self.parts(start, end) {
            let i = self.at(s).unwrap();
            let m = &self.vmas[i];
            let is = |flags| m.flags.intersects(flags);
            let special = V::IO | V::DONTEXPAND | V::PFNMAP | V::MIXEDMAP;
            use Advice::{DontFork, DontNeed, GuardInstall, WipeOnFork};
            let discards = matches!(advice, DontNeed | DontFork | WipeOnFork | GuardInstall);
            if discards && is(V::SEALED) && !is(V::WRITE) && m.acts_anonymous() {
                return Err(EPERM);
            }
            let mut new = m.flags;
            match advice {
                Advice::Normal => new -= V::RAND_READ | V::SEQ_READ,
                Advice::Random => new = (new - V::SEQ_READ) | V::RAND_READ,
                Advice::Sequential => new = (new - V::RAND_READ) | V::SEQ_READ,
                Advice::DontFork => new |= V::DONTCOPY,
                Advice::DoFork if is(V::IO) => return Err(EINVAL),
                Advice::DoFork => new -= V::DONTCOPY,
                Advice::DontDump => new |= V::DONTDUMP,
                Advice::DoDump if is(special) => return Err(EINVAL),
                Advice::DoDump => new -= V::DONTDUMP,
                Advice::HugePage => new = (new - V::NOHUGEPAGE) | V::HUGEPAGE,
                Advice::NoHugePage => new = (new - V::HUGEPAGE) | V::NOHUGEPAGE,
                Advice::Mergeable if m.can_be_mergeable() => new |= V::MERGEABLE,
                Advice::Unmergeable => new -= V::MERGEABLE,
                DontNeed if is(V::LOCKED | V::PFNMAP) => return Err(EINVAL),
                Advice::WipeOnFork if m.file.is_some() || is(V::SHARED) => return Err(EINVAL),
                Advice::WipeOnFork => new |= V::WIPEONFORK,
                Advice::KeepOnFork => new -= V::WIPEONFORK,
                Advice::GuardInstall => {
                    if is(special | V::LOCKED) {
                        return Err(EINVAL);
                    }
                    if m.acts_anonymous() {
                        self.touch(i);
                    }
                    self.vmas[i].flags |= V::MAYBE_GUARD;
                    continue;
                }
                _ => {}
            }
            self.change(s, e, |m| m.flags = new);
        }
        if self.has_hole(start, end) { Err(ENOMEM) } else { Ok(0) }
    }

    /// mlock, mlock2 and munlock.
    pub(super) fn lock(&mut self, start: usize, end: usize, flags: V) -> Outcome {
        for page in start..end {
            let Some(i) = self.at(page) else { return Err(ENOMEM) };
            let (s, e) = (page, self.vmas[i].end.min(end));
            if page == start || self.vmas[i].start == page {
                self.lock_one(s, e, flags);
            }
        }
        if !flags.contains(V::LOCKED) {
            return Ok(0);
        }
        for (s, e) in self.parts(start, end) {
            let m = &self.vmas[self.at(s).unwrap()];
            let waits = V::IO | V::PFNMAP | V::LOCKONFAULT;
            if !m.flags.intersects(V::READ | V::WRITE | V::EXEC | waits) {
                return Err(ENOMEM);
            }
            self.populate(s, e);
        }
        Ok(0)
    }

    fn lock_one(&mut self, start: usize, end: usize, flags: V) {
        self.change(start, end, |m| {
            let never = V::IO | V::DONTEXPAND | V::PFNMAP | V::MIXEDMAP | V::HUGETLB | V::DROPPABLE;
            if !m.flags.intersects(never) {
                m.flags = (m.flags - (V::LOCKED | V::LOCKONFAULT)) | flags;
            }
        });
    }

    pub(super) fn lock_all(&mut self, now: Option<V>, to_come: V) {
        self.to_come = (self.to_come - (V::LOCKED | V::LOCKONFAULT)) | to_come;
        let Some(flags) = now else { return };
        for (s, e) in self.parts(0, END) {
            self.lock_one(s, e, flags);
        }
        if flags.contains(V::LOCKED) {
            self.populate(0, END);
        }
    }

    pub(super) fn mbind(&mut self, start: usize, end: usize, policy: Option<Policy>) -> Outcome {
        if policy.is_some() && self.has_hole(start, end) {
            return Err(EFAULT);
        }
        self.change_all(start, end, |m| m.policy = policy);
        Ok(0)
    }

    pub(super) fn mseal(&mut self, start: usize, end: usize) -> Outcome {
        if self.has_hole(start, end) {
            return Err(ENOMEM);
        }
        self.change_all(start, end, |m| m.flags |= V::SEALED);
        Ok(0)
    }

    pub(super) fn watch(&mut self, start: usize, end: usize, modes: V, uffd: Uffd) -> Outcome {
        let parts = self.parts(start, end);
        if parts.is_empty() {
            return Err(EINVAL);
        }
        for (s, _) in parts {
            let m = &self.vmas[self.at(s).unwrap()];
            if modes.contains(V::UFFD_MINOR) && m.file.is_none() {
                return Err(EINVAL);
            }
            if m.flags.intersects(V::IO | V::DONTEXPAND | V::PFNMAP | V::MIXEDMAP) {
                return Err(EINVAL);
            }
            if !m.flags.contains(V::MAYWRITE) {
                return Err(EPERM);
            }
            if m.uffd.is_some_and(|other| other.id != uffd.id) {
                return Err(EBUSY);
            }
        }
        self.change_all(start, end, |m| {
            if m.uffd != Some(uffd) || !m.flags.contains(modes) {
                m.uffd = Some(uffd);
                m.flags = (m.flags - V::UFFD) | modes;
            }
        });
        Ok(0)
    }

    pub(super) fn unwatch(&mut self, start: usize, end: usize) -> Outcome {
        if self.parts(start, end).is_empty() {
            return Err(EINVAL);
        }
        self.change_all(start, end, |m| {
            m.uffd = None;
            m.flags -= V::UFFD;
        });
        Ok(0)
    }

    pub(super) fn close_watch(&mut self, id: u64) {
        self.change_all(0, END, |m| {
            if m.uffd.is_some_and(|uffd| uffd.id == id) {
                m.uffd = None;
                m.flags -= V::UFFD;
            }
        });
    }

    pub(super) fn memory_merge(&mut self, on: bool) {
        if self.merge_any != on {
            self.merge_any = on;
            for m in &mut self.vmas {
                let on = on && m.can_be_mergeable();
                m.flags.set(V::MERGEABLE, on);
            }
        }
    }
}
