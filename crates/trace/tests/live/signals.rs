//! Tests that a tracer which gets a signal to end also ends the program, and leaves no stopped
//! process behind.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
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

/// A program that handles signals, such as a shell, gets each of them and lives on.
#[test]
fn each_signal_is_the_programs() {
    let ready = marker("each");
    let script = "n=0; trap 'n=$((n + 1)); echo $n > \"$READY.$n\"' INT; \
                  trap 'exit 43' TERM; : > \"$READY\"; while :; do /bin/true; done";
    let child = start(script, &ready);
    for n in 1..=3 {
        tell(&child, "-INT");
        let handled = PathBuf::from(format!("{}.{n}", ready.display()));
        until("the program handles the signal", || handled.exists());
        fs::remove_file(&handled).unwrap();
    }
    tell(&child, "-TERM");
    assert_eq!(code(child), Some(43));
    fs::remove_file(&ready).unwrap();
}

/// Processes that a program leaves behind get the signal, too. The next signal kills a survivor.
#[test]
fn children_without_their_program_get_a_signal_and_are_killed_by_the_next() {
    let ready = marker("left");
    let handled = marker("left-handled");
    let script = format!(
        "(trap ': > \"{}\"' TERM; while :; do /bin/true; done) & \
         echo $$ $! > \"$READY.tmp\"; mv \"$READY.tmp\" \"$READY\"; exit 44",
        handled.display()
    );
    let child = start(&script, &ready);
    let pids = fs::read_to_string(&ready).unwrap();
    let (program, left) = pids.trim().split_once(' ').unwrap();
    until("the program ends", || !Path::new("/proc").join(program).exists());
    tell(&child, "-TERM");
    until("the child handles the signal", || handled.exists());
    assert!(lives(left));
    tell(&child, "-TERM");
    assert_eq!(code(child), Some(44));
    assert!(!lives(left));
    fs::remove_file(&ready).unwrap();
    fs::remove_file(&handled).unwrap();
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
