//! Helpers for tests of `samara boot`: a shell script as QEMU, and ELF files.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// An empty directory for one test, with this script as QEMU and a program `hello`.
pub(crate) fn directory(name: &str, qemu: &str) -> PathBuf {
    let group = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    let path = group.join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(path.join("tools")).unwrap();
    set_qemu(&path, qemu);
    executable(&path.join("hello"), &elf(2, 62));
    path
}

pub(crate) fn set_qemu(directory: &Path, script: &str) {
    set_tool(directory, "qemu-system-x86_64", script);
}

/// Puts a shell script before the system's programs.
pub(crate) fn set_tool(directory: &Path, name: &str, script: &str) {
    let text = format!("#!/bin/bash\n{script}\n");
    executable(&directory.join("tools").join(name), text.as_bytes());
}

pub(crate) fn executable(path: &Path, data: &[u8]) {
    fs::write(path, data).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The header of an ELF file of this type for this machine, without segments.
pub(crate) fn elf(kind: u8, machine: u8) -> Vec<u8> {
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (file[16], file[18], file[20], file[52]) = (kind, machine, 1, 64);
    file
}

/// A program that finds the directory's tools.
pub(crate) fn with_tools(program: impl AsRef<OsStr>, directory: &Path) -> Command {
    let mut command = Command::new(program);
    let (tools, path) = (directory.join("tools"), env::var("PATH").unwrap());
    command.env("PATH", format!("{}:{path}", tools.display())).current_dir(directory);
    command.stdin(Stdio::null());
    command
}

/// `samara boot` with a kernel that is not built.
pub(crate) fn boot(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = with_tools(env!("CARGO_BIN_EXE_samara"), directory);
    command.args(["boot", "--kernel", "/nowhere/kernel"]).args(arguments);
    command
}

pub(crate) fn samara(directory: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    told(boot(directory, arguments).output().unwrap())
}

/// Exit code, standard output, standard error.
pub(crate) fn told(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Gone, or a zombie that no process waits for.
pub(crate) fn has_ended(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    state.map_or(true, |state| state.contains(") Z "))
}

/// Finds the argument after `-initrd`, and the descriptor of the channel.
pub(crate) const FIND: &str = r#"
for word; do
    [ "$last" = -initrd ] && archive=$word
    case $word in socket,*) channel=${word##*fd=} ;; esac
    last=$word
done
"#;

/// A program or library of x86-64 with this interpreter, and these entries of the dynamic section:
/// tags with texts.
pub(crate) fn dynamic(interpreter: Option<&str>, entries: &[(u64, &str)]) -> Vec<u8> {
    let mut file = elf(3, 62);
    let mut texts = vec![0];
    let mut place = |text: &str| {
        let at = texts.len() as u64;
        texts.extend(text.bytes().chain([0]));
        at
    };
    let interpreter = interpreter.map(|path| (place(path), path.len() as u64 + 1));
    let named: Vec<_> = entries.iter().map(|(tag, text)| (*tag, place(text))).collect();
    let start = 64 + 3 * 56;
    let dynamic = (start + texts.len() as u64).next_multiple_of(8);
    let end = dynamic + 16 * (named.len() as u64 + 3);
    let segments = [
        (1, 0, end),
        (2, dynamic, end - dynamic),
        interpreter.map_or((0, 0, 0), |(at, len)| (3, start + at, len)),
    ];
    (file[32], file[54], file[56]) = (64, 56, 3);
    for (kind, at, len) in segments {
        let words: [u64; 7] = [kind, at, at, at, len, len, 0];
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    let len = texts.len() as u64;
    file.extend(texts);
    file.resize(dynamic as usize, 0);
    for (tag, value) in named.into_iter().chain([(5, start), (10, len), (0, 0)]) {
        file.extend([tag, value].iter().flat_map(|word: &u64| word.to_le_bytes()));
    }
    file
}
