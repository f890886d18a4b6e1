//! Sets `cfg(samara_tsan)` in builds for ThreadSanitizer. ThreadSanitizer does not support fences
//! and would report data races that they prevent, so such a build uses other operations. The
//! compiler's own `cfg(sanitize)` is unstable, and the code must compile with a stable compiler.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(samara_tsan)");
    let sanitizers = std::env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    if sanitizers.split(',').any(|sanitizer| sanitizer == "thread") {
        println!("cargo::rustc-cfg=samara_tsan");
    }
}
