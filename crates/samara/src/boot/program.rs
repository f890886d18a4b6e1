//! The program of a run: where it is, whether the kernel can run it, and its archive.

use super::archive::{Entry, Kind, Tree};
use super::ending::{Failure, NO_MACHINE, NOT_FOUND, NOT_RUNNABLE};
use crate::cli::{LEAST_MIB, Run, mib};
use crate::complain;
use object::elf::{EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PT_INTERP, ProgramHeader64};
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, ProgramHeader};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

const MIB: u64 = 1 << 20;
/// MiB beside the kernel and the archive, for the pages of the program.
const PAGES_MIB: u64 = 16;

/// The archive with the program and its files. `memory` is the machine's.
///
/// # Errors
/// There is no such program, the kernel cannot run it, or something cannot be read or has no room.
pub(super) fn archive(run: &Run, memory: &str) -> Result<File, Failure> {
    let mut tree = Tree::default();
    if let Some(root) = &run.files {
        let (read, left_out) = Tree::read(root).map_err(no_machine)?;
        for (path, reason) in left_out {
            complain(format_args!("left out, because {reason}: {}", path.display()));
        }
        tree = read;
    }
    let mut argv = Vec::new();
    for word in &run.command {
        let word = word.to_str().ok_or_else(|| no_machine("an argument is not UTF-8".into()))?;
        argv.push(word.to_string());
    }
    let program = argv.first().cloned().unwrap_or_default();
    let (path, file) = match within(&tree, &program) {
        Some((path, file)) => (path, file),
        None => (add(&mut tree, &program)?, program.into()),
    };
    check(&file).map_err(|why| not_runnable(&file, why))?;
    argv[0] = format!("/{path}");
    let (file, bytes) = tree.archive(&argv, &run.env).map_err(no_machine)?;
    let files = bytes.div_ceil(MIB);
    let least = LEAST_MIB + PAGES_MIB + files;
    if mib(memory).is_some_and(|memory| memory < least) {
        let why = format!("{memory} is too little memory for files of {files} MiB");
        return Err(no_machine(format!("{why}: give the machine --memory {least}M at least")));
    }
    Ok(file)
}

fn no_machine(what: String) -> Failure {
    Failure { code: NO_MACHINE, what }
}

fn not_runnable(file: &Path, why: String) -> Failure {
    Failure { code: NOT_RUNNABLE, what: format!("cannot run {}: {why}", file.display()) }
}

/// The program's path in the tree and its file, if the tree has it.
fn within(tree: &Tree, program: &str) -> Option<(String, PathBuf)> {
    let mut path = Vec::new();
    for component in Path::new(program).components() {
        match component {
            Component::Normal(word) => path.push(word.to_str()?),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    let path = path.join("/");
    match &tree.resolve(&path)?.kind {
        Kind::File(file) => Some((path, file.clone())),
        Kind::Folder | Kind::Link(_) => None,
    }
}

/// Adds a program of the host under its last name, and returns its path.
fn add(tree: &mut Tree, program: &str) -> Result<String, Failure> {
    let file = Path::new(program);
    let metadata = fs::metadata(file).map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
        Failure { code, what: format!("cannot read {program}: {error}; it needs a path") }
    })?;
    let name = file.file_name().and_then(|name| name.to_str());
    let Some(name) = name.filter(|_| metadata.is_file()) else {
        return Err(not_runnable(file, "it is not a file".into()));
    };
    if tree.get(name).is_some() {
        let why = format!("--files has another {name}: rename one of them");
        return Err(not_runnable(file, why));
    }
    let mode = metadata.permissions().mode() & 0o7777;
    tree.add(name, Entry { kind: Kind::File(file.into()), mode });
    Ok(name.into())
}

/// Checks that it is a static ELF program for x86-64, and returns why not, with the cure.
fn check(file: &Path) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot read it: {error}");
    if fs::metadata(file).map_err(cannot)?.permissions().mode() & 0o111 == 0 {
        return Err("it is not executable: chmod +x makes it so".into());
    }
    let data = fs::read(file).map_err(cannot)?;
    let data = data.as_slice();
    if data.starts_with(b"#!") {
        return Err("it is a script: run its interpreter, with the script in --files".into());
    }
    let header = FileHeader64::<LittleEndian>::parse(data)
        .map_err(|_| "it is no ELF file of 64 bits: compile a program for x86-64 Linux")?;
    let machine = header.e_machine(LittleEndian);
    if machine != EM_X86_64 {
        return Err("it is for another processor: compile it for x86-64 Linux".into());
    }
    if !matches!(header.e_type(LittleEndian), ET_EXEC | ET_DYN) {
        return Err("it is an object file, not a program: link it, statically".into());
    }
    let segments = header.program_headers(LittleEndian, data);
    let truncated =
        "it is truncated: the file ends before what its headers describe; copy it again";
    let segments = segments.map_err(|_| truncated)?;
    let end = |segment: &ProgramHeader64<_>| {
        segment.p_offset(LittleEndian).saturating_add(segment.p_filesz(LittleEndian))
    };
    if segments.iter().any(|segment| end(segment) > data.len() as u64) {
        return Err(truncated.into());
    }
    if segments.iter().any(|segment| segment.p_type(LittleEndian) == PT_INTERP) {
        let cure = "link it statically: cc -static, or Rust's target x86_64-unknown-linux-musl";
        return Err(format!("it is linked dynamically; {cure}"));
    }
    Ok(())
}
