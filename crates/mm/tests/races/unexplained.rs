//! Results of two calls that meet, which must be those of one order of the two.

use std::sync::Arc;

use crate::common::*;
use crate::half_way::{AT, meet};
use mm::*;

/// A page moves before or after its first write: it is never shared with a fork.
#[test]
fn a_move_of_a_monitor_and_a_first_write() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.set_userfault_handler(Arc::new(Never::default()));
        space.mmap(AT, 3 * PAGE, 3, FIXED).unwrap();
        space.userfault_register(AT, PAGE, UserFaultModes::MISSING, Uffd::new(1)).unwrap();
        // So that a first write needs no lock; and the zero page.
        space.write(AT + 2 * PAGE, &[1]).unwrap();
        assert_eq!(byte(space, AT + PAGE), 0);
    };
    meet(
        prepare,
        [
            |_, space, ()| {
                let moved = space.userfault_move(AT, AT + PAGE, PAGE, false);
                assert!(moved.is_ok(), "{moved:?}");
            },
            |sim, space, ()| _ = store(sim, space, AT + PAGE, 7),
        ],
        |_, ()| {},
    );
}
