//! Names for the addresses of a backtrace.
//!
//! The kernel prints only addresses: a line `backtrace:` with the return addresses, which after a
//! fault begins with the address of the faulting instruction. Its ELF file has the names, and the
//! inlined frames.

use super::kernel::checkout;
use crate::complain;
use addr2line::gimli::Reader;
use addr2line::{Frame, Loader, demangle_auto};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// The start of the kernel's code. No lower address belongs to it.
const KERNEL: u64 = 0xffff_ffff_8000_0000;

/// Reads the ELF file at the first backtrace, because most kernels print none.
pub(super) struct Backtraces<'a> {
    elf: &'a Path,
    checkout: Option<PathBuf>,
    loader: OnceCell<Option<Loader>>,
    /// A fault was reported, and its backtrace has not come yet.
    fault: bool,
}

impl<'a> Backtraces<'a> {
    pub(super) fn new(elf: &'a Path) -> Backtraces<'a> {
        Backtraces { elf, checkout: checkout(), loader: OnceCell::new(), fault: false }
    }

    /// The lines to print below this one; none if it is no backtrace.
    pub(super) fn of(&mut self, line: &str) -> Vec<String> {
        // The report may begin in the middle of a line.
        self.fault |= line.contains("FAULT on cpu");
        let Some(words) = line.strip_prefix("backtrace:") else { return Vec::new() };
        // A call that never returns may be the last instruction of its function, so the return
        // address may belong to the next function: look up the address before it. The instruction
        // of a fault may be the first of its function: look up the address itself.
        let mut within = if std::mem::take(&mut self.fault) { 0 } else { 1 };
        let Some(loader) = self.loader.get_or_init(|| self.load()) else { return Vec::new() };
        let mut lines = Vec::new();
        for address in addresses(words) {
            for frame in self.frames(loader, address - within, address) {
                lines.push(format!("  #{} {frame}", lines.len()));
            }
            within = 1;
        }
        lines
    }

    /// Reports a failure once. The addresses are printed, and can be looked up by hand.
    fn load(&self) -> Option<Loader> {
        let loader = Loader::new(self.elf);
        loader.map_err(|error| complain(format_args!("no names for addresses: {error}"))).ok()
    }

    /// The function of an instruction and the functions it was inlined into, innermost first.
    fn frames(&self, loader: &Loader, instruction: u64, address: u64) -> Vec<String> {
        let mut lines = Vec::new();
        if let Ok(mut frames) = loader.find_frames(instruction) {
            while let Ok(Some(frame)) = frames.next() {
                lines.push(self.named(&frame));
            }
        }
        if lines.is_empty() {
            let symbol = loader.find_symbol(instruction);
            let symbol = symbol.map(|name| demangle_auto(name.into(), None).into_owned());
            let nothing = || format!("{address:#x}, which the kernel's file does not have");
            lines.push(symbol.unwrap_or_else(nothing));
        }
        lines
    }

    /// `function at file:line`, as far as known. Our own files have their path in the checkout.
    fn named<R: Reader>(&self, frame: &Frame<'_, R>) -> String {
        let name = frame.function.as_ref().and_then(|name| name.demangle().ok());
        let name = name.map_or_else(|| "?".into(), Cow::into_owned);
        let place = frame.location.as_ref().and_then(|place| Some((place.file?, place.line?)));
        let Some((file, line)) = place else { return name };
        let file = Path::new(file);
        let own = self.checkout.as_ref().and_then(|checkout| file.strip_prefix(checkout).ok());
        let file = own.unwrap_or(file);
        format!("{name} at {}:{line}", file.display())
    }
}

/// The words that are addresses of the kernel's code.
fn addresses(words: &str) -> impl Iterator<Item = u64> {
    let hexadecimal = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    words.split_whitespace().filter_map(hexadecimal).filter(|address| *address > KERNEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_kernel_are_looked_up() {
        let found = |words: &str| addresses(words).collect::<Vec<_>>();
        let two = [0xffff_ffff_8000_1234, u64::MAX];
        assert_eq!(found(" 0xffffffff80001234  0xffffffffffffffff\n"), two);
        assert_eq!(
            found(" 0x0 0xffffffff80000000 0x200010 ffffffff80001234 0xffffffff8g 0x"),
            [0; 0]
        );
    }
}
