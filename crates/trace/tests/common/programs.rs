//! The C programs in `live/c`.

use std::{
    path::PathBuf,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

/// A path on a disk for this test alone.
pub(crate) fn scratch(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the numbers must differ.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}-{name}", process::id()))
}

/// Compiles one of the programs; `None` if the compiler cannot.
pub(crate) fn compile(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = format!("{}/tests/live/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let out = scratch(name);
    let mut compiler = Command::new("cc");
    let done = compiler.args(["-O1", "-o"]).arg(&out).args(flags).arg(&source).status();
    done.expect("a C compiler").success().then_some(out)
}
