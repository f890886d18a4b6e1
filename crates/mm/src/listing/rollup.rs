//! The sums of a space: the listing of `/proc/PID/smaps_rollup`.
//!
//! They are counted from the page tables when they are asked for, as in `smaps`, and are exact
//! while nothing changes. Costs a walk over all pages, and takes no lock.

use core::fmt;

use grace::Concurrent;
use machine::Machine;
use paging::Format;
use vma::VmFlags;

use crate::{
    AddressSpace,
    listing::smaps::{Sum, whole_bytes, write_lines},
};

/// The column at which a listing has the names of maps.
const NAMES: usize = 73;

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Writes the listing of `/proc/PID/smaps_rollup`. O(pages).
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_smaps_rollup(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let (guard, mut mapcount) = (G::pin(), self.mapcount());
        let mut sum = Sum::default();
        let [mut locked, mut anonymous, mut files, mut shared_memory] = [0; 4];
        let mut span: Option<(usize, usize)> = None;
        for (range, vma) in self.core.vmas.iter(&guard, 0) {
            span = Some((span.map_or(range.start, |(start, _)| start), range.end));
            let is_file = vma.file.as_ref().is_some_and(|file| file.object().cached().is_some());
            self.each_page(&guard, &mut mapcount, range, vma, |page| {
                let part = sum.add(page);
                *match (page.is_anonymous(), is_file) {
                    (true, _) => &mut anonymous,
                    (false, true) => &mut files,
                    (false, false) => &mut shared_memory,
                } += part;
                if vma.flags.contains(VmFlags::LOCKED) {
                    locked += part;
                }
            });
        }
        let all = sum.done();
        let (start, end) = span.unwrap_or_default();
        // Addresses of at most 12 digits leave room, so the names begin at their column.
        let digits = digits(start) + digits(end);
        let pad = NAMES.saturating_sub(digits + " ---p 00000000 00:00 0-".len());
        writeln!(out, "{start:08x}-{end:08x} ---p 00000000 00:00 0{:pad$}[rollup]", "")?;
        write_lines(
            out,
            &[
                ("Rss", all.resident),
                ("Pss", all.proportional),
                ("Pss_Dirty", all.proportional_dirty),
                ("Pss_Anon", whole_bytes(anonymous)),
                ("Pss_File", whole_bytes(files)),
                ("Pss_Shmem", whole_bytes(shared_memory)),
            ],
        )?;
        write_lines(out, &all.lines_of_both(whole_bytes(locked)))
    }
}

/// The hexadecimal digits of an address in a listing.
fn digits(address: usize) -> usize {
    let bits = (usize::BITS - address.leading_zeros()) as usize;
    bits.div_ceil(4).max(8)
}
