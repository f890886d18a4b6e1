//! Texts that the kernel writes for programs.

use crate::errno::Errno;
use alloc::vec::Vec;
use core::fmt;
use linux_raw_sys::errno::ENOMEM;

/// A text that grows, or fails without memory.
#[derive(Default)]
pub(crate) struct Text(pub(crate) Vec<u8>);

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0.try_reserve(part.len()).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(part.as_bytes());
        Ok(())
    }
}

/// Writes a text.
///
/// # Errors
/// ENOMEM.
pub(crate) fn text(
    write: impl FnOnce(&mut dyn fmt::Write) -> fmt::Result,
) -> Result<Vec<u8>, Errno> {
    let mut text = Text::default();
    write(&mut text).map_err(|_| Errno(ENOMEM))?;
    Ok(text.0)
}

/// Reads bytes of a text at a place. Returns how many.
pub(crate) fn read_text(text: &[u8], at: u64, into: &mut [u8]) -> usize {
    let from = &text[at.min(text.len() as u64) as usize..];
    let count = from.len().min(into.len());
    into[..count].copy_from_slice(&from[..count]);
    count
}
