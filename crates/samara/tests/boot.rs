//! `samara boot` with a shell script as QEMU: its arguments, the treatment of its lines, its end.
//! `./check boot` boots the kernel in the real QEMU.

#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;

#[path = "common/fake_qemu.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fake_qemu;

use fake_qemu::{boot, directory, has_ended, samara, set_tool, told, with_tools};
use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// A run with this script as QEMU.
fn run(name: &str, qemu: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    samara(&directory(name, qemu), arguments)
}

#[test]
fn the_way_it_ends_is_the_exit_code() {
    let endings = [
        ("exit 33", 0, ""),
        ("exit 35", 1, "a trial failed"),
        ("exit 37", 2, "command line"),
        ("exit 39", 101, "panicked"),
        ("exit 0", 101, "reset itself"),
        ("echo no such option >&2; exit 1", 2, "no such option\nsamara: QEMU ended with code 1"),
        ("kill -KILL $$", 2, "signal 9"),
    ];
    for (qemu, code, why) in endings {
        let (ended, out, err) = run("ending", &format!("echo booted; {qemu}"), &[]);
        assert_eq!((ended, out.as_str()), (Some(code), "booted\n"), "{qemu}: {err}");
        assert!(err.contains(why), "{why} in {err}");
        assert_eq!(err.contains("samara: "), code != 0, "{err}");
    }
}

#[test]
fn qemu_gets_the_machine_and_the_words_but_not_our_input() {
    let directory = directory("words", r#"cat; for word; do echo "<$word>"; done; exit 33"#);
    let arguments = ["--cpus", "3", "test", "pins", "--seed", "7", "--machine", "q35"];
    let mut command = boot(&directory, &arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut samara = command.spawn().unwrap();
    // The script may have ended before it could read this.
    let _ = samara.stdin.take().unwrap().write_all(b"typed\n");
    let (code, out, err) = told(samara.wait_with_output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    for pair in ["<-M>\n<q35>", "<-smp>\n<3>", "<-kernel>\n</nowhere/kernel>"] {
        assert!(out.contains(pair), "{pair} in {out}");
    }
    assert!(out.ends_with("<-append>\n<test pins seed=7>\n") && !out.contains("typed"), "{out}");
    assert!(err.contains("-append 'test pins seed=7'"), "{err}");
}

/// A program far from its checkout, which may be gone.
#[test]
fn an_installed_program_finds_its_kernel() {
    let directory = directory("installed", r#"for word; do echo "<$word>"; done; exit 33"#);
    let (bin, lib) = (directory.join("bin"), directory.join("lib/samara"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&lib).unwrap();
    let program = bin.join("samara");
    fs::copy(env!("CARGO_BIN_EXE_samara"), &program).unwrap();
    let boot = || {
        let mut command = with_tools(&program, &directory);
        told(command.arg("boot").env("SAMARA_CHECKOUT", directory.join("gone")).output().unwrap())
    };
    let (code, out, err) = boot();
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    for part in ["installed/gone: ", "SAMARA_CHECKOUT", "--kernel FILE"] {
        assert!(err.contains(part), "{part} in {err}");
    }
    let kernel = lib.join("kernel");
    fs::write(&kernel, "a kernel").unwrap();
    let (code, out, err) = boot();
    assert_eq!(code, Some(0), "{err}");
    let kernel = fs::canonicalize(kernel).unwrap();
    assert!(out.contains(&format!("<-kernel>\n<{}>", kernel.display())), "{out}");
}

#[test]
fn a_machine_without_room_for_the_kernel_is_refused_at_once() {
    let directory = directory("memory", "touch started; exit 33");
    let started = directory.join("started");
    for (memory, code) in [("2M", 2), ("15M", 2), ("16M", 0), ("1G", 0)] {
        let _ = fs::remove_file(&started);
        let (ended, _, err) = samara(&directory, &["--memory", memory]);
        assert_eq!((ended, started.exists()), (Some(code), code == 0), "{memory}: {err}");
        assert_eq!(err.contains("needs 16M at least"), code != 0, "{memory}: {err}");
    }
}

#[test]
fn lines_for_programs_go_to_their_file() {
    let lines = r#"printf 'one\r\n\036{"value":1}\r\ntwo \377\n\036{"value":2}\nlast'; exit 33"#;
    let people = "one\ntwo \u{fffd}\nlast\n";
    // The first line says which run it was.
    let are_lines = |written: &str| {
        let (run, rows) = written.split_once('\n').unwrap();
        assert!(run.starts_with("{\"run\":\"samara boot ") && run.ends_with('}'), "{run}");
        assert_eq!(rows, "{\"value\":1}\n{\"value\":2}\n");
    };
    let (code, out, err) = run("nowhere", lines, &["bench"]);
    assert_eq!((code, out.as_str()), (Some(0), people), "{err}");

    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boot.jsonl");
    let (code, out, err) = run("file", lines, &["bench", "--json", file.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(0), people), "{err}");
    are_lines(&fs::read_to_string(file).unwrap());

    let (code, out, err) = run("stdout", lines, &["bench", "--json", "-"]);
    assert_eq!(code, Some(0), "{err}");
    are_lines(&out);
    assert!(err.ends_with(people), "{err}");
}

#[test]
fn a_result_that_cannot_be_written_ends_the_run() {
    let qemu = "echo ran; exec sleep 1000";
    let (code, out, err) = run("unwritten", qemu, &["bench", "--json", "/nowhere/at/all"]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("cannot write /nowhere/at/all"), "{err}");

    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = boot(&directory("full", qemu), &[]);
    let (code, _, err) = told(command.stdout(full).output().unwrap());
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("cannot write to standard output"), "{err}");
}

#[test]
fn a_time_limit_ends_it_with_its_last_words() {
    let qemu = "echo begun; printf 'and then'; exec sleep 1000";
    let (code, out, err) = run("limit", qemu, &["--timeout", "1", "test"]);
    assert_eq!((code, out.as_str()), (Some(124), "begun\nand then\n"), "{err}");
    assert!(err.contains("not done after 1 s") && err.contains("--timeout none"), "{err}");
    // A machine that is silent is ended, too.
    let (code, ..) = run("mute", "exec sleep 1000 > /dev/null", &["--timeout", "1"]);
    assert_eq!(code, Some(124));
}

#[test]
fn whatever_ends_us_ends_qemu() {
    let mut command = boot(&directory("orphan", "echo $$; exec sleep 1000"), &[]);
    let mut samara = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut qemu = String::new();
    BufReader::new(samara.stdout.take().unwrap()).read_line(&mut qemu).unwrap();
    assert!(!has_ended(&qemu), "it runs");
    samara.kill().unwrap();
    samara.wait().unwrap();
    patience::until("QEMU ends with us", || has_ended(&qemu));
}

#[test]
fn a_missing_tool_is_named_with_its_install_command() {
    let directory = directory("missing", "");
    let tools = directory.join("tools");
    fs::remove_file(tools.join("qemu-system-x86_64")).unwrap();
    let samara = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_samara"));
        command.arg("boot").args(arguments).env("PATH", &tools).stdin(Stdio::null());
        told(command.output().unwrap())
    };
    // A Rust installation without libraries for the target.
    set_tool(&directory, "rustc", &format!("echo '{}'", directory.display()));
    let (code, _, err) = samara(&[]);
    assert_eq!(code, Some(2), "{err}");
    let qemu = "apt-get install --no-install-recommends qemu-system-x86\n";
    assert!(err.contains(qemu) && err.contains("rustup target add x86_64-unknown-none"), "{err}");
    let (code, _, err) = samara(&["--kernel", "/nowhere/kernel"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains(qemu) && !err.contains("rustup"), "{err}");
}

#[test]
fn the_kernel_is_built_with_its_own_settings() {
    let directory = directory("build", r#"echo "$@"; exit 33"#);
    let samara = |cargo: &str| {
        set_tool(&directory, "cargo", cargo);
        let mut command = with_tools(env!("CARGO_BIN_EXE_samara"), &directory);
        command.arg("boot").env("CARGO", directory.join("tools/cargo"));
        command.env("CARGO_TARGET_DIR", "built");
        command.env("RUSTFLAGS", "-Cx").env("CARGO_PROFILE_RELEASE_LTO", "true");
        told(command.output().unwrap())
    };
    let said = directory.join("said");
    let record = format!("(pwd; echo \"$@\"; env) > '{}'", said.display());
    let message = r#"{"reason":"compiler-artifact","executable":"/nowhere/built"}"#;
    let (code, out, err) = samara(&format!("{record}; echo loud >&2; echo '{message}'"));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("-kernel /nowhere/built ") && !err.contains("loud"), "{out}{err}");
    let said = fs::read_to_string(said).unwrap();
    let mut lines = said.lines();
    assert!(lines.next().unwrap().ends_with("/kernel"), "{said}");
    let target = format!("--target-dir {}/built/kernel", directory.display());
    let arguments = lines.next().unwrap();
    assert!(arguments.contains("--release") && arguments.contains(&target), "{arguments}");
    let not_ours =
        |line: &str| line.starts_with("RUSTFLAGS=") || line.starts_with("CARGO_PROFILE_");
    assert!(!lines.any(not_ours), "{said}");

    let (code, out, err) = samara("echo no such thing >&2; exit 101");
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("no such thing\nsamara: the kernel's build failed"), "{err}");
}

/// A program that is linked at the kernel's address. The addresses of two of its functions are
/// known.
const KERNEL: &str = r#"
#![no_std]
#![no_main]
core::arch::global_asm!(
    ".section .known, \"ax\"",
    ".type first, @function", "first: .skip 16, 0x90", ".size first, 16",
    ".type second, @function", "second: .skip 16, 0x90", ".size second, 16",
);
unsafe extern "C" { fn first() -> !; }
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
mod pages { pub fn lost() -> ! { unsafe { super::first() } } }
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! { pages::lost() }
"#;

#[test]
fn addresses_of_a_backtrace_get_names() {
    // A call that does not return is followed by the next function. A fault lies in the function of
    // its address.
    let qemu = "echo backtrace: 0xffffffff80000001 0xffffffff90000010 0xffffffffffffff00
        echo cut FAULT on cpu0: of some kind
        echo backtrace: 0xffffffff90000010 0xffffffff90000010
        exit 39";
    let directory = directory("backtrace", qemu);
    let (source, kernel) = (directory.join("lost.rs"), directory.join("kernel"));
    fs::write(&source, KERNEL).unwrap();
    let built = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--target", "x86_64-unknown-none", "-g"])
        .args(["-C", "panic=abort", "-C", "relocation-model=static", "-C", "code-model=kernel"])
        .args(["-C", "link-arg=-Ttext=0xffffffff80000000", "-C", "link-arg=--no-pie"])
        .args(["-C", "link-arg=--section-start=.known=0xffffffff90000000", "-o"])
        .args([&kernel, &source])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut command = with_tools(env!("CARGO_BIN_EXE_samara"), &directory);
    let (code, out, err) = told(command.args(["boot", "--kernel", "kernel"]).output().unwrap());
    assert_eq!(code, Some(101), "{err}");
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 8, "{out}");
    assert!(lines[1].starts_with("  #0 lost::") && lines[1].contains("lost.rs:"), "{out}");
    assert_eq!(lines[2], "  #1 first");
    assert!(lines[3].starts_with("  #2 0xffffffffffffff00, "), "{out}");
    assert_eq!(lines[6..], ["  #0 second", "  #1 first"]);

    // Without a file with names, only the addresses are printed.
    let (code, out, err) = run("nameless", "echo backtrace: 0xffffffff80000001; exit 39", &[]);
    assert_eq!((code, out.lines().count()), (Some(101), 1), "{out}{err}");
    assert!(err.contains("no names for addresses"), "{err}");
}
