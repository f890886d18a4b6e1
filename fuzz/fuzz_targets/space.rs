//! Fuzzes the address space against its model. The bytes encode calls.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| vma::testing::play(bytes));
