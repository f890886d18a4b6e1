//! Tests I7 in random address spaces: every allocation of every call fails once, and then nothing
//! may have changed.

#[path = "../../tests/common/failing_heap.rs"]
mod failing_heap;

use proptest::{collection::vec, prelude::*};

use crate::testing::play_failing;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn calls_without_memory_change_nothing(
        bytes in vec(any::<u8>(), 0..if cfg!(miri) { 60 } else { 600 })
    ) {
        play_failing(&bytes, failing_heap::grant);
    }
}
