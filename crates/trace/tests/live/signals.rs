//! Tests that a tracer which gets a signal to end also ends the program, and leaves no stopped
//! process behind.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::{patience::until, recorder::Recorder};
use trace::live::{self, Exit, Options};

const SCRIPT: &str = "SAMARA_TEST_SCRIPT";

/// No test itself: the tests below run it as a separate tracer process and send signals to it.
#[test]
#[ignore = "run by the other tests here"]
fn follow_a_script() {
    let script = env::var(SCRIPT).expect("the script to follow");
    let mut seen = Recorder::default();
    let options = Options { forward_signals: true, ..Options::default() };
    let exit = live::run(options, &["bash", "-c", &script], &mut seen).unwrap();
    std::process::exit(match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
    });
}

/// Starts that tracer, and returns when the script has created `ready`, which it calls `$READY`.
fn start(script: &str, ready: &Path) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "signals::follow_a_script", "--nocapture"])
        .env(SCRIPT, script)
        .env("READY", ready)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the script starts", || {
        assert!(child.try_wait().unwrap().is_none(), "the tracer ended too early");
        ready.exists()
    });
    child
}

fn tell(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// The tracer's exit code.
fn code(child: Child) -> Option<i32> {
    /// Kills the tracer if it does not end.
    struct Tracer(Child);
    impl Drop for Tracer {
        fn drop(&mut self) {
            let _ended = self.0.kill();
        }
    }
    let mut tracer = Tracer(child);
    until("the tracer ends", || tracer.0.try_wait().unwrap().is_some());
    tracer.0.wait().unwrap().code()
}

fn marker(name: &str) -> PathBuf {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _absent = fs::remove_file(&path);
    path
}

/// Whether a process exists and is not a zombie.
fn lives(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn the_first_signal_is_the_programs() {
    for (signal, expected) in [("-INT", 41), ("-TERM", 42)] {
        let ready = marker(&format!("first{signal}"));
        let script =
            "trap 'exit 41' INT; trap 'exit 42' TERM; : > \"$READY\"; while :; do /bin/true; done";
        let child = start(script, &ready);
        tell(&child, signal);
        assert_eq!(code(child), Some(expected));
        fs::remove_file(&ready).unwrap();
    }
}

#[test]
fn the_second_signal_kills_all_of_it() {
    let ready = marker("second");
    // The program and its child both ignore the signals.
    let script = "trap '' INT TERM; (while :; do /bin/true; done) & echo $! > \"$READY.tmp\"; \
                  mv \"$READY.tmp\" \"$READY\"; while :; do /bin/true; done";
    let child = start(script, &ready);
    let grandchild = fs::read_to_string(&ready).unwrap();
    tell(&child, "-INT");
    thread::sleep(Duration::from_millis(200));
    assert!(lives(grandchild.trim()));
    tell(&child, "-TERM");
    assert_eq!(code(child), Some(128 + 9));
    assert!(!lives(grandchild.trim()));
    fs::remove_file(&ready).unwrap();
}

#[test]
fn a_killed_tracer_leaves_no_process() {
    let ready = marker("killed");
    let script = "echo $$ > \"$READY.tmp\"; mv \"$READY.tmp\" \"$READY\"; \
                  while :; do /bin/true; done";
    let mut child = start(script, &ready);
    let program = fs::read_to_string(&ready).unwrap();
    assert!(lives(program.trim()));
    child.kill().unwrap();
    child.wait().unwrap();
    until("the program ends", || !lives(program.trim()));
    fs::remove_file(&ready).unwrap();
}
