//! `samara boot run`: the input and output of QEMU, with a shell script as QEMU. The archive is
//! read by the kernel's own reader. `./check machines` runs it in the real QEMU.

#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;

#[path = "../../../kernel/src/cpio.rs"]
#[allow(dead_code, reason = "the kernel uses the rest")]
mod newc;

#[path = "common/fake_qemu.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fake_qemu;

use fake_qemu::{
    FIND, boot, directory, dynamic, elf, executable, has_ended, samara, set_qemu, told,
};
use newc::{ArchiveEntry, Entries, Malformed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::Seek;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

#[test]
fn the_kernel_gets_the_program_and_its_files() {
    let directory = directory("files", &format!("{FIND} cat $archive > archive; exit 37"));
    let root = directory.join("root");
    fs::create_dir_all(root.join("etc/empty")).unwrap();
    fs::write(root.join("etc/odd"), [0, 255, 10]).unwrap();
    fs::set_permissions(root.join("etc/odd"), fs::Permissions::from_mode(0o640)).unwrap();
    executable(&root.join("box"), &elf(3, 62));
    symlink("/box", root.join("sh")).unwrap();
    let get = |arguments: &[&str]| {
        let (code, out, err) =
            samara(&directory, &[&["run", "--files", "root"], arguments].concat());
        assert_eq!((code, out.as_str()), (Some(125), ""), "{err}");
        fs::read(directory.join("archive")).unwrap()
    };
    let archive = get(&["--env", "A=1", "--env", "B=", "--", "./hello", "--json", "", "a b"]);
    let entries: Vec<_> = Entries::new(&archive).map(Result::unwrap).collect();
    let told: Vec<_> = entries[..2].iter().map(|entry| (entry.path, entry.data)).collect();
    let argv: &[u8] = b"/hello\0--json\0\0a b\0";
    let env: &[u8] = b"A=1\0B=\0";
    assert_eq!(told, [(b".samara/argv".as_slice(), argv), (b".samara/env", env)]);
    let paths: Vec<_> = entries[2..].iter().map(|entry| entry.path).collect();
    let expected: [&[u8]; 6] = [b"box", b"etc", b"etc/empty", b"etc/odd", b"hello", b"sh"];
    assert_eq!(paths, expected);
    let find = |path: &[u8]| *entries.iter().find(|entry| entry.path == path).unwrap();
    let (odd, link) = (find(b"etc/odd"), find(b"sh"));
    assert_eq!((odd.mode, odd.data), (0o100_640, [0, 255, 10].as_slice()));
    assert_eq!((link.mode & 0o170_000, link.data), (0o120_000, b"/box".as_slice()));
    assert_eq!((find(b"hello").mode, find(b"hello").data), (0o100_755, &*elf(2, 62)));
    assert_eq!(find(b"etc/empty").mode & 0o170_000, 0o040_000);

    // A program of the folder keeps its path, also if it is a link there.
    let archive = get(&["--", "sh", "-c"]);
    let first = Entries::new(&archive).next().unwrap().unwrap();
    assert_eq!(first.data, b"/sh\0-c\0");

    // The reader refuses every archive that is cut short, and survives one that is damaged.
    for end in 0..archive.len() - 124 {
        let last = Entries::new(&archive[..end]).last();
        assert_eq!(last, Some(Err(Malformed::Short)), "{end}");
    }
    for at in 0..archive.len() {
        for value in [0, b'0', b'7', b'f', b'g', 255] {
            let mut damaged = archive.clone();
            damaged[at] = value;
            let length =
                |entry: Result<ArchiveEntry<'_>, _>| entry.map_or(0, |entry| entry.data.len());
            assert!(Entries::new(&damaged).map(length).sum::<usize>() <= archive.len());
        }
    }
    let damaged = |at: usize, value| {
        let mut damaged = archive.clone();
        damaged[at] = value;
        Entries::new(&damaged).next().unwrap().unwrap_err()
    };
    assert_eq!(damaged(5, b'2'), Malformed::Header);
    assert_eq!(damaged(14, b'g'), Malformed::Header);
    // The zero byte that ends the first path, and one within it.
    assert_eq!(damaged(110 + 12, b'x'), Malformed::Path);
    assert_eq!(damaged(110 + 3, 0), Malformed::Path);
}

#[test]
fn output_comes_back_unchanged_and_the_record_is_the_exit_code() {
    let serial = r#"printf 'booted\n\036%s\n' "$record"; exit 33"#;
    let write = r#"printf '\1\5\0\0a\0\377\r\n\2\6\0\0to err' >&$channel;"#;
    let record = r#"record='{"exit":7,"calls":{"mmap":12}}'"#;
    let directory = directory("output", &format!("{FIND} {write} {record}; {serial}"));
    let (code, out, err) = samara(&directory, &["run", "--json", "a.json", "./hello"]);
    assert_eq!((code, out.as_str()), (Some(7), "a\0\u{fffd}\r\n"), "{err}");
    assert!(err.contains("to err") && err.contains("booted\n"), "{err}");
    assert!(err.ends_with("exit code 7\n  calls\n    mmap  12\n"), "{err}");
    let json = fs::read_to_string(directory.join("a.json")).unwrap();
    assert_eq!(json, "{\"calls\":{\"mmap\":12},\"exit\":7}\n");

    let endings = [
        (r#"record='{"signal":11}'; "#, 33, 139, "killed by SIGSEGV"),
        ("record=no; ", 33, 125, "without a record"),
        ("", 35, 126, "could not run the program"),
        ("", 39, 101, "panicked"),
        ("", 1, 125, "QEMU ended with code 1"),
    ];
    for (record, ended, code, why) in endings {
        set_qemu(&directory, &format!("{record}{}", serial.replace("33", &ended.to_string())));
        let (found, _, err) = samara(&directory, &["run", "hello"]);
        assert_eq!(found, Some(code), "{err}");
        assert!(err.contains(why), "{why} in {err}");
    }

    set_qemu(&directory, "exec sleep 1000");
    let (code, _, err) = samara(&directory, &["--timeout", "1", "run", "hello"]);
    assert_eq!(code, Some(124), "{err}");
}

#[test]
fn what_the_kernel_says_stays_between_what_the_program_writes() {
    // Lines in pieces, between pieces of standard error; a panic comes by the serial port, and
    // then the machine ends within a frame of 16 MiB.
    let frames = r"\0\3\0\0one\2\2\0\0A\n\0\5\0\0\ntwo\n\2\4\0\0B\nC\n\2\377\377\377rest\n";
    let qemu = format!("{FIND} printf '{frames}' >&$channel; echo PANIC; exit 39");
    let directory = directory("order", &qemu);
    let (code, _, err) = samara(&directory, &["run", "hello"]);
    assert_eq!(code, Some(101), "{err}");
    assert!(err.contains("A\none\ntwo\nB\nC\nrest\nPANIC\n"), "{err}");
}

#[test]
fn files_beyond_the_limit_end_the_run_and_nothing_is_written() {
    let frame = "printf '\\3\\0\\0\\40'; head -c 2M /dev/zero";
    let qemu = format!("{FIND} {{ {frame}; }} >&$channel; exec sleep 1000");
    let directory = directory("limit", &qemu);
    let run = |limit| samara(&directory, &["run", "--out", "new", "--out-limit", limit, "hello"]);
    let (code, _, err) = run("1M");
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("more than --out-limit 1M") && err.contains("nothing was"), "{err}");
    assert_eq!(fs::read_dir(directory.join("new")).unwrap().count(), 0);
    set_qemu(&directory, &format!("{FIND} {{ {frame}; }} >&$channel; exit 33"));
    // It takes them, and the archive is none.
    let (code, _, err) = run("2M");
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("without a record") && !err.contains("limit 2M"), "{err}");
    for wrong in ["0M", "1", "G", "4K"] {
        assert!(run(wrong).2.contains("megabytes or gigabytes"), "{wrong}");
    }
}

#[test]
fn a_line_without_an_end_is_told_in_pieces() {
    let many = |letter| format!("head -c 200000 /dev/zero | tr '\\0' {letter}");
    let frame = r"printf '\0\100\15\3'";
    let qemu = format!("{FIND} {{ {frame}; {}; }} >&$channel; {}", many('x'), many('y'));
    let directory = directory("long", &format!("{qemu}; printf '\\nend\\n'; exit 33"));
    let (code, _, err) = samara(&directory, &["run", "hello"]);
    assert_eq!(code, Some(125), "{err}");
    for letter in ['x', 'y'] {
        let lines = err.lines().filter(|line| line.starts_with(letter));
        let lens: Vec<_> = lines.map(str::len).collect();
        assert_eq!(lens, [65536, 65536, 65536, 3392], "{letter}");
    }
    assert!(err.contains("y\nend\n"), "an end of line is one");
}

#[test]
fn a_kernel_that_sends_nonsense_ends_the_run() {
    let qemu = format!("{FIND} printf '\\11\\1\\0\\0x' >&$channel; exec sleep 1000");
    let directory = directory("nonsense", &qemu);
    let (code, _, err) = samara(&directory, &["run", "hello"]);
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("unknown kind 9"), "{err}");
}

#[test]
fn the_input_is_sent_when_a_program_asks_and_not_before() {
    let get = "head -c 18 <&$channel > input; exit 33";
    let directory = directory("input", &format!("{FIND} printf '\\4\\0\\0\\0' >&$channel; {get}"));
    fs::write(directory.join("text"), "ten bytes\n").unwrap();
    let run = || {
        let mut text = File::open(directory.join("text")).unwrap();
        let mut command = boot(&directory, &["run", "hello"]);
        let (_, _, err) = told(command.stdin(text.try_clone().unwrap()).output().unwrap());
        assert!(err.contains("without a record"), "{err}");
        text.stream_position().unwrap()
    };
    assert_eq!(run(), 10);
    let sent = fs::read(directory.join("input")).unwrap();
    assert_eq!(sent, b"\x0a\0\0\0ten bytes\n\0\0\0\0");
    set_qemu(&directory, "exit 33");
    assert_eq!(run(), 0);
}

#[test]
fn output_that_cannot_be_written_ends_the_run() {
    let qemu = format!("{FIND} printf '\\1\\1\\0\\0x' >&$channel; exec sleep 1000");
    let directory = directory("full", &qemu);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = boot(&directory, &["run", "hello"]);
    let (code, _, err) = told(command.stdout(full).output().unwrap());
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("cannot write to standard output"), "{err}");
}

#[test]
fn a_program_that_the_kernel_cannot_run_is_refused_with_the_cure() {
    let directory = directory("refused", "touch started; exit 33");
    fs::create_dir_all(directory.join("root/.samara")).unwrap();
    fs::create_dir_all(directory.join("other")).unwrap();
    fs::write(directory.join("other/hello"), "not the same").unwrap();
    fs::write(directory.join("plain"), elf(2, 62)).unwrap();
    executable(&directory.join("dynamic"), &dynamic(Some("/lib/ld.so"), &[]));
    executable(&directory.join("arm"), &elf(2, 183));
    executable(&directory.join("object"), &elf(1, 62));
    executable(&directory.join("script"), b"#! /bin/other -e\n");
    executable(&directory.join("blank"), b"#! \n/bin/sh");
    executable(&directory.join("text"), b"text");
    executable(&directory.join("large"), &elf(2, 62));
    File::options().write(true).open(directory.join("large")).unwrap().set_len(20 << 20).unwrap();
    executable(&directory.join("cut"), &dynamic(Some("/lib/ld.so"), &[])[..70]);
    let refused: [(&[&str], i32, &str); 16] = [
        (
            &["nowhere"],
            127,
            "cannot read nowhere: No such file or directory (os error 2); give its path",
        ),
        (&["root"], 126, "not a file"),
        (&["plain"], 126, "chmod +x"),
        (&["dynamic"], 126, "interpreter /lib/ld.so is not in the files: --with-libraries"),
        (&["--with-libraries", "dynamic"], 126, "names the interpreter /lib/ld.so"),
        (&["arm"], 126, "another processor"),
        (&["object"], 126, "object file"),
        (&["cut"], 126, "truncated"),
        (&["script"], 126, "interpreter /bin/other is not in the files: --with-libraries"),
        (&["blank"], 126, "first line names no program"),
        (&["text"], 126, "no ELF file"),
        (&["--files", "root", "hello"], 125, "root/.samara is reserved"),
        (&["--files", "nowhere", "hello"], 125, "cannot read nowhere"),
        (&["--files", "other", "./../refused/hello"], 126, "has another hello"),
        (&["--json", "-", "hello"], 125, "--json needs a file"),
        (&["--memory", "40M", "large"], 125, "--memory 53M at least"),
    ];
    for (arguments, code, why) in refused {
        let (found, out, err) = samara(&directory, &[&["run"], arguments].concat());
        assert_eq!((found, out.as_str()), (Some(code), ""), "{arguments:?}: {err}");
        assert!(err.contains(why), "{why} in {err}");
        assert!(!directory.join("started").exists(), "{arguments:?}");
    }
    let (_, _, err) = samara(&directory, &["--memory", "53M", "run", "large"]);
    assert!(directory.join("started").exists(), "{err}");
}

#[test]
fn an_interrupt_ends_the_run_and_qemu() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let directory = directory("interrupt", "echo $$ > part; mv part pid; exec sleep 1000");
        let mut command = boot(&directory, &["run", "hello"]);
        let mut samara = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        patience::until("QEMU starts", || directory.join("pid").exists());
        let qemu = fs::read_to_string(directory.join("pid")).unwrap();
        kill(Pid::from_raw(samara.id() as i32), signal).unwrap();
        assert_eq!(samara.wait().unwrap().signal(), Some(signal as i32));
        patience::until(&format!("{signal} ends QEMU"), || has_ended(&qemu));
    }
}
