//! Makes random calls on address spaces and on the model.

use proptest::{collection::vec, prelude::*};

use crate::testing::play;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 300 },
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn calls_do_what_the_model_does(bytes in vec(any::<u8>(), 0..if cfg!(miri) { 200 } else { 1500 })) {
        play(&bytes);
    }
}
