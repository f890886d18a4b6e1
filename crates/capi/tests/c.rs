//! The library from C: each program of `tests/c` and `examples-c`, by several compilers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::{env, fs, thread};

#[path = "../../trace/tests/common/needs.rs"]
mod needs;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
/// A compiler, with the flags of its language.
const C: [(&str, &[&str]); 2] = [("gcc", &["-std=c11"]), ("clang", &["-std=c11"])];
const CXX: [(&str, &[&str]); 2] =
    [("g++", &["-xc++", "-std=c++17"]), ("clang++", &["-xc++", "-std=c++17"])];
const STRICT: [&str; 6] =
    ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_GNU_SOURCE", "-fno-omit-frame-pointer"];

/// Newer headers of liburcu have macros that clang calls extensions where they are used.
const MACROS: [&str; 3] = [
    "-Wno-unknown-warning-option",
    "-Wno-c++20-extensions",
    "-Wno-variadic-macro-arguments-omitted",
];

/// The directory with the library: where cargo has put it for this test, or `SAMARA_LIBRARY`.
fn library() -> PathBuf {
    let own = || env::current_exe().unwrap().parent().unwrap().to_owned();
    let directory = env::var_os("SAMARA_LIBRARY").map_or_else(own, PathBuf::from);
    assert!(directory.join("libsamara_range.a").exists(), "no library in {directory:?}");
    directory
}

/// Whether the machine has these commands.
fn has(commands: &[&str]) -> bool {
    commands.iter().all(|command| {
        let found = Command::new(command).arg("--version").output().is_ok();
        needs::has(command, found, Some("install it, as ./check rest_of_packages does"))
    })
}

/// A directory with the shared library under the name by which the loader looks for it: as
/// installed, with the two parts of the version that say whether programs fit.
fn shared_library() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        fs::create_dir_all(&directory).unwrap();
        let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
        let name = directory.join(format!("libsamara_range.so.{major}.{minor}"));
        let _ = fs::remove_file(&name);
        symlink(library().join("libsamara_range.so"), name).unwrap();
        directory
    };
    MADE.get_or_init(make).clone()
}

/// Cargo has set the search path of libraries to directories where an older one may be.
fn output(command: &mut Command) -> Output {
    command.env("LD_LIBRARY_PATH", shared_library());
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn run(command: &mut Command) -> String {
    let output = output(command);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{errors}", output.status);
    out
}

/// How a program is built.
struct Build<'a> {
    compiler: &'a str,
    flags: &'a [&'a str],
    shared: bool,
}

impl Build<'_> {
    /// Compiles a source and links it. `extra` follows the library.
    fn program(&self, source: &Path, extra: &[&str]) -> PathBuf {
        let name = source.file_stem().and_then(OsStr::to_str).unwrap();
        let kind = if self.shared { "shared" } else { "static" };
        let tag = [self.flags, extra].concat().concat().replace(['-', '=', '+', '/'], "");
        // Tests run concurrently with each other, and two may build the same program.
        let test = thread::current().name().unwrap().to_owned();
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&directory).unwrap();
        let program = directory.join(format!("{name}-{}-{kind}-{tag}", self.compiler));
        let library = library();
        let mut command = Command::new(self.compiler);
        command.args(STRICT).args(self.flags).args(["-g", "-gdwarf-4", "-O1", "-I"]);
        command.arg(Path::new(CRATE).join("include")).arg(source);
        if self.shared {
            command.arg("-L").arg(&library).arg("-lsamara_range");
            command.arg(format!("-Wl,-rpath,{}", shared_library().display()));
        } else {
            // The library is no source.
            command.args(["-x", "none"]).arg(library.join("libsamara_range.a"));
            command.args(["-lpthread", "-ldl", "-lm"]);
        }
        run(command.args(extra).arg("-o").arg(&program));
        program
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(CRATE).join("tests/c").join(name).with_extension("c")
}

fn examples() -> Vec<PathBuf> {
    let mut examples: Vec<_> = fs::read_dir(Path::new(CRATE).join("examples-c"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    examples.sort();
    assert_eq!(examples.len(), 3);
    examples
}

/// The test programs, each with arguments for a short run.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("basic", &["1500"]),
    ("misuse", &[]),
    ("model", &["8"]),
    ("memory", &[]),
    ("threads", &["6000"]),
];

fn programs_pass(build: &Build) {
    if !has(&[build.compiler]) {
        return;
    }
    for (name, arguments) in PROGRAMS {
        let program = build.program(&source(name), &[]);
        let out = run(Command::new(program).args(arguments));
        assert_eq!(out, format!("{name}: ok\n"));
    }
}

#[test]
fn programs_in_c_pass_with_the_static_library() {
    let (compiler, flags) = C[0];
    programs_pass(&Build { compiler, flags, shared: false });
}

#[test]
fn programs_in_c_pass_with_the_shared_library() {
    let (compiler, flags) = C[1];
    programs_pass(&Build { compiler, flags, shared: true });
}

#[test]
fn programs_in_cxx_pass_with_the_shared_library() {
    let (compiler, flags) = CXX[0];
    programs_pass(&Build { compiler, flags, shared: true });
}

#[test]
fn programs_in_cxx_pass_with_the_static_library() {
    let (compiler, flags) = CXX[1];
    programs_pass(&Build { compiler, flags, shared: false });
}

/// Three flavours, as C, and one as C++.
#[test]
fn programs_over_liburcu_pass() {
    if !has(&["gcc", "clang++", "pkg-config"]) {
        return;
    }
    let urcu = output(Command::new("pkg-config").args(["--exists", "liburcu"])).status.success();
    if !needs::has("liburcu", urcu, Some("install liburcu-dev")) {
        return;
    }
    for ((compiler, flags), extra) in [
        (C[0], &["-lurcu"][..]),
        (CXX[1], &["-lurcu", MACROS[0], MACROS[1], MACROS[2]]),
        (C[0], &["-DURCU_MB", "-lurcu-mb"]),
        (C[0], &["-DURCU_QSBR", "-lurcu-qsbr"]),
    ] {
        let program = Build { compiler, flags, shared: false }.program(&source("urcu"), extra);
        assert_eq!(run(&mut Command::new(program)), "urcu: ok\n");
    }
}

#[test]
fn examples_run() {
    if !has(&["gcc", "clang"]) {
        return;
    }
    for example in examples() {
        for (compiler, flags) in C {
            let build = Build { compiler, flags, shared: compiler == "gcc" };
            let out = run(&mut Command::new(build.program(&example, &[])));
            assert!(!out.is_empty(), "{example:?} says nothing");
        }
    }
}

/// The program in the README prints what the README says.
#[test]
fn the_program_of_the_readme_runs() {
    if !has(&["gcc"]) {
        return;
    }
    let readme = fs::read_to_string(Path::new(CRATE).join("README.md")).unwrap();
    let block = |language: &str| {
        let (_, rest) = readme.split_once(&format!("```{language}\n")).unwrap();
        rest.split_once("```").unwrap().0
    };
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme.c");
    fs::write(&file, block("c")).unwrap();
    let (compiler, flags) = C[0];
    let program = Build { compiler, flags, shared: true }.program(&file, &[]);
    assert_eq!(run(&mut Command::new(program)), block("text"));
}

/// No invalid access, no use of uninitialized memory, no leak.
#[test]
fn programs_are_clean_under_valgrind() {
    if !has(&["gcc", "valgrind"]) {
        return;
    }
    let (compiler, flags) = C[0];
    let build = Build { compiler, flags, shared: false };
    let short = [("basic", "100"), ("misuse", ""), ("model", "1"), ("threads", "300")];
    let mut programs: Vec<_> = short.map(|(name, argument)| (source(name), argument)).into();
    programs.push((Path::new(CRATE).join("examples-c/iova.c"), ""));
    for (source, argument) in programs {
        let mut command = Command::new("valgrind");
        command.args(["-q", "--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"]);
        command.arg(build.program(&source, &[])).args([argument].iter().filter(|a| !a.is_empty()));
        run(command.env("SAMARA_TEST_MALLOC", "1"));
    }
}

/// A thread's first use of the pool, without memory, is no abort.
#[cfg(target_env = "gnu")]
#[test]
fn a_thread_without_memory_is_told() {
    if !has(&["gcc"]) {
        return;
    }
    let (compiler, flags) = C[0];
    let program = Build { compiler, flags, shared: false }.program(&source("nomem"), &[]);
    assert_eq!(run(&mut Command::new(program)), "nomem: ok\n");
}

/// The library has each function of the header, and no other symbol.
#[test]
fn symbols_are_those_of_the_header() {
    if !has(&["nm"]) {
        return;
    }
    let header = fs::read_to_string(Path::new(CRATE).join("include/samara_range.h")).unwrap();
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .collect();
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library().join("libsamara_range.so")));
    let defined: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(declared, defined);
}

/// A debug build says what was wrong.
#[cfg(debug_assertions)]
#[test]
fn misuse_is_explained() {
    if !has(&["gcc"]) {
        return;
    }
    let (compiler, flags) = C[0];
    let build = Build { compiler, flags, shared: true };
    assert_eq!(run(&mut Command::new(build.program(&source("serial"), &[]))), "serial: ok\n");
    let output = output(&mut Command::new(build.program(&source("misuse"), &[])));
    let errors = String::from_utf8(output.stderr).unwrap();
    for line in [
        "samara: samara_tree_store: the entry is NULL, which means a hole",
        "samara: samara_tree_unlock: this thread does not hold the lock",
        "samara: samara_tree_load: outside of a read section and of the lock",
        "samara: samara_tree_alloc: the alignment is no power of two",
        "samara: samara_tree_set_end: the range begins after last",
        "samara: samara_tree_new: an option is set that this version of the library does not know",
        "samara: a thread: it ended inside a read section, which ends now",
    ] {
        assert!(errors.lines().any(|l| l == line), "no line '{line}' in\n{errors}");
    }
}

/// ThreadSanitizer sees no race in the library and in a program that uses it well, and sees the
/// race of a program with a bug. `./check library` builds the library for it.
#[test]
#[ignore = "needs a library built for ThreadSanitizer, named by SAMARA_TSAN_LIBRARY"]
fn programs_are_clean_under_thread_sanitizer() {
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let (library, runtime) = (variable("SAMARA_TSAN_LIBRARY"), variable("SAMARA_TSAN_RUNTIME"));
    let build = |name: &str| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-tsan"));
        let object = program.with_extension("o");
        let mut compile = Command::new("clang");
        compile.args(STRICT).args(["-std=c11", "-g", "-O1", "-fsanitize=thread", "-c", "-I"]);
        compile.arg(Path::new(CRATE).join("include")).arg(source(name)).arg("-o").arg(&object);
        run(&mut compile);
        let mut link = Command::new("clang");
        // The runtime is that of the Rust compiler: the one of clang may be older.
        link.arg(&object).args([&library, "-Wl,--whole-archive", &runtime]);
        link.args(["-Wl,--no-whole-archive", "-rdynamic", "-lpthread", "-ldl", "-lm", "-lrt"]);
        run(link.arg("-o").arg(&program));
        program
    };
    for (name, argument) in [("basic", "200"), ("model", "2"), ("threads", "10000")] {
        run(Command::new(build(name)).arg(argument));
    }
    let output = output(&mut Command::new(build("race")));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("ThreadSanitizer: data race"), "no race was seen:\n{errors}");
}
