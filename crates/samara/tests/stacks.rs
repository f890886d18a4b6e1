//! `samara trace --stacks`, on programs with known chains of calls.

#[allow(dead_code, reason = "other tests use the rest")]
mod traced;
#[path = "traced/stacks.rs"]
mod with_stacks;

use std::{fs, path::Path, process::Command};

use serde_json::Value;
use traced::{compile, lines, needs, object, ran, samara, temporary};
use with_stacks::{adds_up, all_stacks, from, stacks, sum, trace};

/// a calls b, which calls c. They are kept apart from each other, and none is the last call of
/// another.
const CHAIN: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define APART __attribute__((noinline, noclone, noipa))
#define STAY __asm__ volatile("" ::: "memory")
APART void *c(size_t n) { void *p = mmap(0, n, 3, 0x22, -1, 0); STAY; return p; }
APART void *b(size_t n) { void *p = c(n); STAY; return p; }
APART void *a(size_t n) { void *p = b(n); STAY; return p; }
APART void *big(size_t n) { char *p = malloc(n); memset(p, 1, n); STAY; return p; }
int main(void) {
    char *p = a(1 << 20);
    munmap(p, 1 << 18);
    big(3 << 20);
    char *q = a(1 << 21);
    munmap(q, 1 << 21);
    return 0;
}
"#;

/// Position-independent or not, dynamic and static, with and without frame pointers and unwind
/// tables.
const WAYS: [(&str, &[&str]); 7] = [
    ("pie", &["-O2", "-fomit-frame-pointer"]),
    ("fixed", &["-O2", "-fomit-frame-pointer", "-no-pie"]),
    ("static", &["-O2", "-fomit-frame-pointer", "-static"]),
    ("static-pie", &["-O2", "-fomit-frame-pointer", "-static-pie"]),
    ("plain", &["-O0"]),
    ("lines", &["-O2", "-g", "-fomit-frame-pointer"]),
    (
        "frame-pointers",
        &[
            "-O2",
            "-fno-omit-frame-pointer",
            "-fno-asynchronous-unwind-tables",
            "-fno-unwind-tables",
        ],
    ),
];

#[test]
fn a_chain_of_calls_is_found_however_it_is_compiled() {
    for (way, flags) in WAYS {
        let program = compile(&format!("chain-{way}"), CHAIN, flags);
        let traced = trace(way, &["--at-end"], &[program.to_str().unwrap()]);
        let object = &traced.object;
        let (names, counts) = from(object, "mmap", "c");
        assert_eq!(names[..4], ["c", "b", "a", "main"], "{way}");
        assert_eq!(names.last().unwrap(), "_start", "{way}");
        // Two places in main call a. The first map is cut by a quarter, the second one is gone.
        let both =
            stacks(object, "mmap").into_iter().filter(|(names, ..)| names.contains(&"a".into()));
        let mut bytes: Vec<_> = both
            .map(|(_, counts, end)| {
                assert_eq!(end, "root", "{way}");
                (counts["mapped"].as_u64().unwrap(), counts["at_end"].as_u64().unwrap())
            })
            .collect();
        bytes.sort_unstable();
        assert_eq!(bytes, [(1 << 20, 3 << 18), (1 << 21, 0)], "{way}");
        assert_eq!(counts["calls"], 1, "{way}");
        let (names, counts) = from(object, "mmap", "big");
        assert_eq!(names[..2], ["big", "main"], "{way}");
        assert!(counts["at_end"].as_u64().unwrap() > 3 << 20, "{way}: {counts}");

        // By call site.
        let sites = object["stacks"]["sites"].as_array().unwrap();
        let find = |name: &str| {
            let is = |site: &&Value| site["site"].as_str().unwrap().split(' ').next() == Some(name);
            sites.iter().find(is).unwrap_or_else(|| panic!("{way}: {name} in {sites:#?}"))
        };
        assert_eq!(find("c")["mapped"], 3 << 20, "{way}");
        assert!(find("big")["by"].as_str().unwrap().contains("malloc"), "{way}: {sites:#?}");
        let text = &traced.ran.err;
        assert!(text.contains("3.00 MiB 768.00 KiB c"), "{way}: {text}");
        if way == "lines" {
            assert!(find("c")["site"].as_str().unwrap().contains("chain-lines.c:7"), "{sites:#?}");
        }

        // No stack is lost, from the loader's first call on.
        let stacks = all_stacks(object);
        assert!(stacks.iter().all(|one| one["end"] == "root"), "{way}: {stacks:#?}");

        // In the flame graph, one below the other.
        let rows = ["main", "a", "b", "c"].map(|name| {
            let rest =
                traced.graph.split_once(&format!("data-name=\"{name}\" data-row=\"")).unwrap();
            rest.1.split('"').next().unwrap().parse::<u32>().unwrap()
        });
        assert_eq!(rows, [0, 1, 2, 3].map(|more| rows[0] + more), "{way}");
        adds_up(&traced, way);
    }
}

/// Removes the resident bytes at the peak, which a recording does not have.
fn forget_peak(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("at_peak");
            map.values_mut().for_each(forget_peak);
        }
        Value::Array(all) => all.iter_mut().for_each(forget_peak),
        _ => {}
    }
}

#[test]
fn a_recording_shows_the_same_stacks_again() {
    let program = compile("recorded-chain", CHAIN, &["-O2", "-g"]);
    let traced = trace("recorded", &[], &[program.to_str().unwrap()]);
    let graph = temporary("replayed.svg");
    let replay = |options: &[&str], recording: &Path| {
        ran::samara(&[&["replay"], options, &[recording.to_str().unwrap()]].concat())
    };
    let to_graph = ["--json", "-", "--flame", graph.to_str().unwrap()];
    let mut again = replay(&to_graph, &traced.recording).with_code(0).json();
    let mut before = traced.object.clone();
    [&mut again, &mut before].into_iter().for_each(forget_peak);
    assert!(again["stacks"] == before["stacks"], "{:#}", again["stacks"]);
    let boxes = |text: &str| text.split_once("<g class").unwrap().1.to_owned();
    assert_eq!(boxes(&fs::read_to_string(&graph).unwrap()), boxes(&traced.graph));
    let folded = replay(&["--flame-of", "at-end", "--folded", "-"], &traced.recording).out;
    let line = folded.lines().find(|line| line.contains(";a;b;c;")).unwrap();
    assert!(line.ends_with(&format!("[mmap] {}", 3 << 18)), "{line}");

    // Earlier versions skip the lines as comments. Without them, it is the same recording.
    let plain = temporary("without-stacks.vmtrace");
    let text = fs::read_to_string(&traced.recording).unwrap();
    let is_of_stacks =
        |line: &&str| ["#i ", "#s ", "#^ ", "#n "].iter().any(|one| line.starts_with(one));
    let (of_stacks, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(is_of_stacks);
    assert!(of_stacks.len() > 50 && rest.iter().all(|line| !line.starts_with("#s")));
    fs::write(&plain, rest.join("\n") + "\n").unwrap();
    let without = replay(&["--json", "-"], &plain).json();
    assert!(without["stacks"].is_null() && without["calls"] == again["calls"]);
    // There is nothing to draw then.
    let err = replay(&to_graph, &plain).with_code(2).err;
    assert!(err.contains("no call stacks") && err.contains("trace --stacks --record"), "{err}");
}

#[test]
fn each_line_of_a_call_has_its_stack() {
    let program = compile("streamed-chain", CHAIN, &["-O2"]);
    let command = ["-q", "--stacks", "--json-lines", "-", "--", program.to_str().unwrap()];
    let lines = lines(&samara(&command).with_code(0).out);
    let call = lines.iter().find(|line| line["call"] == "mmap" && line["arguments"][1] == 1 << 20);
    let call = call.unwrap();
    let at =
        lines.iter().position(|line| line["frames"].is_array() && line["stack"] == call["stack"]);
    let stack = &lines[at.unwrap()];
    assert!(at < lines.iter().position(|line| line == call), "a stack comes before its first call");
    let name = |frame: &Value| {
        let same = |line: &&Value| {
            line["function"].is_string()
                && ["image", "address"].iter().all(|key| line[key] == frame[key])
        };
        lines.iter().find(same).map(|line| line["function"].as_str().unwrap())
    };
    let frames = stack["frames"].as_array().unwrap();
    let names: Vec<&str> = frames.iter().filter_map(name).collect();
    assert_eq!(names[1..5], ["c", "b", "a", "main"], "{names:?}");
    let ours = Some(program.to_str().unwrap());
    assert!(frames[1..5].iter().all(|frame| frame["image"].as_str() == ours), "{frames:?}");
    assert!(
        lines.iter().filter(|line| line["call"].is_string()).all(|line| line["stack"].is_u64())
    );
}

#[test]
fn only_what_is_asked_for_is_done() {
    let json = temporary("no-stacks.json");
    let out = samara(&["--json", json.to_str().unwrap(), "--", "true"]);
    assert!(object(&json)["stacks"].is_null());
    assert!(!out.err.contains("different stacks"));
    let out = samara(&["--flame", "/nowhere/a.svg", "--", "sh", "-c", "echo ran"]);
    assert_eq!((out.code, out.out.as_str()), (Some(125), ""));
    assert!(out.err.contains("/nowhere/a.svg"));
    let file = temporary("unused.svg");
    let file = file.to_str().unwrap();
    for (wrong, named) in [
        (&["--stacks", "--stack-depth", "0"][..], "--stack-depth"),
        (&["--stacks", "--stack-depth", "1001"], "--stack-depth"),
        (&["--stack-depth", "64"], "--stacks"),
        (&["--flame", file, "--flame-of", "peak"], "--flame-of"),
        (&["--stacks", "--flame-of", "calls"], "--flame"),
    ] {
        let out = samara(&[wrong, &["--", "true"]].concat());
        assert!(out.code == Some(2) && out.err.contains(named), "{wrong:?}: {}", out.err);
    }
    // A flame graph needs stacks, and asks for them.
    let command = ["-q", "--flame", file, "--stack-depth", "9", "--folded", "-", "--", "true"];
    let folded = samara(&command).with_code(0).out;
    assert!(folded.lines().count() > 3 && folded.contains("[mmap] "), "{folded}");
    assert!(fs::read_to_string(file).unwrap().contains("data-name=\"[mmap]\""));
}

/// Maps and touches 48 MiB, then half of 16 MiB, unmaps the first, and maps 8 MiB for the end.
const PEAK: &str = r#"
#include <string.h>
#include <sys/mman.h>
#define APART __attribute__((noinline, noclone, noipa))
#define STAY __asm__ volatile("" ::: "memory")
APART char *first(size_t n) { char *p = mmap(0, n, 3, 0x22, -1, 0); STAY; return p; }
APART char *second(size_t n) { char *p = mmap(0, n, 3, 0x22, -1, 0); STAY; return p; }
APART char *third(size_t n) { char *p = mmap(0, n, 3, 0x22, -1, 0); STAY; return p; }
int main(void) {
    char *a = first(48 << 20), *b = second(16 << 20);
    madvise(b, 16 << 20, 15);
    memset(a, 1, 48 << 20);
    memset(b, 1, 8 << 20);
    munmap(a, 48 << 20);
    memset(third(8 << 20), 1, 8 << 20);
    return 0;
}
"#;

#[test]
fn the_table_the_picture_and_the_owners_are_of_the_peak() {
    let program = compile("peak", PEAK, &["-O2"]);
    let traced = trace("peak", &["--at-end"], &[program.to_str().unwrap()]);
    let peak = &traced.object["peak"];
    let resident = peak["resident"].as_u64().unwrap();
    // Owners.
    let at =
        |function: &str, key: &str| from(&traced.object, "mmap", function).1[key].as_u64().unwrap();
    assert_eq!((at("first", "at_peak"), at("second", "at_peak")), (48 << 20, 8 << 20));
    assert_eq!((at("first", "at_end"), at("second", "at_end")), (0, 16 << 20));
    assert_eq!((at("third", "at_peak"), at("third", "at_end")), (0, 8 << 20));
    let others = &traced.object["stacks"]["at_peak"];
    assert_eq!(others["unknown"], 0);
    let owned = sum(&traced.object, "at_peak") + others["execve"].as_u64().unwrap();
    assert_eq!(owned, resident);
    // The picture, and the table.
    let regions = peak["regions"].as_array().unwrap().iter();
    assert_eq!(regions.map(|region| region["resident"].as_u64().unwrap()).sum::<u64>(), resident);
    let kinds = peak["kinds"].as_object().unwrap().values();
    assert_eq!(kinds.map(|kind| kind["resident"].as_u64().unwrap()).sum::<u64>(), resident);
    // The kernel's own peak.
    let highest = traced.object["usage"]["resident_peak"].as_u64().unwrap();
    assert!(resident.abs_diff(highest) < highest / 50, "{resident} of {highest}");
    let text = &traced.ran.err;
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    for expected in ["at the peak VMAs", "at the end VMAs", "resident at the peak, "] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

const SCRIPT: &str = "\
def inner(n):
    table = [x for x in (1, 2)]
    return bytearray(n)

class Outer:
    def method(self, n):
        return sorted([n], key=lambda _: 0) and inner(n)

kept = Outer().method(40 << 20)
print(len(kept))
";

#[test]
fn lines_of_python_are_in_the_stacks() {
    let ask = "import sys; print(sys.executable, *sys.version_info[:2])";
    let told = Command::new("python3").args(["-c", ask]).output();
    let told = told.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let told = told.unwrap_or_default();
    let words: Vec<&str> = told.split_whitespace().collect();
    let known = matches!(words[..], [_, "3", "11" | "12" | "13"]);
    if !needs::has("python", known, Some("install Python 3.11, 3.12 or 3.13 as python3")) {
        return;
    }
    let script = temporary("big.py");
    fs::write(&script, SCRIPT).unwrap();
    let traced = trace("python", &[], &[words[0], script.to_str().unwrap()]);
    let (names, counts) = from(&traced.object, "mmap", "inner");
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let scripts = ["inner", "Outer.method", "<module>"];
    assert_eq!(names[..3], scripts, "{names:?}");
    assert!(counts["at_peak"].as_u64().unwrap() > 40 << 20, "{counts}");
    // The interpreter's function does not stand between Python's.
    assert!(!names.contains(&"_PyEval_EvalFrameDefault") && names.len() > 3, "{names:?}");
    let sites = traced.object["stacks"]["sites"].as_array().unwrap();
    let most = sites.iter().max_by_key(|site| site["at_peak"].as_u64()).unwrap();
    assert_eq!((&most["site"], &most["call"]), (&"inner (big.py:3)".into(), &"mmap".into()));
    let text = &traced.ran.err;
    assert!(text.contains("inner (big.py:3), by "), "{text}");
}

/// Ten times in a row, a map is touched and unmapped, each larger than the one before. The last one
/// is the peak.
const FREED: &str = r#"
#include <string.h>
#include <sys/mman.h>
int main(void) {
    for (size_t size = 1; size <= 10; size++) {
        char *p = mmap(0, size << 20, 3, 0x22, -1, 0);
        memset(p, 1, size << 20);
        munmap(p, size << 20);
    }
    return 0;
}
"#;

#[test]
fn a_peak_that_is_freed_at_once_is_seen() {
    let program = compile("freed", FREED, &["-O2"]);
    let traced = trace("freed", &[], &[program.to_str().unwrap()]);
    let (_, counts) = from(&traced.object, "mmap", "main");
    assert_eq!((&counts["mapped"], &counts["at_end"]), (&(55 << 20).into(), &0.into()));
    assert!(counts["at_peak"].as_u64().unwrap() >= 9 << 20, "{counts}");
}
