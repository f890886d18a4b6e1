//! Mirrors for tests.

use std::ops::Range;

use vma::{Profile, VmFlags};

use super::Mirror;
use crate::record::{InitialVma, MmId, Record};

impl Mirror {
    /// Address space 1 of process 7, with these anonymous VMAs.
    pub(super) fn of_vmas(vmas: &[(Range<usize>, VmFlags)]) -> Mirror {
        let mut mirror = Mirror::new(Profile::LINUX_6_18);
        mirror.open_program(1, 7, vmas);
        mirror
    }

    /// A process executes a program with these anonymous VMAs, whose heap and base are
    /// below them.
    pub(super) fn open_program(&mut self, mm: MmId, tid: u32, vmas: &[(Range<usize>, VmFlags)]) {
        let exec = Record::Exec {
            mm,
            tid,
            vmas: vmas.len(),
            brk: 0x50_0000,
            start_brk: 0x50_0000,
            start_stack: 0x7fff_0000_0000,
            mmap_base: 0x7000_0000_0000,
            exe: "/x".into(),
        };
        self.apply(&exec, || None).unwrap();
        for (range, flags) in vmas {
            let (start, end, pgoff) = (range.start, range.end, range.start >> 12);
            let vma = InitialVma { start, end, flags: *flags, pgoff, file: 0, name: None };
            self.apply(&Record::Vma(vma), || None).unwrap();
        }
    }
}
