//! Numbers of Linux's system calls on x86-64. A recording has them whatever the host is, so they
//! are not those of its C library.

pub(crate) const EPERM: isize = -1;
pub(crate) const EIO: isize = -5;
pub(crate) const EAGAIN: isize = -11;
pub(crate) const ENOMEM: isize = -12;
pub(crate) const EACCES: isize = -13;
pub(crate) const EINVAL: isize = -22;
pub(crate) const EOPNOTSUPP: isize = -95;

pub(crate) const MAP_FIXED: usize = 0x10;
pub(crate) const MAP_HUGETLB: usize = 0x4_0000;
pub(crate) const MREMAP_FIXED: usize = 2;
pub(crate) const SHM_REMAP: usize = 0o40_000;

pub(crate) const PR_SET_MM: usize = 35;
pub(crate) const PR_SET_MM_START_STACK: usize = 5;
pub(crate) const PR_SET_MM_START_BRK: usize = 6;
pub(crate) const PR_SET_MM_BRK: usize = 7;

/// Requests features of a userfaultfd. It comes before all other requests.
pub(crate) const UFFDIO_API: u32 = 0xc018_aa3f;
/// Registers a range with a userfaultfd.
pub(crate) const UFFDIO_REGISTER: u32 = 0xc020_aa00;
/// Unregisters a range.
pub(crate) const UFFDIO_UNREGISTER: u32 = 0x8010_aa01;
/// Requests that fill pages: `UFFDIO_COPY`, `ZEROPAGE`, `MOVE`, `CONTINUE`, `POISON`, each with its
/// valid mode bits.
pub(crate) const UFFDIO_FILLS: [(u32, usize); 5] =
    [(0xc028_aa03, 3), (0xc020_aa04, 1), (0xc028_aa05, 3), (0xc020_aa07, 3), (0xc020_aa08, 1)];
