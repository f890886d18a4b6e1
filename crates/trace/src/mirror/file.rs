//! The mapped files of a trace.

use std::{
    fmt,
    sync::{Arc, OnceLock, RwLock, RwLockReadGuard},
};

use vma::{MappedFile, Placement};

use crate::record::{FileDesc, FileId, FileKind};

/// The default huge page size of hugetlbfs, in bytes.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// An open file description. It equals only its own clones.
#[derive(Clone, Debug)]
pub struct File(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    desc: FileDesc,
    /// The current path. Files are renamed and unlinked while mapped.
    path: RwLock<String>,
    /// The size in bytes of a SysV segment or an aio ring.
    whole: OnceLock<usize>,
}

impl File {
    pub(super) fn new(desc: FileDesc) -> Self {
        let path = RwLock::new(desc.path.clone());
        File(Arc::new(Inner { desc, path, whole: OnceLock::new() }))
    }

    /// As the recording describes it.
    pub fn description(&self) -> &FileDesc {
        &self.0.desc
    }

    /// Its number in the trace.
    pub(super) fn id(&self) -> FileId {
        self.0.desc.id
    }

    pub(super) fn kind(&self) -> FileKind {
        self.0.desc.kind
    }

    fn path_now(&self) -> RwLockReadGuard<'_, String> {
        // The String is valid even if a writer panicked.
        self.0.path.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn path(&self) -> String {
        self.path_now().clone()
    }

    pub(super) fn rename(&self, path: &str) {
        *self.0.path.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = path.to_string();
    }

    /// Sets the size of a SysV segment or an aio ring, which is known when it is first mapped.
    pub(super) fn set_whole(&self, bytes: usize) {
        if self.0.desc.kind == FileKind::Adopted {
            self.0.whole.get_or_init(|| bytes);
        }
    }

    /// The size of an aio ring; `None` for any other file.
    pub(super) fn ring_size(&self) -> Option<usize> {
        let ring = self.0.desc.kind == FileKind::Adopted && !self.is_sysv();
        self.0.whole.get().copied().filter(|_| ring)
    }

    /// Whether a VMA maps it. The mirror's own table holds one reference.
    pub(super) fn is_mapped(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(super) fn is(&self, device: (u32, u32), inode: u64) -> bool {
        self.0.desc.dev == device && self.0.desc.inode == inode
    }

    fn is_sysv(&self) -> bool {
        self.0.desc.kind == FileKind::Adopted && self.0.desc.path.starts_with("/SYSV")
    }
}

impl PartialEq for File {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl MappedFile for File {
    fn writable(&self) -> bool {
        self.0.desc.writable
    }

    fn noexec(&self) -> bool {
        self.0.desc.noexec
    }

    fn placement(&self) -> Placement {
        match self.0.desc.kind {
            FileKind::RegularThp => Placement::HugeAligned,
            FileKind::ShmemThp => Placement::HugeIfRoom,
            FileKind::Huge => Placement::HugeOnly(HUGE_PAGE),
            // perf's rings are device memory, but perf lets the kernel choose their address.
            FileKind::Device if self.0.desc.path == "anon_inode:[perf_event]" => Placement::Pages,
            FileKind::Device => Placement::Driver,
            _ => Placement::Pages,
        }
    }

    fn has_close_hook(&self) -> bool {
        self.is_sysv()
    }

    fn acts_anonymous(&self) -> bool {
        self.0.desc.kind == FileKind::Device && self.0.desc.path == "/dev/zero"
    }

    fn segment_size(&self) -> Option<usize> {
        self.0.whole.get().copied().filter(|_| self.is_sysv())
    }

    fn device(&self) -> (u32, u32) {
        self.0.desc.dev
    }

    fn inode(&self) -> u64 {
        self.0.desc.inode
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(&self.path_now())
    }
}
