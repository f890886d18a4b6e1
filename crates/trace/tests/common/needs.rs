//! Features of the machine that some tests need: 32-bit programs, privileges, instructions.

use std::io::Write;

/// Returns `found`, which says whether the machine has the feature `name`. A test that returns
/// early because of it must not look passed:
///
/// - In `./check` it fails, unless `SAMARA_SKIP` lists the feature (`SAMARA_SKIP=i386,avx2`).
/// - Otherwise standard error says what was not checked. The test runner does not capture that
///   line, since it is not printed by a macro.
pub(crate) fn has(name: &str, found: bool, cure: &str) -> bool {
    if !found {
        let skipped = std::env::var("SAMARA_SKIP").unwrap_or_default();
        assert!(
            std::env::var_os("SAMARA_CHECK").is_none() || skipped.split(',').any(|s| s == name),
            "this machine lacks {name}: {cure}, or leave the test out by SAMARA_SKIP={name}"
        );
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a test");
        let line = format!("NOT CHECKED: {test}: this machine lacks {name}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    found
}
