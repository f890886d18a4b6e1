//! mremap on the model.

use super::model::*;
use crate::VmFlags as V;

/// The arguments of mremap, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) at: usize,
    pub(super) old: usize,
    pub(super) new: usize,
    pub(super) may_move: bool,
    pub(super) fixed: Option<usize>,
    pub(super) dont_unmap: Option<usize>,
}

impl Model {
    pub(super) fn mremap(&mut self, m: Move) -> Outcome {
        if m.new == 0 || m.new > END {
            return Err(EINVAL);
        }
        if let Some(to) = m.fixed.or(m.dont_unmap) {
            let overlaps = m.at + m.old > to && to + m.new > m.at;
            let resizes = m.dont_unmap.is_some() && m.old != m.new;
            if to + m.new > END || overlaps || resizes || !m.may_move {
                return Err(EINVAL);
            }
        }
        match m.fixed {
            Some(to) if m.old == m.new => self.move_all(m, to),
            _ => self.move_one(m),
        }
    }

    /// Moves every VMA of the range to its own new address.
    fn move_all(&mut self, m: Move, to: usize) -> Outcome {
        let parts = self.parts(m.at, m.at + m.old);
        if parts.first().is_none_or(|&(s, _)| s != m.at) {
            return Err(EFAULT);
        }
        for &(s, e) in &parts {
            // The move of an earlier part may have replaced this one.
            let Some(i) = self.at(s) else { continue };
            let v = &self.vmas[i];
            let custom = |f: &super::File| matches!(f.kind, super::Kind::Zero) || v.is_segment();
            let alone = v.uffd.is_some() || v.file.as_ref().is_some_and(custom);
            if alone && (s != m.at || v.end < m.at + m.old) {
                return Err(EFAULT);
            }
            let target = to + (s - m.at);
            let dont_unmap = m.dont_unmap.map(|_| target);
            self.move_one(Move {
                at: s,
                old: e - s,
                new: e - s,
                fixed: Some(target),
                dont_unmap,
                ..m
            })?;
        }
        Ok(to)
    }

    fn move_one(&mut self, mut m: Move) -> Outcome {
        let v = self.vmas[self.at(m.at).ok_or(EFAULT)?].clone();
        if v.flags.contains(V::SEALED) {
            return Err(EPERM);
        }
        let target = m.fixed.or(m.dont_unmap);
        if target.is_none() && m.new == m.old {
            return Ok(m.at);
        }
        if target.is_none() && m.new < m.old {
            self.unmap(m.at + m.new, m.at + m.old)?;
            return Ok(m.at);
        }
        if m.old == 0 && !v.flags.intersects(V::SHARED | V::MAYSHARE) {
            return Err(EINVAL);
        }
        let keeps_size = v.flags.intersects(V::DONTEXPAND | V::PFNMAP);
        if m.dont_unmap.is_some() && keeps_size {
            return Err(EINVAL);
        }
        if m.at + m.old.min(m.new) > v.end || (m.old != m.new && keeps_size) {
            return Err(EFAULT);
        }
        if target.is_none() {
            return self.grow_or_move(m, &v);
        }
        if let Some(to) = m.fixed {
            self.unmap(to, to + m.new)?;
        }
        if m.new < m.old {
            self.unmap(m.at + m.new, m.at + m.old)?;
            m.old = m.new;
        }
        let v = self.vmas[self.at(m.at).ok_or(EFAULT)?].clone();
        let to = match m.fixed {
            Some(to) => to,
            None => self.place(m.dont_unmap.unwrap_or(0), m.new)?,
        };
        Ok(self.copy(m, &v, to))
    }

    fn grow_or_move(&mut self, m: Move, v: &M) -> Outcome {
        let more = m.new - m.old;
        if m.at + m.old == v.end && v.end + more <= END && self.is_free(v.end, v.end + more) {
            let pgoff = v.pgoff + (v.end - v.start);
            // The kernel does not look at ancestors here.
            let alone = |anon: &Anon| Anon { own: anon.own, all: alloc::vec![anon.own] };
            let anon = v.anon.as_ref().map(alone);
            self.insert(M { start: v.end, end: v.end + more, pgoff, anon, ..v.clone() });
            if v.flags.contains(V::LOCKED) {
                self.populate(v.end, v.end + more);
            }
            return Ok(m.at);
        }
        if !m.may_move {
            return Err(ENOMEM);
        }
        let to = self.place(0, m.new)?;
        Ok(self.copy(m, v, to))
    }

    /// Copies the VMA to its new address, then removes or empties the old range.
    fn copy(&mut self, m: Move, v: &M, to: usize) -> usize {
        let mut copy = M { start: to, end: to + m.new, ..v.clone() };
        copy.pgoff =
            if v.acts_anonymous() && v.anon.is_none() { to } else { v.pgoff + m.at - v.start };
        let i = self.insert(copy);
        if self.vmas[i].uffd.is_some_and(|uffd| !uffd.follows_remap) {
            self.vmas[i].uffd = None;
            self.vmas[i].flags -= V::UFFD;
        }
        if m.dont_unmap.is_some() {
            let left = self.at(v.start).expect("the old VMA remains");
            self.vmas[left].flags -= V::LOCKED | V::LOCKONFAULT;
            if left != self.at(to).expect("just copied") && (m.at, m.at + m.old) == (v.start, v.end)
            {
                self.vmas[left].anon = None;
            }
        } else if m.old > 0 {
            self.remove(m.at, m.at + m.old);
        }
        if v.flags.contains(V::LOCKED) && m.new > m.old {
            self.populate(to + m.old, to + m.new);
        }
        to
    }
}
