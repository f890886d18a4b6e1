//! `samara trace`, on real programs.

#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;

#[allow(dead_code, reason = "other tests use the rest")]
mod traced;

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use traced::{
    compile, needs, object, on_terminal,
    ran::{self, Ran},
    samara, temporary,
};

#[test]
fn the_programs_output_and_exit_code_stay_its_own() {
    let out = samara(&["--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    let err = out.err;
    assert_eq!((out.code, out.out.as_str()), (Some(7), "out\n"), "{err}");
    for expected in ["err\n", "mmap", "0 mismatches", "predicted", "address space", " free\n"] {
        assert!(err.contains(expected), "{expected} in\n{err}");
    }
}

#[test]
fn a_signal_is_told_like_a_shell_does() {
    let killed = samara(&["--", "sh", "-c", "kill -TERM $$"]).with_code(143);
    let told = "samara: the program was ended by a signal: 15 (SIGTERM); exit code 143\n";
    assert!(killed.err.ends_with(told), "{}", killed.err);
    let quiet = samara(&["-q", "--", "sh", "-c", "kill -TERM $$"]).with_code(143);
    assert_eq!(quiet.err, "");
}

#[test]
fn json_and_recording_tell_the_same() {
    let (json, recording) = (temporary("run.json"), temporary("run.vmtrace"));
    let script = "seq 1 1000 | sort -r | tail -n 1; (exec ls /); true";
    let err = samara(&[
        "--json",
        json.to_str().unwrap(),
        "--record",
        recording.to_str().unwrap(),
        "--",
        "bash",
        "-c",
        script,
    ])
    .with_code(0)
    .err;
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

    let replay = ran::samara(&["replay", "--json", "-", recording.to_str().unwrap()]);
    let again = replay.with_code(0).json();
    for key in ["calls", "mismatches", "predicted", "predictable", "address_spaces", "vmas_peak"] {
        assert_eq!(again[key], live[key], "{key}");
    }
}

#[test]
fn comparing_less_often_still_compares_the_end() {
    let json = temporary("seldom.json");
    samara(&["--every", "1000000", "--json", json.to_str().unwrap(), "--", "true"]).with_code(0);
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
        let err = samara(&[more, &script].concat()).with_code(0).err;
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
    samara(&["--verify", "--every", "3", "--", "true"]).with_code(2);
}

#[test]
fn the_report_goes_where_it_is_asked_to() {
    let file = temporary("report.txt");
    let out = samara(&["-o", file.to_str().unwrap(), "--", "sh", "-c", "echo own"]);
    assert_eq!((out.code, out.out.as_str()), (Some(0), "own\n"));
    assert_eq!(out.err, "");
    assert!(std::fs::read_to_string(&file).unwrap().contains("0 mismatches"));
    let quiet = samara(&["-q", "--json", "-", "--", "sh", "-c", "echo own"]);
    assert_eq!(quiet.err, "");
    let (own, counts) = quiet.out.split_at(4);
    let counts: Value = serde_json::from_str(counts).unwrap();
    assert_eq!((own, counts["mismatches"].as_u64()), ("own\n", Some(0)));
    samara(&["-o", "/nowhere/a", "--", "true"]).with_code(125);
    let unknown = samara(&["--jsno", "a", "--", "true"]).with_code(2);
    assert!(unknown.err.contains("--jsno"));
}

#[test]
fn a_program_that_cannot_be_run_is_named() {
    let out = samara(&["--", "/nowhere/at/all"]).with_code(127);
    assert!(out.err.contains("/nowhere/at/all"));
    let told = |program: &str, code, cause| {
        let err = samara(&["--", program]).with_code(code).err;
        assert!(err.contains(cause), "{cause} in {err}");
    };
    told("/", 126, "cannot run /: Permission denied (os error 13); it is a folder");
    told("", 127, "cannot run '': No such file");
    told("no-such-program", 127, "no folder of PATH has it");
    let script = temporary("script-of-no-interpreter");
    fs::write(&script, "#!/nowhere/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let cause = "it needs an interpreter that is not there";
    told(script.to_str().unwrap(), 127, cause);
    let mut found = Command::new(env!("CARGO_BIN_EXE_samara"));
    found.args(["trace", "script-of-no-interpreter"]).env("PATH", script.parent().unwrap());
    let err = String::from_utf8(found.output().unwrap().stderr).unwrap();
    assert!(err.contains(cause), "{err}");
    let out = samara(&["--json", "/nowhere/x.json", "--", "sh", "-c", "echo ran"]);
    assert_eq!((out.code, out.out.as_str()), (Some(125), ""), "the program must not run");
    assert!(out.err.contains("/nowhere/x.json"));
}

/// The program does not run, and each file is as it was.
#[test]
fn two_results_in_one_file_are_refused() {
    let (file, recording) = (temporary("twice.json"), temporary("kept.vmtrace"));
    let (file, recording) = (file.to_str().unwrap(), recording.to_str().unwrap());
    fs::write(file, "kept").unwrap();
    fs::write(recording, "# vmtrace 1 kernel=6.18\nQ 1\n").unwrap();
    let run = ["--", "sh", "-c", "echo ran"];
    for (first, second) in
        [("--json", "--json-lines"), ("--json", "--output"), ("--record", "--json")]
    {
        let out = samara(&[&[first, file, second, file], &run[..]].concat());
        assert_eq!((out.code, out.out.as_str()), (Some(125), ""), "the program must not run");
        assert!(out.err.contains(&format!("{first} and {second} name one file")), "{}", out.err);
    }
    let out = samara(&[&["-o", recording], &run[..]].concat()).with_code(125);
    assert!(out.err.contains("would overwrite the recording"), "{}", out.err);
    assert_eq!(fs::read_to_string(file).unwrap(), "kept");
    assert!(fs::read_to_string(recording).unwrap().starts_with("# vmtrace"));
    // Nothing is overwritten in a device, or in a pipe.
    for file in ["/dev/null", "/dev/stdout"] {
        samara(&["-q", "--json", file, "--json-lines", file, "--", "true"]).with_code(0);
    }
}

#[test]
fn a_command_without_a_program_is_told_both_ways() {
    let err = samara(&[]).with_code(2).err;
    assert!(err.contains("COMMAND [ARGUMENT]...") && err.contains("-p PID"), "{err}");
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
fn shell(script: &str, file: &Path) -> Ran {
    let built = Path::new(env!("CARGO_BIN_EXE_samara")).parent().unwrap();
    let path = env::join_paths(
        [built.to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())),
    );
    let mut bash = Command::new("bash");
    // A shell warns of a locale that is not installed.
    bash.env("PATH", path.unwrap()).env("FILE", file).env("LC_ALL", "C");
    Ran::of(bash.args(["-c", script]))
}

#[test]
fn a_report_that_cannot_be_written_ends_no_program() {
    let done = temporary("done");
    let program = "bash -c 'sleep 0.1; ls / > /dev/null; echo $$ > \"$FILE\"; exit 4'";
    for stderr in ["2>/dev/full", "2> >(exec 0<&-)"] {
        shell(&format!("samara trace -- {program} {stderr}"), &done).with_code(125);
        assert!(done.exists(), "{stderr}: the program did not come to its end");
        fs::remove_file(&done).unwrap();
    }
    // `samara trace` does not wait for a child that it inherited: that child waits for samara.
    shell(&format!("samara trace -- {program} 2> >(head -c 1 > /dev/null)"), &done).with_code(4);
    // A closed stream is closed for the program, too, and the exit code is the program's.
    shell("samara trace -- sh -c 'echo x >&2 || exit 9' 2>&-", Path::new("")).with_code(9);
}

#[test]
fn notices_into_a_full_device_end_no_program() {
    // A program that itself uses ptrace causes a notice in the middle of the run.
    let source = "#include <sys/ptrace.h>\n#include <unistd.h>\n\
        int main(void) { return ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 && fork() >= 0 ? 6 : 7; }";
    let program = compile("traceme", source, &[]);
    shell("samara trace -- \"$FILE\" 2>/dev/full", &program).with_code(125);
    let out = shell("samara trace -- \"$FILE\" 2>&1 | grep -c 'uses ptrace'", &program);
    assert_eq!(out.out, "1\n");
}

#[test]
fn a_recording_that_grows_too_large_ends_no_program() {
    let recording = temporary("large.vmtrace");
    let script = "ulimit -f 8; samara trace --record \"$FILE\" -- sh -c 'ls /; echo end'";
    let out = shell(script, &recording).with_code(125);
    assert!(out.out.ends_with("end\n"));
    let err = out.err;
    assert!(err.contains("large.vmtrace is incomplete: File too large"), "{err}");
}

#[test]
fn the_program_finds_signals_as_samara_was_given_them() {
    let (shown, none) = ("grep SigIgn /proc/self/status", Path::new(""));
    for before in [":", "trap '' PIPE", "trap '' PIPE XFSZ USR2"] {
        let native = shell(&format!("{before}; {shown}"), none).out;
        let traced = shell(&format!("{before}; samara trace -- {shown}"), none);
        assert_eq!(traced.out, native, "{before}");
    }
}

#[test]
fn an_exit_code_of_three_is_the_programs() {
    samara(&["--strict", "--", "sh", "-c", "exit 3"]).with_code(3);
    let help = ran::samara(&["help", "trace"]).out;
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
    // Executed at once, and later.
    for command in [&["--", path][..], &["--", "sh", "-c", "exec \"$0\"", path]] {
        let err = samara(command).with_code(125).err;
        assert!(err.contains("samara: the program was not followed to its end: a program is"));
    }
    // The child that is not followed is counted. The exit code stays the program's, unless all must
    // be followed.
    let script = "\"$0\"; exit 7";
    let json = temporary("child.json");
    let out = samara(&["--json", json.to_str().unwrap(), "--", "sh", "-c", script, path]);
    assert_eq!((out.code, object(&json)["unfollowed"].as_u64()), (Some(7), Some(1)));
    samara(&["--strict", "--", "sh", "-c", script, path]).with_code(125);
}

#[test]
fn a_proc_of_other_processes_is_refused() {
    let none = Path::new("");
    let out = shell("unshare --pid --fork samara trace -- sh -c 'echo ran'", none);
    let err = out.err;
    let permitted = !err.contains("Operation not permitted");
    if !needs::permits("namespaces", permitted, "run the tests with all capabilities") {
        return;
    }
    assert_eq!((out.code, out.out.as_str()), (Some(125), ""), "{err}");
    assert!(err.contains("--mount-proc"), "{err}");
    // A program that makes its own namespaces is followed.
    samara(&["--strict", "--", "unshare", "--pid", "--fork", "sh", "-c", "ls /; exit 5"])
        .with_code(5);
    let script = "unshare --pid --fork --mount-proc samara trace --strict -- sh -c 'ls /; exit 5'";
    shell(script, none).with_code(5);
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
    let err = out.err;
    if !err.contains("ran out of file descriptors") {
        assert_eq!(out.code, Some(5), "{err}");
    }
    let json = program.with_extension("json");
    let bare = "setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource";
    let traced = "samara trace --json \"$FILE.json\" -- \"$FILE\" \"$FILE\"";
    let out = shell(&format!("ulimit -n 64; {bare} {traced}"), &program);
    let err = out.err;
    let cure = "install util-linux, and run the tests with all capabilities";
    if !needs::permits("setpriv", !err.contains("setpriv:"), cure) {
        return;
    }
    assert_eq!(out.code, Some(5), "{err}");
    assert!(err.contains("ran out of file descriptors: its limit is 64"), "{err}");
    assert_eq!(err.matches("ran out of file descriptors: its").count(), 2, "once, then how often");
    let object = object(&json);
    assert_eq!((&object["mismatches"], &object["cannot_tell"]), (&0.into(), &1.into()), "{err}");
    let strict = "samara trace --strict -- \"$FILE\" \"$FILE\"";
    shell(&format!("ulimit -n 64; {bare} {strict}"), &program).with_code(122);
}

/// On a terminal that the program writes to, too, there is a line of progress only on request.
#[test]
fn a_line_of_progress_disturbs_no_program() {
    let shown = |options: &str| {
        let samara = env!("CARGO_BIN_EXE_samara");
        let program = "for i in 1 2 3 4 5 6; do sleep 0.1; done; echo done";
        let line = format!("'{samara}' trace {options} -- sh -c '{program}'");
        let text = on_terminal(&line)?;
        assert!(text.contains("done"), "{text}");
        Some(text)
    };
    let Some(progress) = shown("--progress") else { return };
    assert!(progress.contains(" calls, 0 mismatches"), "{progress}");
    let plain = shown("").unwrap();
    assert!(!plain.contains(" calls, 0 mismatches") && plain.contains("memory calls"), "{plain}");
    let quiet = shown("-q").unwrap();
    assert!(!quiet.contains("mismatches"), "{quiet}");
}

#[test]
fn quiet_still_writes_the_report_to_its_file() {
    let report = temporary("quiet.txt");
    let out = samara(&["-q", "-o", report.to_str().unwrap(), "--", "true"]);
    assert_eq!(out.with_code(0).err, "");
    assert!(fs::read_to_string(report).unwrap().contains("memory calls"));
}
