//! The calls of a monitor, and PAGEMAP_SCAN, in our runner.
//!
//! The host decodes the arguments: it refuses modes and flags that do not exist, and it knows the
//! features of the userfaultfd.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mm::{
    Error, PageCategories, Resolved, Scan, Uffd, UserFault, UserFaultHandler, UserFaultModes,
};

use crate::{
    answers::said,
    monitor::Call,
    monitor_random::feature,
    ours::{Space, WINDOW},
    program::{PAGE, Span},
};

/// The program's userfaultfd. Steps take turns, so all orders are Relaxed.
#[derive(Default)]
pub(crate) struct Monitor {
    /// Its features; 0: there is none.
    features: AtomicU64,
    /// Its number.
    number: AtomicU64,
}

impl UserFaultHandler for Monitor {
    /// UFFD_FEATURE_SIGBUS.
    fn handle(&self, _: UserFault) -> bool {
        false
    }

    fn marks_absent_pages(&self, _: u64) -> bool {
        self.features.load(Relaxed) & (feature::WP_ASYNC | feature::WP_UNPOPULATED) != 0
    }

    fn is_write_protect_async(&self, _: u64) -> bool {
        self.features.load(Relaxed) & feature::WP_ASYNC != 0
    }
}

fn resolved(result: Result<(), Resolved>) -> String {
    match result {
        Err(Resolved { done, .. }) if done > 0 => format!("EAGAIN after {done:x}"),
        result => said(result.map_err(|stopped| stopped.error)),
    }
}

fn invalid() -> String {
    said(Err(Error::Vma(vma::Error::BadFlags)))
}

impl Monitor {
    pub(crate) fn step(&self, space: &Space, call: Call) -> String {
        let features = self.features.load(Relaxed);
        match call {
            Call::Scan { .. } | Call::Open { .. } => {}
            _ if features == 0 => return "none".into(),
            _ => {}
        }
        let known = |mode: u64, bits: u64| mode & !bits == 0;
        match call {
            Call::Open { .. } if features != 0 => "none".into(),
            Call::Open { features } => {
                self.features.store(features, Relaxed);
                self.number.fetch_add(1, Relaxed);
                "ok".into()
            }
            Call::Close => {
                self.features.store(0, Relaxed);
                said(space.userfault_close(self.number.load(Relaxed)))
            }
            Call::Register { mode, .. } if !known(mode, 7) => invalid(),
            Call::Register { span: Span { at, len }, mode } => {
                let modes = UserFaultModes::from_bits_retain(mode as u32);
                let uffd = Uffd::new(self.number.load(Relaxed));
                said(space.userfault_register(WINDOW + at, len, modes, uffd))
            }
            Call::Unregister(Span { at, len }) => {
                said(space.userfault_unregister(WINDOW + at, len))
            }
            // It wakes threads that wait, which is the host's.
            Call::Wake(Span { at, len }) => {
                let fits = at.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len != 0;
                if fits { "ok".into() } else { invalid() }
            }
            Call::Fill { mode, .. } if !known(mode, 3) => invalid(),
            Call::Fill { span: Span { at, len }, mode, byte } => {
                resolved(space.userfault_copy(WINDOW + at, &vec![byte; len], mode & 2 != 0))
            }
            Call::Zero { mode, .. } if !known(mode, 1) => invalid(),
            Call::Zero { span: Span { at, len }, .. } => {
                resolved(space.userfault_zeropage(WINDOW + at, len))
            }
            Call::Continue { mode, .. } if !known(mode, 3) => invalid(),
            Call::Continue { span: Span { at, len }, mode } => {
                resolved(space.userfault_continue(WINDOW + at, len, mode & 2 != 0))
            }
            Call::Poison { mode, .. } if !known(mode, 1) => invalid(),
            Call::Poison { span: Span { at, len }, .. } => {
                resolved(space.userfault_poison(WINDOW + at, len))
            }
            // To protect wakes no thread, so there is nothing to leave out.
            Call::WriteProtect { mode, .. } if !known(mode, 3) || mode == 3 => invalid(),
            Call::WriteProtect { span: Span { at, len }, mode } => {
                said(space.userfault_write_protect(WINDOW + at, len, mode & 1 != 0))
            }
            Call::Move { mode, .. } if !known(mode, 3) => invalid(),
            Call::Move { span: Span { at, len }, from, mode } => {
                resolved(space.userfault_move(WINDOW + at, WINDOW + from, len, mode & 2 != 0))
            }
            Call::Scan { span, what } => scan(space, span, what),
        }
    }
}

/// Everything but SOFT_DIRTY, which the running kernel may not have.
pub(crate) const CATEGORIES: u64 = 0x17f;

fn scan(space: &Space, Span { at, len }: Span, what: crate::monitor::Scan) -> String {
    let masks = [what.mask, what.anyof, what.inverted, what.returned];
    if what.flags & !3 != 0 || masks.iter().any(|mask| mask & !CATEGORIES != 0) {
        return invalid();
    }
    let [mask, anyof, inverted, returned] = masks.map(PageCategories::from_bits_retain);
    let none = what.vec_len == 0;
    let scan = Scan {
        category_mask: mask,
        category_anyof_mask: anyof,
        category_inverted: inverted,
        return_mask: returned,
        wp_matching: what.flags & 1 != 0,
        check_wp_async: what.flags & 2 != 0,
        // Without a vector there is no limit.
        max_pages: if none { 0 } else { what.max_pages },
        max_regions: what.vec_len,
    };
    let start = WINDOW + at;
    match space.scan(start..start + len, &scan) {
        Ok(found) => {
            let regions = if none { &[] } else { &found.regions[..] };
            let regions = regions.iter().map(|region| {
                let (start, end) = (region.start - WINDOW, region.end - WINDOW);
                format!(" {start:x}-{end:x} {:x}", region.categories.bits())
            });
            let regions = regions.collect::<Vec<_>>().join(";");
            format!("end {:x}:{regions}", found.walk_end - WINDOW)
        }
        Err(error) => said(Err(error)),
    }
}
