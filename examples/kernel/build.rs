//! Links the kernel by `kernel.ld`.
fn main() {
    println!("cargo::rustc-link-arg-bins=-T{}/kernel.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo::rustc-link-arg-bins=--no-pie");
}
