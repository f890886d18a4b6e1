//! The files with code that are in stacks.
//!
//! A file is opened by its path in the program's view, and stays open until the end, for the names
//! of its functions. While it is open its inode is not reused, so device and inode name it. Only
//! its contents can change, which its size and times show: then it is a new image. They are looked
//! at when the file is first seen in an address space.
//!
//! File systems may show another device and inode in the listing than to an open file, so these
//! cannot tell whether the opened file is the mapped one. Its bytes do: they must be those of the
//! mapped code.

use std::{
    collections::HashMap,
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    sync::Arc,
};

use object::ReadCache;

use super::{
    elf::{Elf, Section},
    perf_map,
    python::Interpreter,
};
use crate::{
    live::{
        files::escape,
        sys::{self, Tid},
    },
    observer::{Code, CodeSource, Observer},
    record::{self, ImageId, MmId, Record},
};

/// All images of a run.
#[derive(Default)]
pub(super) struct Images {
    images: Vec<Arc<Image>>,
    newest: HashMap<CodeSource, ImageId>,
    /// Scripts by their paths.
    scripts: HashMap<String, ImageId>,
}

/// A file with code, or the vdso.
pub(super) struct Image {
    /// Its contents; `None` if the file could not be opened.
    pub(super) contents: Option<Contents>,
    /// Its path in the program's view.
    pub(super) path: String,
    elf: Option<Elf>,
    /// The interpreter of Python in it.
    pub(super) python: Option<Interpreter>,
}

pub(super) enum Contents {
    /// An open file, with its size and times when it was opened.
    File(File, Stamp),
    /// The memory of the vdso.
    Memory(Vec<u8>),
    /// A file with the names of functions at addresses of a process.
    PerfMap(File),
}

/// The metadata of a file that change with its contents.
#[derive(PartialEq, Eq)]
pub(super) struct Stamp([i64; 5]);

impl Stamp {
    pub(super) fn of(file: &File) -> Option<Stamp> {
        let meta = file.metadata().ok()?;
        let (modified, changed) = (meta.mtime(), meta.ctime());
        Some(Stamp([meta.size() as i64, modified, meta.mtime_nsec(), changed, meta.ctime_nsec()]))
    }
}

impl Image {
    /// A file without code.
    pub(super) fn new(path: String, contents: Option<Contents>) -> Image {
        Image { contents, path, elf: None, python: None }
    }

    /// Whether the file still has the contents that were read.
    pub(super) fn is_unchanged(&self) -> bool {
        match &self.contents {
            Some(Contents::File(file, stamp)) => Stamp::of(file).as_ref() == Some(stamp),
            _ => true,
        }
    }
}

impl Images {
    pub(super) fn get(&self, id: ImageId) -> Option<&Image> {
        self.images.get((id as usize).checked_sub(1)?).map(|image| &**image)
    }

    /// The same, to keep.
    pub(super) fn shared(&self, id: ImageId) -> Option<Arc<Image>> {
        self.images.get((id as usize).checked_sub(1)?).cloned()
    }

    /// The image of a VMA with code, the bias of its addresses, and its module for the unwinder.
    /// Reports a new image.
    pub(super) fn of(
        &mut self,
        code: &Code,
        mm: MmId,
        tid: Tid,
        observer: &mut dyn Observer,
    ) -> (ImageId, u64, Option<framehop::Module<Section>>) {
        if code.source == CodeSource::Memory {
            return (0, 0, None);
        }
        let known = self.newest.get(&code.source).copied();
        let id = match known.filter(|&id| self.get(id).is_some_and(Image::is_unchanged)) {
            Some(id) => id,
            None => self.open(code, mm, tid, observer),
        };
        let Some(image) = self.get(id) else { return (0, 0, None) };
        // Without an ELF file, addresses count from the file's start.
        let start = code.range.start as u64;
        let mut bias = start.wrapping_sub(code.offset as u64);
        let elf = image.elf.as_ref();
        let module = elf.and_then(|elf| {
            bias = start.wrapping_sub(elf.address_at(code.offset as u64)?);
            Some(elf.module(&code.range, bias))
        });
        (id, bias, module)
    }

    fn open(&mut self, code: &Code, mm: MmId, tid: Tid, observer: &mut dyn Observer) -> ImageId {
        let Ok(id) = ImageId::try_from(self.images.len() + 1) else { return 0 };
        let (path, contents, dev, inode) = match code.source {
            CodeSource::File(dev, inode) => {
                let path = observer.file_at(mm, code.range.start).1;
                let file = file(code, tid, &path);
                let contents = file.and_then(|file| {
                    let stamp = Stamp::of(&file)?;
                    Some(Contents::File(file, stamp))
                });
                (path, contents, dev, inode)
            }
            CodeSource::Vdso | CodeSource::Memory => {
                let mut bytes = vec![0; code.range.end - code.range.start];
                let got = sys::read_pages(tid, code.range.start, &mut bytes);
                bytes.truncate(got);
                ("[vdso]".into(), Some(Contents::Memory(bytes)), (0, 0), 0)
            }
        };
        let elf = match &contents {
            Some(Contents::File(file, _)) => Elf::read(&ReadCache::new(file)),
            Some(Contents::Memory(bytes)) => Elf::read(&bytes[..]),
            _ => None,
        };
        let python = match &contents {
            Some(Contents::File(file, _)) if has_python(&path) => {
                Interpreter::find(&ReadCache::new(file))
            }
            _ => None,
        };
        let python = python.and_then(|found| {
            let unknown = |version| {
                observer.notice(&format!(
                    "call stacks show the interpreter's functions instead of Python's: its version \
                     is {version}, and those from 3.11 to 3.13 are known"
                ));
            };
            found.map_err(unknown).ok()
        });
        let told = record::Image { id, dev, inode, path: path.clone() };
        self.add(told, Image { contents, path, elf, python }, observer);
        self.newest.insert(code.source, id);
        id
    }

    fn add(&mut self, told: record::Image, image: Image, observer: &mut dyn Observer) {
        self.images.push(Arc::new(image));
        observer.record(Record::Image(told), None);
    }

    /// An image that is no file with code.
    fn other(
        &mut self,
        path: String,
        contents: Option<Contents>,
        observer: &mut dyn Observer,
    ) -> ImageId {
        let Ok(id) = ImageId::try_from(self.images.len() + 1) else { return 0 };
        let told = record::Image { id, dev: (0, 0), inode: 0, path: escape(path.clone()) };
        self.add(told, Image::new(path, contents), observer);
        id
    }

    /// The image of a script.
    pub(super) fn script(&mut self, path: &str, observer: &mut dyn Observer) -> ImageId {
        if let Some(&id) = self.scripts.get(path) {
            return id;
        }
        let id = self.other(path.to_owned(), None, observer);
        self.scripts.insert(path.to_owned(), id);
        id
    }

    /// The image of code that a just-in-time compiler has made in the process of `tid`, if the
    /// compiler tells the names of its functions.
    pub(super) fn compiled(&mut self, tid: Tid, observer: &mut dyn Observer) -> Option<ImageId> {
        let (path, file) = perf_map::open(tid)?;
        Some(self.other(path, Some(Contents::PerfMap(file)), observer))
    }
}

/// Whether a file may have an interpreter of Python, by its name.
fn has_python(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("python") || name.starts_with("libpython")
}

/// Opens the file that is mapped as code.
fn file(code: &Code, tid: Tid, path: &str) -> Option<File> {
    let path = path.trim_end_matches(" (deleted)");
    let (start, end) = (code.range.start, code.range.end);
    let places = [
        format!("/proc/{tid}/root{path}"),
        // Also a file without a path. It needs a privilege.
        format!("/proc/{tid}/map_files/{start:x}-{end:x}"),
        format!("/proc/{tid}/exe"),
    ];
    // A pipe or a device in its place must not block the tracer.
    let regular = |place: &String| std::fs::metadata(place).is_ok_and(|meta| meta.is_file());
    let opened =
        places.iter().filter(|place| regular(place)).filter_map(|place| File::open(place).ok());
    { opened }.find(|file| is_mapped(file, code, tid))
}

/// Whether the file's bytes are those of the mapped code.
fn is_mapped(file: &File, code: &Code, tid: Tid) -> bool {
    const MOST: usize = 4096;
    let length = MOST.min(code.range.end - code.range.start);
    let (mut ours, mut theirs) = (vec![0; length], vec![0; length]);
    let got = sys::read_pages(tid, code.range.start, &mut theirs);
    // Code at the end of a file may be shorter than its page.
    let Ok(have) = file.read_at(&mut ours, code.offset as u64) else { return false };
    have > 0 && got >= have && ours[..have] == theirs[..have]
}
