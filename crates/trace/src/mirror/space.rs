//! One mirrored address space: its listing, its size, and its flags compared with the kernel's.

use std::fmt::Write as _;

use vma::VmFlags;

use super::{Expected, MirroredSpace};
use crate::report::{Difference, TreeSize};

impl MirroredSpace {
    pub(super) fn write_listing(&mut self, text: &mut String) {
        text.clear();
        // Writing to a String cannot fail.
        let _ = self.space.get_mut().write_maps(text);
        if let Some(line) = &self.vsyscall {
            let _ = writeln!(text, "{line}");
        }
    }

    pub(super) fn listing(&mut self) -> String {
        let mut text = String::new();
        self.write_listing(&mut text);
        text
    }

    /// The VMAs and the mapped bytes. Constant time.
    pub(super) fn size(&mut self) -> (usize, usize) {
        let space = self.space.get_mut();
        (space.count(), space.sizes().total)
    }

    pub(super) fn measure(&mut self) {
        let space = self.space.get_mut();
        let stats = space.tree_stats();
        let tree = TreeSize { height: stats.height, nodes: stats.nodes, bytes: stats.bytes };
        self.figures.stats.size(space.count(), tree);
    }

    /// An operation must succeed if the address space agrees with the kernel's. After a mismatch it
    /// may fail.
    pub(super) fn tolerate(
        &self,
        result: Result<usize, vma::Error>,
        expected: impl Fn() -> Expected,
    ) -> Result<(), Expected> {
        match result {
            Err(error) if !self.tainted && self.doubt.is_none() => {
                Err(format!("{}: {error}", expected()))
            }
            _ => Ok(()),
        }
    }

    /// Compares all flags but those that the kernel does not show.
    pub(super) fn compare_flags(
        &mut self,
        kernel: &[(usize, VmFlags)],
        unseen: VmFlags,
    ) -> Option<Difference> {
        let space = self.space.get_mut();
        let ours: Vec<(usize, VmFlags)> =
            space.areas().map(|area| (area.start, area.vma.flags - unseen)).collect();
        if ours == kernel {
            return None;
        }
        let find = |list: &[(usize, VmFlags)], start| {
            list.iter().find(|(at, _)| *at == start).map(|&(_, flags)| flags)
        };
        let mut starts: Vec<usize> = ours.iter().chain(kernel).map(|&(start, _)| start).collect();
        starts.sort_unstable();
        let start = starts.into_iter().find(|&start| find(&ours, start) != find(kernel, start))?;
        Some(Difference::Flags { start, ours: find(&ours, start), kernel: find(kernel, start) })
    }
}
