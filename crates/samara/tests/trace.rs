//! `samara trace`, on real programs.

#[path = "../../trace/tests/common/needs.rs"]
mod needs;
#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;

mod traced;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use traced::{compile, object, samara, temporary};

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
    // The kernel's time is a difference of two times, which says nothing on a busy machine.
    let mmap = &live["kinds"]["mmap"];
    let kernel = &mmap["kernel_median_ns"];
    assert!(mmap["calls"].as_u64() > Some(10), "{live}");
    assert!(kernel.is_null() || kernel.as_u64() > Some(0), "{live}");

    let replay = Command::new(env!("CARGO_BIN_EXE_samara"))
        .args(["replay", "--json", "-"])
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
fn changes_are_compared_where_they_are_and_all_of_it_on_request() {
    let json = temporary("around.json");
    let run = |more: &[&str]| {
        let script = ["--json", json.to_str().unwrap(), "--", "bash", "-c", "ls / | sort"];
        let out = samara(&[more, &script].concat());
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(0), "{err}");
        let live = object(&json);
        assert_eq!(live["mismatches"], 0, "{err}");
        ["calls", "listings", "neighbourhoods"].map(|key| live[key].as_u64().unwrap())
    };
    let [calls, listings, around] = run(&[]);
    // Each call is compared in one of both ways, and each end and fork with a whole listing.
    assert!(listings < calls / 2, "{calls} calls, {listings} listings");
    assert!(around > calls / 2, "{calls} calls, {around} neighbourhoods");
    let [calls, listings, around] = run(&["--verify"]);
    assert!(listings >= calls && around == 0, "{calls} calls, {listings} listings");
    let refused = samara(&["--verify", "--every", "3", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn the_report_goes_where_it_is_asked_to() {
    let file = temporary("report.txt");
    let out = samara(&["-o", file.to_str().unwrap(), "--", "sh", "-c", "echo own"]);
    assert_eq!((out.status.code(), &out.stdout[..]), (Some(0), &b"own\n"[..]));
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    assert!(std::fs::read_to_string(&file).unwrap().contains("0 mismatches"));
    let quiet = samara(&["-q", "--json", "-", "--", "sh", "-c", "echo own"]);
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
    let (own, counts) = quiet.stdout.split_at(4);
    let counts: Value = serde_json::from_slice(counts).unwrap();
    assert_eq!((own, counts["mismatches"].as_u64()), (&b"own\n"[..], Some(0)));
    assert_eq!(samara(&["-o", "/nowhere/a", "--", "true"]).status.code(), Some(125));
    let unknown = samara(&["--jsno", "a", "--", "true"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("--jsno"));
}

#[test]
fn a_program_that_cannot_be_run_is_named() {
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
fn an_interrupt_leaves_no_process_behind() {
    // The caller of the tests may ignore SIGINT, as shells do in the background, and a program
    // inherits that.
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
    let sent = Command::new("kill").args(["-INT", &samara.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ended = patience::comes(|| samara.try_wait().unwrap().is_some());
    if !ended {
        samara.kill().unwrap();
    }
    let status = samara.wait().unwrap();
    assert!(ended, "samara ends after an interrupt: {}", patience::late());
    assert_eq!(status.code(), Some(130), "128 + SIGINT, which killed the program");
    assert!(!process.exists(), "the program is still there");
}

/// Runs a shell script that calls `samara` by this name. `$FILE` is `file`: paths in a script would
/// need quotes.
fn shell(script: &str, file: &Path) -> Output {
    let built = Path::new(env!("CARGO_BIN_EXE_samara")).parent().unwrap();
    let path = env::join_paths(
        [built.to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())),
    );
    Command::new("bash")
        .args(["-c", script])
        .env("PATH", path.unwrap())
        .env("FILE", file)
        // A shell warns of a locale that is not installed.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_report_that_cannot_be_written_ends_no_program() {
    let done = temporary("done");
    let program = "bash -c 'sleep 0.1; ls / > /dev/null; echo $$ > \"$FILE\"; exit 4'";
    for stderr in ["2>/dev/full", "2> >(exec 0<&-)"] {
        let out = shell(&format!("samara trace -- {program} {stderr}"), &done);
        assert_eq!(out.status.code(), Some(125), "{stderr}");
        assert!(done.exists(), "{stderr}: the program did not come to its end");
        fs::remove_file(&done).unwrap();
    }
    // `samara trace` does not wait for a child that it inherited: that child waits for samara.
    let out = shell(&format!("samara trace -- {program} 2> >(head -c 1 > /dev/null)"), &done);
    assert_eq!(out.status.code(), Some(4));
    // A closed stream is closed for the program, too, and the exit code is the program's.
    let out = shell("samara trace -- sh -c 'echo x >&2 || exit 9' 2>&-", Path::new(""));
    assert_eq!(out.status.code(), Some(9));
}

#[test]
fn notices_into_a_full_device_end_no_program() {
    // A program that itself uses ptrace causes a notice in the middle of the run.
    let source = "#include <sys/ptrace.h>\n#include <unistd.h>\n\
        int main(void) { return ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 && fork() >= 0 ? 6 : 7; }";
    let program = compile("traceme", source, &[]);
    let out = shell("samara trace -- \"$FILE\" 2>/dev/full", &program);
    assert_eq!(out.status.code(), Some(125));
    let out = shell("samara trace -- \"$FILE\" 2>&1 | grep -c 'uses ptrace'", &program);
    assert_eq!(out.stdout, b"1\n");
}

#[test]
fn a_recording_that_grows_too_large_ends_no_program() {
    let recording = temporary("large.vmtrace");
    let script = "ulimit -f 8; samara trace --record \"$FILE\" -- sh -c 'ls /; echo end'";
    let out = shell(script, &recording);
    assert_eq!(out.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&out.stdout).ends_with("end\n"));
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(err.contains("large.vmtrace is incomplete: File too large"), "{err}");
}

#[test]
fn the_program_finds_signals_as_samara_was_given_them() {
    let (shown, none) = ("grep SigIgn /proc/self/status", Path::new(""));
    for before in [":", "trap '' PIPE", "trap '' PIPE XFSZ USR2"] {
        let native = shell(&format!("{before}; {shown}"), none).stdout;
        let traced = shell(&format!("{before}; samara trace -- {shown}"), none);
        assert_eq!(traced.stdout, native, "{before}");
    }
}

#[test]
fn an_exit_code_of_three_is_the_programs() {
    let out = samara(&["--strict", "--", "sh", "-c", "exit 3"]);
    assert_eq!(out.status.code(), Some(3));
    let help = Command::new(env!("CARGO_BIN_EXE_samara")).args(["help", "trace"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for code in ["122", "125", "126", "127", "--strict"] {
        assert!(help.contains(code), "{code}");
    }
}

#[test]
fn a_program_that_cannot_be_followed_is_told_by_the_exit_code() {
    let flags = ["-m32", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-fno-stack-protector"];
    let source = "void _start(void){__asm__ volatile(\"int $0x80\"::\"a\"(1),\"b\"(5));}";
    let program = temporary("i386");
    let file = program.with_extension("c");
    fs::write(&file, source).unwrap();
    let built = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&file).status().unwrap();
    let runs = || Command::new(&program).status().is_ok_and(|status| status.code() == Some(5));
    let cure = Some("install gcc-multilib, on a kernel with CONFIG_IA32_EMULATION");
    if !needs::has("i386", built.success() && runs(), cure) {
        return;
    }
    let path = program.to_str().unwrap();
    let says = |out: &Output| {
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            err.contains("samara: the program was not followed to its end: a program is"),
            "{err}"
        );
    };
    // Executed at once, and later.
    for command in [&["--", path][..], &["--", "sh", "-c", "exec \"$0\"", path]] {
        let out = samara(command);
        assert_eq!(out.status.code(), Some(125), "{command:?}");
        says(&out);
    }
    // The child that is not followed is counted. The exit code stays the program's, unless all must
    // be followed.
    let script = "\"$0\"; exit 7";
    let json = temporary("child.json");
    let out = samara(&["--json", json.to_str().unwrap(), "--", "sh", "-c", script, path]);
    assert_eq!((out.status.code(), object(&json)["unfollowed"].as_u64()), (Some(7), Some(1)));
    assert_eq!(samara(&["--strict", "--", "sh", "-c", script, path]).status.code(), Some(125));
}

#[test]
fn a_proc_of_other_processes_is_refused() {
    let none = Path::new("");
    let out = shell("unshare --pid --fork samara trace -- sh -c 'echo ran'", none);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    let permitted = !err.contains("Operation not permitted");
    if !needs::permits("namespaces", permitted, "run the tests with all capabilities") {
        return;
    }
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(125), &b""[..]), "{err}");
    assert!(err.contains("--mount-proc"), "{err}");
    // A program that makes its own namespaces is followed.
    let out = samara(&["--strict", "--", "unshare", "--pid", "--fork", "sh", "-c", "ls /; exit 5"]);
    assert_eq!(out.status.code(), Some(5));
    let script = "unshare --pid --fork --mount-proc samara trace --strict -- sh -c 'ls /; exit 5'";
    let out = shell(script, none);
    assert_eq!(out.status.code(), Some(5), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_tracer_without_descriptors_says_so_and_finds_no_mismatch() {
    let source = r#"
        #include <fcntl.h>
        #include <sys/mman.h>
        #include <sys/resource.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            struct rlimit limit;
            getrlimit(RLIMIT_NOFILE, &limit);
            for (int i = 120; i-- > 0;) {
                int fd = open(argv[1], O_RDONLY);
                if (fd < 0) return 9;
                if (mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, i * 4096) == MAP_FAILED) return 9;
                close(fd);
            }
            return limit.rlim_cur == 64 ? 5 : 6;
        }"#;
    let program = compile("descriptors", source, &["-w"]);
    // The tracer raises its own descriptor limit if it may, and the program keeps its limit.
    let out = shell("ulimit -n 64; samara trace --strict -- \"$FILE\" \"$FILE\"", &program);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    if !err.contains("ran out of file descriptors") {
        assert_eq!(out.status.code(), Some(5), "{err}");
    }
    let mut json = program.clone().into_os_string();
    json.push(".json");
    let json = PathBuf::from(json);
    let bare = "setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource";
    let traced = "samara trace --json \"$FILE.json\" -- \"$FILE\" \"$FILE\"";
    let out = shell(&format!("ulimit -n 64; {bare} {traced}"), &program);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    let cure = "install util-linux, and run the tests with all capabilities";
    if !needs::permits("setpriv", !err.contains("setpriv:"), cure) {
        return;
    }
    assert_eq!(out.status.code(), Some(5), "{err}");
    assert!(err.contains("ran out of file descriptors: its limit is 64"), "{err}");
    assert_eq!(err.matches("ran out of file descriptors: its").count(), 2, "once, then how often");
    let object = object(&json);
    assert_eq!((&object["mismatches"], &object["cannot_tell"]), (&0.into(), &1.into()), "{err}");
    let strict = "samara trace --strict -- \"$FILE\" \"$FILE\"";
    let out = shell(&format!("ulimit -n 64; {bare} {strict}"), &program);
    assert_eq!(out.status.code(), Some(122));
}

/// On a terminal that the program writes to, too, there is a line of progress only on request.
#[test]
fn a_line_of_progress_disturbs_no_program() {
    let found = Command::new("script").arg("--version").output().is_ok();
    if !needs::has("script", found, Some("install bsdutils")) {
        return;
    }
    let on_a_terminal = |options: &str| {
        let samara = env!("CARGO_BIN_EXE_samara");
        let program = "for i in 1 2 3 4 5 6; do sleep 0.1; done; echo done";
        let line = format!("'{samara}' trace {options} -- sh -c '{program}'");
        let out = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && text.contains("done"), "{text}");
        text
    };
    assert!(on_a_terminal("--progress").contains(" calls, 0 mismatches"));
    let plain = on_a_terminal("");
    assert!(!plain.contains(" calls, 0 mismatches") && plain.contains("memory calls"), "{plain}");
    let quiet = on_a_terminal("-q");
    assert!(!quiet.contains("mismatches"), "{quiet}");
}

#[test]
fn quiet_still_writes_the_report_to_its_file() {
    let report = temporary("quiet.txt");
    let out = samara(&["-q", "-o", report.to_str().unwrap(), "--", "true"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    assert!(fs::read_to_string(report).unwrap().contains("memory calls"));
}
