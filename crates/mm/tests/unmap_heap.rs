//! The heap is exhausted at some point of a munmap under TLB grace periods: it fails and changes
//! nothing, or flushes at once, or its pages wait (I7).

mod common;
#[path = "../../vma/tests/common/failing_heap.rs"]
mod failing_heap;

use std::sync::Arc;

use common::{FIXED, PAGE};
use failing_heap::refusing;
use machine::{Asid, FrameSource, PageSize, VirtAddr};
use mm::*;
use paging::{Paging, TlbGrace, X86_64L4};
use sim::{Bare, BareGrace};

const AT: usize = 0x3fff_f000;
const LEN: usize = 2 * PAGE;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Outcome {
    Failed,
    Flushed,
    Waits,
}

/// Unmaps two pages in two tables, after which the heap grants so many allocations.
fn unmap(allocations: usize) -> Outcome {
    let bare = Bare::new(2, 256).unwrap();
    let paging = Paging::<Bare, X86_64L4>::try_new(bare.clone(), PageSize::Size1G).unwrap();
    let periods = TlbGrace::try_new(bare.clone()).unwrap();
    let space = bare.on_cpu(0, || {
        let (layout, profile) = (Layout::default(), Profile::LINUX_6_18);
        let space =
            AddressSpace::<_, _, BareGrace>::try_new(&paging, Asid(1), None, profile, layout);
        let space = space.unwrap();
        // SAFETY: the machine's periods; each CPU that uses the space takes part.
        unsafe { space.set_unmap_policy(UnmapPolicy::Grace(Arc::clone(&periods))) }.unwrap();
        space
    });
    bare.on_cpu(1, || space.enter());
    let outcome = bare.on_cpu(0, || {
        space.enter();
        space.mmap(AT, LEN, 3, FIXED).unwrap();
        for page in [AT, AT + PAGE] {
            space.handle_fault(VirtAddr::new(page as u64), Access::Write).unwrap();
        }
        let before = bare.ipis();
        let (done, _) = refusing(allocations, true, || space.munmap(AT, LEN));
        let seen = (space.waiting() > 0, bare.ipis() - before, space.resident(AT..AT + LEN));
        let outcome = match (done, seen) {
            (Err(Error::Vma(vma::Error::OutOfMemory)), (false, 0, 2)) => Outcome::Failed,
            (Ok(()), (false, 1, 0)) => Outcome::Flushed,
            (Ok(()), (true, 0, 0)) => Outcome::Waits,
            other => panic!("{other:?} with {allocations} allocations"),
        };
        // The pages are zeros again, whatever became of them.
        space.mmap(AT, LEN, 3, FIXED).unwrap();
        assert_eq!(space.waiting(), 0);
        outcome
    });
    bare.on_cpu(0, || drop(space));
    bare.on_cpu(0, || {
        assert!(bare.settle());
        paging.quick().drain();
    });
    assert_eq!(bare.on_cpu(0, || bare.free_frames()), 256, "with {allocations} allocations");
    outcome
}

#[test]
fn a_munmap_without_heap_flushes_at_once() {
    let outcomes: Vec<_> = (0..64).map(unmap).collect();
    let at_once = outcomes.iter().filter(|outcome| **outcome == Outcome::Flushed).count();
    // Without memory for the frames, and without memory for the range.
    assert!(at_once >= 2, "{outcomes:?}");
    assert_eq!(outcomes.last(), Some(&Outcome::Waits), "{outcomes:?}");
    assert!(outcomes.is_sorted_by_key(|outcome| *outcome as u8), "{outcomes:?}");
}
