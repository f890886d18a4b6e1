//! A lock-free pin concurrent with an unmapping whose frame goes to another owner at once.

use super::world::{AT, LEVELS, World};
use crate::format::Attrs;
use crate::gup::unpin;
use machine::Frame;
use sim::model;

/// The pinned frame was mapped when it was pinned, and no other owner has it since.
#[test]
fn the_pinned_frame_was_mapped() {
    model("pin, unmap", LEVELS, None, |model| {
        let world = World::new(model);
        let (space, frame) = (world.space(1), world.frame());
        space.map(AT, frame, Attrs::USER_RW);
        let here = space.clone();
        let other = model.spawn(1, move || {
            let mut frames = [Frame::default(); 1];
            let pins = here.get_user_pages_fast_only(AT, true, &mut frames).ok()?;
            pins.keep();
            Some(frames[0])
        });
        space.remove(AT, 1);
        // The frame that was freed last is allocated first.
        let another = world.frame();
        let pinned = other.join().unwrap();
        assert_ne!(pinned, Some(another), "another owner's frame is pinned");
        if let Some(pinned) = pinned {
            // SAFETY: the pin that was kept.
            unsafe { unpin(model, &[pinned]) };
        }
        space.release(another);
        drop(space);
        world.end();
    });
}
