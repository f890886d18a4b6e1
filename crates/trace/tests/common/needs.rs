//! Features of the machine that some tests need: 32-bit programs, privileges, instructions.

use std::io::Write;

/// Returns `found`, which says whether the machine has the feature `name`. A test that returns
/// early because of it must not look passed:
///
/// - Standard error says what was not checked, and `./check` repeats it at its end. The test runner
///   does not capture that line, since it is not printed by a macro.
/// - In `./check` the test fails if the lack has a cure, unless `SAMARA_SKIP` lists the feature
///   (`SAMARA_SKIP=i386,tmpfs`).
pub(crate) fn has(name: &str, found: bool, cure: Option<&str>) -> bool {
    if !found {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a test");
        let line = format!("NOT CHECKED: {test}: this machine lacks {name}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        let skipped = std::env::var("SAMARA_SKIP").unwrap_or_default();
        let must_run = std::env::var_os("SAMARA_CHECK").is_some();
        if let Some(cure) = cure.filter(|_| must_run && !skipped.split(',').any(|s| s == name)) {
            panic!("lacks {name}: {cure}, or leave the test out by SAMARA_SKIP={name}");
        }
    }
    found
}

/// As [`has`], for what only root may do: an ordinary user has no cure, and leaves the test out.
#[allow(dead_code, reason = "other tests use it")]
pub(crate) fn permits(name: &str, found: bool, cure: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    // The owner of its files is the effective user of this process.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    has(name, found, is_root.then_some(cure))
}

/// Whether the running Linux is at least this version.
#[allow(dead_code, reason = "other tests use it")]
pub(crate) fn linux(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|number| number.trim().parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next()) >= (major, minor)
}
