//! Checks that a trace is complete: all that it refers to was introduced, all that it announces
//! has come, and all that began has ended.

use std::collections::{BTreeSet, HashSet};

use super::error::Expected;
use crate::record::{FileId, ImageId, MmId, Record, StackId};

/// The state of the lines so far. Its size grows with the lines read, never with a number in a
/// line.
#[derive(Default)]
pub(super) struct Complete {
    files: HashSet<FileId>,
    images: HashSet<ImageId>,
    stacks: HashSet<StackId>,
    open: BTreeSet<MmId>,
    /// The initial VMAs that the newest `X` announced and that are still missing.
    promised: usize,
    /// Whether an `X` line came, so that a `Y` line may follow.
    executed: bool,
}

impl Complete {
    /// Checks and counts a record. An error names what the trace lacks before it.
    pub(super) fn check(&mut self, record: &Record) -> Result<(), Expected> {
        match record {
            Record::File(_) | Record::Rename { .. } | Record::Image(_) => {}
            Record::Vma(_) if self.promised > 0 => self.promised -= 1,
            Record::Vma(_) => return Err("no further V line: the X line announced fewer".into()),
            _ if self.promised > 0 => return Err(self.promise()),
            _ => {}
        }
        match record {
            Record::File(file) => {
                self.files.insert(file.id);
            }
            Record::Exec { mm, vmas, .. } => {
                self.open(*mm)?;
                self.promised = *vmas;
                self.executed = true;
            }
            Record::Vma(vma) => self.known(vma.file)?,
            Record::Vsyscall(_) => require(self.executed, "an X line before the first Y line")?,
            Record::Call(call) => {
                self.alive(call.mm)?;
                let known = call.stack == 0 || self.stacks.contains(&call.stack);
                require(known, "a stack that a #s line describes")?;
                // A failed call may name a file that no line describes, because it made no VMA.
                if call.result >= 0 {
                    self.known(call.file)?;
                }
            }
            Record::Adopt { mm, vma } => {
                self.alive(*mm)?;
                self.known(vma.file)?;
            }
            Record::Rename { file, .. } => self.known(*file)?,
            Record::Fork { mm, child, .. } => {
                self.alive(*mm)?;
                self.open(*child)?;
            }
            Record::DriverFlags { mm, .. }
            | Record::Fault { mm, .. }
            | Record::Grow { mm, .. }
            | Record::Settled { mm, .. }
            | Record::Doubt { mm, .. }
            | Record::Check { mm, .. } => self.alive(*mm)?,
            Record::Listing(listing) => self.alive(listing.mm)?,
            // Neither changes a VMA. A recorder may report the end of its own address space.
            Record::Share { .. } => {}
            Record::ExitMmap { mm } => {
                self.open.remove(mm);
            }
            Record::Image(image) => {
                self.images.insert(image.id);
            }
            Record::Stack(stack) => {
                stack.frames.iter().try_for_each(|frame| self.code(frame.image))?;
                self.stacks.insert(stack.id);
            }
            Record::Symbol(symbol) => self.code(symbol.frame.image)?,
        }
        Ok(())
    }

    /// Checks at the end of the file that nothing is missing.
    pub(super) fn end(&self) -> Result<(), Expected> {
        if self.promised > 0 {
            return Err(self.promise());
        }
        match self.open.first() {
            Some(mm) => Err(format!("\"Q {mm}\": address space {mm} has not ended").into()),
            None => Ok(()),
        }
    }

    fn promise(&self) -> Expected {
        format!("{} more V lines, which the X line announced", self.promised).into()
    }

    fn open(&mut self, mm: MmId) -> Result<(), Expected> {
        require(self.open.insert(mm), "the number of an address space that is not in use")
    }

    fn alive(&self, mm: MmId) -> Result<(), Expected> {
        require(self.open.contains(&mm), "an address space that an X or K line made")
    }

    fn code(&self, image: ImageId) -> Result<(), Expected> {
        let known = image == 0 || self.images.contains(&image);
        require(known, "a file with code that a #i line describes")
    }

    fn known(&self, file: FileId) -> Result<(), Expected> {
        require(file == 0 || self.files.contains(&file), "a file that a D line describes")
    }
}

fn require(holds: bool, expected: &'static str) -> Result<(), Expected> {
    if holds { Ok(()) } else { Err(expected.into()) }
}
