//! Whether a trace is whole: what was introduced, what was promised, what has not ended.

use std::collections::{BTreeSet, HashSet};

use super::error::Expected;
use crate::record::{FileId, MmId, Record};

/// What the lines so far have introduced and promised. Grows with the lines read, never with a
/// number that stands in one.
#[derive(Default)]
pub(super) struct Complete {
    files: HashSet<FileId>,
    open: BTreeSet<MmId>,
    /// Initial VMAs that the newest `X` promised and that are still to come.
    promised: usize,
    /// Whether a `Y` line may come: an `X` came before.
    executed: bool,
}

impl Complete {
    /// Takes note of a record; an error says what the trace lacks for it to stand here.
    pub(super) fn check(&mut self, record: &Record) -> Result<(), Expected> {
        match record {
            Record::File(_) | Record::Rename { .. } => {}
            Record::Vma(_) if self.promised > 0 => self.promised -= 1,
            Record::Vma(_) => return Err("no further V line: the X line promised no more".into()),
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
            Record::Vsyscall(_) if !self.executed => {
                return Err("an X line before the first Y line".into());
            }
            Record::Vsyscall(_) => {}
            Record::Call(call) => {
                self.alive(call.mm)?;
                // A call that failed may name a file that nothing describes: no VMA came of it.
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
            // Neither changes a VMA. A recorder may say that its own address space is gone.
            Record::Share { .. } => {}
            Record::Gone { mm } => {
                self.open.remove(mm);
            }
        }
        Ok(())
    }

    /// At the end of the file: what is still missing.
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
        format!("{} more V lines, which the X line promised", self.promised).into()
    }

    fn open(&mut self, mm: MmId) -> Result<(), Expected> {
        if self.open.insert(mm) {
            Ok(())
        } else {
            Err("the number of an address space that is not in use".into())
        }
    }

    fn alive(&self, mm: MmId) -> Result<(), Expected> {
        if self.open.contains(&mm) {
            Ok(())
        } else {
            Err("an address space that an X or K line made".into())
        }
    }

    fn known(&self, file: FileId) -> Result<(), Expected> {
        if file == 0 || self.files.contains(&file) {
            Ok(())
        } else {
            Err("a file that a D line describes".into())
        }
    }
}
