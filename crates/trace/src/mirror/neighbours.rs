//! Comparison of the VMAs around a place: the same facts that a line of the listing has, but for
//! the name.

use std::ops::Range;

use vma::{MappedFile, VmFlags, Vma};

use super::{Mirror, Shadow, file::File};
use crate::{observer::KernelVma, record::MmId};

/// Whether the VMA is as the kernel describes it.
fn is_same(range: &Range<usize>, vma: &Vma<File>, kernel: &KernelVma) -> bool {
    let (offset, dev, inode) = match &vma.file {
        Some(file) => (vma.offset_at(range.start) << 12, file.device(), file.inode()),
        None => (0, (0, 0), 0),
    };
    let rights = VmFlags::READ | VmFlags::WRITE | VmFlags::EXEC | VmFlags::MAYSHARE;
    *range == kernel.range
        && vma.flags & rights == kernel.rights
        && (offset, dev, inode) == (kernel.offset, kernel.dev, kernel.inode)
}

impl<B: Shadow> Mirror<B> {
    /// Whether our VMAs in a range and next to it are the kernel's, but for their names. O(VMAs
    /// there).
    pub fn agrees_around(&mut self, mm: MmId, around: Range<usize>, kernel: &[KernelVma]) -> bool {
        let Some(mirrored) = self.spaces.get_mut(&mm) else { return true };
        mirrored.figures.stats.neighbourhoods += 1;
        let guard = mirrored.space.pin();
        let ours = mirrored.space.iter(&guard, around.start.saturating_sub(1));
        let ours = ours.take_while(|(range, _)| range.start <= around.end);
        let mut kernel = kernel.iter();
        let same = |(range, vma): (Range<usize>, &Vma<File>)| {
            kernel.next().is_some_and(|kernel| is_same(&range, vma, kernel))
        };
        { ours }.all(same) && kernel.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: VmFlags = VmFlags::READ.union(VmFlags::WRITE);

    /// A mirror with VMAs at pages 1 and 2, which do not merge, and at 5.
    fn mirror() -> Mirror {
        let vma = |page: usize, flags| (page << 12..(page + 1) << 12, flags);
        Mirror::of_vmas(&[vma(1, RW), vma(2, VmFlags::READ), vma(5, RW)])
    }

    fn kernel(page: usize, rights: VmFlags) -> KernelVma {
        let range = page << 12..(page + 1) << 12;
        KernelVma { range, rights, offset: 0, dev: (0, 0), inode: 0 }
    }

    #[test]
    fn neighbours_are_compared_and_no_others() {
        let mut mirror = mirror();
        let [one, two, five] = [kernel(1, RW), kernel(2, VmFlags::READ), kernel(5, RW)];
        let mut agrees = |around: Range<usize>, kernel: &[&KernelVma]| {
            let kernel: Vec<_> = kernel.iter().map(|vma| (*vma).clone()).collect();
            mirror.agrees_around(1, around.start << 12..around.end << 12, &kernel)
        };
        assert!(agrees(2..3, &[&one, &two]));
        assert!(agrees(3..5, &[&two, &five]));
        assert!(agrees(3..4, &[&two]));
        assert!(agrees(1..6, &[&one, &two, &five]));
        // One too few, one too many, and another order.
        assert!(!agrees(2..3, &[&two]) && !agrees(2..3, &[&one]));
        assert!(!agrees(2..3, &[&one, &two, &five]) && !agrees(2..3, &[&two, &one]));
    }

    #[test]
    fn each_fact_counts() {
        let mut mirror = mirror();
        let mut agrees = |five: KernelVma| mirror.agrees_around(1, 5 << 12..6 << 12, &[five]);
        let five = kernel(5, RW);
        assert!(agrees(five.clone()));
        assert!(!agrees(KernelVma { range: 5 << 12..7 << 12, ..five.clone() }));
        assert!(!agrees(KernelVma { rights: VmFlags::READ, ..five.clone() }));
        assert!(!agrees(KernelVma { rights: RW | VmFlags::MAYSHARE, ..five.clone() }));
        assert!(!agrees(KernelVma { offset: 4096, ..five.clone() }));
        assert!(!agrees(KernelVma { dev: (8, 1), ..five.clone() }));
        assert!(!agrees(KernelVma { inode: 1, ..five }));
    }
}
