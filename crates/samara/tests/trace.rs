//! `samara trace`, on real programs.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

fn samara(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_samara"))
        .arg("trace")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn temporary(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path
}

fn object(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_programs_output_and_exit_code_stay_its_own() {
    let out = samara(&["--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(7), &b"out\n"[..]), "{err}");
    for expected in ["err\n", "mmap", "0 mismatches", "predicted", "address space", " free\n"] {
        assert!(err.contains(expected), "{expected} in\n{err}");
    }
}

#[test]
fn a_signal_is_told_like_a_shell_does() {
    let out = samara(&["--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!((out.status.code(), out.status.signal()), (Some(143), None));
}

#[test]
fn json_and_recording_tell_the_same() {
    let (json, recording) = (temporary("run.json"), temporary("run.vmtrace"));
    let script = "seq 1 1000 | sort -r | tail -n 1; (exec ls /); true";
    let out = samara(&[
        "--json",
        json.to_str().unwrap(),
        "--record",
        recording.to_str().unwrap(),
        "--",
        "bash",
        "-c",
        script,
    ]);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(0), "{err}");
    let live = object(&json);
    let number = |key: &str| live[key].as_u64().unwrap_or_else(|| panic!("{key} in {live}"));
    assert_eq!((number("mismatches"), number("predicted")), (0, number("predictable")), "{err}");
    assert!(
        number("calls") > 50 && number("listings") > 50 && number("predictable") > 10,
        "{live}"
    );
    assert!(number("address_spaces") >= 4 && number("vmas_peak") > 10, "{live}");
    // How long the kernel took is a difference of two times: on a busy machine it can be nothing.
    let mmap = &live["kinds"]["mmap"];
    assert!(mmap["calls"].as_u64() > Some(10) && mmap["kernel_median_ns"].is_u64(), "{live}");

    let replay = Command::new(env!("CARGO_BIN_EXE_samara"))
        .args(["replay", "--json"])
        .arg(&recording)
        .output()
        .unwrap();
    assert_eq!(replay.status.code(), Some(0), "{}", String::from_utf8_lossy(&replay.stderr));
    let again: Value = serde_json::from_slice(&replay.stdout).unwrap();
    for key in ["calls", "mismatches", "predicted", "predictable", "address_spaces", "vmas_peak"] {
        assert_eq!(again[key], live[key], "{key}");
    }
}

#[test]
fn comparing_less_often_still_compares_the_end() {
    let json = temporary("seldom.json");
    let out = samara(&["--every", "1000000", "--json", json.to_str().unwrap(), "--", "true"]);
    assert_eq!(out.status.code(), Some(0));
    let live = object(&json);
    assert!(
        live["listings"].as_u64().unwrap() >= 1 && live["calls"].as_u64().unwrap() > 10,
        "{live}"
    );
    assert!(live["listings"].as_u64() < live["calls"].as_u64(), "{live}");
}

#[test]
fn what_cannot_be_run_is_named() {
    let out = samara(&["--", "/nowhere/at/all"]);
    assert_eq!(out.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&out.stderr).contains("/nowhere/at/all"));
    assert_eq!(samara(&["--", "/"]).status.code(), Some(126));
    let out = samara(&["--json", "/nowhere/x.json", "--", "sh", "-c", "echo ran"]);
    assert_eq!(
        (out.status.code(), out.stdout.as_slice()),
        (Some(125), &b""[..]),
        "the program must not run"
    );
    assert!(String::from_utf8_lossy(&out.stderr).contains("/nowhere/x.json"));
}

#[test]
fn an_interrupt_leaves_nobody_behind() {
    // Whoever runs the tests may ignore SIGINT, as shells do in the background; a program inherits that.
    let mut samara = Command::new("env")
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_samara")])
        .args(["trace", "--", "sh", "-c", "echo $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    BufReader::new(samara.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let process = PathBuf::from("/proc").join(pid.trim());
    assert!(process.exists(), "the program runs");
    let begun = Instant::now();
    let sent = Command::new("kill").args(["-INT", &samara.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let status = loop {
        if let Some(status) = samara.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(20) {
            samara.kill().unwrap();
            panic!("samara went on after an interrupt");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130), "128 + SIGINT, which killed the program");
    assert!(!process.exists(), "the program is still there");
}
