//! Tells the code that it is built for ThreadSanitizer, as `cfg(samara_tsan)`: that does not know
//! fences, and would take what they order for data races. The compiler's own `cfg(sanitize)` needs
//! a nightly, which such a build has; the code must build without.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(samara_tsan)");
    let sanitizers = std::env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    if sanitizers.split(',').any(|sanitizer| sanitizer == "thread") {
        println!("cargo::rustc-cfg=samara_tsan");
    }
}
