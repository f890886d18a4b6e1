//! Pseudo-random numbers, the same in each run.

use oorandom::Rand32;

/// The sizes of the buffers of an XFS directory, in pages of 4 KiB, each after its percentage. The
/// remaining buffers have any size up to the largest.
///
/// The sizes are those of the file system. A directory block has one page to 64 KiB, as in
/// `mkfs.xfs -n size=`, and a buffer whose pages are not contiguous is mapped by `vm_map_ram`.
/// Large directories are made with blocks of 16 and of 64 KiB, so these are most. A cluster of
/// inodes has two pages, a log buffer eight, and a long attribute any number. The percentages are
/// our choice, not a trace.
const DIRECTORY: [(u32, usize); 5] = [(40, 4), (35, 16), (8, 1), (6, 2), (6, 8)];
const DIRECTORY_MOST: usize = 16;

/// The generator of a CPU.
pub(crate) struct Random(Rand32);

impl Random {
    pub(crate) fn new(seed: usize) -> Random {
        Random(Rand32::new(seed as u64))
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.rand_range(0..end as u32) as usize
    }

    /// A number below `end`, small ones more often.
    pub(crate) fn low(&mut self, end: usize) -> usize {
        self.below(end).min(self.below(end))
    }

    /// The pages of a directory's buffer: 1 to 16.
    pub(crate) fn directory(&mut self) -> usize {
        let mut point = self.0.rand_range(0..100);
        for (often, pages) in DIRECTORY {
            if point < often {
                return pages;
            }
            point -= often;
        }
        1 + self.below(DIRECTORY_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_have_mostly_four_pages_and_sixteen() {
        let mut random = Random::new(1);
        let mut seen = [0; 17];
        (0..10_000).for_each(|_| seen[random.directory()] += 1);
        assert!(seen[0] == 0 && seen[1..].iter().all(|count| *count > 0), "{seen:?}");
        assert!((3900..4300).contains(&seen[4]) && (3400..3800).contains(&seen[16]), "{seen:?}");
    }
}
