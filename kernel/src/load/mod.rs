//! The loader: a new program in a new address space.
//!
//! The program's file is mapped privately, piece by piece, and its pages come in by faults, as in
//! Linux. Nothing of the old program is touched before the new one is complete, so an execve that
//! fails leaves everything as it was.
//!
//! | module | contents |
//! |---|---|
//! | `elf` | the file: what to map, and where |
//! | `stack` | the stack as a program finds it: arguments, environment, auxiliary vector |

mod elf;
mod stack;

pub(crate) use stack::CLOCK_TICKS;

use crate::call::Errno;
use crate::machine::Kernel;
use crate::random;
use crate::task::process::Name;
use crate::task::{Space, new_space};
use crate::user::END;
use alloc::sync::Arc;
use alloc::vec::Vec;
use mm::{Layout, MapFlags, Shared, Shmem};

/// The longest that a stack becomes.
pub(crate) const STACK: usize = 8 << 20;
/// The part of it that is mapped at the start.
const FIRST_STACK: usize = 132 << 10;

/// A program that can start.
pub(crate) struct Loaded {
    pub(crate) space: Arc<Space>,
    pub(crate) entry: u64,
    pub(crate) stack: u64,
    /// The name of its first thread.
    pub(crate) name: Name,
}

/// The name of the first thread: that of the file, as the program's starter wrote it.
fn name(path: &[u8]) -> Name {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let mut name = Name::default();
    let len = last.len().min(name.len() - 1);
    name[..len].copy_from_slice(&last[..len]);
    name
}

/// Loads a program with its arguments and environment.
///
/// # Errors
/// ENOEXEC: the file is no static program of this machine. ENOMEM.
pub(crate) fn load(
    file: &Shared<Shmem<Kernel>>,
    path: &[u8],
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
) -> Result<Loaded, Errno> {
    // 16 bits of pages each, as far as the layout allows.
    let gap = (random::word() as usize & 0xffff) << 12;
    let end = END as usize - gap;
    let base = (end - STACK - (256 << 12) - ((random::word() as usize & 0xffff) << 12)) & !0xfff;
    let layout = Layout { mmap_base: base, start_stack: end, start_brk: 0, brk: 0 };
    let space = new_space(layout)?;
    let image = elf::map(&space, file)?;
    let rights = 3;
    let flags = MapFlags::PRIVATE
        | MapFlags::ANONYMOUS
        | MapFlags::GROWSDOWN
        | MapFlags::STACK
        | MapFlags::FIXED;
    space.mmap(end - FIRST_STACK, FIRST_STACK, rights, flags)?;
    let heap = image.end + ((random::word() as usize & 0x1fff) << 12);
    let layout = Layout { mmap_base: base, start_stack: end - 4096, start_brk: heap, brk: heap };
    space.with_vmas(|calls| {
        calls.set_layout(layout);
        Ok(())
    })?;
    let stack = stack::fill(&space, end, path, arguments, environment, &image)?;
    Ok(Loaded { space, entry: image.entry as u64, stack, name: name(path) })
}
