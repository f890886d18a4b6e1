//! Tests rules of Linux that programs seldom meet. Each is a part of `live/c/rules.c`. The mirror
//! must agree with the kernel after every call, both live and when the recording is replayed.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{fs, path::PathBuf, process::Command};

use trace::{
    live::{self, Exit, Options},
    replay,
    session::Session,
    text::Header,
};

#[path = "common/needs.rs"]
mod needs;

const RULES: [&str; 17] = [
    "hugezero",
    "implies",
    "fills",
    "duplicates",
    "moves",
    "forks",
    "limits",
    "advises",
    "refused",
    "names",
    "long_paths",
    "seals",
    "rings",
    "marks",
    "grows_up",
    "grows_in_vain",
    "keys",
];

/// An empty folder for this test, on a disk.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("rules-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn compile() -> PathBuf {
    let source = format!("{}/tests/live/c/rules.c", env!("CARGO_MANIFEST_DIR"));
    let program = folder("program").join("rules");
    let mut compiler = Command::new("cc");
    let done = compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source).status();
    assert!(done.expect("a C compiler").success());
    program
}

#[test]
fn each_rule_holds_live_and_replayed() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    // Rules differ between kernels. On this one they are known.
    let is_known = release.starts_with("6.18");
    if !needs::has("linux-6.18", is_known, None) {
        return;
    }
    let program = compile();
    let profile = live::profile();
    let header = Header::new()
        .with("kernel", release.trim())
        .with("guards", if profile.guard_flag { "flagged" } else { "unflagged" })
        .with("pkeys", if profile.protection_keys { "present" } else { "absent" })
        .with("max_map_count", &profile.max_map_count.to_string());
    for rule in RULES {
        let scratch = folder(rule);
        let command = [program.to_str().unwrap(), rule, scratch.to_str().unwrap()];
        let mut recorded = Vec::new();
        let mut session = Session::new(profile, Some((&mut recorded, &header))).unwrap();
        let exit = live::run(Options::default(), &command, &mut session).unwrap();
        let seen = session.finish().unwrap();
        assert_eq!(exit, Exit::Code(0), "{rule}");
        assert_eq!(seen.total.mismatches, 0, "{rule}: {:?}", seen.first_mismatch);
        assert!(seen.total.listings > 5, "{rule}");
        let again = replay::replay(recorded.as_slice(), rule).unwrap();
        assert_eq!(again.total.mismatches, 0, "{rule}, replayed: {:?}", again.first_mismatch);
        fs::remove_dir_all(scratch).unwrap();
    }
    fs::remove_dir_all(program.parent().unwrap()).unwrap();
}
