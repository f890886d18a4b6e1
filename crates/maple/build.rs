//! Sets what the code asks about its own build.
//!
//! - `cfg(samara_tsan)`: the build is for ThreadSanitizer. ThreadSanitizer does not support fences
//!   and would report data races that they prevent, so such a build uses other operations. The
//!   compiler's own `cfg(sanitize)` is unstable, and the code must compile with a stable compiler.
//! - `cfg(unoptimized)`: the build has no optimizations, or is for loom or a fuzzer, where the time
//!   of a search does not count, or it has the feature `small`. Longer functions are then not
//!   copied into their callers, which would take most of the time to build, and of the code.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(samara_tsan, unoptimized)");
    let sanitizers = env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    if sanitizers.split(',').any(|sanitizer| sanitizer == "thread") {
        println!("cargo::rustc-cfg=samara_tsan");
    }
    let set = |name| env::var_os(name).is_some();
    if env::var("OPT_LEVEL").as_deref() == Ok("0")
        || set("CARGO_CFG_LOOM")
        || set("CARGO_CFG_FUZZING")
        || set("CARGO_FEATURE_SMALL")
    {
        println!("cargo::rustc-cfg=unoptimized");
    }
}
