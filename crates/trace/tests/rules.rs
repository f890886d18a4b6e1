//! Tests rules of Linux that programs seldom meet. Each is a part of `live/c/rules.c`. The mirror
//! must agree with the kernel after every call, both live and when the recording is replayed.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::PathBuf};

use trace::{
    live::{self, Exit, Options},
    replay,
    report::Notice,
    session::Session,
    text::Header,
};

#[path = "common/needs.rs"]
mod needs;
#[path = "common/programs.rs"]
mod programs;

const RULES: &str = "\
    hugezero implies fills duplicates moves forks limits advises refused names long_paths seals \
    rings marks grows_up grows_in_vain keys";

fn compile(name: &str) -> PathBuf {
    programs::compile(name, &["-pthread"]).expect("it compiles")
}

/// Rules differ between kernels. On this one they are known.
fn rules_are_known() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    needs::has("linux-6.18", release.starts_with("6.18"), None)
}

/// Runs a program, which must end well, and compares it with the mirror, live and replayed.
fn agrees<S: AsRef<OsStr>>(what: &str, command: &[S]) -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let profile = live::profile();
    let header = Header::new()
        .with("kernel", release.trim())
        .with("guards", if profile.guard_flag { "flagged" } else { "unflagged" })
        .with("pkeys", if profile.protection_keys { "present" } else { "absent" })
        .with("max_map_count", &profile.max_map_count.to_string());
    let mut recorded = Vec::new();
    let mut session = Session::new(profile, Some((&mut recorded, &header))).unwrap();
    let exit = live::run(Options::default(), command, &mut session).unwrap();
    let seen = session.finish().unwrap();
    assert_eq!(exit, Exit::Code(0), "{what}");
    assert_eq!(seen.total.mismatches, 0, "{what}: {:?}", seen.first_mismatch);
    assert!(seen.total.listings > 5, "{what}");
    let again = replay::replay(recorded.as_slice(), what).unwrap();
    assert_eq!(again.total.mismatches, 0, "{what}, replayed: {:?}", again.first_mismatch);
    String::from_utf8(recorded).unwrap()
}

/// Changes of VMAs by a ring of operations are not seen. So a difference after it is no mismatch.
#[test]
fn a_ring_of_operations_makes_a_difference_uncertain() {
    let program = compile("ring");
    let mut session = Session::<Vec<u8>>::new(live::profile(), None).unwrap();
    let command = [program.to_str().unwrap()];
    let exit = live::run(Options::default(), &command, &mut session).unwrap();
    let seen = session.finish().unwrap();
    fs::remove_file(program).unwrap();
    if !needs::has("io_uring", exit != Exit::Code(77), None) {
        return;
    }
    assert_eq!(exit, Exit::Code(0));
    assert_eq!(seen.total.mismatches, 0, "{:?}", seen.first_mismatch);
    assert_eq!(seen.total.cannot_tell, 1);
    let told = |notice: &Notice| notice.text.contains("IORING_OP_MADVISE");
    assert!(seen.notices.iter().any(told), "{:?}", seen.notices);
}

/// A path may be any bytes. A recording is text.
#[test]
fn a_path_that_is_no_utf_8() {
    if !rules_are_known() {
        return;
    }
    let program = compile("odd");
    let folder = programs::scratch("odd-paths");
    fs::create_dir(&folder).unwrap();
    let path = folder.join(OsStr::from_bytes(b"od\xffd \xe2\x82"));
    fs::rename(&program, &path).unwrap();
    let recorded = agrees("a path", &[path.as_os_str(), "1".as_ref(), "20".as_ref()]);
    assert!(recorded.contains("/od\\377d \\342\\202\n"), "{recorded}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn each_rule_holds_live_and_replayed() {
    if !rules_are_known() {
        return;
    }
    let program = compile("rules");
    for rule in RULES.split(' ') {
        let scratch = programs::scratch(rule);
        fs::create_dir(&scratch).unwrap();
        agrees::<&str>(rule, &[program.to_str().unwrap(), rule, scratch.to_str().unwrap()]);
        fs::remove_dir_all(scratch).unwrap();
    }
    fs::remove_file(program).unwrap();
}

/// The kernel rounds lengths and addresses, or refuses them. Each call must round as it does.
#[test]
fn random_calls_with_odd_lengths_and_addresses() {
    if !rules_are_known() {
        return;
    }
    let program = compile("odd");
    for seed in 1..=40 {
        let seed = seed.to_string();
        agrees::<&str>(&format!("odd {seed}"), &[program.to_str().unwrap(), &seed, "100"]);
    }
    fs::remove_file(program).unwrap();
}
