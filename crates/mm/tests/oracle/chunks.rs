//! The 2 MiB of the window: their present pages, and where a touch has a determined effect.
//!
//! A fault brings in a huge page only where there is no page table. A table without pages is gone
//! in ours at once, but on Linux only with the last VMA of its 2 MiB, or by MADV_DONTNEED of all of
//! it. So if such a table may be left, the next fault there is huge in ours and may be small on
//! Linux. The next read also decides whether the VMA has an anon_vma, which the listing shows
//! later. Steps that would touch such memory are left out.
//!
//! A fork of Linux copies no page tables of VMAs without an anon_vma; ours shares all. So the same
//! holds for a child where the parent has only zero pages, guards, or pages of a file.

use mm::{PageCategories, Scan};

use crate::{
    ours::{END, Space, WINDOW},
    program::{Advice, Kind, PAGE, PAGES, Place, Span, Step, Way},
};

pub(crate) const HUGE: usize = 512 * PAGE;
/// The 2 MiB of the window; 0 if it is too small for huge pages.
pub(crate) const COUNT: usize = PAGES * PAGE / HUGE;
pub(crate) const HAS_HUGE: bool = PAGES * PAGE >= HUGE;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Holds {
    #[default]
    Nothing,
    Small,
    Huge,
}

#[derive(Clone, Copy, Default, Debug)]
struct Chunk {
    holds: Holds,
    /// Linux may have a page table, also without pages.
    has_table: bool,
    /// Linux may have none, also where there are small pages.
    may_lack_table: bool,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Chunks([Chunk; COUNT]);

fn start(chunk: usize) -> usize {
    WINDOW + chunk * HUGE
}

/// The chunks that a range of the window meets.
fn met(Span { at, len }: Span) -> core::ops::Range<usize> {
    let end = at.saturating_add(len).min(PAGES * PAGE).div_ceil(HUGE);
    let end = if HAS_HUGE { end } else { 0 };
    (at / HUGE).min(end)..end
}

fn covers(Span { at, len }: Span, chunk: usize) -> bool {
    at <= chunk * HUGE && (chunk + 1) * HUGE <= at + len
}

fn scan(space: &Space, chunk: usize) -> Vec<(usize, usize, PageCategories)> {
    use PageCategories as Page;
    let scan = Scan {
        category_anyof_mask: Page::PRESENT | Page::GUARD,
        return_mask: Page::FILE | Page::PRESENT | Page::PFNZERO | Page::HUGE | Page::GUARD,
        max_regions: HUGE / PAGE,
        ..Scan::default()
    };
    let found = space.scan(start(chunk)..start(chunk) + HUGE, &scan).unwrap();
    let page = |at: usize| (at - WINDOW) / PAGE;
    let regions = found.regions.iter();
    regions.map(|region| (page(region.start), page(region.end), region.categories)).collect()
}

/// Answers [`Step::Chunks`].
pub(crate) fn present(space: &Space) -> String {
    let chunks = (0..COUNT).map(|chunk| {
        let regions = scan(space, chunk).into_iter();
        let regions = regions.map(|(from, to, what)| format!("{from:x}-{to:x}:{:x}", what.bits()));
        let regions = regions.collect::<Vec<_>>().join(",");
        if regions.is_empty() { "-".into() } else { regions }
    });
    chunks.collect::<Vec<_>>().join(" ")
}

fn holds(space: &Space, chunk: usize) -> Holds {
    match &*scan(space, chunk) {
        [] => Holds::Nothing,
        [(.., what)] if what.contains(PageCategories::HUGE) => Holds::Huge,
        _ => Holds::Small,
    }
}

fn is_mapped(space: &Space, chunk: usize) -> bool {
    let mut found = false;
    space.for_each_vma(|range, _| {
        found |= range.start < start(chunk) + HUGE && start(chunk) < range.end;
    });
    found
}

/// The ranges in which the step may bring pages in.
fn touched(step: Step) -> Vec<Span> {
    match step {
        Step::Read { at } | Step::Write { at, .. } => vec![Span { at, len: 1 }],
        // Locked memory that becomes writable is populated.
        Step::Map { span, kind: Kind::Populate, .. }
        | Step::Lock { span, on_fault: false }
        | Step::Protect { span, .. } => vec![span],
        Step::Advise {
            span,
            advice: Advice::PopulateRead | Advice::PopulateWrite | Advice::Collapse,
        } => vec![span],
        // Locked memory that grows is populated.
        Step::Remap { span, len, to, way } if len > span.len => match way {
            Way::Fixed | Way::FixedDontUnmap => vec![Span { at: to, len }],
            _ => vec![Span { at: span.at, len }],
        },
        _ => vec![],
    }
}

/// The range that the step first unmaps, if it succeeds. Not that of mremap: it leaves the target
/// as it was where the source has a hole.
fn replaced(step: Step) -> Option<Span> {
    match step {
        Step::Map { span, place: Place::Fixed, .. }
        | Step::Share { span, place: Place::Fixed, .. } => Some(span),
        _ => None,
    }
}

impl Chunks {
    /// Before a step. Returns whether it is left out.
    pub(crate) fn begin(&mut self, space: &Space, step: Step) -> bool {
        for (number, chunk) in self.0.iter_mut().enumerate() {
            chunk.holds = holds(space, number);
            chunk.has_table |= chunk.holds == Holds::Small;
        }
        let is_open = |chunk: usize| {
            let is_new = replaced(step).is_some_and(|span| covers(span, chunk));
            let Chunk { holds, has_table, may_lack_table } = self.0[chunk];
            !is_new && (may_lack_table || has_table && holds == Holds::Nothing)
        };
        touched(step).into_iter().flat_map(met).any(is_open)
    }

    /// After it.
    pub(crate) fn end(&mut self, space: &Space, step: Step, answer: &str) {
        let before = self.0;
        let at = answer.strip_prefix("at ").and_then(|at| usize::from_str_radix(at, 16).ok());
        if let (Some(_), Some(span)) = (at, replaced(step)) {
            met(span).filter(|chunk| covers(span, *chunk)).for_each(|chunk| {
                self.0[chunk] = Chunk::default();
            });
        }
        let mut get_tables = |span| met(span).for_each(|chunk| self.0[chunk].has_table = true);
        match step {
            // The call unmaps the target before it fails.
            Step::Remap { len, way: Way::Fixed | Way::FixedDontUnmap, to, .. } if at.is_none() => {
                get_tables(Span { at: to, len });
            }
            Step::Remap { span, len, .. } => {
                // Linux splits huge pages that cannot move whole, and leaves the tables if the VMA
                // stays.
                if at.is_none_or(|at| at.abs_diff(span.at) % HUGE != 0) {
                    get_tables(span);
                }
                if let Some(at) = at.filter(|at| *at != span.at) {
                    let from = &before[met(Span { at: span.at, len: span.len.min(len) })];
                    for chunk in &mut self.0[met(Span { at, len })] {
                        chunk.has_table |= from.iter().any(|from| from.has_table);
                        chunk.may_lack_table |= from.iter().any(|from| from.may_lack_table);
                    }
                }
            }
            Step::Advise { span, advice: Advice::GuardInstall | Advice::GuardRemove } => {
                get_tables(span);
            }
            // A fault that fails may have made one.
            Step::Read { at } | Step::Write { at, .. } if answer.contains(['S', 'B']) => {
                get_tables(Span { at, len: 1 });
            }
            _ => {}
        }
        for (number, chunk) in self.0.iter_mut().enumerate() {
            chunk.holds = holds(space, number);
            chunk.has_table |= chunk.holds == Holds::Small;
            if !is_mapped(space, number) {
                *chunk = Chunk::default();
            }
        }
    }

    /// Those of a forked child of the space.
    pub(crate) fn of_child(&self, space: &Space) -> Self {
        let mut chunks = self.clone();
        for (number, chunk) in chunks.0.iter_mut().enumerate() {
            use PageCategories as Page;
            let copied = |what: &Page| !what.intersects(Page::FILE | Page::PFNZERO | Page::GUARD);
            let is_copied = scan(space, number).iter().any(|(.., what)| copied(what));
            chunk.may_lack_table |= chunk.holds == Holds::Small && !is_copied;
        }
        chunks
    }
}

const _: () = assert!(END - WINDOW == PAGES * PAGE);
