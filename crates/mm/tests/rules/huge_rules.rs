//! Linux's rules of MADV_COLLAPSE and of huge pages, which the test `huge_oracle` has found.

use crate::common::*;
use mm::*;
use sim::Sim;

const AT: usize = 0x4000_0000;

/// Runs a test in a space in which MADV_HUGEPAGE allows huge pages.
fn with_advised(test: impl FnOnce(&Sim, &Space)) {
    with_space(8192, |sim, _, space| {
        space.set_huge_pages(HugePages::Madvise).unwrap();
        test(sim, space);
    });
}

fn huge_bytes(space: &Space) -> usize {
    space.usage(0..1 << 46).huge
}

/// Writes the first page of some huge pages.
fn write(sim: &Sim, space: &Space, chunks: &[usize]) {
    chunks.iter().for_each(|chunk| store(sim, space, AT + chunk * HUGE, 1).unwrap());
}

fn collapse(space: &Space, at: usize, len: usize) -> i32 {
    space.madvise(at, len, Advice::Collapse).map_or_else(|error| error.errno(), |()| 0)
}

#[test]
fn collapse_needs_room_in_the_vma() {
    // The VMA, the range, and the errno; in pages from `AT`.
    let cases = [
        // Room for one, and the range has it.
        ((0, 512), (0, 512), 0),
        // The range has none, and does not lie within one.
        ((0, 512), (511, 1), 0),
        ((0, 1024), (256, 256), 0),
        // It lies within one.
        ((0, 512), (1, 100), 22),
        // The VMA has none, though the range ends at a border.
        ((256, 512), (512, 256), 22),
        ((256, 512), (256, 256), 22),
    ];
    for ((first, pages), (from, len), errno) in cases {
        with_advised(|sim, space| {
            space.mmap(AT + first * PAGE, pages * PAGE, 3, FIXED).unwrap();
            store(sim, space, AT + first * PAGE, 1).unwrap();
            let done = collapse(space, AT + from * PAGE, len * PAGE);
            assert_eq!(done, errno, "{first} {pages}: {from} {len}");
        });
    }
}

#[test]
fn collapse_stops_at_what_it_refuses() {
    with_advised(|sim, space| {
        space.mmap(AT, 3 * HUGE, 3, FIXED).unwrap();
        write(sim, space, &[0, 2]);
        assert_eq!(collapse(space, AT, 3 * HUGE), 22, "there is no page in the second");
        assert_eq!(huge_bytes(space), HUGE);
        // Another VMA, which must not be huge.
        write(sim, space, &[1]);
        space.madvise(AT + HUGE, HUGE, Advice::NoHugePage).unwrap();
        assert_eq!(collapse(space, AT + HUGE, 2 * HUGE), 22);
        assert_eq!(huge_bytes(space), HUGE);
        // It goes on behind a pinned page.
        space.madvise(AT + HUGE, HUGE, Advice::HugePage).unwrap();
        space.madvise(AT, 3 * HUGE, Advice::HugePage).unwrap();
        let mut frames = [machine::Frame::default()];
        let pin = space.pin_pages(AT + HUGE, Access::Write, &mut frames).unwrap();
        assert_eq!(collapse(space, AT, 3 * HUGE), 11);
        assert_eq!(huge_bytes(space), 2 * HUGE);
        // But not in the next VMA.
        space.madvise(AT + 2 * HUGE, HUGE, Advice::DontNeed).unwrap();
        space.madvise(AT + 2 * HUGE, HUGE, Advice::NoHugePage).unwrap();
        write(sim, space, &[2]);
        space.madvise(AT + 2 * HUGE, HUGE, Advice::HugePage).unwrap();
        space.madvise(AT + 2 * HUGE, HUGE, Advice::Random).unwrap();
        assert_eq!(collapse(space, AT, 3 * HUGE), 11);
        assert_eq!(huge_bytes(space), HUGE);
        drop(pin);
        assert_eq!(collapse(space, AT, 3 * HUGE), 0);
        assert_eq!(huge_bytes(space), 3 * HUGE);
    });
}

#[test]
fn collapse_goes_on_behind_write_protected_pages() {
    with_advised(|sim, space| {
        space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        write(sim, space, &[0, 1]);
        space.userfault_register(AT, 2 * HUGE, UserFaultModes::WP, Uffd::new(1)).unwrap();
        space.userfault_write_protect(AT, PAGE, true).unwrap();
        let refused = space.madvise(AT, 2 * HUGE, Advice::Collapse).unwrap_err();
        assert_eq!(refused, Error::Collapse(CollapseError::WriteProtected));
        assert_eq!((refused.errno(), huge_bytes(space)), (22, HUGE));
    });
}

/// A read gives a VMA an anon_vma if it brings in the huge zero page. MADV_COLLAPSE needs one.
#[test]
fn the_huge_zero_page_comes_with_an_anon_vma() {
    for (advice, errno) in [(Advice::HugePage, 0), (Advice::NoHugePage, 22)] {
        with_advised(|sim, space| {
            space.mmap(AT, HUGE, 3, FIXED).unwrap();
            space.madvise(AT, HUGE, advice).unwrap();
            load(sim, space, AT).unwrap();
            space.madvise(AT, HUGE, Advice::HugePage).unwrap();
            assert_eq!(collapse(space, AT, HUGE), errno, "{advice:?}");
            assert_eq!(huge_bytes(space), 0, "the zero page stays");
        });
    }
}

#[test]
fn removing_guards_splits_no_huge_page() {
    with_advised(|sim, space| {
        space.mmap(AT, 3 * HUGE, 3, FIXED).unwrap();
        space.madvise(AT, 3 * HUGE, Advice::HugePage).unwrap();
        space.madvise(AT + HUGE, HUGE, Advice::GuardInstall).unwrap();
        write(sim, space, &[0, 2]);
        space.madvise(AT + PAGE, 2 * HUGE, Advice::GuardRemove).unwrap();
        assert_eq!(huge_bytes(space), 2 * HUGE);
        store(sim, space, AT + HUGE + PAGE, 1).unwrap();
    });
}

/// Linux splits it where the call cuts the VMA.
#[test]
fn a_part_of_a_huge_page_counts_as_small_pages() {
    with_advised(|sim, space| {
        space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        space.madvise(AT, 2 * HUGE, Advice::HugePage).unwrap();
        write(sim, space, &[0, 1]);
        space.mlock(AT + PAGE, PAGE, true).unwrap();
        assert_eq!((huge_bytes(space), space.resident(AT..AT + 2 * HUGE)), (HUGE, 1024));
        space.munlock(AT + PAGE, PAGE).unwrap();
        space.mprotect(AT + HUGE, PAGE, 1, None).unwrap();
        assert_eq!(space.usage(AT + HUGE..AT + 2 * HUGE).huge, 0);
    });
}
