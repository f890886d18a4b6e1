//! Address spaces of programs.

use crate::any;
use crate::host::{Grace, Host};
use core::hint::black_box;
use machine::{Asid, Frame, PageSize, VirtAddr};
use mm::{Access, AddressSpace, Advice, Layout, MapFlags, Profile, RemapRequest};
use paging::{Paging, X86_64L4};

type Space = AddressSpace<Host, X86_64L4, Grace>;

pub(crate) fn calls() {
    let Ok(paging) = Paging::<Host, X86_64L4>::try_new(Host, PageSize::Size1G) else { return };
    let profile = Profile::LINUX_6_18;
    let space = Space::try_new(&paging, Asid(any()), None, profile, Layout::default());
    let Ok(space) = space else { return };
    let (at, len): (usize, usize) = (any(), any());
    black_box(space.handle_fault(VirtAddr::new(any()), Access::Write).is_ok());
    black_box(space.mmap(at, len, any(), MapFlags::from_bits_retain(any())).is_ok());
    black_box(space.munmap(at, len).is_ok());
    black_box(space.mprotect(at, len, any(), any()).is_ok());
    black_box(space.mremap(RemapRequest { addr: at, new_len: len, ..Default::default() }).is_ok());
    black_box(space.brk(at).is_ok());
    black_box(space.madvise(at, len, Advice::DontNeed).is_ok());
    let mut bytes = [0; 8];
    black_box(space.read(at, &mut bytes).is_ok());
    black_box(space.write(at, &bytes).is_ok());
    let mut into = [Frame::default(); 4];
    black_box(space.pin_pages(at, Access::Write, &mut into).is_ok());
    black_box(space.fork(Asid(any())).is_ok());
}
