//! The program of a process, for `/proc`, and a loaded program that can start.

use super::memory::Space;
use crate::file::deny_write::Image;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The name of a thread: up to 15 bytes, and zeros.
pub(crate) type Name = [u8; 16];

/// A name as texts show it.
pub(crate) fn shown(name: &Name) -> String {
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The program of a process: its path and arguments are for `/proc`.
#[derive(Clone, Default)]
pub(crate) struct Program {
    pub(crate) path: Vec<u8>,
    /// Keeps writers of its file out; none when the process has ended.
    pub(crate) image: Option<Arc<Image>>,
    /// Each with a zero behind it. Shared with the processes that fork: there may be megabytes.
    pub(crate) arguments: Arc<Vec<u8>>,
}

/// A program that can start.
pub(crate) struct Loaded {
    pub(crate) space: Arc<Space>,
    pub(crate) entry: u64,
    pub(crate) stack: u64,
    /// The name of its first thread.
    pub(crate) name: Name,
}
