//! For tests alone: a slow and obvious address space, and a driver that makes the same calls on it
//! and on ours.
//!
//! The model is a sorted list of VMAs in pages, searched from end to end for everything. It knows
//! anon_vmas as numbers and finds out by counting, over all address spaces, what ours keeps count
//! of. After each call both must list the same, merge the same, and share anonymous pages between
//! the same VMAs.

mod calls;
mod model;
mod moves;
mod play;
mod world;

pub use play::{play, play_failing};

use core::fmt;

use crate::{MappedFile, Placement};

/// A file that says of itself what the tests want.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    id: u32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// May be written to.
    Writable,
    /// Opened to read, on a mount without execution.
    ReadOnly,
    /// `/dev/zero`, opened to write.
    Zero,
    /// SysV shared memory of so many pages.
    Segment(usize),
}

impl MappedFile for File {
    fn writable(&self) -> bool {
        self.kind != Kind::ReadOnly
    }

    fn noexec(&self) -> bool {
        self.kind == Kind::ReadOnly
    }

    fn placement(&self) -> Placement {
        if self.kind == Kind::Zero { Placement::Driver } else { Placement::Pages }
    }

    fn has_close_hook(&self) -> bool {
        self.segment_size().is_some()
    }

    fn acts_anonymous(&self) -> bool {
        self.kind == Kind::Zero
    }

    fn segment_size(&self) -> Option<usize> {
        match self.kind {
            Kind::Segment(pages) => Some(pages * crate::PAGE_SIZE),
            _ => None,
        }
    }

    fn device(&self) -> (u32, u32) {
        (0, 1)
    }

    fn inode(&self) -> u64 {
        u64::from(self.id)
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "/file{}", self.id)
    }
}
