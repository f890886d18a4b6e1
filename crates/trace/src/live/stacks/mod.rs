//! Call stacks: unwinds the stack of a thread that is stopped at the entry of a call.
//!
//! # Why the stack is right
//!
//! The thread is stopped, and no operation of its address space is in flight. So its registers and
//! its part of the stack do not change, and the observer's VMAs are the kernel's. Each frame is
//! looked up in these VMAs, so unwind tables of a file that is no longer mapped there are never
//! used. A frame outside of executable memory ends the stack.
//!
//! The tables are those of the mapped file itself: a file counts as the mapped one only if its
//! bytes are those in the program's memory (see `image`). Where a stack is damaged or unreadable,
//! the unwinder returns an error, and the stack ends. Its depth is limited, so a loop in it ends,
//! too.
//!
//! Stacks are equal if their places in files are. Each is reported once, and has a number.
//!
//! # Cost
//!
//! Per call: one ptrace request for the registers, one read of 16 KiB of the stack (more if it is
//! deeper), and a look-up in the observer's tree and in a cache of unwind rules for each frame. A
//! file is read once, at its first frame. Names are looked up at the end, once for each place.
//! Memory: 16 bytes for each frame of a different stack.

mod elf;
mod image;
mod memory;
mod names;
mod perf_map;
mod python;
mod signal;
mod symbol_name;
mod symbols;

use std::{
    collections::{BTreeMap, HashMap},
    panic::{self, AssertUnwindSafe},
};

use framehop::{
    Error, FrameAddress, Unwinder,
    x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64},
};

use super::sys::{Tid, ptrace};
use crate::{
    observer::{Code, CodeSource, Observer},
    record::{Frame, ImageId, MmId, Record, Stack, StackEnd, StackId, Symbol},
};
use elf::Section;
use image::Images;
use memory::Memory;
use names::Names;
use python::Python;
use signal::Trampolines;

/// No stack is below this address.
const LEAST: u64 = 4096;

/// The tracer's state of call stacks.
pub(super) struct Stacks {
    /// The most frames of a stack.
    depth: usize,
    images: Images,
    spaces: HashMap<MmId, Modules>,
    known: HashMap<(Vec<Frame>, StackEnd), StackId>,
    trampolines: Trampolines,
    memory: Memory,
    python: Python,
    /// Names while the program runs, if they were asked for.
    names: Option<Names>,
}

/// The files with code of an address space that were in a stack.
#[derive(Default)]
struct Modules {
    unwinder: UnwinderX86_64<Section>,
    /// Rules of the unwinder. It is made anew when a module is, so that no rule of a former module
    /// is found in it.
    cache: CacheX86_64,
    /// By the start of the VMA.
    mapped: BTreeMap<usize, Module>,
    /// The image of compiled code.
    compiled: Option<ImageId>,
}

#[derive(Clone)]
struct Module {
    code: Code,
    image: ImageId,
    /// The address in the process minus that in the file.
    bias: u64,
}

impl Stacks {
    /// Stacks of at most `depth` frames; none if it is 0.
    pub(super) fn new(depth: usize) -> Option<Stacks> {
        (depth > 0).then(|| Stacks {
            depth,
            images: Images::default(),
            spaces: HashMap::new(),
            known: HashMap::new(),
            trampolines: Trampolines::default(),
            memory: Memory::default(),
            python: Python::default(),
            names: None,
        })
    }

    /// `child` is a copy of `mm`: it has the same files at the same places.
    pub(super) fn forked(&mut self, mm: MmId, child: MmId) {
        if let Some(modules) = self.spaces.get(&mm) {
            let (unwinder, mapped) = (modules.unwinder.clone(), modules.mapped.clone());
            // The child has a file of its own for compiled code.
            let copy = Modules { unwinder, mapped, cache: CacheX86_64::new(), compiled: None };
            self.spaces.insert(child, copy);
        }
    }

    /// An address space has ended.
    pub(super) fn ended(&mut self, mm: MmId) {
        self.spaces.remove(&mm);
        self.python.ended(mm);
    }

    /// The stack of a stopped thread, which is reported if it is new; 0 if the thread was killed.
    pub(super) fn capture(&mut self, mm: MmId, tid: Tid, observer: &mut dyn Observer) -> StackId {
        let Ok([ip, sp, bp]) = ptrace::stack_registers(tid) else { return 0 };
        let mut frames = Vec::with_capacity(32);
        let end = guarded(|| self.unwind(mm, tid, [ip, sp, bp], &mut frames, observer));
        let end = end.unwrap_or_else(|| {
            // Its state may be incomplete. Its files are read again.
            self.spaces.remove(&mm);
            StackEnd::Lost
        });
        let stack = (frames, end);
        if let Some(&id) = self.known.get(&stack) {
            return id;
        }
        let Ok(id) = StackId::try_from(self.known.len() + 1) else { return 0 };
        observer.record(Record::Stack(Stack { id, frames: stack.0.clone(), end }), None);
        self.known.insert(stack, id);
        id
    }

    fn unwind(
        &mut self,
        mm: MmId,
        tid: Tid,
        [ip, sp, bp]: [u64; 3],
        frames: &mut Vec<Frame>,
        observer: &mut dyn Observer,
    ) -> StackEnd {
        self.memory.forget(tid);
        let modules = self.spaces.entry(mm).or_default();
        let mut registers = UnwindRegsX86_64::new(ip, sp, bp);
        let mut address = FrameAddress::from_instruction_pointer(ip);
        let (mut chain, mut asked) = (None, false);
        loop {
            let at = address.address_for_lookup() as usize;
            let Some(code) = observer.code_at(mm, at) else {
                // The innermost frame is where the thread is, whatever it is.
                if frames.is_empty() {
                    frames.push(Frame { image: 0, address: ip });
                }
                return StackEnd::Lost;
            };
            // The unwinder computes addresses below the stack pointer.
            if registers.sp() < LEAST {
                return StackEnd::Lost;
            }
            // One frame more than is recorded shows that the stack is cut.
            if frames.len() >= self.depth {
                frames.truncate(self.depth);
                return StackEnd::Cut;
            }
            let mut module = modules.at(code, mm, tid, &mut self.images, observer);
            if module.code.source == CodeSource::Memory {
                if modules.compiled.is_none() && !asked {
                    modules.compiled = self.images.compiled(tid, observer);
                    asked = true;
                }
                module.image = modules.compiled.unwrap_or(0);
            }
            // A frame has the address after its instruction. An interrupted one is at its address.
            let after = at as u64 + u64::from(address.is_return_address() || !frames.is_empty());
            let frame = Frame { image: module.image, address: after.wrapping_sub(module.bias) };
            frames.push(frame);
            let image = self.images.get(module.image);
            if let Some(python) = image.and_then(|image| image.python.as_ref())
                && python.runs(frame.address)
            {
                let begin = || self.python.chain(python, module.bias, mm, tid);
                if let Some(chain) = chain.get_or_insert_with(begin) {
                    let (most, images) = (self.depth - frames.len(), &mut self.images);
                    let taken = self.python.take(chain, (mm, tid), most, images, observer);
                    // Python's functions replace the interpreter's function that runs them.
                    if !taken.is_empty() {
                        frames.pop();
                        frames.extend(taken);
                    }
                }
            }
            if address.is_return_address() && self.trampolines.has(frame, address.address(), tid) {
                let Some(interrupted) = signal::interrupted(&registers, &mut self.memory) else {
                    return StackEnd::Lost;
                };
                address = FrameAddress::from_instruction_pointer(interrupted.ip());
                registers = interrupted;
                continue;
            }
            let memory = &mut self.memory;
            let mut read = |address| memory.word(address).ok_or(());
            let next = modules.unwinder.unwind_frame(
                address,
                &mut registers,
                &mut modules.cache,
                &mut read,
            );
            address = match next.map(|next| next.map(FrameAddress::from_return_address)) {
                Ok(Some(Some(caller))) => caller,
                Ok(None) => return StackEnd::Root,
                // The first function has frame pointer 0 (System V ABI), and needs no tables.
                Err(Error::FramepointerUnwindingMovedBackwards) if registers.bp() == 0 => {
                    return StackEnd::Root;
                }
                Ok(Some(None)) | Err(_) => return StackEnd::Lost,
            };
        }
    }

    /// Reports the names of the functions in all stacks.
    pub(super) fn tell_symbols(&mut self, observer: &mut dyn Observer) {
        for frames in self.unnamed().chunk_by(|a, b| a.image == b.image) {
            let Some(image) = frames.first().and_then(|frame| self.images.get(frame.image)) else {
                continue;
            };
            tell(guarded(|| symbols::of(image, frames)).unwrap_or_default(), observer);
        }
        tell(self.names.take().map(Names::rest).unwrap_or_default(), observer);
        tell(self.python.symbols(), observer);
    }

    /// Reports the names that are ready, while the program runs, and asks for those of new frames.
    pub(super) fn tell_names(&mut self, observer: &mut dyn Observer) {
        if self.names.is_none() {
            self.names = Names::start();
        }
        tell(self.python.symbols(), observer);
        let Some(names) = &mut self.names else { return };
        tell(names.ready(), observer);
        if !names.is_idle() {
            return;
        }
        for frames in self.unnamed().chunk_by(|a, b| a.image == b.image) {
            let image = frames.first().and_then(|frame| self.images.shared(frame.image));
            if let (Some(image), Some(names)) = (image, &mut self.names) {
                names.ask(image, frames.to_vec());
            }
        }
    }

    /// The frames whose names were not asked for, in order.
    fn unnamed(&self) -> Vec<Frame> {
        let frames = self.known.keys().flat_map(|(frames, _)| frames).copied();
        let is_new = |frame: &Frame| self.names.as_ref().is_none_or(|all| !all.was_asked(*frame));
        let mut frames: Vec<Frame> = frames.filter(is_new).collect();
        frames.sort_unstable();
        frames.dedup();
        frames
    }
}

fn tell(symbols: Vec<Symbol>, observer: &mut dyn Observer) {
    for symbol in symbols {
        observer.record(Record::Symbol(symbol), None);
    }
}

/// Runs code that reads files of the program. These may be damaged on purpose. If a library panics
/// over one, only the data read is lost: a panic of the tracer would kill the program.
fn guarded<T>(read: impl FnOnce() -> T) -> Option<T> {
    panic::catch_unwind(AssertUnwindSafe(read)).ok()
}

impl Modules {
    /// The module of a VMA with code. A new one is made if another one was there, or none.
    fn at(
        &mut self,
        code: Code,
        mm: MmId,
        tid: Tid,
        images: &mut Images,
        observer: &mut dyn Observer,
    ) -> Module {
        if let Some(module) = self.mapped.get(&code.range.start)
            && module.code == code
        {
            return module.clone();
        }
        let over: Vec<usize> = self
            .mapped
            .range(..code.range.end)
            .rev()
            .take_while(|(_, module)| code.range.start < module.code.range.end)
            .map(|(&start, _)| start)
            .collect();
        for start in over {
            self.mapped.remove(&start);
            self.unwinder.remove_module(start as u64);
        }
        self.cache = CacheX86_64::new();
        let (image, bias, unwind) = images.of(&code, mm, tid, observer);
        if let Some(unwind) = unwind {
            self.unwinder.add_module(unwind);
        }
        let module = Module { code: code.clone(), image, bias };
        self.mapped.insert(code.range.start, module.clone());
        module
    }
}
