//! Memory of a device, mapped into programs: its frames are no memory of the frame source.
//!
//! A map of it is shared, is never locked, moved or merged, and does not count as resident, as
//! Linux has it for maps that a driver makes with remap_pfn_range. Pages come by faults. Device
//! frames hold no references and are never pinned.

use alloc::{string::String, sync::Arc};
use core::{any::Any, fmt};

use machine::{Frame, FrameRange, Machine};
use paging::{Cache, Format, Paging};
use vma::VmFlags;

use crate::{
    Mappings, Object, ObjectError, ObjectInfo, Shared,
    object::{share, text},
};

/// The memory of a device.
pub struct DeviceMemory {
    /// The [`Paging`] of the spaces that may map it.
    home: Arc<dyn Any + Send + Sync>,
    frames: FrameRange,
    path: String,
    info: ObjectInfo,
    mappings: Mappings,
}

impl DeviceMemory {
    /// The device memory in `frames`, for address spaces with this [`Paging`], of this memory type.
    /// The listing shows `path`, the major and minor number of the `device`, and the `inode`.
    ///
    /// # Errors
    /// [`ObjectError::Foreign`]: a frame is memory of the frame source, or its number stands for a
    /// slot of swap. [`ObjectError::HeapExhausted`].
    ///
    /// # Safety
    /// Programs that map it may read and write these addresses at any time, for as long as it
    /// exists and is mapped.
    pub unsafe fn try_new<M: Machine, F: Format>(
        paging: &Arc<Paging<M, F>>,
        frames: FrameRange,
        cache: Cache,
        path: &str,
        device: (u32, u32),
        inode: u64,
    ) -> Result<Shared<Self>, ObjectError> {
        let machine = paging.machine();
        let is_memory = |frame| machine.info(frame).is_some_and(machine::FrameInfo::is_memory);
        if frames.iter().any(|frame| is_memory(frame) || paging.slot_of(frame).is_some()) {
            return Err(ObjectError::Foreign);
        }
        let (home, mappings) = (paging.clone(), Mappings::new());
        let path = text(format_args!("{path}"))?;
        let info = ObjectInfo { device_memory: Some(cache), ..ObjectInfo::new(device, inode) };
        share(DeviceMemory { home, frames, path, info, mappings })
    }

    fn frame(&self, index: u64) -> Option<Frame> {
        self.frames.start().checked_add(index).filter(|_| index < self.frames.len())
    }
}

// SAFETY: the frames are no memory of the frame source, as `try_new` has checked, and programs may
// have them by the contract of `try_new`. They are never taken back. `home` keeps the `Paging`
// alive.
unsafe impl<M: Machine> Object<M> for DeviceMemory {
    fn home(&self) -> *const () {
        Arc::as_ptr(&self.home).cast()
    }

    fn page(&self, index: u64) -> Result<Frame, ObjectError> {
        self.frame(index).ok_or(ObjectError::BeyondEnd)
    }

    fn bring_in(&self, index: u64) -> Result<(), ObjectError> {
        self.frame(index).map(drop).ok_or(ObjectError::BeyondEnd)
    }

    fn is_current(&self, index: u64, frame: Frame) -> bool {
        self.frame(index) == Some(frame)
    }

    fn is_present(&self, index: u64) -> bool {
        self.frame(index).is_some()
    }

    fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    fn is_beyond_end(&self, index: u64) -> bool {
        self.frame(index).is_none()
    }

    fn info(&self) -> &ObjectInfo {
        &self.info
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(&self.path)
    }
}

/// The flags of its maps.
pub(crate) const FLAGS: VmFlags =
    VmFlags::IO.union(VmFlags::PFNMAP).union(VmFlags::DONTEXPAND).union(VmFlags::DONTDUMP);

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("frames", &self.frames)
            .field("cache", &self.info.device_memory)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
