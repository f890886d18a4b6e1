//! The calls on the model that make maps, let them grow, and remove them, except mremap.

use super::{File, Kind, model::*};
use crate::{MapFlags, VmFlags as V};

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

/// The rights of a `PROT_*` word.
pub(super) fn access(prot: u32) -> V {
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
fn hint(at: usize) -> usize {
    if at == 0 { 0 } else { at.max(LOWEST) }
}
