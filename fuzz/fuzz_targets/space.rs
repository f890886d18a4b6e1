//! The address space against its model: bytes are calls.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vma::testing::play(bytes));
