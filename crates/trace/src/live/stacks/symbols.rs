//! The names of functions, looked up when the program has ended.
//!
//! Debug information names inlined functions and lines. The symbol tables name the function that
//! contains them: a name counts only within the function's size, so that code between two exported
//! functions of a stripped library does not get the name of another one. If the file has changed
//! since it was mapped, it has no names.
//!
//! Every address is that after a call, which may be the first one of the next function. So the byte
//! before it is looked up.
//!
//! Cost: each file's symbol tables once, and its debug information once, where it is used.

use std::{borrow::Cow, fs::File, os::fd::AsRawFd, path::PathBuf};

use addr2line::{Loader, demangle_auto};
use object::{Object, ObjectSymbol, ReadCache, ReadRef, SymbolKind, read::elf::ElfFile64};

use super::image::{Contents, Image};
use crate::record::{Frame, Symbol};

/// Longer names of functions are cut there. Some templates of C++ have far longer ones.
const LONGEST: usize = 1000;

/// The functions at frames of one image: for each frame the innermost first.
pub(super) fn of(image: &Image, frames: &[Frame]) -> Vec<Symbol> {
    let Some(contents) = image.contents.as_ref().filter(|_| image.is_unchanged()) else {
        return Vec::new();
    };
    let table = match contents {
        Contents::File(file, _) => Table::read(&ReadCache::new(file)),
        Contents::Memory(bytes) => Table::read(&bytes[..]),
    };
    let table = table.unwrap_or_default();
    let debug = match contents {
        Contents::File(file, _) => debug(file, image, table.build_id.as_deref()),
        Contents::Memory(_) => None,
    };
    let mut symbols = Vec::new();
    for &frame in frames {
        let at = frame.address.wrapping_sub(1);
        let had = symbols.len();
        if let Some(debug) = &debug {
            inlined(debug, frame, &mut symbols);
        }
        let Some(name) = table.name_at(at).map(|name| tidy(demangled(name.into()))) else {
            continue;
        };
        match symbols[had..].last_mut() {
            // Debug information has internal names of exported functions.
            Some(outermost) => outermost.name = name,
            None => {
                let line = debug.as_ref().and_then(|debug| line(debug.find_location(at).ok()??));
                symbols.push(Symbol { frame, name, line });
            }
        }
    }
    symbols
}

/// The functions at a frame by debug information.
fn inlined(debug: &Loader, frame: Frame, symbols: &mut Vec<Symbol>) {
    let Ok(mut found) = debug.find_frames(frame.address.wrapping_sub(1)) else { return };
    while let Ok(Some(one)) = found.next() {
        let Some(function) = &one.function else { continue };
        let Ok(raw) = function.raw_name() else { continue };
        symbols.push(Symbol {
            frame,
            name: tidy(demangled(raw)),
            line: one.location.and_then(line),
        });
    }
}

fn line(location: addr2line::Location<'_>) -> Option<(String, u32)> {
    Some((location.file.filter(|file| !file.is_empty())?.to_owned(), location.line?))
}

/// The name of a function of C++ or Rust as in its source. `c` is a function of C, although it is
/// the mangled name of a type.
fn demangled(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.starts_with("_Z") || name.starts_with("_R") { demangle_auto(name, None) } else { name }
}

/// A name for people: without the hash of Rust's symbols, without characters that end a field, and
/// not too long.
fn tidy(name: Cow<'_, str>) -> String {
    let name = match name.rsplit_once("::h") {
        Some((short, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            short
        }
        _ => &name,
    };
    let space = |c: char| if c.is_control() { ' ' } else { c };
    name.chars().take(LONGEST).map(space).collect()
}

/// The debug information of a file: its own, or that of a package with debug files.
fn debug(file: &File, image: &Image, build_id: Option<&str>) -> Option<Loader> {
    let separate = build_id.filter(|id| id.len() > 2).map(|id| {
        let (first, rest) = id.split_at(2);
        PathBuf::from(format!("/usr/lib/debug/.build-id/{first}/{rest}.debug"))
    });
    if let Some(separate) = separate.filter(|path| path.is_file()) {
        return Loader::new(separate).ok();
    }
    // By its own path if that still leads to it: split debug information is found beside it.
    let same = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        let here = std::fs::metadata(path).ok()?;
        let there = file.metadata().ok()?;
        Some((here.dev(), here.ino()) == (there.dev(), there.ino()))
    };
    match same(&image.path) {
        Some(true) => Loader::new(&image.path).ok(),
        _ => Loader::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok(),
    }
}

/// The functions in a file's symbol tables.
#[derive(Default)]
struct Table {
    /// First address, size and name, in order of addresses.
    functions: Vec<(u64, u64, String)>,
    build_id: Option<String>,
}

impl Table {
    fn read<'data, R: ReadRef<'data>>(data: R) -> Option<Table> {
        let file = ElfFile64::<object::endian::LittleEndian, R>::parse(data).ok()?;
        let mut functions: Vec<(u64, u64, String)> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
            .filter_map(|symbol| {
                Some((symbol.address(), symbol.size(), symbol.name().ok()?.into()))
            })
            .filter(|(_, _, name): &(_, _, String)| !name.is_empty())
            .collect();
        // Of several names for one function, the one with fewest underscores in front: `malloc`, not
        // `__libc_malloc`.
        let private = |name: &str| name.bytes().take_while(|&byte| byte == b'_').count();
        functions.sort_by(|a, b| {
            let key = |(address, size, name): &(u64, u64, String)| {
                (*address, std::cmp::Reverse(*size), private(name), name.len())
            };
            key(a).cmp(&key(b)).then_with(|| a.2.cmp(&b.2))
        });
        functions.dedup_by_key(|(address, _, _)| *address);
        let id = file.build_id().ok().flatten();
        let build_id = id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        Some(Table { functions, build_id })
    }

    /// The function that contains an address. One without a size reaches to the next one.
    fn name_at(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, _, _)| *start <= address);
        let (start, size, name) = &self.functions[after.checked_sub(1)?];
        (*size == 0 || address - start < *size).then_some(name)
    }
}
