//! The linker scripts say where the kernel's parts lie.

fn main() {
    let root = env!("CARGO_MANIFEST_DIR");
    let script = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => format!("{root}/kernel-aarch64.ld"),
        _ => format!("{root}/kernel.ld"),
    };
    println!("cargo::rerun-if-changed={script}");
    println!("cargo::rerun-if-changed={root}/sections.ld");
    println!("cargo::rustc-link-arg-bins=-L{root}");
    println!("cargo::rustc-link-arg-bins=-T{script}");
    println!("cargo::rustc-link-arg-bins=--no-pie");
    println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
}
