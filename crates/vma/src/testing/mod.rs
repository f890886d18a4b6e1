//! For tests: a slow and obvious model of an address space, and a driver that makes the same calls
//! on the model and on the real one.
//!
//! The model is a sorted list of VMAs in pages, and every operation scans the list. Its anon_vmas
//! are numbers. It has no counts, but counts over all address spaces when it needs one. After each
//! call both sides must have the same listing, the same merges, and the same sharing of anonymous
//! pages.

mod both_sides;
mod calls;
mod dice;
mod maps;
mod model;
mod moves;
mod pages;
mod play;
mod world;

pub use play::{play, play_failing};

use core::fmt;

use crate::{MappedFile, Placement};

/// A file with the properties that a test wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    id: u32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Opened for writing.
    Writable,
    /// Opened for reading, on a mount without execution.
    ReadOnly,
    /// `/dev/zero`, opened for writing.
    Zero,
    /// SysV shared memory, with its size in pages.
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
