//! The settings under `/sys/kernel/mm/transparent_hugepage`: files of which a program reads the
//! choices and writes one.
//!
//! A setting changes all programs that run, and those that start later: [`apply`] gives a space the
//! settings of this moment. Each space gets them when it is made, and once more when its process
//! can be found. So a write either finds the process, or comes before its second time.

use super::pseudo::Contents;
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::{Space, process as processes};
use crate::text::read_text;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use linux_raw_sys::errno::EINVAL;
use mm::{FaultBlocks, HugePages};
use spin::mutex::SpinMutex;

/// A setting: one of several words.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Below the folder of all.
    pub(super) path: &'static str,
    words: &'static [&'static str],
    chosen: AtomicUsize,
    /// Only the word that is chosen works here.
    fixed: bool,
}

const ENABLED: &[&str] = &["always", "madvise", "never"];
const OF_SIZE: &[&str] = &["always", "inherit", "madvise", "never"];
const DEFRAG: &[&str] = &["always", "defer", "defer+madvise", "madvise", "never"];
const SHARED: &[&str] = &["always", "within_size", "advise", "never", "deny", "force"];

const fn live(path: &'static str, words: &'static [&'static str], chosen: usize) -> Setting {
    Setting { path, words, chosen: AtomicUsize::new(chosen), fixed: false }
}

const fn fixed(path: &'static str, words: &'static [&'static str], chosen: usize) -> Setting {
    Setting { fixed: true, ..live(path, words, chosen) }
}

/// The memory that gets huge pages and blocks, of each size that inherits this setting.
static TOP: Setting = live("enabled", ENABLED, 1);
/// Pages of 2 MiB.
static HUGE: Setting = live("hugepages-2048kB/enabled", OF_SIZE, 1);
/// Blocks of 2^(2 + place) pages.
static BLOCKS: [Setting; 7] = [
    live("hugepages-16kB/enabled", OF_SIZE, 3),
    live("hugepages-32kB/enabled", OF_SIZE, 3),
    live("hugepages-64kB/enabled", OF_SIZE, 3),
    live("hugepages-128kB/enabled", OF_SIZE, 3),
    live("hugepages-256kB/enabled", OF_SIZE, 3),
    live("hugepages-512kB/enabled", OF_SIZE, 3),
    live("hugepages-1024kB/enabled", OF_SIZE, 3),
];
/// No fault waits for memory to be moved.
static DEFRAG_OF_FAULTS: Setting = fixed("defrag", DEFRAG, 4);
/// Files have small pages.
static OF_FILES: Setting = fixed("shmem_enabled", SHARED, 3);

/// All settings.
pub(super) fn all() -> impl Iterator<Item = &'static Setting> {
    [&TOP, &HUGE, &DEFRAG_OF_FAULTS, &OF_FILES].into_iter().chain(&BLOCKS)
}

impl Setting {
    fn word(&self) -> &'static str {
        // Relaxed: a program that reads the old word came first.
        self.words[self.chosen.load(Ordering::Relaxed)]
    }

    /// The word, or that of all if this one says so.
    fn resolved(&self) -> &'static str {
        match self.word() {
            "inherit" => TOP.word(),
            word => word,
        }
    }

    /// The words; the chosen one is in brackets.
    fn text(&self) -> String {
        let chosen = self.word();
        let mut text = String::new();
        for word in self.words {
            let brackets = if *word == chosen { ["[", "]"] } else { ["", ""] };
            text.extend([brackets[0], word, brackets[1], " "]);
        }
        text.pop();
        text.push('\n');
        text
    }

    /// Chooses a word, which may end in a new line, for all programs.
    ///
    /// # Errors
    /// EINVAL: no such word, or one that does not work here.
    fn choose(&self, text: &[u8]) -> Result<(), Errno> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let chosen = self.words.iter().position(|word| word.as_bytes() == text);
        let chosen = chosen.ok_or(Errno(EINVAL))?;
        // Relaxed: only this number is read, and `apply` has a lock.
        if self.fixed && chosen != self.chosen.load(Ordering::Relaxed) {
            return Err(Errno(EINVAL));
        }
        self.chosen.store(chosen, Ordering::Relaxed);
        for process in processes::all() {
            process.space().iter().for_each(apply);
        }
        Ok(())
    }
}

impl Contents for Setting {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
        Ok(read_text(self.text().as_bytes(), at, into))
    }

    fn write(&self, _: u64, from: &[u8]) -> Result<usize, Errno> {
        self.choose(from).map(|()| from.len())
    }
}

/// Held while a space gets settings, so that two writes, or a write and prctl(2), do not mix.
static APPLIES: SpinMutex<()> = SpinMutex::new(());

/// Chooses where programs get pages of 2 MiB, as the word `transparent_hugepage=` does on Linux.
///
/// # Errors
/// EINVAL: none of `always`, `madvise` and `never`.
pub(crate) fn set_huge_pages(word: &str) -> Result<(), Errno> {
    [&TOP, &HUGE].iter().try_for_each(|setting| setting.choose(word.as_bytes()))
}

/// The memory that gets pages of 2 MiB, in a program that has not forbidden them.
fn huge_pages() -> HugePages {
    match HUGE.resolved() {
        "always" => HugePages::Always,
        "madvise" => HugePages::Madvise,
        _ => HugePages::Never,
    }
}

fn blocks() -> FaultBlocks {
    let orders = |word| {
        let chosen =
            BLOCKS.iter().zip(FaultBlocks::ORDERS).filter(|(one, _)| one.resolved() == word);
        chosen.fold(0, |all, (_, order)| all | 1 << order)
    };
    FaultBlocks { always: orders("always"), madvise: orders("madvise") }
}

/// Gives a space the settings of this moment. It may wait for a call of the program.
pub(crate) fn apply(space: &Arc<Space>) {
    let _applies = lock(&APPLIES);
    set(space, space.huge_pages() == HugePages::Disabled);
}

/// PR_SET_THP_DISABLE.
pub(crate) fn forbid(space: &Arc<Space>, forbids: bool) {
    let _applies = lock(&APPLIES);
    set(space, forbids);
}

fn set(space: &Arc<Space>, forbids: bool) {
    let huge = if forbids { HugePages::Disabled } else { huge_pages() };
    if space.huge_pages() != huge {
        let done = space.set_huge_pages(huge);
        debug_assert!(done.is_ok(), "this machine has pages of 2 MiB");
    }
    let done = space.set_fault_blocks(blocks());
    debug_assert!(done.is_ok(), "all sizes are those of `mm`");
}
