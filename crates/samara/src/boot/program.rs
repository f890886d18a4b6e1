//! The program of a run: where it is, whether the kernel can run it, and its archive.

use super::archive::{EntryKind, Tree, TreeEntry};
use super::elf::{Elf, interpreter_of_script};
use super::ending::{Failure, NOT_FOUND, NOT_RUNNABLE};
use super::host;
use super::libraries::Collector;
use super::tell_left_out;
use crate::cli::{LEAST_MIB, Run, mib};
use crate::complain;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

const MIB: u64 = 1 << 20;
/// MiB in addition to the kernel and the archive, for the pages of the program.
const PAGES_MIB: u64 = 16;

/// The archive with the program and its files. `memory` is the machine's.
///
/// # Errors
/// There is no such program, the kernel cannot run it, or something cannot be read or has no room.
pub(super) fn archive(run: &Run, memory: &str) -> Result<File, Failure> {
    let mut tree = Tree::default();
    if let Some(root) = &run.files {
        let (read, left_out) = Tree::read(root).map_err(Failure::no_machine)?;
        tell_left_out(left_out);
        tree = read;
    }
    let mut added = Vec::new();
    for path in &run.add {
        let copied = host::absolute(path).and_then(|path| host::copy(&mut tree, &path));
        let (path, left_out) =
            copied.map_err(|why| Failure::no_machine(format!("--add: {why}")))?;
        tell_left_out(left_out);
        added.push(path);
    }
    let mut argv = Vec::new();
    for word in &run.command {
        let word = word.to_str().ok_or_else(|| Failure::no_machine("an argument is not UTF-8"))?;
        argv.push(word.to_string());
    }
    let program = argv.first().cloned().unwrap_or_default();
    let (path, file) = match within(&tree, &program) {
        Some((path, file)) => (path, file),
        None if run.with_libraries => copy(&mut tree, &program)?,
        None => (add(&mut tree, &program)?, program.into()),
    };
    let interpreter = check(&file).map_err(|why| not_runnable(&file, why))?;
    if run.with_libraries {
        let mut libraries = Collector::new(&mut tree, &run.env);
        let collected = libraries.add(&format!("/{path}"));
        collected
            .map_err(|why| Failure { code: NOT_RUNNABLE, what: format!("cannot run {why}") })?;
        add_libraries(&mut libraries, &added)?;
    } else if let Some(interpreter) = interpreter
        && tree.resolve(&interpreter).is_none()
    {
        let cure = "--with-libraries adds it, and the libraries; or link it statically: cc -static";
        let why = format!("its interpreter {interpreter} is not in the files: {cure}");
        return Err(not_runnable(&file, why));
    }
    argv[0] = format!("/{path}");
    let (file, bytes) = tree.archive(&argv, &run.env).map_err(Failure::no_machine)?;
    let files = bytes.div_ceil(MIB);
    let least = LEAST_MIB + PAGES_MIB + files;
    if mib(memory).is_some_and(|memory| memory < least) {
        let why = format!("{memory} is too little memory for files of {files} MiB");
        return Err(Failure::no_machine(format!(
            "{why}: give the machine --memory {least}M at least"
        )));
    }
    Ok(file)
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
    match &tree.resolve(&path)?.1.kind {
        EntryKind::File(file) => Some((path, file.clone())),
        EntryKind::Folder | EntryKind::Link(_) => None,
    }
}

/// Adds the libraries of the programs that `--add` has named. A file of a folder may lack one: it
/// is then told, and the program may do without.
fn add_libraries(libraries: &mut Collector<'_>, added: &[String]) -> Result<(), Failure> {
    for path in added {
        for (file, is_named) in libraries.programs_below(path) {
            match libraries.add(&file) {
                Err(why) if is_named => return Err(Failure::no_machine(format!("--add: {why}"))),
                Err(why) => complain(format_args!("without a library: {why}")),
                Ok(()) => {}
            }
        }
    }
    Ok(())
}

/// Copies a program of the host at its own path, which is returned with the file.
fn copy(tree: &mut Tree, program: &str) -> Result<(String, PathBuf), Failure> {
    let file = PathBuf::from(program);
    find(&file)?;
    let path = host::absolute(&file).map_err(Failure::no_machine)?;
    host::copy(tree, &path).map_err(Failure::no_machine)?;
    let found = within(tree, &path);
    found.ok_or_else(|| not_runnable(&file, "--files has another file at its path".into()))
}

/// The permissions of a program of the host.
fn find(file: &Path) -> Result<u32, Failure> {
    let metadata = fs::metadata(file).map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
        let is_name = file.parent() == Some(Path::new(""));
        let cure = if is_name { "; give its path: PATH is not searched" } else { "" };
        Failure { code, what: format!("cannot read {}: {error}{cure}", file.display()) }
    })?;
    match metadata.is_file() {
        true => Ok(metadata.permissions().mode() & 0o7777),
        false => Err(not_runnable(file, "it is not a file".into())),
    }
}

/// Adds a program of the host under its last name, and returns its path.
fn add(tree: &mut Tree, program: &str) -> Result<String, Failure> {
    let file = Path::new(program);
    let mode = find(file)?;
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else {
        return Err(not_runnable(file, "it is not a file".into()));
    };
    if tree.get(name).is_some() {
        let why = format!("--files has another {name}: rename one of them");
        return Err(not_runnable(file, why));
    }
    tree.add(name, TreeEntry { kind: EntryKind::File(file.into()), mode });
    Ok(name.into())
}

/// Checks that the kernel can run a program, and returns the interpreter that it names.
///
/// # Errors
/// Why not, with the cure.
fn check(file: &Path) -> Result<Option<String>, String> {
    let cannot = |error: io::Error| format!("cannot read it: {error}");
    if fs::metadata(file).map_err(cannot)?.permissions().mode() & 0o111 == 0 {
        return Err("it is not executable: chmod +x makes it so".into());
    }
    let data = fs::read(file).map_err(cannot)?;
    match interpreter_of_script(&data) {
        Some(interpreter) => interpreter.map(Some),
        None => Elf::read(&data).map(|elf| elf.interpreter),
    }
}
