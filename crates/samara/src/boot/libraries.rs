//! The libraries and interpreters that programs name, collected into a tree (`--with-libraries`).
//!
//! It looks where the dynamic linker of the program will look, in its order. For glibc: DT_RPATH of
//! the file and of those that led to it; LD_LIBRARY_PATH of `--env`; DT_RUNPATH; the cache; the
//! usual folders. musl has no cache, a list of folders in `/etc`, and is a library itself. Files of
//! another machine are passed over. Each path is looked up in the tree first, then on the host.
//!
//! No program is run: ldd would run it. So libraries are not found that a program opens by name
//! while it runs (dlopen). `--add` names those.

use super::archive::{EntryKind, Tree};
use super::cache::Cache;
use super::elf::{Elf, interpreter_of_script};
use super::host;
use std::collections::{HashSet, VecDeque};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const CACHE: &str = "/etc/ld.so.cache";
/// The folders in which glibc looks last, on distributions for several machines and on others.
const USUAL: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
const MUSL_FOLDERS: &str = "/etc/ld-musl-x86_64.path";
const MUSL_USUAL: [&str; 3] = ["/lib", "/usr/local/lib", "/usr/lib"];
/// Libraries that musl's linker is itself, in the form `libNAME.*`.
const MUSL_ITSELF: [&str; 7] = ["c", "pthread", "rt", "m", "dl", "util", "xnet"];
/// The most scripts that lead to a program.
const SCRIPTS: usize = 5;

/// Collects libraries into a tree.
pub(super) struct Collector<'a> {
    tree: &'a mut Tree,
    /// LD_LIBRARY_PATH in the machine.
    folders: Vec<String>,
    cache: Option<Cache>,
    musl: Option<Vec<String>>,
    /// The files, by their paths in the tree, that are done.
    done: HashSet<String>,
}

/// A file that needs libraries.
struct Needs {
    /// Its path, with a slash at its beginning.
    path: String,
    elf: Elf,
    /// The file that needs it.
    by: Option<Rc<Needs>>,
}

impl Needs {
    /// The folders of a list, for this file.
    fn folders(&self, list: Option<&String>) -> Vec<String> {
        let origin = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let origin = if origin.is_empty() { "/" } else { origin };
        let expand = |folder: &str, library: &str| {
            let known = [("ORIGIN", origin), ("LIB", library), ("PLATFORM", "x86_64")];
            known.iter().fold(folder.to_string(), |folder, (name, value)| {
                folder.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value)
            })
        };
        let mut folders = Vec::new();
        for folder in list.iter().flat_map(|list| list.split([':', ';'])) {
            // $LIB is the distribution's choice.
            for library in ["lib/x86_64-linux-gnu", "lib64"] {
                let folder = expand(folder, library);
                if folder.starts_with('/') && !folders.contains(&folder) {
                    folders.push(folder);
                }
            }
        }
        folders
    }

    /// The folders of DT_RPATH, of this file and of those that led to it.
    fn rpath(&self) -> Vec<String> {
        if self.elf.runpath.is_some() {
            return Vec::new();
        }
        let mut folders = Vec::new();
        let mut here = Some(self);
        while let Some(needs) = here {
            if needs.elf.runpath.is_none() {
                folders.extend(needs.folders(needs.elf.rpath.as_ref()));
            }
            here = needs.by.as_deref();
        }
        folders
    }
}

impl<'a> Collector<'a> {
    /// `env`: the variables of the program's environment.
    pub(super) fn new(tree: &'a mut Tree, env: &[String]) -> Collector<'a> {
        let list = env.iter().find_map(|word| word.strip_prefix("LD_LIBRARY_PATH="));
        let folders = list.iter().flat_map(|list| list.split([':', ';']));
        let folders = folders.filter(|folder| folder.starts_with('/')).map(String::from).collect();
        Collector { tree, folders, cache: None, musl: None, done: HashSet::new() }
    }

    /// The file of the host that will be at a path.
    fn locate(&self, path: &str) -> Option<PathBuf> {
        match self.tree.resolve(path) {
            Some((_, entry)) => match &entry.kind {
                EntryKind::File(file) => Some(file.clone()),
                EntryKind::Folder | EntryKind::Link(_) => None,
            },
            None => Some(PathBuf::from(path)).filter(|file| file.is_file()),
        }
    }

    /// Puts the file or folder at a path into the tree, and returns its path there without links.
    fn place(&mut self, path: &str) -> Result<String, String> {
        if let Some((path, _)) = self.tree.resolve(path) {
            return Ok(path);
        }
        host::copy(self.tree, path).map(|(path, _)| path)
    }

    /// Adds the interpreter and the libraries that a program or library of the tree needs.
    ///
    /// # Errors
    /// Something is missing: it, and the file that needs it.
    pub(super) fn add(&mut self, path: &str) -> Result<(), String> {
        self.add_file(path, 0)
    }

    /// The programs and libraries at or below a path of the tree, and whether it is the path
    /// itself. Then a script is a program, too.
    pub(super) fn programs_below(&self, path: &str) -> Vec<(String, bool)> {
        let files = self.tree.files_below(path).into_iter();
        let files = files.map(|(at, file)| (at[1..] == *path, at, file));
        let programs = files.filter(|(is_named, _, file)| is_program(file, *is_named));
        programs.map(|(is_named, at, _)| (at, is_named)).collect()
    }

    fn add_file(&mut self, path: &str, scripts: usize) -> Result<(), String> {
        let (path, file) = self.read(path)?;
        if let Some(interpreter) = interpreter_of_script(&file) {
            let interpreter = interpreter.map_err(|why| format!("{path}: {why}"))?;
            if scripts == SCRIPTS {
                return Err(format!("{path}: its script's program is a script of a script"));
            }
            self.find_interpreter(&path, &interpreter, true)?;
            return self.add_file(&interpreter, scripts + 1);
        }
        let elf = Elf::read(&file).map_err(|why| format!("{path}: {why}"))?;
        self.close(Needs { path, elf, by: None })
    }

    /// The path of a file without links, and its contents.
    fn read(&self, path: &str) -> Result<(String, Vec<u8>), String> {
        let found = self.tree.resolve(path);
        let found = found.ok_or_else(|| format!("{path} is not in the files"))?;
        let (path, EntryKind::File(file)) = (format!("/{}", found.0), &found.1.kind) else {
            return Err(format!("{path} is not a file"));
        };
        let data = fs::read(file);
        Ok((path, data.map_err(|error| format!("cannot read {}: {error}", file.display()))?))
    }

    /// Puts the interpreter of a file into the tree. The file may name anything on the host, so it
    /// copies only a program for this machine, or with `scripts` a script.
    ///
    /// # Errors
    /// It is missing, or no program: its path, and the file that names it.
    fn find_interpreter(
        &mut self,
        path: &str,
        interpreter: &str,
        scripts: bool,
    ) -> Result<String, String> {
        let wrong = |why: String| format!("{path} names the interpreter {interpreter}, {why}");
        let file = self.locate(interpreter).ok_or_else(|| wrong("which is missing".into()))?;
        let data =
            fs::read(file).map_err(|error| wrong(format!("which cannot be read: {error}")))?;
        if !(scripts && interpreter_of_script(&data).is_some()) {
            Elf::read(&data).map_err(|why| wrong(format!("but {why}")))?;
        }
        self.place(interpreter)
    }

    /// Adds the interpreter of a file, and all libraries that it needs, directly or indirectly.
    fn close(&mut self, first: Needs) -> Result<(), String> {
        let mut is_musl = false;
        if let Some(interpreter) = first.elf.interpreter.clone() {
            self.find_interpreter(&first.path, &interpreter, false)?;
            is_musl = interpreter.contains("/ld-musl-");
        }
        // A name that the linker has found once is not looked for again.
        let mut found = HashSet::new();
        let mut todo = VecDeque::from([Rc::new(first)]);
        while let Some(needs) = todo.pop_front() {
            if !self.done.insert(needs.path.clone()) {
                continue;
            }
            for name in &needs.elf.needed {
                if is_musl && is_musl_itself(name) || !found.insert(name.clone()) {
                    continue;
                }
                let path = self.search(&needs, name, is_musl)?;
                let (path, data) = self.read(&path)?;
                let elf = Elf::read(&data).map_err(|why| format!("{path}: {why}"))?;
                todo.push_back(Rc::new(Needs { path, elf, by: Some(Rc::clone(&needs)) }));
            }
        }
        Ok(())
    }

    /// Finds a library, puts it into the tree, and returns its path.
    fn search(&mut self, needs: &Needs, name: &str, is_musl: bool) -> Result<String, String> {
        let missing = |looked: &[String]| {
            let (path, places) = (&needs.path, looked.join(", "));
            format!("{path} needs the library {name}, which is missing; looked in {places}")
        };
        if name.contains('/') {
            // Relative to the folder in which the program starts, which is the root.
            return match self.is_library(name) {
                true => self.place(name),
                false => Err(missing(&["its path".into()])),
            };
        }
        let mut folders = needs.rpath();
        folders.extend(self.folders.iter().cloned());
        folders.extend(needs.folders(needs.elf.runpath.as_ref()));
        if is_musl {
            folders.extend(needs.folders(needs.elf.rpath.as_ref()));
            folders.extend_from_slice(self.musl_folders());
        } else if !folders.iter().any(|folder| self.is_library(&format!("{folder}/{name}")))
            && let Some(path) = self.search_cache(name)?
        {
            return Ok(path);
        } else {
            folders.extend(USUAL.map(String::from));
        }
        let found = folders.iter().map(|folder| format!("{folder}/{name}"));
        match found.into_iter().find(|path| self.is_library(path)) {
            Some(path) => self.place(&path),
            None => Err(missing(&folders)),
        }
    }

    /// Finds a library by the cache, and all its kinds for other processors. If the linker would
    /// not find it without the cache, the machine gets that, too.
    fn search_cache(&mut self, name: &str) -> Result<Option<String>, String> {
        if self.cache.is_none() {
            let data = self.locate(CACHE).and_then(|file| fs::read(file).ok()).unwrap_or_default();
            self.cache = Some(Cache::read(&data));
        }
        let paths: Vec<_> = self.cache.iter().flat_map(|cache| cache.find(name)).collect();
        let paths: Vec<_> = paths.into_iter().map(String::from).collect();
        let mut last = None;
        for path in paths {
            if self.is_library(&path) {
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                let is_usual = USUAL.contains(&folder);
                last = Some(self.place(&path)?);
                if !is_usual {
                    self.place(CACHE)?;
                }
            }
        }
        Ok(last)
    }

    fn musl_folders(&mut self) -> &[String] {
        if self.musl.is_none() {
            let file = self.locate(MUSL_FOLDERS).and_then(|file| fs::read_to_string(file).ok());
            if file.is_some() {
                // The linker needs the list, too. If it cannot be copied, the libraries' error
                // says more.
                let _ = self.place(MUSL_FOLDERS);
            }
            let list = file.map(|list| list.split([':', '\n']).map(String::from).collect());
            self.musl = Some(list.unwrap_or_else(|| MUSL_USUAL.map(String::from).to_vec()));
        }
        self.musl.as_deref().unwrap_or_default()
    }

    /// Whether there is a library of this machine at a path.
    fn is_library(&self, path: &str) -> bool {
        let data = self.locate(path).and_then(|file| fs::read(file).ok());
        data.is_some_and(|data| Elf::read(&data).is_ok())
    }
}

/// Whether a file is a program or a library of this machine, or with `scripts` a script, by its
/// first bytes.
fn is_program(file: &Path, scripts: bool) -> bool {
    /// ELF, 64 bits, little-endian.
    const START: [u8; 6] = *b"\x7fELF\x02\x01";
    let mut start = Vec::new();
    let read = File::open(file).and_then(|file| file.take(20).read_to_end(&mut start));
    // A program or a library, for x86-64.
    let is_elf = start.len() == 20 && start.starts_with(&START);
    let is_ours = is_elf && matches!(start[16], 2 | 3) && start[18] == 62;
    read.is_ok() && (is_ours || scripts && start.starts_with(b"#!"))
}

fn is_musl_itself(name: &str) -> bool {
    let known = name.strip_prefix("lib").and_then(|name| name.split_once('.'));
    known.is_some_and(|(name, _)| MUSL_ITSELF.contains(&name))
}
