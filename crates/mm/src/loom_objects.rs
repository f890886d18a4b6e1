//! Loom models of the pages of objects: the index as it is, on the machine for models
//! ([`sim::Model`]). They run with those of [`crate::loom_tests`].

use alloc::sync::Arc;

use machine::{Frame, FrameSource, NodePolicy, Owner, PageSize};
use paging::{Paging, X86_64};
use sim::{Model, model};

use crate::{
    fault::frame_ref::Reference,
    object::cache::{PAGE, PageCache},
    object::page_index::{PageIndex, PageSlot},
};

const LEVELS: u8 = 3;

/// A frame of a program, with one reference.
fn page(model: &Model) -> Frame {
    let frame = model.alloc(0, NodePolicy::Local).unwrap();
    // SAFETY: it is ours alone.
    unsafe { model.set_owner(frame, Owner::User) }.unwrap();
    frame
}

/// One CPU holds a page, marks it as written, and lets it go; another one evicts it. Either the
/// holder comes too late, or the page stays, with the mark.
#[test]
fn a_page_that_is_written_is_not_evicted() {
    model("evict during a write", LEVELS, Some(3), |model| {
        let paging = Paging::<_, X86_64<LEVELS>>::try_new(model.clone(), PageSize::Size1G);
        let cache = Arc::new(PageCache::new(&paging.unwrap()));
        cache.set_size(PAGE, |_| Ok(())).unwrap();
        cache.bring_in(0).unwrap();
        let here = Arc::clone(&cache);
        let other = model.spawn(1, move || {
            let held = here.index.hold(0).ok();
            if let Some(frame) = held {
                here.index.set_dirty(0, frame);
                // SAFETY: `hold` took it.
                drop(unsafe { Reference::new(&here.machine, frame) });
            }
            held
        });
        let evicted = cache.evict(0);
        let written = other.join().unwrap();
        if let Some(frame) = written {
            assert!(!evicted, "a write is lost");
            assert_eq!(cache.index.get(0), PageSlot::Page(frame));
            assert!(cache.index.start_sync(0..1), "the mark is lost");
        } else {
            assert_eq!(cache.index.get(0) == PageSlot::Absent, evicted);
        }
    });
}

/// Two CPUs insert pages, one of which makes the tree higher. Each page is found, with what was
/// written to it, and a page has one frame for all.
#[test]
fn pages_are_found_while_the_index_grows() {
    for second in [0, 1 << 9] {
        model("fill", LEVELS, Some(2), move |model| {
            let index = Arc::new(PageIndex::new(model.clone()));
            let insert = move |model: &Model, index: &PageIndex<Model>, number, value| {
                let new = page(model);
                model.store(new, 1, value);
                let now = index.insert(number, new).unwrap().frame().unwrap();
                if now != new {
                    // SAFETY: it is ours alone.
                    drop(unsafe { Reference::new(model, new) });
                }
                now
            };
            // This CPU makes the words of the index.
            assert_eq!(index.get(0), PageSlot::Absent);
            let (here, machine) = (Arc::clone(&index), model.clone());
            let other = model.spawn(1, move || {
                let own = insert(&machine, &here, second, 2);
                // A page that is there has been written.
                let first = here.hold(0).ok();
                if let Some(first) = first {
                    let found = machine.load(first, 1);
                    assert!(found == 1 || first == own && found == 2, "{found}");
                    // SAFETY: `hold` took it.
                    drop(unsafe { Reference::new(&machine, first) });
                }
                own
            });
            let first = insert(model, &index, 0, 1);
            let own = other.join().unwrap();
            assert_eq!(index.get(0), PageSlot::Page(first));
            assert_eq!(index.get(second), PageSlot::Page(own));
        });
    }
}
