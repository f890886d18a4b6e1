//! The loader: a new program in a new address space.
//!
//! The program's file is mapped privately, piece by piece, and its pages come in by faults, as in
//! Linux. Nothing of the old program is touched before the new one is complete, so an execve that
//! fails leaves everything as it was.
//!
//! A script leads to the program that its first line names. A dynamic program gets its interpreter
//! into its space, which starts first and maps the libraries itself.
//!
//! | module | contents |
//! |---|---|
//! | `script` | the first line of a script |
//! | `elf` | the file: its segments, and their places |
//! | `space` | its address space |
//! | `stack` | the stack as a program finds it: arguments, environment, auxiliary vector |

mod elf;
mod script;
mod space;
mod stack;

pub(crate) use space::unmap_by_grace_periods;

use crate::errno::Errno;
use crate::file::{self, Executable};
use crate::path::Place;
use crate::random;
use crate::task::memory::STACK;
use crate::task::program::{Loaded, Name, Program};
use crate::user::END;
use alloc::sync::Arc;
use alloc::vec::Vec;
use elf::{Headers, Role};
use linux_raw_sys::errno::{EIO, ELIBBAD, ELOOP, ENOEXEC, ENOMEM};
use mm::{Layout, MapFlags};
use space::new_space;

/// The most scripts that lead to a program, each by the next.
const SCRIPTS: usize = 5;
/// The part of it that is mapped at the start.
const FIRST_STACK: usize = 132 << 10;

/// The name of the first thread: that of the file, as the program's starter wrote it.
fn name(path: &[u8]) -> Name {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let mut name = Name::default();
    let len = last.len().min(name.len() - 1);
    name[..len].copy_from_slice(&last[..len]);
    name
}

/// The process that looks for a program: its place, its number, and its user and group.
pub(crate) struct From<'a> {
    pub(crate) place: &'a Place,
    pub(crate) pid: u32,
    /// Real and effective user, and group, which the program is told.
    pub(crate) identity: [u32; 4],
}

impl From<'_> {
    fn file(&self, path: &[u8]) -> Result<Executable, Errno> {
        file::program(path, self.place, self.pid)
    }
}

/// Loads a program with its arguments and environment.
///
/// # Errors
/// Those of [`file::program`], also for a script's program and a program's interpreter. ENOEXEC:
/// the file is no program of this machine. ELIBBAD: nor is its interpreter. ELOOP: too many
/// scripts. EIO: an interpreter, or its name, is cut short. ENOMEM, E2BIG.
pub(crate) fn load(
    from: &From<'_>,
    path: &[u8],
    mut arguments: Vec<Vec<u8>>,
    environment: &[Vec<u8>],
) -> Result<(Loaded, Program), Errno> {
    if arguments.is_empty() {
        // As in Linux: programs expect their name.
        arguments.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
        arguments.push(Vec::new());
    }
    let (file, headers) = find(from, path, &mut arguments)?;
    // Its guard keeps writers out while it is mapped, as in Linux, and not later.
    let interpreter = match headers.interpreter(&file.memory)? {
        Some(path) => {
            let file = from.file(&path)?;
            if file.memory.size() < elf::HEADER as u64 {
                return Err(Errno(EIO));
            }
            let is_bad = |errno| if errno == Errno(ENOEXEC) { Errno(ELIBBAD) } else { errno };
            let headers = Headers::read(&file.memory).map_err(is_bad)?;
            Some((file, headers))
        }
        None => None,
    };
    // 16 bits of pages each, as far as the layout allows.
    let gap = (random::word() as usize & 0xffff) << 12;
    let end = END as usize - gap;
    let base = (end - STACK - (256 << 12) - ((random::word() as usize & 0xffff) << 12)) & !0xfff;
    let layout = Layout { mmap_base: base, start_stack: end, start_brk: 0, brk: 0 };
    let space = new_space(layout)?;
    let image = headers.map(&space, &file.memory, Role::Program)?;
    let rights = if headers.executes_stack() { 7 } else { 3 };
    let flags = MapFlags::PRIVATE
        | MapFlags::ANONYMOUS
        | MapFlags::GROWSDOWN
        | MapFlags::STACK
        | MapFlags::FIXED_NOREPLACE;
    space.mmap(end - FIRST_STACK, FIRST_STACK, rights, flags)?;
    let interpreter = match &interpreter {
        Some((file, headers)) => Some(headers.map(&space, &file.memory, Role::Interpreter)?),
        None => None,
    };
    let heap = image.end + ((random::word() as usize & 0x1fff) << 12);
    let layout = Layout { mmap_base: base, start_stack: end - 4096, start_brk: heap, brk: heap };
    space.with_vmas(|calls| {
        calls.set_layout(layout);
        Ok(())
    })?;
    let images = (&image, interpreter.as_ref());
    let stack = stack::fill(&space, end, path, &arguments, environment, images, from.identity)?;
    let entry = interpreter.map_or(image.entry, |interpreter| interpreter.entry) as u64;
    let program = describe(file, &arguments)?;
    Ok((Loaded { space, entry, stack, name: name(path) }, program))
}

/// The ELF file to which a path leads, by scripts or directly. Scripts change the arguments.
fn find(
    from: &From<'_>,
    path: &[u8],
    arguments: &mut Vec<Vec<u8>>,
) -> Result<(Executable, Headers), Errno> {
    let mut here = path.to_vec();
    for _ in 0..=SCRIPTS {
        let file = from.file(&here)?;
        match script::read(&file.memory)? {
            None => {
                let headers = Headers::read(&file.memory)?;
                return Ok((file, headers));
            }
            Some(line) => here = line.apply(here, arguments)?,
        }
    }
    Err(Errno(ELOOP))
}

/// Describes a program, for /proc.
///
/// # Errors
/// ENOMEM.
fn describe(file: Executable, arguments: &[Vec<u8>]) -> Result<Program, Errno> {
    let mut line = Vec::new();
    let bytes = arguments.iter().map(|argument| argument.len() + 1).sum();
    line.try_reserve_exact(bytes).map_err(|_| Errno(ENOMEM))?;
    for argument in arguments {
        line.extend_from_slice(argument);
        line.push(0);
    }
    Ok(Program { path: file.path, image: Some(Arc::new(file.image)), arguments: Arc::new(line) })
}
