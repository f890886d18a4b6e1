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

use std::{borrow::Cow, cmp::Reverse, fs::File, os::fd::AsRawFd, path::PathBuf};

use addr2line::{Loader, demangle_auto};
use object::{
    Object, ObjectSymbol, ObjectSymbolTable, ReadCache, ReadRef, SymbolIndex, SymbolKind,
    endian::LittleEndian, read::elf::ElfFile64,
};

use super::{
    image::{Contents, Image},
    perf_map,
    symbol_name::tidy,
};
use crate::record::{Frame, Symbol};

/// The functions at frames of one image: for each frame the innermost first.
pub(super) fn of(image: &Image, frames: &[Frame]) -> Vec<Symbol> {
    if !image.is_unchanged() {
        return Vec::new();
    }
    match &image.contents {
        Some(Contents::File(file, _)) => {
            let cache = ReadCache::new(file);
            let Some(table) = Table::read(&cache) else { return Vec::new() };
            let debug = debug(file, image, table.build_id().as_deref());
            names(&table, debug.as_ref(), frames)
        }
        Some(Contents::Memory(bytes)) => {
            Table::read(&bytes[..]).map_or_else(Vec::new, |table| names(&table, None, frames))
        }
        Some(Contents::PerfMap(file)) => perf_map::names(file, frames),
        None => Vec::new(),
    }
}

fn names<'data, R: ReadRef<'data>>(
    table: &Table<'data, R>,
    debug: Option<&Loader>,
    frames: &[Frame],
) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    for &frame in frames {
        let at = frame.address.wrapping_sub(1);
        let had = symbols.len();
        if let Some(debug) = debug {
            inlined(debug, frame, &mut symbols);
        }
        let Some(name) = table.name_at(at).map(|name| tidy(demangled(name.into()))) else {
            continue;
        };
        match symbols[had..].last_mut() {
            // Debug information has internal names of exported functions.
            Some(outermost) => outermost.name = name,
            None => {
                let line = debug.and_then(|debug| line(debug.find_location(at).ok()??));
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

/// The debug information of a file: its own, or that of a package with debug files.
fn debug(file: &File, image: &Image, build_id: Option<&str>) -> Option<Loader> {
    let separate = build_id.filter(|id| id.len() > 2).map(|id| {
        let (first, rest) = id.split_at(2);
        PathBuf::from(format!("/usr/lib/debug/.build-id/{first}/{rest}.debug"))
    });
    if let Some(separate) = separate.filter(|path| path.is_file()) {
        return Loader::new(separate).ok();
    }
    // By its own path if that still leads to it: split debug information is found next to it.
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

/// The functions in a file's symbol tables. Names are read when they are asked for, because a file
/// has many, and few of them are in stacks.
struct Table<'data, R: ReadRef<'data>> {
    file: ElfFile64<'data, LittleEndian, R>,
    /// In order of addresses, then of falling sizes.
    functions: Vec<Function>,
}

#[derive(Clone, Copy)]
struct Function {
    address: u64,
    size: u64,
    index: SymbolIndex,
    /// Whether it is in the table of dynamic symbols.
    dynamic: bool,
}

impl<'data, R: ReadRef<'data>> Table<'data, R> {
    fn read(data: R) -> Option<Self> {
        let file = ElfFile64::<LittleEndian, R>::parse(data).ok()?;
        let mut functions = Vec::new();
        for (symbols, dynamic) in [(file.symbols(), false), (file.dynamic_symbols(), true)] {
            let code = symbols
                .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
            functions.extend(code.map(|symbol| {
                let (address, size, index) = (symbol.address(), symbol.size(), symbol.index());
                Function { address, size, index, dynamic }
            }));
        }
        functions.sort_by_key(|one| (one.address, Reverse(one.size)));
        Some(Table { file, functions })
    }

    fn build_id(&self) -> Option<String> {
        let id = self.file.build_id().ok()??;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The function that contains an address. One without a size reaches to the next one.
    fn name_at(&self, address: u64) -> Option<String> {
        let after = self.functions.partition_point(|one| one.address <= address);
        let start = self.functions.get(after.checked_sub(1)?)?.address;
        let first = self.functions.partition_point(|one| one.address < start);
        let same = &self.functions[first..after];
        let size = same.first()?.size;
        if size != 0 && address - start >= size {
            return None;
        }
        let names = same.iter().filter(|one| one.size == size).filter_map(|one| self.name(*one));
        // Of several names, the one with fewest underscores: `malloc`, not `__libc_malloc`.
        let private = |name: &str| name.bytes().take_while(|&byte| byte == b'_').count();
        names.min_by_key(|name| (private(name), name.len(), name.clone()))
    }

    fn name(&self, one: Function) -> Option<String> {
        let table = match one.dynamic {
            true => self.file.dynamic_symbol_table()?,
            false => self.file.symbol_table()?,
        };
        let symbol = table.symbol_by_index(one.index).ok()?;
        symbol.name().ok().filter(|name| !name.is_empty()).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_in_the_source() {
        for (raw, expected) in [
            ("_ZN5alloc5alloc5alloc17h0123456789abcdefE", "alloc::alloc::alloc"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_ZN2ns1T4growEi", "ns::T::grow(int)"),
            // Names of C, although they are mangled names of types.
            ("c", "c"),
            ("main", "main"),
            ("_Zx", "_Zx"),
        ] {
            assert_eq!(tidy(demangled(raw.into())), expected);
        }
    }

    /// This program's own table: a name counts from the function's first byte to its last one.
    #[test]
    fn a_name_counts_within_its_function() {
        let file = File::open("/proc/self/exe").unwrap();
        let cache = ReadCache::new(&file);
        let table = Table::read(&cache).unwrap();
        let alone = |two: &&[Function]| {
            let after = two[0].address + two[0].size;
            two[0].size > 1 && after < two[1].address
        };
        let [one, next] = table.functions.windows(2).find(alone).unwrap() else { unreachable!() };
        let name = table.name_at(one.address);
        assert!(name.is_some());
        assert_eq!(table.name_at(one.address + one.size - 1), name);
        assert_eq!(table.name_at(one.address + one.size), None, "before {:#x}", next.address);
    }
}
