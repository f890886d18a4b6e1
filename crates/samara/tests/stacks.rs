//! `samara trace --stacks`, on programs with known chains of calls.

mod traced;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use traced::{compile, object, samara, temporary};

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

/// A traced run: its JSON, its recording and its flame graph.
struct Traced {
    object: Value,
    recording: PathBuf,
    graph: String,
    output: Output,
}

fn trace(name: &str, options: &[&str], command: &[&str]) -> Traced {
    let [json, recording, graph] =
        ["json", "vmtrace", "svg"].map(|kind| temporary(&format!("stacks-{name}.{kind}")));
    let files = [
        "--json",
        json.to_str().unwrap(),
        "--record",
        recording.to_str().unwrap(),
        "--flame",
        graph.to_str().unwrap(),
    ];
    let output = samara(&[&["--stacks"], options, &files, &["--"], command].concat());
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    let object = object(&json);
    assert_eq!(object["mismatches"], 0, "{name}: {err}");
    let graph = fs::read_to_string(graph).unwrap();
    Traced { object, recording, graph, output }
}

/// The stacks with this kind of call: names of functions, the innermost first, and the counts.
fn stacks<'a>(object: &'a Value, call: &'a str) -> Vec<(Vec<String>, &'a Value, &'a Value)> {
    let all = object["stacks"]["stacks"].as_array().unwrap();
    let with = all.iter().filter_map(|stack| Some((stack, stack["counts"].get(call)?)));
    let name = |frame: &Value| frame["function"].as_str().unwrap_or("?").to_owned();
    with.map(|(stack, counts)| {
        let frames = stack["frames"].as_array().into_iter().flatten();
        (frames.map(name).collect(), counts, &stack["end"])
    })
    .collect()
}

/// The stack of the call that `function` makes, from that function on outwards, with its counts.
fn from<'a>(object: &'a Value, call: &'a str, function: &str) -> (Vec<String>, &'a Value) {
    let mut found: Vec<_> = stacks(object, call)
        .into_iter()
        .filter_map(|(names, counts, _)| {
            let at = names.iter().position(|name| name == function)?;
            Some((names[at..].to_vec(), counts))
        })
        .collect();
    found.sort_by_key(|(_, counts)| std::cmp::Reverse(counts["mapped"].as_u64()));
    assert!(!found.is_empty(), "{call} by {function} in {:#}", object["stacks"]["stacks"]);
    found.swap_remove(0)
}

/// The sum of a number over all call sites.
fn sum(object: &Value, key: &str) -> u64 {
    let sites = object["stacks"]["sites"].as_array().unwrap();
    sites.iter().map(|site| site[key].as_u64().unwrap()).sum()
}

/// The bytes in the kernel's last listing of an address space, as recorded.
fn last_listing(recording: &Path, mm: &str) -> u64 {
    let text = fs::read_to_string(recording).unwrap();
    let from = text.lines().position(|line| line.starts_with(&format!("Z {mm} "))).unwrap();
    let lines = text.lines().skip(from + 1).map_while(|line| line.strip_prefix("= "));
    let size = |line: &str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        end - start
    };
    lines.filter(|line| !line.ends_with("[vsyscall]")).map(size).sum()
}

/// What holds for each traced program: the table has all calls, and at the end all that the kernel
/// has mapped in the program's own address space, if that is the only one.
fn adds_up(traced: &Traced, name: &str) {
    let object = &traced.object;
    assert_eq!(sum(object, "calls"), object["calls"].as_u64().unwrap(), "{name}");
    let end = &object["stacks"]["at_end"];
    assert_eq!(end["unknown"], 0, "{name}");
    if object["address_spaces"] == 1 {
        let at_end = sum(object, "at_end") + end["execve"].as_u64().unwrap();
        assert_eq!(at_end, last_listing(&traced.recording, "1"), "{name}");
    }
}

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
        let traced = trace(way, &[], &[program.to_str().unwrap()]);
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
        let text = String::from_utf8_lossy(&traced.output.stderr);
        assert!(text.contains("3.00 MiB 768.00 KiB c"), "{way}: {text}");
        if way == "lines" {
            assert!(find("c")["site"].as_str().unwrap().contains("chain-lines.c:7"), "{sites:#?}");
        }

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

const THREADS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <sys/auxv.h>
#include <time.h>
#include <ucontext.h>
#define APART __attribute__((noinline, noclone, noipa))
#define STAY __asm__ volatile("" ::: "memory")
APART void *map(size_t pages) { void *p = mmap(0, pages << 12, 3, 0x22, -1, 0); STAY; return p; }
APART void in_thread(void) { map(100); STAY; }
static void *work(void *p) { in_thread(); STAY; return p; }
APART void in_handler(void) { map(200); STAY; }
static void handler(int signal) { in_handler(); STAY; }
APART void interrupted(void) { raise(SIGUSR1); STAY; }
APART int recurse(int n) { if (n == 0) { map(300); return 1; } int m = recurse(n - 1); STAY; return m + 1; }
APART void called_back(void) { map(400); STAY; }
APART void generated(void) {
    /* push %rbp; mov %rsp, %rbp; call *%rdi; pop %rbp; ret */
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
    unsigned char *p = mmap(0, 4096, 3, 0x22, -1, 0);
    memcpy(p, code, sizeof code);
    mprotect(p, 4096, 5);
    ((void (*)(void (*)(void)))p)(called_back);
    STAY;
}
/* Each instruction from the write of the flags on raises a signal, until one is in the vdso. */
static void step(int signal, siginfo_t *info, void *context) {
    ucontext_t *interrupted = context;
    unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
    if (interrupted->uc_mcontext.gregs[REG_RIP] - vdso >= 8192) return;
    interrupted->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
    map(700);
    STAY;
}
APART void in_vdso(void) {
    struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, 0);
    struct timespec now;
    __asm__ volatile("sub $128, %%rsp\n pushf\n orq $0x100, (%%rsp)\n popf\n add $128, %%rsp"
        ::: "memory", "cc");
    clock_gettime(CLOCK_MONOTONIC, &now);
    STAY;
}
APART void in_child(void) { map(500); STAY; }
int main(int argc, char **argv) {
    if (argc > 1) { in_child(); return 0; }
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pthread_join(thread, 0);
    signal(SIGUSR1, handler);
    interrupted();
    recurse(300);
    generated();
    in_vdso();
    if (fork() == 0) { in_child(); execl("/proc/self/exe", argv[0], "again", (char *)0); }
    wait(0);
    void *library = dlopen(LIBRARY, RTLD_NOW);
    void (*entry)(void (*)(size_t)) = dlsym(library, "entry");
    entry((void (*)(size_t))map);
    STAY;
    return 0;
}
"#;

const LIBRARY: &str = r#"
#define STAY __asm__ volatile("" ::: "memory")
__attribute__((noinline, noclone, noipa)) static void hidden(void (*map)(unsigned long)) { map(600); STAY; }
void entry(void (*map)(unsigned long)) { hidden(map); STAY; }
"#;

#[test]
fn stacks_lead_through_threads_handlers_libraries_and_generated_code() {
    let library =
        compile("entry.so", LIBRARY, &["-O2", "-shared", "-fPIC", "-fomit-frame-pointer"]);
    let define = format!("-DLIBRARY=\"{}\"", library.display());
    let flags = ["-O2", "-fomit-frame-pointer", "-pthread", &define];
    let program = compile("threads", THREADS, &flags);
    let traced = trace("threads", &["--stack-depth", "40"], &[program.to_str().unwrap()]);
    let object = &traced.object;
    let whole = |function: &str| from(object, "mmap", function);

    let (names, counts) = whole("in_thread");
    assert_eq!(names[..2], ["in_thread", "work"]);
    assert_eq!((&counts["mapped"], &counts["at_end"]), (&(100 << 12).into(), &(100 << 12).into()));
    let (names, _) = whole("in_handler");
    assert_eq!(names[..2], ["in_handler", "handler"]);
    let at = names.iter().position(|name| name == "interrupted").expect("the interrupted function");
    assert_eq!((names[at - 1].as_str(), names[at + 1].as_str()), ("raise", "main"), "{names:?}");
    let (names, _) = whole("hidden");
    assert_eq!(names[..3], ["hidden", "entry", "main"]);
    let (names, _) = whole("step");
    // The interrupted function of the vdso, and its caller in libc, if it has one.
    let at = names.iter().position(|name| name == "in_vdso").expect("the caller");
    assert!(names[at - 1].contains("clock_gettime") && names[at + 1] == "main", "{names:?}");
    let frames = object["stacks"]["stacks"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|stack| stack["frames"].as_array().unwrap());
    let vdso: Vec<_> = frames.filter(|frame| frame["image"] == "[vdso]").collect();
    assert_eq!(vdso.len(), 1, "{vdso:?}");
    assert!(vdso[0]["function"].as_str().unwrap().contains("clock_gettime"), "{vdso:?}");
    // Generated code has no name.
    let (names, _) = whole("called_back");
    assert_eq!(names[..4], ["called_back", "?", "generated", "main"]);
    // A child's memory is gone at the end: it executed the program again, which ended.
    let children: Vec<_> = stacks(object, "mmap")
        .into_iter()
        .filter(|(names, ..)| names.contains(&"in_child".into()))
        .collect();
    assert_eq!(children.len(), 2, "one before and one after execve");
    for (names, counts, end) in &children {
        let at = names.iter().position(|name| name == "in_child").unwrap();
        assert_eq!((names[at + 1].as_str(), *end), ("main", &"root".into()));
        assert_eq!((&counts["mapped"], &counts["at_end"]), (&(500 << 12).into(), &0.into()));
    }
    // Deep recursion is cut, and says so.
    let deep = stacks(object, "mmap").into_iter().find(|(_, _, end)| *end == "cut").unwrap();
    // The innermost frames are those of mmap and map.
    assert_eq!(deep.0.iter().filter(|name| *name == "recurse").count(), 38, "{:?}", deep.0);
    let text = String::from_utf8_lossy(&traced.output.stderr).into_owned();
    assert!(text.contains("1 cut: --stack-depth shows more"), "{text}");
    assert!(traced.graph.contains("data-name=\"[cut]\""));
    adds_up(&traced, "threads");
    let whole = trace("whole", &["--stack-depth", "1000"], &[program.to_str().unwrap()]);
    let (names, _) = from(&whole.object, "mmap", "recurse");
    let deep = names.iter().filter(|name| *name == "recurse").count();
    assert_eq!((deep, names[301].as_str()), (301, "main"));
}

/// Calls with a damaged stack and frame pointers, and one from a thread that is killed right after.
const DAMAGED: &str = r#"
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static long call(unsigned long sp, unsigned long bp) {
    register unsigned long r8 __asm__("r8") = -1, r9 __asm__("r9") = 0, r10 __asm__("r10") = 0x22;
    long result = SYS_mmap;
    __asm__ volatile(
        "mov %%rsp, %%r12\n mov %%rbp, %%r13\n mov %2, %%rsp\n mov %3, %%rbp\n syscall\n"
        "mov %%r12, %%rsp\n mov %%r13, %%rbp\n"
        : "+a"(result) : "D"(0L), "r"(sp), "r"(bp), "S"(4096L), "d"(3L), "r"(r8), "r"(r9), "r"(r10)
        : "rcx", "r11", "r12", "r13", "memory");
    return result;
}
int main(void) {
    unsigned long *words = mmap(0, 1 << 16, 3, 0x22, -1, 0);
    for (int i = 0; i < 8192; i++) words[i] = (unsigned long)(words + 4096);
    unsigned long bad[] = {0, 1, 8, 4095, 4096, 0xfff8, 1UL << 47, 1UL << 63, -1UL, -8UL, -16UL,
        (unsigned long)words, (unsigned long)words + 3, (unsigned long)(words + 8191)};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        for (unsigned j = 0; j < sizeof bad / sizeof *bad; j++)
            if (call(bad[i], bad[j]) < 0) return 1;
    if (fork() == 0) { call(words[0], 0); kill(getpid(), SIGKILL); }
    return 0;
}
"#;

#[test]
fn a_damaged_stack_ends_and_nothing_else() {
    for (way, flags) in
        [("tables", &["-O2"][..]), ("none", &["-O2", "-fno-asynchronous-unwind-tables"])]
    {
        let program = compile(&format!("damaged-{way}"), DAMAGED, flags);
        let traced = trace(way, &[], &[program.to_str().unwrap()]);
        assert_eq!(traced.output.status.code(), Some(0));
        let lost = stacks(&traced.object, "mmap").into_iter().filter(|(_, _, end)| *end == "lost");
        let calls: u64 = lost.map(|(_, counts, _)| counts["calls"].as_u64().unwrap()).sum();
        assert!(calls > 100, "{way}: {calls}");
        adds_up(&traced, way);
    }
}

#[test]
fn a_recording_shows_the_same_stacks_again() {
    let program = compile("recorded-chain", CHAIN, &["-O2", "-g"]);
    let traced = trace("recorded", &[], &[program.to_str().unwrap()]);
    let graph = temporary("replayed.svg");
    let replay = |options: &[&str], recording: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_samara"));
        command.arg("replay").args(options).arg(recording).output().unwrap()
    };
    let to_graph = ["--json", "-", "--flame", graph.to_str().unwrap()];
    let out = replay(&to_graph, &traced.recording);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let again: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(again["stacks"], traced.object["stacks"]);
    let boxes = |text: &str| text.split_once("<g class").unwrap().1.to_owned();
    assert_eq!(boxes(&fs::read_to_string(&graph).unwrap()), boxes(&traced.graph));
    let out = replay(&["--flame-of", "at-end", "--folded", "-"], &traced.recording);
    let folded = String::from_utf8(out.stdout).unwrap();
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
    let out = replay(&["--json", "-"], &plain);
    let without: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(without["stacks"].is_null() && without["calls"] == again["calls"]);
    // There is nothing to draw then.
    let out = replay(&to_graph, &plain);
    assert_eq!(out.status.code(), Some(2));
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(err.contains("no call stacks") && err.contains("trace --stacks --record"), "{err}");
}

#[test]
fn each_line_of_a_call_has_its_stack() {
    let program = compile("streamed-chain", CHAIN, &["-O2"]);
    let out = samara(&["-q", "--stacks", "--json-lines", "-", "--", program.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(0));
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
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
    assert!(!String::from_utf8_lossy(&out.stderr).contains("different stacks"));
    let out = samara(&["--flame", "/nowhere/a.svg", "--", "sh", "-c", "echo ran"]);
    assert_eq!((out.status.code(), &out.stdout[..]), (Some(125), &b""[..]));
    assert!(String::from_utf8_lossy(&out.stderr).contains("/nowhere/a.svg"));
    for wrong in [["--stack-depth", "0"], ["--stack-depth", "1001"], ["--flame-of", "peak"]] {
        let out = samara(&[&wrong[..], &["--stacks", "--", "true"]].concat());
        assert_eq!(out.status.code(), Some(2), "{wrong:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(wrong[0]), "{wrong:?}");
    }
    // Other programs' files are no code: a deleted program has its names.
    let program = compile("deleted-chain", CHAIN, &["-O2"]);
    let script = format!("cp {0} {0}.copy && exec {0}.copy", program.display());
    let remove = format!("exec 9< {0}.copy; rm {0}.copy; exec /proc/self/fd/9", program.display());
    let traced = trace("deleted", &[], &["bash", "-c", &script.replace("exec", "true")]);
    assert_eq!(traced.output.status.code(), Some(0));
    let traced = trace("deleted", &[], &["bash", "-c", &remove]);
    assert_eq!(from(&traced.object, "mmap", "c").0[..4], ["c", "b", "a", "main"]);
}
