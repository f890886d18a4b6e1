//! The calls on the model, except mremap.

use super::{File, Kind, model::*};
use crate::{Advice, MapFlags, Policy, Uffd, VmFlags as V};

/// The arguments of mmap, in pages.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) prot: u32,
    pub(super) flags: MapFlags,
    pub(super) file: Option<File>,
    pub(super) pgoff: usize,
    /// shmat with SHM_RDONLY clears these.
    pub(super) without: V,
}

fn access(prot: u32) -> V {
    let mut flags = V::empty();
    flags.set(V::READ, prot & 1 != 0);
    flags.set(V::WRITE, prot & 2 != 0);
    flags.set(V::EXEC, prot & 4 != 0);
    flags
}

const MAY: V = V::MAYREAD.union(V::MAYWRITE).union(V::MAYEXEC);

impl Model {
    pub(super) fn mmap(&mut self, map: &Map) -> Outcome {
        if map.len == 0 {
            return Err(EINVAL);
        }
        let has = |flag| map.flags.contains(flag);
        let exact = has(MapFlags::FIXED) || has(MapFlags::FIXED_NOREPLACE);
        let at = if exact { map.at } else { self.place(hint(map.at), map.len)? };
        let end = at + map.len;
        if end > END {
            return Err(ENOMEM);
        }
        if has(MapFlags::FIXED_NOREPLACE) && !self.is_free(at, end) {
            return Err(EEXIST);
        }
        let mut flags = access(map.prot) | MAY | self.to_come;
        flags.set(V::GROWSDOWN, has(MapFlags::GROWSDOWN));
        if has(MapFlags::LOCKED) {
            flags |= V::LOCKED;
        }
        if has(MapFlags::STACK) {
            flags |= V::NOHUGEPAGE;
        }
        let shared = has(MapFlags::SHARED);
        match map.file {
            None if shared => return Err(EINVAL),
            Some(_) if has(MapFlags::GROWSDOWN) => return Err(EINVAL),
            Some(file) => {
                let read_only = file.kind == Kind::ReadOnly;
                if shared && read_only && map.prot & 2 != 0 {
                    return Err(EACCES);
                }
                if shared {
                    flags |= V::MAYSHARE;
                    if read_only {
                        flags -= V::MAYWRITE;
                    } else {
                        flags |= V::SHARED;
                    }
                }
                if read_only && map.prot & 4 != 0 {
                    return Err(EPERM); // the mount forbids it
                }
                if read_only {
                    flags -= V::MAYEXEC;
                }
            }
            None => {}
        }
        if has(MapFlags::NORESERVE) {
            flags |= V::NORESERVE;
        } else if map.prot & 2 != 0 && !flags.contains(V::SHARED) {
            flags |= V::ACCOUNT;
        }
        self.unmap(at, end)?;
        let mut new = M {
            start: at,
            end,
            flags: flags - map.without,
            file: map.file,
            pgoff: if map.file.is_some() { map.pgoff } else { at },
            anon: None,
            policy: None,
            uffd: None,
        };
        // MERGEABLE is set before the new VMA joins its neighbours, except where a driver may
        // change the flags.
        let mergeable = self.merge_any && new.can_be_mergeable();
        let late = map.file.is_some_and(|f| f.kind == Kind::Zero);
        new.flags.set(V::MERGEABLE, mergeable && !late);
        let i = self.insert(new);
        if late && mergeable && self.vmas[i].start == at && self.vmas[i].end == end {
            self.vmas[i].flags |= V::MERGEABLE;
        }
        if flags.contains(V::LOCKED) || has(MapFlags::POPULATE) {
            self.populate(at, end);
        }
        Ok(at)
    }

    /// A VMA as execve or a driver makes one.
    pub(super) fn adopt(&mut self, start: usize, end: usize, flags: V) -> Outcome {
        self.unmap(start, end)?;
        let i = self.vmas.iter().take_while(|m| m.end <= start).count();
        let (pgoff, file, anon, policy, uffd) = (start, None, None, None, None);
        self.vmas.insert(i, M { start, end, flags, file, pgoff, anon, policy, uffd });
        Ok(0)
    }

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

    pub(super) fn brk(&mut self, brk: usize) -> usize {
        if self.move_brk(brk).is_some() {
            self.brk = brk;
        }
        self.brk
    }

    fn move_brk(&mut self, brk: usize) -> Option<()> {
        let page = |bytes: usize| bytes.div_ceil(crate::PAGE_SIZE);
        let (old, new) = (page(self.brk), page(brk));
        if brk < HEAP * crate::PAGE_SIZE || new > END {
            return None;
        }
        if new < old {
            return if self.is_free(new, old) { None } else { self.unmap(new, old).ok() };
        }
        if new == old {
            return Some(());
        }
        if !self.is_free(old, new) {
            return None;
        }
        // One page stays free above the heap, and the gap below a stack if a stack follows.
        let stack = |m: &M| if m.flags.contains(V::GROWSDOWN) { GAP } else { 0 };
        let next = self.vmas.iter().find(|m| m.start >= new);
        if next.is_some_and(|m| m.start.saturating_sub(stack(m)) < new + 1) {
            return None;
        }
        let mut piece = M {
            start: old,
            end: new,
            flags: access(3) | MAY | V::ACCOUNT | self.to_come,
            file: None,
            pgoff: old,
            anon: None,
            policy: None,
            uffd: None,
        };
        piece.flags.set(V::MERGEABLE, self.merge_any);
        self.extend_heap(piece);
        if self.to_come.contains(V::LOCKED) {
            self.populate(old, new);
        }
        Some(())
    }

    /// Grows the VMA that ends at `end`, a stack or one like it, down to `start`.
    pub(super) fn grow(&mut self, end: usize, start: usize) -> Outcome {
        let Some(i) = self.vmas.iter().position(|m| m.end == end) else { return Err(ENOMEM) };
        let m = &self.vmas[i];
        if !m.flags.contains(V::GROWSDOWN) || start > m.start {
            return Err(EINVAL);
        }
        if !self.is_free(start, m.start) {
            return Err(ENOMEM);
        }
        self.touch(i);
        let m = &mut self.vmas[i];
        // An offset below zero would wrap. The tests do not get there.
        m.pgoff = m.pgoff.wrapping_sub(m.start - start);
        m.start = start;
        Ok(0)
    }

    pub(super) fn remap_file_pages(&mut self, start: usize, end: usize, pgoff: usize) -> Outcome {
        if end <= start {
            return Err(EINVAL);
        }
        let Some(first) = self.at(start).map(|i| self.vmas[i].clone()) else { return Err(EINVAL) };
        let same = |m: &M| m.file == first.file && m.flags == first.flags;
        let all = self.vmas.iter().filter(|m| m.start < end && m.end > start).all(same);
        if !first.flags.contains(V::SHARED) || self.has_hole(start, end) || !all {
            return Err(EINVAL);
        }
        let mut flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        flags.set(MapFlags::LOCKED, first.flags.contains(V::LOCKED));
        let prot = (first.flags.bits() & 7) as u32;
        let (file, without) = (first.file, V::empty());
        self.mmap(&Map { at: start, len: end - start, prot, flags, file, pgoff, without })
            .map(|_| 0)
    }

    pub(super) fn shmdt(&mut self, at: usize) -> Outcome {
        let fragment = |m: &M| m.is_segment() && m.start >= at && m.start - at == m.pgoff;
        let Some(first) = self.vmas.iter().find(|m| fragment(m)).cloned() else {
            return Err(EINVAL);
        };
        let size = match first.file {
            Some(File { kind: Kind::Segment(pages), .. }) => pages,
            _ => unreachable!("every segment has a size"),
        };
        let mut going = alloc::vec![(first.start, first.end)];
        for m in self.vmas.iter().filter(|m| m.start > first.start) {
            if m.end - at > size {
                break;
            }
            if fragment(m) && m.file == first.file {
                going.push((m.start, m.end));
            }
        }
        for (s, e) in going {
            let _ = self.unmap(s, e);
        }
        Ok(0)
    }
}

/// Raises a hint to the lowest address that may be mapped.
pub(super) fn hint(at: usize) -> usize {
    if at == 0 { 0 } else { at.max(LOWEST) }
}
