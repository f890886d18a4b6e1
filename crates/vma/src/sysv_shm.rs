//! SysV shared memory: shmat and shmdt.

use crate::{
    Area, Error, MapFlags, MapRequest, MappedFile, PAGE_SIZE, VmFlags,
    host::Host,
    space::Writer,
    tree::VmaRef,
    vma::{PAGE_SHIFT, page_align},
};

/// The arguments of shmat, with the segment instead of its id.
///
/// ```
/// # use vma::*;
/// # #[derive(Clone, PartialEq)]
/// # struct File;
/// # impl MappedFile for File {
/// #     fn writable(&self) -> bool { true }
/// #     fn segment_size(&self) -> Option<usize> { Some(0x4000) }
/// #     fn device(&self) -> (u32, u32) { (8, 1) }
/// #     fn inode(&self) -> u64 { 1 }
/// #     fn write_path(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
/// #         out.write_str("/file")
/// #     }
/// # }
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<File, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// let request = AttachRequest { read_only: true, ..AttachRequest::new(File, 0x4000) };
/// let segment = writer.shmat(request)?;
/// assert_eq!(segment, at - 0x4000);
/// writer.shmdt(segment)?;
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AttachRequest<F> {
    /// The segment. Each attachment is an open file description of its own.
    pub segment: F,
    /// The size of the segment in bytes.
    pub len: usize,
    /// The address to attach it at; `None` lets the address space choose.
    pub addr: Option<usize>,
    /// SHM_RDONLY.
    pub read_only: bool,
    /// SHM_EXEC.
    pub exec: bool,
    /// SHM_REMAP: replaces existing maps at `addr`.
    pub replace: bool,
    /// SHM_RND: rounds `addr` down to a page.
    pub round: bool,
}

impl<F> AttachRequest<F> {
    /// A segment of `len` bytes, for reading and writing, at an address that the call chooses.
    pub fn new(segment: F, len: usize) -> Self {
        let (read_only, exec, replace, round) = (false, false, false, false);
        AttachRequest { segment, len, addr: None, read_only, exec, replace, round }
    }
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// shmat(2). Returns the address of the map. Costs what [`mmap`](Self::mmap) costs.
    ///
    /// # Errors
    /// [`Error::Unaligned`] without `round`, [`Error::WrongKind`] if the range is in use and
    /// `replace` is not set, [`Error::BadFlags`] for `replace` without an address, and those of
    /// [`mmap`](Self::mmap).
    pub fn shmat(&mut self, request: AttachRequest<F>) -> Result<usize, Error> {
        let mut flags = MapFlags::SHARED;
        let mut at = 0;
        if let Some(addr) = request.addr {
            at = if request.round { addr & !(PAGE_SIZE - 1) } else { addr };
            if !at.is_multiple_of(PAGE_SIZE) {
                return Err(Error::Unaligned);
            }
            flags |= MapFlags::FIXED;
            let len = page_align(request.len).ok_or(Error::BadRange)?;
            let end = at.checked_add(len).ok_or(Error::BadRange)?;
            if !request.replace && self.vmas.part(at, end).is_some() {
                return Err(Error::WrongKind);
            }
        } else if request.replace {
            return Err(Error::BadFlags);
        }
        let prot = 1 | u32::from(!request.read_only) << 1 | u32::from(request.exec) << 2;
        self.mmap_as(
            MapRequest {
                addr: at,
                len: request.len,
                prot,
                flags,
                file: Some(request.segment),
                offset: 0,
                driver_flags: None,
            },
            // A read-only attachment can never become writable.
            if request.read_only { VmFlags::SHARED | VmFlags::MAYWRITE } else { VmFlags::empty() },
        )
    }

    /// shmdt(2): unmaps the remaining parts of the segment that was attached at `addr`, except
    /// sealed ones.
    ///
    /// # Errors
    /// [`Error::WrongKind`] if no segment was attached there, [`Error::Unaligned`];
    /// [`Error::OutOfMemory`], with the parts below the failure unmapped.
    pub fn shmdt(&mut self, addr: usize) -> Result<(), Error> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        let segment = |area: &Area<F>| {
            let file = area.vma.file.as_ref()?;
            let size = file.segment_size()?;
            let attached = area.start.checked_sub(addr)? >> PAGE_SHIFT;
            (area.vma.offset_at(area.start) == attached).then(|| (file.clone(), size))
        };
        let mut found: Option<(F, usize)> = None;
        let mut at = addr;
        while let Some(area) = self.vmas.at_or_after(at).map(VmaRef::keep) {
            at = area.end;
            if area.start < addr {
                continue;
            }
            if found.as_ref().is_some_and(|(_, size)| area.end - addr > *size) {
                break;
            }
            let Some((file, size)) = segment(&area) else { continue };
            if found.as_ref().is_none_or(|(first, _)| *first == file) {
                match self.unmap(area.start, area.end) {
                    // Linux ignores a failed unmap here.
                    Ok(()) | Err(Error::Sealed) => {}
                    Err(error) => return Err(error),
                }
                found = Some((file, size));
            }
        }
        found.map(drop).ok_or(Error::WrongKind)
    }
}
