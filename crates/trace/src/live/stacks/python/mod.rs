//! Python's own frames: the functions that CPython runs, with their lines.
//!
//! The C function that runs Python's functions is in the stack once for each chain of calls between
//! them. Its thread is stopped, and only that thread changes its chain of frames, so they are
//! consistent. Each frame has its code object, which has names and a table of lines. All of it is
//! read from memory of the program, which may be damaged: numbers are bounded, and an object that
//! cannot be read ends the chain. A code object is known by its address and by those of its names
//! and its table, which are read again each time.
//!
//! A place in Python is a frame of the image with the script's path, without device and inode. Its
//! address is a number for function and line.
//!
//! Cost: some reads of memory for the thread, and two for each frame.

mod layout;
mod lines;

use std::collections::{HashMap, hash_map::Entry};

pub(super) use layout::Interpreter;
use layout::{INSTRUCTION, Layout, NAMES};

use super::image::Images;
use crate::{
    live::sys::{self, Tid},
    observer::Observer,
    record::{Frame, ImageId, MmId, Symbol},
};

/// Longer strings and tables are damaged, in bytes.
const LONGEST: usize = 1 << 20;
/// More threads or interpreters are a loop.
const MOST: usize = 10_000;

/// All that is known of Python's functions.
#[derive(Default)]
pub(super) struct Python {
    threads: HashMap<(MmId, Tid), usize>,
    codes: HashMap<Key, Code>,
    /// The number of each function and line.
    places: HashMap<(ImageId, String, u32), u64>,
    symbols: Vec<Symbol>,
}

/// The address space of a code object, its address, and those of its names and its table.
type Key = (MmId, usize, [usize; 4]);

struct Code {
    image: ImageId,
    name: String,
    path: String,
    first_line: u32,
    table: Vec<u8>,
}

/// The rest of a thread's frames, from the newest one.
pub(super) struct Chain {
    layout: &'static Layout,
    next: usize,
}

/// Reads words of a thread.
fn words<const N: usize>(tid: Tid, address: usize) -> Option<[usize; N]> {
    sys::read_words(tid, address).ok()
}

fn word(tid: Tid, address: usize) -> Option<usize> {
    words::<1>(tid, address).map(|[word]| word)
}

impl Python {
    /// The frames of a thread. `bias`: the interpreter's addresses minus those in its file.
    pub(super) fn chain(
        &mut self,
        interpreter: &Interpreter,
        bias: u64,
        mm: MmId,
        tid: Tid,
    ) -> Option<Chain> {
        let layout = interpreter.layout;
        let is_own =
            |thread: usize| word(tid, thread.wrapping_add(layout.native)) == Some(tid as usize);
        let known = self.threads.get(&(mm, tid)).copied().filter(|&thread| is_own(thread));
        let runtime = interpreter.runtime.wrapping_add(bias) as usize;
        let thread = known.or_else(|| thread(layout, runtime, tid, is_own))?;
        self.threads.insert((mm, tid), thread);
        let place = match layout.cframe {
            Some(offset) => word(tid, thread.wrapping_add(offset))?,
            None => thread,
        };
        Some(Chain { layout, next: word(tid, place.wrapping_add(layout.newest))? })
    }

    /// An address space has ended.
    pub(super) fn ended(&mut self, mm: MmId) {
        self.threads.retain(|(of, _), _| *of != mm);
        self.codes.retain(|(of, ..), _| *of != mm);
    }

    /// Takes the frames of one run of the interpreter's C function, the innermost first.
    pub(super) fn take(
        &mut self,
        chain: &mut Chain,
        (mm, tid): (MmId, Tid),
        most: usize,
        images: &mut Images,
        observer: &mut dyn Observer,
    ) -> Vec<Frame> {
        let layout = chain.layout;
        let mut frames = Vec::new();
        while chain.next != 0 && frames.len() <= most {
            let Some(frame) = words::<10>(tid, chain.next) else { break };
            chain.next = frame[layout.previous / 8];
            let (at, value) = layout.entry;
            let is_entry = frame[at / 8].to_ne_bytes()[at % 8] == value;
            if !is_entry || layout.entry_is_function {
                let (code, instruction) = (frame[layout.code / 8], frame[INSTRUCTION / 8]);
                let found = self.frame(layout, (mm, tid), code, instruction, images, observer);
                frames.extend(found);
            }
            if is_entry {
                break;
            }
        }
        frames
    }

    /// The place of an instruction in a code object.
    fn frame(
        &mut self,
        layout: &Layout,
        (mm, tid): (MmId, Tid),
        code: usize,
        instruction: usize,
        images: &mut Images,
        observer: &mut dyn Observer,
    ) -> Option<Frame> {
        let key = (mm, code, words::<4>(tid, code.wrapping_add(NAMES))?);
        let number = instruction.wrapping_sub(code.wrapping_add(layout.bytecode)) / 2;
        let code = match self.codes.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(read(layout, tid, code, key.2, images, observer)?),
        };
        let line = lines::line(&code.table, code.first_line, number).unwrap_or(code.first_line);
        let place = (code.image, code.name.clone(), line);
        let next = self.places.len() as u64 + 1;
        let frame = Frame { image: code.image, address: *self.places.entry(place).or_insert(next) };
        if frame.address == next {
            let (name, line) = (code.name.clone(), Some((code.path.clone(), line)));
            self.symbols.push(Symbol { frame, name, line });
        }
        Some(frame)
    }

    /// The names of all places.
    pub(super) fn symbols(&mut self) -> Vec<Symbol> {
        std::mem::take(&mut self.symbols)
    }
}

/// Looks for the interpreter's state of a thread that runs Python.
fn thread(
    layout: &Layout,
    runtime: usize,
    tid: Tid,
    is_own: impl Fn(usize) -> bool,
) -> Option<usize> {
    let (mut interpreters, mut threads) = (layout.interpreters, layout.threads);
    if layout.tells_offsets() {
        const COOKIE: usize = usize::from_le_bytes(*b"xdebugpy");
        let told = words::<10>(tid, runtime)?;
        // Without a global lock, frames have another form.
        if told[0] != COOKIE || told[2] != 0 {
            return None;
        }
        (interpreters, threads) = (told[5], told[9]);
    }
    let interpreter = word(tid, runtime.wrapping_add(interpreters))?;
    let first = word(tid, interpreter.wrapping_add(threads)).filter(|first| *first != 0)?;
    let (mut at, mut count) = (first, 0);
    while at != 0 && count < MOST {
        if is_own(at) {
            return Some(at);
        }
        at = word(tid, at.wrapping_add(layout.next))?;
        count += 1;
    }
    // In a container the thread has another id. It runs Python, so it is the only one that can.
    (count == 1).then_some(first)
}

/// Reads a code object.
fn read(
    layout: &Layout,
    tid: Tid,
    code: usize,
    [path, _, name, table]: [usize; 4],
    images: &mut Images,
    observer: &mut dyn Observer,
) -> Option<Code> {
    let path = string(layout, tid, path).filter(|path| !path.is_empty())?;
    let name = string(layout, tid, name).filter(|name| !name.is_empty())?;
    let [_, _, length, _] = words::<4>(tid, table)?;
    let mut bytes = vec![0; Some(length).filter(|length| *length <= LONGEST)?];
    let got = sys::read_pages(tid, table.wrapping_add(32), &mut bytes);
    bytes.truncate(got);
    let first_line = word(tid, code.wrapping_add(layout.first_line))? as u32;
    let image = images.script(&path, observer);
    Some(Code { image, name, path, first_line, table: bytes })
}

/// A string object, without characters that end a field of a recording.
fn string(layout: &Layout, tid: Tid, address: usize) -> Option<String> {
    let [_, _, length, _, state] = words::<5>(tid, address)?;
    let (kind, is_ascii) = (state >> 2 & 7, state >> 6 & 1 == 1);
    let head = if is_ascii { layout.ascii } else { layout.compact };
    let size = length.checked_mul(kind).filter(|size| *size <= LONGEST)?;
    let mut bytes = vec![0; size];
    if sys::read_pages(tid, address.wrapping_add(head), &mut bytes) < size {
        return None;
    }
    let character = |bytes: &[u8]| {
        let code = bytes.iter().rev().fold(0, |code, &byte| code << 8 | u32::from(byte));
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        if character.is_control() { ' ' } else { character }
    };
    matches!(kind, 1 | 2 | 4).then(|| bytes.chunks(kind).map(character).collect())
}
