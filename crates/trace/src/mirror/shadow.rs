//! Other address spaces that follow those of the mirror, by the same changes.
//!
//! The mirror decides what a record means. Another implementation of address spaces, such as one
//! with pages, gets each change after the mirror, with the mirror's result, and compares its own.

use std::ops::{Deref, Range};

use vma::{Error, Layout, Profile, VmFlags, Writer};

use super::{
    Engine, File, SpaceChange,
    owners::{BeforeChange, Owners},
};
use crate::record::{MmId, Record};

/// Address spaces that follow the mirror's. Each method does nothing by default.
///
/// ```
/// use trace::{mirror::{Shadow, File, SpaceChange}, record::MmId, replay::replay_with_shadow};
///
/// /// Counts changes.
/// #[derive(Default)]
/// struct Count(u64);
///
/// impl Shadow for Count {
///     fn change(&mut self, _: MmId, _: &SpaceChange<File>, _: Result<usize, vma::Error>) {
///         self.0 += 1;
///     }
/// }
/// let recording = "# vmtrace 1 kernel=6.18\n\
///     X 1 7 vmas=0 brk=0 start_brk=0 start_stack=0 mmap_base=7f0000000000 exe=/bin/x\n\
///     M 1 7 munmap 1000 1000 = 0\nQ 1\n";
/// let (summary, count) = replay_with_shadow(recording.as_bytes(), "example", Count::default())?;
/// assert_eq!((summary.total.calls(), count.0), (1, 1));
/// # Ok::<(), trace::text::Error>(())
/// ```
#[allow(unused_variables, reason = "defaults ignore what they are told")]
pub trait Shadow {
    /// The next record, which begins in this line of the file.
    fn record(&mut self, line: usize, record: &Record) {}

    /// A new program has this address space.
    fn exec(&mut self, mm: MmId, profile: Profile, layout: Layout) {}

    /// The mirror has carried out a change, with this result: the address that was chosen, or 0.
    fn change(&mut self, mm: MmId, change: &SpaceChange<File>, result: Result<usize, Error>) {}

    /// `mm` was forked.
    fn fork(&mut self, mm: MmId, child: MmId) {}

    /// The address space has ended. Its VMAs are still those of its last change.
    fn end(&mut self, mm: MmId) {}

    /// The VMAs of the address space that the record changed, after it.
    fn compare(&mut self, mm: MmId, vmas: &mut dyn Iterator<Item = (Range<usize>, VmFlags)>) {}
}

/// Nothing follows the mirror.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoShadow;

impl Shadow for NoShadow {}

/// Changes a mirrored address space, and the shadow that follows it. Every change is a
/// [`SpaceChange`].
pub(super) struct SpaceWriter<'a> {
    pub(super) mm: MmId,
    pub(super) writer: Writer<'a, File, Engine>,
    pub(super) shadow: &'a mut dyn Shadow,
    pub(super) owners: Option<&'a mut Owners>,
}

impl<'a> Deref for SpaceWriter<'a> {
    type Target = Writer<'a, File, Engine>;

    fn deref(&self) -> &Self::Target {
        &self.writer
    }
}

impl SpaceWriter<'_> {
    /// Carries out a change. Returns what [`SpaceChange::carry_out`] does.
    pub(super) fn change(&mut self, change: SpaceChange<File>) -> Result<usize, Error> {
        let before = self.owners.as_ref().map(|_| BeforeChange::of(&self.writer));
        let result = change.carry_out(&mut self.writer);
        if let (Some(owners), Some(before)) = (&mut self.owners, before) {
            owners.change(&change, result, &self.writer, before);
        }
        self.shadow.change(self.mm, &change, result);
        result
    }
}
