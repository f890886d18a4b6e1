//! The use of the machine's memory by a process: from `/proc/PID/stat` and `/proc/PID/status`, two
//! small files, and from smaps, which the tracer has read for the last listing anyway.

use super::{image, sys::Tid};
use crate::report::{Residency, Usage, VmaKind};

/// The resident bytes in the text of statm, which counts pages.
pub(super) fn resident_in(statm: &str) -> Option<usize> {
    statm.split_ascii_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(4096)
}

/// The page faults of a process, minor and major.
pub(super) type Faults = (u64, u64);

/// The page faults of the process of `tid` so far. They are not the address space's: execve keeps
/// them.
pub(super) fn faults(tid: Tid) -> Faults {
    let stat = image::proc_text(tid, "stat").unwrap_or_default();
    let field = |n| image::stat_field(&stat, n).unwrap_or(0);
    (field(10), field(12))
}

/// The use of an address space that began with so many page faults of the process, and has these
/// VMAs.
pub(super) fn read(tid: Tid, before: Faults, vmas: &[(VmaKind, Residency)]) -> Usage {
    let status = image::proc_text(tid, "status").unwrap_or_default();
    let now = faults(tid);
    let mut usage = Usage {
        resident_peak: peak_in(&status),
        minor_faults: now.0.saturating_sub(before.0),
        major_faults: now.1.saturating_sub(before.1),
        ..Usage::default()
    };
    for (kind, residency) in vmas {
        usage.add_vma(*kind, residency);
    }
    usage
}

/// The resident bytes of each VMA in the text of smaps.
pub(super) fn residency(smaps: &str) -> Vec<(VmaKind, Residency)> {
    let mut all = Vec::new();
    for line in smaps.lines() {
        if image::is_head(line) {
            let one = Residency { vmas: 1, ..Residency::default() };
            all.extend(VmaKind::of_line(line).map(|kind| (kind, one)));
        } else if let (Some((_, one)), Some((key, value))) = (all.last_mut(), line.split_once(':'))
        {
            one.add_line(key, value);
        }
    }
    all
}

/// The peak of resident memory in the text of status, in bytes; 0 without memory.
fn peak_in(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_in_kibibytes() {
        assert_eq!(peak_in("Name:\ta\nVmPeak:\t  90 kB\nVmHWM:\t      12 kB\n"), 12 << 10);
        assert_eq!(peak_in("Name:\tkthread\n"), 0);
        assert_eq!(resident_in("100 20 3 4 0 5 0\n"), Some(20 << 12));
        assert_eq!(resident_in("100\n"), None);
    }

    /// The page faults of this process: each new page that it touches is one.
    #[test]
    fn faults_are_counted() {
        let me = std::process::id() as Tid;
        let before = faults(me);
        let pages = 4096;
        // SAFETY: a new private mapping, which only this test uses.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                pages * 4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, pages * 4096, libc::MADV_NOHUGEPAGE);
            // Other tests here fork. A child that has the pages, too, would make them shared.
            libc::madvise(at, pages * 4096, libc::MADV_DONTFORK);
            for page in 0..pages {
                at.cast::<u8>().add(page * 4096).write_volatile(1);
            }
            let usage = read(me, before, &residency(&image::smaps(me).unwrap()));
            libc::munmap(at, pages * 4096);
            assert!(usage.minor_faults >= pages as u64, "{usage:?}");
            assert!(usage.resident_peak >= (pages * 4096) as u64, "{usage:?}");
            assert!(
                usage.kinds[&VmaKind::Anon].private_dirty >= (pages * 4096) as u64,
                "{usage:?}"
            );
        }
    }
}
