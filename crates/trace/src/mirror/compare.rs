//! The comparisons of the mirror's address spaces: with the kernel's listings, and with what
//! follows the mirror.

use super::{Expected, Mirror, Shadow, Verdict, file::File};
use crate::{
    record::{Listing, MmId},
    report::{Difference, Mismatch},
    text::fnv1a64,
};

impl<B: Shadow> Mirror<B> {
    /// Shows the VMAs of an address space to what follows the mirror. O(VMAs).
    pub fn compare_shadow(&mut self, mm: MmId) {
        let Some(mirrored) = self.spaces.get(&mm) else { return };
        let guard = mirrored.space.pin();
        let vmas = mirrored.space.iter(&guard, 0).map(|(range, vma)| (range, vma.flags));
        self.shadow.compare(mm, &mut { vmas });
    }

    pub(super) fn check(
        &mut self,
        mm: MmId,
        lines: usize,
        hash: u64,
    ) -> Result<Option<(MmId, Difference)>, Expected> {
        let mut text = std::mem::take(&mut self.text);
        let mirrored = self.known(mm)?;
        mirrored.figures.stats.listings += 1;
        mirrored.write_listing(&mut text);
        let ours = fnv1a64(text.as_bytes());
        let agrees = ours == hash && text.lines().count() == lines;
        let difference =
            (!agrees).then(|| (mm, Difference::Digest { ours: text.clone(), lines, hash }));
        self.text = text;
        Ok(difference)
    }

    pub(super) fn last_listing(
        &mut self,
        listing: &Listing,
    ) -> Result<Option<(MmId, Difference)>, Expected> {
        let unseen = self.unseen();
        let mirrored = self.known(listing.mm)?;
        mirrored.figures.stats.listings += 1;
        let ours = mirrored.listing();
        if !ours.lines().eq(listing.lines.iter().map(String::as_str)) {
            let mut kernel = listing.lines.join("\n");
            kernel.push('\n');
            return Ok(Some((listing.mm, Difference::Listing { ours, kernel })));
        }
        Ok(mirrored
            .compare_flags(&listing.flags, unseen)
            .map(|difference| (listing.mm, difference)))
    }

    /// Compares with the kernel's listing and counts the result.
    pub fn compare(&mut self, mm: MmId, kernel: &str) -> Result<Verdict, Expected> {
        let mut text = std::mem::take(&mut self.text);
        let mirrored = self.known(mm)?;
        mirrored.figures.stats.listings += 1;
        mirrored.write_listing(&mut text);
        let difference = (text != kernel)
            .then(|| Difference::Listing { ours: text.clone(), kernel: kernel.to_string() });
        self.text = text;
        Ok(match difference {
            None => Verdict::Agrees,
            Some(difference) => self.mismatch(mm, difference, None),
        })
    }

    pub(super) fn mismatch(
        &mut self,
        mm: MmId,
        difference: Difference,
        place: Option<String>,
    ) -> Verdict {
        let Some(mirrored) = self.spaces.get_mut(&mm) else { return Verdict::Agrees };
        // A wrong address is corrected at once, so it has no consequences.
        let lasting = !matches!(difference, Difference::Result { .. });
        if lasting && std::mem::replace(&mut mirrored.tainted, true) {
            return Verdict::DiffersAgain;
        }
        if let Some(cause) = mirrored.doubt {
            mirrored.figures.stats.cannot_tell += 1;
            return Verdict::CannotTell(cause);
        }
        mirrored.figures.stats.mismatches += 1;
        if self.summary.first_mismatch.is_none() {
            let call = mirrored.last_call.clone();
            let path = call.as_ref().and_then(|call| self.files.get(&call.file)).map(File::path);
            self.summary.first_mismatch = Some(Mismatch {
                mm,
                pid: mirrored.figures.pid,
                exe: mirrored.figures.exe.clone(),
                call,
                path,
                place,
                difference,
            });
        }
        Verdict::Differs
    }
}
