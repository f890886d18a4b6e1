//! Where CPython keeps its frames, by version, and how its objects look in memory.
//!
//! The offsets are those of the public headers of each version, on machines with words of 64 bits.
//! They do not change within a minor version, but for the two that 3.13 itself tells at the start
//! of its runtime state.

use object::{Object, ObjectSection, ObjectSymbol, ReadRef, endian::LittleEndian};
use std::ops::Range;

/// The version of an interpreter with its offsets in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    minor: u32,
    /// In the runtime state: the first interpreter.
    pub(super) interpreters: usize,
    /// In an interpreter: the first thread.
    pub(super) threads: usize,
    /// In a thread: the next one, its id in the kernel, and the newest frame.
    pub(super) next: usize,
    pub(super) native: usize,
    /// In versions before 3.13 through one more pointer, at this offset.
    pub(super) cframe: Option<usize>,
    pub(super) newest: usize,
    /// In a frame.
    pub(super) code: usize,
    pub(super) previous: usize,
    /// Whether the interpreter's C function began with this frame: a byte with this value. In 3.11
    /// the frame is a function's; later it only marks the beginning.
    pub(super) entry: (usize, u8),
    pub(super) entry_is_function: bool,
    /// In a code object.
    pub(super) first_line: usize,
    pub(super) bytecode: usize,
    /// The sizes of the heads of ASCII and of other strings.
    pub(super) ascii: usize,
    pub(super) compact: usize,
}

/// In a frame: the newest instruction.
pub(super) const INSTRUCTION: usize = 56;
/// In a code object: file, name, qualified name and table of lines.
pub(super) const NAMES: usize = 112;

const V3_12: Layout = Layout {
    minor: 12,
    interpreters: 40,
    threads: 72,
    next: 8,
    native: 144,
    cframe: Some(56),
    newest: 0,
    code: 0,
    previous: 8,
    entry: (70, 3),
    entry_is_function: false,
    first_line: 68,
    bytecode: 192,
    ascii: 40,
    compact: 56,
};

const LAYOUTS: [Layout; 3] = [
    Layout {
        minor: 11,
        threads: 16,
        native: 160,
        newest: 8,
        code: 32,
        previous: 48,
        entry: (68, 1),
        entry_is_function: true,
        first_line: 72,
        bytecode: 184,
        ascii: 48,
        compact: 72,
        ..V3_12
    },
    V3_12,
    Layout {
        minor: 13,
        interpreters: 632,
        threads: 7344,
        native: 160,
        cframe: None,
        newest: 72,
        bytecode: 200,
        ..V3_12
    },
];

impl Layout {
    /// Whether the runtime state begins with its own offsets.
    pub(super) fn tells_offsets(&self) -> bool {
        self.minor >= 13
    }
}

/// An interpreter in a file with code. Addresses are those in the file.
#[derive(Debug)]
pub(in crate::live::stacks) struct Interpreter {
    pub(super) layout: &'static Layout,
    pub(super) runtime: u64,
    /// The function that runs Python's functions.
    eval: Range<u64>,
}

impl Interpreter {
    /// Finds the interpreter in a file; `None` if it has none.
    ///
    /// # Errors
    /// It has one of another version, which is returned if the file tells it.
    pub(in crate::live::stacks) fn find<'data, R: ReadRef<'data>>(
        data: R,
    ) -> Option<Result<Interpreter, String>> {
        let file = object::read::elf::ElfFile64::<LittleEndian, R>::parse(data).ok()?;
        let (mut eval, mut runtime, mut version) = (None, None, None);
        for symbol in file.dynamic_symbols().filter(ObjectSymbol::is_definition) {
            match symbol.name() {
                Ok("_PyEval_EvalFrameDefault") => {
                    eval = Some(symbol.address()..symbol.address().saturating_add(symbol.size()));
                }
                Ok("_PyRuntime") => runtime = Some(symbol.address()),
                Ok("Py_Version") => version = Some(symbol.address()),
                _ => {}
            }
        }
        let (eval, runtime) = (eval?, runtime?);
        let version = version.and_then(|address| {
            let bytes = file.sections().find_map(|one| one.data_range(address, 4).ok()?)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        });
        let Some(version) = version else { return Some(Err("before 3.11".into())) };
        let minor = version >> 16 & 0xff;
        let layout = LAYOUTS.iter().find(|one| version >> 24 == 3 && one.minor == minor);
        Some(match layout {
            Some(layout) => Ok(Interpreter { layout, runtime, eval }),
            None => Err(format!("{}.{minor}", version >> 24)),
        })
    }

    /// Whether a return address in the file lies in the function that runs Python's functions.
    pub(in crate::live::stacks) fn runs(&self, address: u64) -> bool {
        self.eval.contains(&address.wrapping_sub(1))
    }
}
