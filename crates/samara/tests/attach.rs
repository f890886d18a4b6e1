//! `samara trace -p`: running programs are followed, and left unharmed.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;
#[allow(dead_code, reason = "other tests use the rest")]
mod traced;

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use traced::{compile, object, on_terminal, ran, samara, temporary};

/// Two threads map and unmap, one waits in a read, one forks. Signals arrive all the time. Each
/// call must do what it does without a tracer. Ends at the end of standard input.
const BUSY: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t signals;
static volatile int over;
static int quiet[2];
#define CHECK(what) do { if (!(what)) { perror(#what); abort(); } } while (0)
static void count(int number) { (void)number; signals++; }
static void *map(void *unused) {
    for (long i = 0; !over; i++) {
        char *p = mmap(0, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED);
        memset(p, i, 5 * 4096);
        CHECK(mprotect(p + 4096, 4096, PROT_READ) == 0);
        CHECK(p[4096] == (char)i && p[5 * 4096 - 1] == (char)i);
        CHECK(munmap(p, 5 * 4096) == 0);
        usleep(500);
    }
    return unused;
}
static void *waits(void *unused) {
    char byte;
    CHECK(read(quiet[0], &byte, 1) == 1);
    return unused;
}
static void *forks(void *unused) {
    while (!over) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            void *p = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            _exit(p == MAP_FAILED ? 9 : 7);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
        usleep(20000);
    }
    return unused;
}
int main(void) {
    pthread_t threads[4];
    CHECK(pipe(quiet) == 0);
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    setitimer(ITIMER_REAL, &often, 0);
    void *(*work[])(void *) = {map, map, waits, forks};
    for (int i = 0; i < 4; i++) CHECK(pthread_create(threads + i, 0, work[i], 0) == 0);
    puts("ready");
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 0);
    over = 1;
    CHECK(write(quiet[1], "", 1) == 1);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], 0) == 0);
    while (signals <= 3) usleep(1000);
    return 33;
}
"#;

/// One thread maps and unmaps. Another one sleeps in a vfork, from the first byte of standard input
/// until its end: its child waits for that.
const VFORKS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int asleep, over;
static void *vforks(void *unused) {
    char byte;
    if (read(0, &byte, 1) != 1) abort();
    pid_t child = vfork();
    if (child == 0) {
        asleep = 1;
        _exit(read(0, &byte, 1) == 0 ? 7 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 7 << 8) abort();
    over = 1;
    return unused;
}
static void say(const char *what) {
    puts(what);
    fflush(stdout);
}
int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, vforks, 0)) abort();
    say("ready");
    for (int said = 0; !over;) {
        char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *p = 1;
        if (munmap(p, 4096)) abort();
        if (asleep && !said++) say("asleep");
        usleep(500);
    }
    pthread_join(thread, 0);
    return 33;
}
"#;

fn start(name: &str) -> Child {
    start_of(name, BUSY)
}

fn start_of(name: &str, source: &str) -> Child {
    let program = compile(name, source, &["-O1", "-g", "-pthread"]);
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    says(&mut child, "ready\n");
    child
}

/// Waits for the next line of the program.
fn says(child: &mut Child, expected: &str) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, expected);
}

/// Lets a thread of `VFORKS` sleep in a vfork.
fn falls_asleep(child: &mut Child) {
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    says(child, "asleep\n");
}

/// Its end of standard input lets the program end, which must have seen nothing wrong.
fn ends_well(mut child: Child) {
    drop(child.stdin.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(33), "{status}: {errors}");
}

fn status(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().to_owned()
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// Starts the tracer.
fn follow(pid: u32, options: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_samara"))
        .args(["trace", "--json-lines", "-", "-p", &pid.to_string()])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for so many calls. Keep the reader: the tracer writes on.
fn calls(tracer: &mut Child, count: usize) -> BufReader<std::process::ChildStdout> {
    let mut lines = BufReader::new(tracer.stdout.take().unwrap());
    for _ in 0..count {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap() == 0 {
            let mut errors = String::new();
            tracer.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("the tracer ended: {errors}");
        }
    }
    lines
}

/// Reads on until the tracer ends well, and gives its report.
fn report(mut tracer: Child, mut lines: impl Read) -> String {
    lines.read_to_end(&mut Vec::new()).unwrap();
    let mut report = String::new();
    tracer.stderr.take().unwrap().read_to_string(&mut report).unwrap();
    assert_eq!(tracer.wait().unwrap().code(), Some(0), "{report}");
    report
}

#[test]
fn a_running_program_is_followed_and_left() {
    let child = start("attached");
    let pid = child.id();
    for _ in 0..3 {
        let file = temporary("attached.json");
        let mut tracer = follow(pid, &["--verify", "--json", file.to_str().unwrap()]);
        let lines = calls(&mut tracer, 300);
        assert_eq!(tracer_of(pid), tracer.id());
        send(&tracer, Signal::SIGINT);
        let report = report(tracer, lines);
        let result = object(&file);
        assert_eq!(result["mismatches"], 0, "{report}");
        assert_eq!(result["cannot_tell"], 0, "{report}");
        assert!(result["calls"].as_u64().unwrap() >= 300, "{report}");
        assert!(result["spaces"][0]["exe"].as_str().unwrap().ends_with("/attached"));
        // Nothing of it is left.
        assert_eq!(status(pid, "TracerPid:"), "0");
        assert!(!status(pid, "State:").to_lowercase().starts_with('t'));
    }
    ends_well(child);
}

/// A thread in a vfork cannot stop, and its child may need another thread to go on. So neither the
/// beginning nor the end waits for it.
#[test]
fn a_thread_in_a_vfork_delays_no_other_one() {
    let mut child = start_of("vforks", VFORKS);
    falls_asleep(&mut child);
    for _ in 0..2 {
        let mut tracer = follow(child.id(), &[]);
        let lines = calls(&mut tracer, 100);
        send(&tracer, Signal::SIGINT);
        let report = report(tracer, lines);
        assert!(!report.contains("mismatch in"), "{report}");
        assert_eq!(status(child.id(), "TracerPid:"), "0");
    }
    ends_well(child);
}

/// Leaving lets such a thread go, too, in a vfork from before or of this time. Otherwise it would
/// stop at the end of the vfork, for as long as the tracer writes its results: here a pipe is full.
#[test]
fn a_thread_in_a_vfork_is_left_like_the_others() {
    for before in [true, false] {
        let mut child = start_of(&format!("left-{before}"), VFORKS);
        let pid = child.id();
        if before {
            falls_asleep(&mut child);
        }
        let (results, mut full) = io::pipe().unwrap();
        let size = fcntl(&full, FcntlArg::F_GETPIPE_SZ).unwrap();
        full.write_all(&vec![0; size as usize]).unwrap();
        let mut tracer = Command::new(env!("CARGO_BIN_EXE_samara"))
            .args(["trace", "--quiet", "--json", "-", "-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(full)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        patience::until("each thread is followed", || all_have_tracer(pid, tracer.id()));
        if !before {
            falls_asleep(&mut child);
        }
        send(&tracer, Signal::SIGINT);
        patience::until("each thread is left", || all_have_tracer(pid, 0));
        ends_well(child);
        assert!(tracer.try_wait().unwrap().is_none(), "its results fit into a full pipe");
        drop(results);
        tracer.wait().unwrap();
    }
}

/// Whether all threads of a process have this tracer; 0 for none.
fn all_have_tracer(pid: u32, tracer: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    threads
        .map(|thread| thread.file_name().to_str().unwrap().parse().unwrap())
        .all(|tid| tracer_of(tid) == tracer)
}

/// The process that traces a thread; 0 if there is none, or its tracer's thread has just ended.
fn tracer_of(tid: u32) -> u32 {
    let thread = status(tid, "TracerPid:");
    let text = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("Tgid:"))
        .map_or(0, |id| id.trim().parse().unwrap())
}

#[test]
fn the_program_outlives_a_tracer_that_is_killed() {
    let child = start("outlives");
    let mut tracer = follow(child.id(), &[]);
    drop(calls(&mut tracer, 50));
    send(&tracer, Signal::SIGKILL);
    tracer.wait().unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(status(child.id(), "TracerPid:"), "0");
    ends_well(child);
}

#[test]
fn the_tracer_ends_with_the_program() {
    let child = start("ends");
    let mut tracer = follow(child.id(), &["--stacks"]);
    let lines = calls(&mut tracer, 20);
    ends_well(child);
    let report = report(tracer, lines);
    assert!(report.contains(" map (ends.c:"), "a thread's stack: {report}");
}

#[test]
fn a_stopped_program_stays_stopped() {
    let child = start("stopped");
    send(&child, Signal::SIGSTOP);
    while !status(child.id(), "State:").starts_with('T') {
        thread::yield_now();
    }
    let mut tracer = follow(child.id(), &[]);
    while status(child.id(), "TracerPid:") == "0" {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(100));
    send(&tracer, Signal::SIGTERM);
    assert_eq!(tracer.wait().unwrap().code(), Some(0));
    assert_eq!(status(child.id(), "TracerPid:"), "0");
    // Each thread runs for a moment, until it stops for the group again.
    let is_stopped = || status(child.id(), "State:").starts_with('T');
    patience::until("the program stops again", is_stopped);
    send(&child, Signal::SIGCONT);
    ends_well(child);
}

#[test]
fn what_cannot_be_followed_is_an_error() {
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let error = |pid: &str| {
        let out = samara(&["-p", pid]);
        (out.code, out.err)
    };
    let (code, text) = error(&gone.id().to_string());
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("cannot follow process") && text.contains("there is none"), "{text}");
    for pid in ["0", "x", "-1"] {
        assert_eq!(error(pid).0, Some(2), "{pid}");
    }
    samara(&["-p", "1", "--", "true"]).with_code(2);
    // A second tracer.
    let child = start("taken");
    let mut tracer = follow(child.id(), &[]);
    let lines = calls(&mut tracer, 5);
    let (code, text) = error(&child.id().to_string());
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("traced already"), "{text}");
    send(&tracer, Signal::SIGINT);
    drop(lines);
    tracer.wait().unwrap();
    ends_well(child);
}

#[test]
fn help_names_the_option() {
    let text = samara(&["--help"]).out;
    assert!(text.contains("-p, --attach <PID>") && text.contains("samara trace -p "), "{text}");
}

/// The first limit that is reached counts. The program runs on.
#[test]
fn a_limit_leaves_the_program() {
    let child = start("limited");
    let pid = child.id();
    for limit in
        [["--max-calls", "50", "--for", "3600"], ["--for", "0.3", "--max-calls", "99999999"]]
    {
        let file = temporary("limited.json");
        let mut tracer = follow(pid, &[&limit[..], &["--json", file.to_str().unwrap()]].concat());
        let lines = calls(&mut tracer, 1);
        report(tracer, lines);
        let calls = object(&file)["calls"].as_u64().unwrap();
        assert!(calls >= 50 || limit[0] == "--for", "{limit:?}: {calls}");
        assert_eq!(status(pid, "TracerPid:"), "0");
    }
    ends_well(child);
}

/// On a terminal: the memory and calls of the process are drawn, names of its functions come, and
/// it runs on.
#[test]
fn a_live_view_leaves_the_program_as_it_was() {
    let child = start("watched");
    let pid = child.id();
    let line =
        format!("stty cols 150 rows 30; '{}' top -p {pid} --for 4", env!("CARGO_BIN_EXE_samara"));
    let Some(text) = on_terminal(&line) else { return ends_well(child) };
    for expected in ["watched (", "resident", "owners", "mprotect", "faults", "execve"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(status(pid, "TracerPid:"), "0");
    ends_well(child);
    // Without a terminal there is nothing to draw on.
    let err = ran::samara(&["top", "-p", "1"]).with_code(1).err;
    assert!(err.contains("is no terminal"), "{err}");
}
