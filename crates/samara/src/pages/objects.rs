//! The objects that stand for the files of a recording.
//!
//! A recording has no contents. So each page of a file begins with a word made from the file's
//! device and inode and the number of the page, and shared memory begins with zeros. Two open files
//! of one inode lead to the same object. The objects live until the recording ends, so an inode
//! number that is used again finds the words that were written before.

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{Mutex, PoisonError},
};

use mm::{Backing, File as PagedFile, Object, ObjectError, PageSource, Shmem, ShmemKind};
use sim::Sim;
use trace::{
    mirror::{File, SpaceChange},
    record::{FileDesc, FileId, FileKind},
};
use vma::{MappedFile, PAGE_SIZE, Placement};

use super::{SharedPaging, figures::Figures};

/// The device and the inode of a file.
pub(super) type Key = ((u32, u32), u64);

/// The size of a file whose size the recording does not tell, in bytes: more than a program maps.
const SIZE: u64 = 1 << 46;

/// The objects by their inodes, and the open file descriptions that lead to them.
#[derive(Default)]
pub(super) struct Objects {
    by_key: HashMap<Key, Known>,
    opened: HashMap<FileId, Backing<Sim>>,
    /// The words at the start of shared pages that were written; `None` if a call that failed
    /// half-way may have freed the page.
    written: HashMap<(Key, u64), Option<u64>>,
}

struct Known {
    object: mm::Shared<dyn Object<Sim>>,
    /// Whether its pages begin with a word, and not with zeros.
    is_file: bool,
    /// Whether its kind, and so how its maps are placed, is not known: execve has mapped it.
    is_vague: bool,
}

impl Objects {
    /// The step with our objects in the place of the recording's files.
    ///
    /// # Errors
    /// A description of the failure.
    pub(super) fn translate(
        &mut self,
        paging: &SharedPaging,
        step: &SpaceChange<File>,
        figures: &mut Figures,
    ) -> Result<SpaceChange<Backing<Sim>>, String> {
        let size = match step {
            SpaceChange::Shmat(request) => request.len as u64,
            _ => SIZE,
        };
        // Stands for a file that could not be opened, in a step that is not made.
        let kind = ShmemKind { path: String::new(), inode: 0, device: (0, 0), segment: false };
        let nothing =
            Shmem::try_new(paging, kind).and_then(|nothing| Backing::open(nothing, false));
        let nothing = nothing.map_err(|error| error.to_string())?;
        let mut failed = None;
        let step = step.clone().with_files(|file| {
            let opened = self.open(paging, &file, size, figures);
            opened.unwrap_or_else(|error| {
                failed = Some(error);
                nothing.clone()
            })
        });
        match failed {
            Some(error) => Err(format!("no object for a file: {error}")),
            None => Ok(step),
        }
    }

    fn open(
        &mut self,
        paging: &SharedPaging,
        file: &File,
        size: u64,
        figures: &mut Figures,
    ) -> Result<Backing<Sim>, ObjectError> {
        let desc = file.description();
        if let Some(known) = self.opened.get(&desc.id) {
            return Ok(known.clone());
        }
        let key = (desc.dev, desc.inode);
        let is_vague = desc.kind == FileKind::Exec;
        let object = match self.by_key.get(&key) {
            // A program cannot be written while it runs. So another object has the same contents.
            Some(known) if !known.is_vague || is_vague => known.object.clone(),
            _ => {
                let (object, is_file) = make(paging, file, size)?;
                self.by_key.insert(key, Known { object: object.clone(), is_file, is_vague });
                object
            }
        };
        match desc.kind {
            FileKind::Device if !file.acts_anonymous() => {
                figures.lack("the memory of a device: a file of zeros instead");
            }
            FileKind::Huge => figures.lack("huge pages of hugetlbfs: pages of 4 KiB instead"),
            FileKind::ShmemThp => {
                figures.lack("huge pages of shared memory: pages of 4 KiB instead")
            }
            _ => {}
        }
        let opened = match desc.noexec {
            true => Backing::open_noexec(object, desc.writable)?,
            false => Backing::open(object, desc.writable)?,
        };
        self.opened.insert(desc.id, opened.clone());
        Ok(opened)
    }

    /// Whether the object is a file, and not shared memory.
    pub(super) fn is_file(&self, key: Key) -> bool {
        self.by_key.get(&key).is_some_and(|known| known.is_file)
    }

    /// The word at the start of a page that a shared map shows; `None` if it is not known.
    pub(super) fn word(&self, key: Key, index: u64) -> Option<u64> {
        match self.written.get(&(key, index)) {
            Some(word) => *word,
            None if self.is_file(key) => Some(first_word(key, index)),
            None => Some(0),
        }
    }

    /// Whether a shared map has ever written to the page.
    pub(super) fn was_written(&self, key: Key, index: u64) -> bool {
        self.written.contains_key(&(key, index))
    }

    pub(super) fn write(&mut self, key: Key, index: u64, word: u64) {
        self.written.insert((key, index), Some(word));
    }

    /// The pages of a range hold this word now; `None` if that is not known (MADV_REMOVE).
    pub(super) fn remove(&mut self, key: Key, pages: Range<u64>, now: Option<u64>) {
        for ((of, index), word) in &mut self.written {
            if *of == key && pages.contains(index) {
                *word = now;
            }
        }
    }
}

/// The key of a mapped file in the listing and the model.
pub(super) fn key_of(file: &Backing<Sim>) -> Key {
    (file.device(), file.inode())
}

/// A new object for a file, and whether it is one with contents.
fn make(
    paging: &SharedPaging,
    file: &File,
    size: u64,
) -> Result<(mm::Shared<dyn Object<Sim>>, bool), ObjectError> {
    let desc = file.description();
    let segment = file.segment_size();
    match desc.kind {
        FileKind::Exec | FileKind::Regular | FileKind::RegularThp => {
            Ok((PagedFile::try_new(paging, Contents::new(file, true), SIZE)?.into(), true))
        }
        // Zeros that are placed in their own way.
        FileKind::ShmemThp | FileKind::Huge | FileKind::Device => {
            Ok((PagedFile::try_new(paging, Contents::new(file, false), SIZE)?.into(), false))
        }
        FileKind::Shmem | FileKind::ShmAnon | FileKind::Adopted => {
            let FileDesc { path, inode, dev: device, .. } = desc.clone();
            let kind = ShmemKind { path, inode, device, segment: segment.is_some() };
            let memory = Shmem::try_new(paging, kind)?;
            memory.set_size(segment.map_or(size, |bytes| bytes as u64))?;
            Ok((memory.into(), false))
        }
    }
}

/// The word at the start of a page of a file that was never written.
fn first_word((device, inode): Key, index: u64) -> u64 {
    let device = u64::from(device.0) << 32 | u64::from(device.1);
    // Odd factors keep the parts apart; the lowest bit keeps the word from being 0.
    (device ^ inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93))
        | 1
}

/// The contents of a file on its disk: the first word of each page.
struct Contents {
    file: File,
    /// Whether a page that was never written begins with a word, and not with zeros.
    is_file: bool,
    written: Mutex<HashMap<u64, u64>>,
}

impl Contents {
    fn new(file: &File, is_file: bool) -> Contents {
        Contents { file: file.clone(), is_file, written: Mutex::default() }
    }
}

impl PageSource for Contents {
    fn read(&self, index: u64, into: &mut [u8; PAGE_SIZE]) -> Result<(), ObjectError> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let word = match written.get(&index) {
            Some(word) => *word,
            None if self.is_file => first_word((self.device(), self.inode()), index),
            None => return Ok(()),
        };
        into[..8].copy_from_slice(&word.to_ne_bytes());
        Ok(())
    }

    fn write(&self, index: u64, from: &[u8; PAGE_SIZE]) -> Result<(), ObjectError> {
        let mut word = [0; 8];
        word.copy_from_slice(&from[..8]);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(index, u64::from_ne_bytes(word));
        Ok(())
    }

    fn placement(&self) -> Placement {
        self.file.placement()
    }

    fn acts_anonymous(&self) -> bool {
        self.file.acts_anonymous()
    }

    fn device(&self) -> (u32, u32) {
        self.file.device()
    }

    fn inode(&self) -> u64 {
        self.file.inode()
    }

    fn write_path(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.file.write_path(out)
    }
}
