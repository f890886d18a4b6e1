//! `samara trace --stacks`, on programs whose stacks are hard to unwind, or whose files change.

#[allow(dead_code, reason = "other tests use the rest")]
mod traced;
#[path = "traced/stacks.rs"]
mod with_stacks;

use std::{fs, path::Path};

use serde_json::Value;
use traced::{compile, temporary};
use with_stacks::{adds_up, all_stacks, from, stacks, trace};

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
APART int recurse(int n) {
    if (n == 0) { map(300); return 1; }
    int m = recurse(n - 1);
    STAY;
    return m + 1;
}
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
typedef void (*Map)(unsigned long);
__attribute__((noinline, noclone, noipa)) static void hidden(Map map) { map(600); STAY; }
void entry(Map map) { hidden(map); STAY; }
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
    let frames = all_stacks(object).iter().flat_map(|stack| stack["frames"].as_array().unwrap());
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
    let text = &traced.ran.err;
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

/// A function whose unwind table says that the caller's frame is at address 0.
const WRONG_TABLE: &str = r#"
#include <sys/mman.h>
#define STAY __asm__ volatile("" ::: "memory")
__attribute__((noinline, noipa)) void map(void) { mmap(0, 77 << 12, 3, 0x22, -1, 0); STAY; }
void wrong(void);
__asm__(
    ".text\n .type wrong, @function\n wrong:\n .cfi_startproc\n .cfi_escape 0x0f, 0x01, 0x30\n"
    "sub $8, %rsp\n call map\n add $8, %rsp\n ret\n .cfi_endproc\n .size wrong, . - wrong\n");
int main(void) {
    for (int i = 0; i < 3; i++) wrong();
    map();
    STAY;
    return 0;
}
"#;

#[test]
fn a_wrong_unwind_table_ends_the_stack_and_nothing_else() {
    let program = compile("wrong-table", WRONG_TABLE, &["-O2", "-fomit-frame-pointer"]);
    let traced = trace("wrong-table", &[], &[program.to_str().unwrap()]);
    assert_eq!(traced.ran.code, Some(0));
    let with = |function: &str| {
        let all = stacks(&traced.object, "mmap").into_iter().filter(|(names, ..)| {
            let at = names.iter().position(|name| name == "map");
            at.is_some_and(|at| names[at + 1] == function)
        });
        all.map(|(_, counts, end)| (counts["calls"].as_u64().unwrap(), end.as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!((with("wrong"), with("main")), (vec![(3, "lost")], vec![(1, "root")]));
    adds_up(&traced, "wrong-table");
}

#[test]
fn a_damaged_stack_ends_and_nothing_else() {
    for (way, flags) in
        [("tables", &["-O2"][..]), ("none", &["-O2", "-fno-asynchronous-unwind-tables"])]
    {
        let program = compile(&format!("damaged-{way}"), DAMAGED, flags);
        let traced = trace(way, &[], &[program.to_str().unwrap()]);
        assert_eq!(traced.ran.code, Some(0));
        let lost = stacks(&traced.object, "mmap").into_iter().filter(|(_, _, end)| *end == "lost");
        let calls: u64 = lost.map(|(_, counts, _)| counts["calls"].as_u64().unwrap()).sum();
        assert!(calls > 100, "{way}: {calls}");
        adds_up(&traced, way);
    }
}

/// Calls `entry` of one library, and of another one in its place.
const REPLACED: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
#define STAY __asm__ volatile("" ::: "memory")
typedef void (*Map)(unsigned long);
__attribute__((noinline, noipa)) static void map(unsigned long pages) {
    mmap(0, pages << 12, 3, 0x22, -1, 0);
    STAY;
}
int main(int argc, char **argv) {
    void *before = 0;
    for (int i = 1; i <= 2; i++) {
        void *library = dlopen(argv[i], RTLD_NOW);
        void (*entry)(Map) = (void (*)(Map))dlsym(library, "entry");
        if (before && before != (void *)entry) return 3;
        before = (void *)entry;
        entry(map);
        dlclose(library);
    }
    return 0;
}
"#;

/// Without symbols but for `entry`. The frame of the first function is larger.
const FIRST: &str = r#"
#define STAY __asm__ volatile("" ::: "memory")
typedef void (*Map)(unsigned long);
void hidden(Map map);
void entry(Map map) { volatile char frame[SIZE]; frame[0] = 1; hidden(map); STAY; }
__attribute__((noinline, noipa, visibility("hidden"))) void hidden(Map map) { map(SIZE); STAY; }
"#;

#[test]
fn a_library_in_the_place_of_another_is_unwound_by_its_own_tables() {
    let flags = ["-O2", "-shared", "-fPIC", "-fomit-frame-pointer", "-fno-toplevel-reorder", "-s"];
    let [large, small] = ["900", "100"].map(|size| {
        let define = format!("-DSIZE={size}");
        compile(&format!("size-{size}.so"), FIRST, &[&flags[..], &[&define]].concat())
    });
    let program = compile("replaced", REPLACED, &["-O2", "-fomit-frame-pointer"]);
    let command = [&program, &large, &small].map(|path| path.to_str().unwrap());
    let traced = trace("replaced", &[], &command);
    assert_eq!(traced.ran.code, Some(0), "the second library is in another place");
    for (library, pages) in [(&large, 900), (&small, 100)] {
        let stack = all_stacks(&traced.object)
            .iter()
            .find(|one| one["counts"]["mmap"]["mapped"] == pages << 12)
            .unwrap();
        let frames = stack["frames"].as_array().unwrap();
        let at = frames.iter().position(|frame| frame["function"] == "map").unwrap();
        let [hidden, entry, main] = [1, 2, 3].map(|more| &frames[at + more]);
        for frame in [hidden, entry] {
            assert_eq!(frame["image"].as_str(), library.to_str(), "{frames:#?}");
        }
        // The name of another function is no name of this one.
        assert!(hidden["function"].is_null(), "{hidden}");
        assert_eq!((&entry["function"], &main["function"]), (&"entry".into(), &"main".into()));
        assert_eq!(stack["end"], "root");
    }
}

/// Puts another file in the program's place before it makes a call.
const USURPED: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#define STAY __asm__ volatile("" ::: "memory")
__attribute__((noinline, noipa)) void NAME(void) { mmap(0, 77 << 12, 3, 0x22, -1, 0); STAY; }
int main(int argc, char **argv) {
    if (argc > 1 && rename(argv[1], argv[0])) return 1;
    NAME();
    STAY;
    return 0;
}
"#;

#[test]
fn names_are_those_of_the_file_that_is_mapped() {
    let named = |name: &str, flags: &[&str]| {
        let define = format!("-DNAME={name}");
        compile(name, USURPED, &[&["-O2", "-fomit-frame-pointer", &define], flags].concat())
    };
    let (own, other) = (named("own", &[]), named("other", &["-O0"]));
    let place = temporary("place");
    let place = place.to_str().unwrap();
    let ours = |object: &Value, name: &str| {
        let (names, counts) = from(object, "mmap", name);
        assert_eq!((names[1].as_str(), &counts["mapped"]), ("main", &(77 << 12).into()));
    };
    // Another file has its path.
    let copy = |from: &Path, to: &str| assert!(fs::copy(from, to).unwrap() > 0);
    copy(&own, place);
    copy(&other, &format!("{place}-other"));
    let traced = trace("usurped", &[], &[place, &format!("{place}-other")]);
    assert_eq!(traced.ran.code, Some(0));
    ours(&traced.object, "own");
    // The same file has other contents when it is run again.
    let script = r#"cp "$0" "$2" && "$2" && cat "$1" > "$2" && "$2""#;
    let [own, other] = [&own, &other].map(|path| path.to_str().unwrap());
    let traced = trace("rewritten", &[], &["bash", "-c", script, own, other, place]);
    assert_eq!(traced.ran.code, Some(0));
    ours(&traced.object, "other");
    // It has no path any more.
    let script = r#"cp "$0" "$1" && exec 9< "$1" && rm "$1" && exec /proc/self/fd/9"#;
    let traced = trace("deleted", &[], &["bash", "-c", script, own, place]);
    ours(&traced.object, "own");
}
