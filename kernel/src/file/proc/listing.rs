//! The listings of VMAs, `maps` and `smaps`: written part by part, as far as a program reads.
//!
//! A process may have tens of thousands of VMAs. As in Linux, each VMA is shown as it is when its
//! line is read, and the next part goes on with the VMA above the last one that was shown. So a
//! read that continues the last one writes one part at most, and a listing needs the memory of
//! one. A read at another place writes the parts before it, too.

use crate::errno::Errno;
use crate::file::budget::Charge;
use crate::lock::lock;
use crate::task::Space;
use crate::text::{Text, read_text};
use alloc::sync::Weak;
use linux_raw_sys::errno::{ENFILE, ENOMEM};
use spin::mutex::SpinMutex;

/// A part ends with the line that makes it so many bytes long.
const PART: usize = 4096;
/// The heap that a listing uses, about.
const SIZE: usize = 2 * PART;

/// The listing of an open `maps` or `smaps`, with the part that was read last.
pub(crate) struct Listing {
    space: Weak<Space>,
    /// `smaps`: each VMA has its counts of memory.
    detailed: bool,
    part: SpinMutex<Part>,
    _charge: Charge,
}

/// The part that was read last.
struct Part {
    /// Its place in the file.
    start: u64,
    text: Text,
    /// The address from which the next part goes on; none at the end.
    next: Option<usize>,
}

impl Part {
    fn first() -> Part {
        Part { start: 0, text: Text::default(), next: Some(0) }
    }
}

impl Listing {
    /// # Errors
    /// ENFILE: no budget.
    pub(super) fn new(space: Weak<Space>, detailed: bool) -> Result<Listing, Errno> {
        let charge = Charge::new(SIZE).map_err(|_| Errno(ENFILE))?;
        Ok(Listing { space, detailed, part: SpinMutex::new(Part::first()), _charge: charge })
    }

    /// Reads bytes at a place: those of one part. At the beginning, the listing is written anew.
    /// A program that goes back has it written from the beginning.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let mut part = lock(&self.part);
        if at == 0 || at < part.start {
            *part = Part::first();
        }
        loop {
            let end = part.start + part.text.0.len() as u64;
            if at < end {
                return Ok(read_text(&part.text.0, at - part.start, into));
            }
            let (Some(next), Some(space)) = (part.next, self.space.upgrade()) else { return Ok(0) };
            part.start = end;
            part.text.0.clear();
            // A part that is cut short would be shown, and its VMAs again behind it.
            let written = self.write(&space, next, &mut part.text);
            part.next = written.inspect_err(|_| part.text.0.clear())?;
        }
    }

    /// Writes a part. Returns where the next one goes on.
    fn write(&self, space: &Space, from: usize, text: &mut Text) -> Result<Option<usize>, Errno> {
        /// The VMAs that are written with the mmap lock held.
        const TOGETHER: usize = 4;
        let mut next = Some(from);
        while let Some(from) = next.filter(|_| text.0.len() < PART) {
            next = match self.detailed {
                true => space.write_smaps_from(from, TOGETHER, text),
                false => space.write_maps_from(from, TOGETHER, text),
            }
            .map_err(|_| Errno(ENOMEM))?;
        }
        Ok(next)
    }
}
