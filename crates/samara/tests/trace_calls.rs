//! `samara trace`: which calls and processes it shows, and how.

#[allow(dead_code, reason = "other tests use the rest")]
mod traced;

use std::fs;

use serde_json::Value;
use traced::{compile, lines, object, ran, samara, temporary};

/// The calls of a program with a thread and a child that shares SysV memory.
const STREAMED: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *p) {
    char *a = mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(a, 4096);
    return 0;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pthread_join(thread, 0);
    int id = shmget(IPC_PRIVATE, 8192, 0600);
    void *shared = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    if (fork() == 0) { mprotect(shared, 4096, PROT_READ); _exit(0); }
    wait(0);
    if (write(1, "done\n", 5) != 5) return 1;
    munmap((void *)1, 4096);
    return 0;
}
"#;

#[test]
fn each_call_is_a_json_line_as_it_happens() {
    let program = compile("streamed", STREAMED, &["-pthread"]);
    let (file, recording) = (temporary("calls.jsonl"), temporary("calls.vmtrace"));
    let run = |to: &str| {
        let recording = recording.to_str().unwrap();
        let program = program.to_str().unwrap();
        samara(&["-q", "--json-lines", to, "--record", recording, "--", program])
    };
    let out = run("-");
    assert_eq!((out.code, out.err.as_str()), (Some(0), ""));
    // The last calls come after the program's own output.
    let (before, after) = out.out.split_once("done\n").unwrap();
    let (calls, last) = (lines(before), lines(after));
    assert_eq!(
        (last[0]["call"].as_str(), last[0]["error"].as_str()),
        (Some("munmap"), Some("EINVAL"))
    );
    let root = &calls[0]["pid"];
    let times: Vec<u64> =
        calls.iter().chain(&last).map(|call| call["time_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > 0, "{times:?}");
    let recorded = fs::read_to_string(&recording).unwrap();
    let timed = recorded.lines().filter_map(|line| line.strip_prefix("#@ ")?.parse().ok());
    assert_eq!(timed.collect::<Vec<u64>>(), times, "the recording has the same times");

    // The thread's own map: its munmap leaves one VMA, a page shorter.
    let number = |call: &Value, key: &str| call[key].as_i64().unwrap();
    let mine = |call: &&Value| call["arguments"][1] == 1 << 20 && call["call"] == "mmap";
    let at = calls.iter().position(|call| mine(&call) && call["pid"] != call["tid"]).unwrap();
    assert_eq!(&calls[at]["pid"], root);
    let cut = calls[at..].iter().find(|call| call["call"] == "munmap").unwrap();
    assert_eq!(number(cut, "mapped_bytes"), number(&calls[at], "mapped_bytes") - 4096);
    assert!(calls[at]["text"].as_str().unwrap().starts_with("mmap(NULL, 0x100000, PROT_READ"));
    // The VMA of shmat counts in the line of shmat.
    let at = calls.iter().position(|call| call["call"] == "shmat").unwrap();
    assert_eq!(number(&calls[at], "mapped_bytes"), number(&calls[at - 1], "mapped_bytes") + 8192);
    // The child has its own process, and splits the VMA.
    let child = calls.iter().find(|call| call["call"] == "mprotect" && call["pid"] != *root);
    let child = child.unwrap();
    assert_eq!(child["pid"], child["tid"]);
    assert_eq!(number(child, "vmas"), number(&calls[at], "vmas") + 1);

    assert_eq!(run(file.to_str().unwrap()).out, "done\n");
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), times.len());
    let out = run("/dev/full");
    assert_eq!((out.code, out.out.as_str()), (Some(125), "done\n"));
    assert!(out.err.contains("not shown any longer"));
}

#[test]
fn only_some_calls_are_shown_and_all_are_mirrored() {
    let (json, streamed) = (temporary("some.json"), temporary("some.jsonl"));
    let [json_name, name] = [&json, &streamed].map(|path| path.to_str().unwrap());
    let to = ["--json", json_name, "--json-lines", name];
    let script = ["--", "sh", "-c", "ls / > /dev/null; true"];
    let err = samara(&[&["-e", "munmap,mprotect", "-e", "brk"], &to[..], &script].concat())
        .with_code(0)
        .err;
    assert!(err.contains("munmap") && !err.contains("mmap "), "{err}");
    let counts = object(&json);
    assert!(counts["kinds"]["mmap"].is_object() && counts["mismatches"] == 0, "{counts}");
    let shown = ["munmap", "mprotect", "brk"];
    let calls = lines(&fs::read_to_string(&streamed).unwrap());
    assert!(calls.iter().all(|call| shown.iter().any(|name| call["call"] == *name)));
    let counted = shown.map(|name| counts["kinds"][name]["calls"].as_u64().unwrap());
    assert_eq!(calls.len() as u64, counted.iter().sum::<u64>());

    let err = samara(&["-e", "mmap,open", "--", "true"]).with_code(2).err;
    for expected in ["'open'", "mmap", "munmap", "set_mempolicy_home_node"] {
        assert!(err.contains(expected), "{expected} in {err}");
    }
}

#[test]
fn children_are_followed_unless_asked_not_to() {
    let json = temporary("follow.json");
    // One child by fork, one by fork and execve, one by vfork (posix_spawn) and execve.
    let script = "
import os, subprocess, threading
if os.fork() == 0:
    bytearray(1 << 24); os._exit(0)
os.wait()
subprocess.run(['sh', '-c', 'ls / | wc -l'], stdout=subprocess.DEVNULL)
os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)
thread = threading.Thread(target=lambda: bytearray(1 << 25))
thread.start(); thread.join()
os._exit(9)
";
    // The program may execute others before it is python.
    let processes = |follow: &[&str]| {
        let to = ["-q", "--strict", "--json", json.to_str().unwrap()];
        samara(&[&to[..], follow, &["--", "python3", "-c", script]].concat()).with_code(9);
        let counts = object(&json);
        assert_eq!(counts["mismatches"], 0, "{counts}");
        let spaces = counts["spaces"].as_array().unwrap();
        let pids = spaces.iter().map(|space| space["pid"].as_u64().unwrap());
        pids.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert!(processes(&["--follow", "all"]) >= 4);
    assert_eq!(processes(&["--follow", "none"]), 1);
    assert!(processes(&[]) >= 4);
    samara(&["--follow", "some", "--", "true"]).with_code(2);
}

/// Touches 16 MiB, gives back 12 of them, and becomes another program.
const RESIDENT: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t size = 16 << 20;
    char *a = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(a, size, MADV_NOHUGEPAGE);
    memset(a, 1, size);
    // Longer than the tracer waits between two looks.
    usleep(5000);
    munmap(a + (4 << 20), size - (4 << 20));
    if (argc > 1) execl(argv[0], argv[0], (char *)0);
    return 0;
}
"#;

/// Resident bytes, at the peak and at the end, and page faults, each of its address space.
#[test]
fn the_use_of_memory_is_told() {
    let program = compile("resident", RESIDENT, &[]);
    let program = program.to_str().unwrap();
    let file = temporary("resident.json");
    let stderr =
        samara(&["--json", file.to_str().unwrap(), "--", program, "again"]).with_code(0).err;
    let result = object(&file);
    let spaces = result["spaces"].as_array().unwrap();
    assert_eq!(spaces.len(), 2);
    for space in spaces {
        let usage = &space["usage"];
        let number = |value: &Value| value.as_u64().unwrap();
        let (pages, mib) = (4096, 1 << 20);
        assert!((16 * mib..20 * mib).contains(&number(&usage["resident_peak"])), "{usage}");
        assert!((pages..pages + 400).contains(&number(&usage["minor_faults"])), "{usage}");
        let anonymous = &usage["kinds"]["anon"];
        for key in ["mapped", "resident", "private_dirty"] {
            assert!((4 * mib..5 * mib).contains(&number(&anonymous[key])), "{usage}");
        }
        assert_eq!(number(&anonymous["swapped"]), 0);
    }
    let timeline = result["timeline"].as_array().unwrap();
    let of = |key: &'static str| timeline.iter().map(move |bin| bin[key].as_u64().unwrap());
    assert_eq!(of("calls").sum::<u64>(), result["calls"].as_u64().unwrap());
    assert_eq!(of("vmas").max(), result["vmas_peak"].as_u64());
    assert!(of("mapped").max().unwrap() >= 16 << 20 && timeline.len() <= 64);
    // The look before the call that unmaps what was written.
    assert!((16 << 20..20 << 20).contains(&of("resident").max().unwrap()), "{result}");
    assert!(stderr.contains("\n  mapped ") && stderr.contains("\nresident "), "{stderr}");
    let total = stderr.lines().find(|line| line.contains("page faults:")).unwrap();
    assert!(total.starts_with("resident at most 1"), "{stderr}");
    let anonymous = stderr.lines().find(|line| line.trim_start().starts_with("anon ")).unwrap();
    assert_eq!(anonymous.split_whitespace().filter(|word| *word == "MiB").count(), 3, "{stderr}");
}

/// Has 3,000 VMAs, every second one resident, and unmaps them.
const PEAK: &str = r#"
#include <sys/mman.h>
int main(void) {
    static void *all[3000];
    for (int i = 0; i < 3000; i++) {
        int access = i % 2 ? PROT_READ | PROT_WRITE : PROT_NONE;
        all[i] = mmap(0, 4096, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (i % 2) *(char *)all[i] = 1;
    }
    for (int i = 0; i < 3000; i++) munmap(all[i], 4096);
    return 0;
}
"#;

#[test]
fn the_picture_is_that_of_the_peak_and_fits_a_screen() {
    let (program, recording) = (compile("peak", PEAK, &[]), temporary("peak.vmtrace"));
    let run = |options: &[&str]| {
        samara(&[options, &["--", program.to_str().unwrap()]].concat()).with_code(0).err
    };
    let recording = recording.to_str().unwrap();
    let recorded = run(&["--record", recording]);
    // A recording has no resident memory: its picture is that of the most VMAs.
    let replayed = ran::samara(&["replay", recording]).with_code(0).err;
    for text in [recorded, replayed] {
        let picture = &text[text.find("address space 1 ").unwrap()..];
        let vmas = picture.split_once("): ").unwrap().1.split_once(" VMAs").unwrap().0;
        let vmas = vmas.replace(',', "").parse::<usize>().unwrap();
        assert!((2670..3030).contains(&vmas), "an eighth less than the peak at most: {text}");
        assert!(picture.lines().count() < 30 && picture.contains("VMAs are left out"), "{picture}");
    }
    let full = run(&["--full"]);
    let picture = &full[full.find("address space 1 ").unwrap()..];
    assert!(picture.lines().count() > 35 && !picture.contains("left out"), "{picture}");
}
