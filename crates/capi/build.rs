//! Link arguments of the shared library.

use std::env::var;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // Threads that have used the library call it when they end, so it stays loaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // `cargo cinstall` sets the same name itself.
    if var("CARGO_FEATURE_CAPI").is_err() {
        let [major, minor] = ["MAJOR", "MINOR"]
            .map(|part| var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it"));
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsamara_range.so.{major}.{minor}");
    }
}
