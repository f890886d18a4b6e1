//! The unit tests run each kind of SIMD that this processor has. This test says which it lacks.
#![cfg(all(feature = "std", target_arch = "x86_64", not(any(loom, miri))))]

#[path = "../../trace/tests/common/needs.rs"]
mod needs;

#[test]
fn each_kind_of_simd_is_checked() {
    needs::has("avx2", std::arch::is_x86_feature_detected!("avx2"), None);
    let is_wide = std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw");
    needs::has("avx512", is_wide, None);
}
