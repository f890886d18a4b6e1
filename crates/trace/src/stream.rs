//! Shows each memory call as it happens, as one JSON object a line.
//!
//! A line is written after all records of its call, because some calls make their VMA by a record
//! of its own (shmat), or have changed something before they failed. So the size of the address
//! space is the one after the call. The thread is stopped meanwhile: the line comes before the
//! program's later output.
//!
//! If calls have stacks, a line has the number of its stack. A line with the frames of a stack
//! comes before the first call that has it, and lines with the names of functions after all calls.
//! Only lines of calls have `call`.
//!
//! Cost: one write a call. The size is read from counters.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use serde_json::{Value, json};

use crate::{
    record::{Call, Frame, ImageId, MmId, Op, Record, Stack, Symbol},
    report::call,
};

/// The calls of a run as JSON lines.
///
/// ```
/// use trace::{record::{Call, Op, Record}, stream::Stream};
///
/// let mut stream = Stream::new(std::io::sink());
/// stream.record(&Record::Call(Call::new(1, 7, Op::Munmap, &[0x1000, 0x1000], 0)));
/// stream.show(|_mm| Some((20, 4 << 20)))?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Stream {
    out: Box<dyn Write + Send>,
    /// The process of each thread that is not the first of its process, and its address space.
    threads: HashMap<u32, (MmId, u32)>,
    /// The newest call, until it is shown.
    call: Option<Call>,
    /// The descriptor of the next ioctl or close, whose record has another number.
    descriptor: Option<u32>,
    /// The paths of files with code.
    images: HashMap<ImageId, String>,
    /// Lines about stacks, which come before the newest call's.
    pending: String,
    /// The calls to show; `None` for all.
    only: Option<Vec<Op>>,
}

impl Stream {
    /// Shows calls in `out`, each by one `write_all` and a flush.
    pub fn new(out: impl Write + Send + 'static) -> Stream {
        Stream {
            out: Box::new(out),
            threads: HashMap::new(),
            call: None,
            descriptor: None,
            images: HashMap::new(),
            pending: String::new(),
            only: None,
        }
    }

    /// Shows only these kinds of calls.
    pub fn only(self, ops: &[Op]) -> Stream {
        Stream { only: Some(ops.to_vec()), ..self }
    }

    /// Takes note of the descriptor of the next call, an ioctl or close.
    pub fn descriptor(&mut self, descriptor: u32) {
        self.descriptor = Some(descriptor);
    }

    /// Takes note of a record. A call is shown by the next [`show`](Self::show).
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Call(call) => {
                let descriptor = self.descriptor.take();
                if self.only.as_ref().is_none_or(|only| only.contains(&call.op)) {
                    let mut call = call.clone();
                    if let (Op::Ioctl | Op::Close, Some(descriptor)) = (call.op, descriptor) {
                        call.args[0] = descriptor as usize;
                    }
                    self.call = Some(call);
                }
            }
            Record::Share { mm, tid, child_tid, vfork: false } => {
                let process = self.process(*tid);
                self.threads.insert(*child_tid, (*mm, process));
            }
            // Thread ids are reused.
            Record::Share { child_tid, .. } | Record::Fork { child_tid, .. } => {
                self.threads.remove(child_tid);
            }
            Record::Image(image) => {
                self.images.insert(image.id, image.path.clone());
            }
            Record::Stack(stack) => {
                let line = self.stack(stack);
                self.pending += &format!("{line}\n");
            }
            Record::Symbol(symbol) => {
                let line = self.symbol(symbol);
                self.pending += &format!("{line}\n");
            }
            Record::ExitMmap { mm } => self.threads.retain(|_, (other, _)| other != mm),
            _ => {}
        }
    }

    /// Shows the newest call, if it was not shown. `size`: the VMAs and mapped bytes of its address
    /// space after it.
    ///
    /// # Errors
    /// Those of the output. The call counts as shown.
    pub fn show(&mut self, size: impl FnOnce(MmId) -> Option<(usize, usize)>) -> io::Result<()> {
        let mut text = std::mem::take(&mut self.pending);
        if let Some(call) = self.call.take() {
            text += &format!("{}\n", self.object(&call, size(call.mm)));
        }
        if text.is_empty() {
            return Ok(());
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// A stack, before the first call that has it.
    fn stack(&self, stack: &Stack) -> Value {
        let frame = |frame: &Frame| json!({ "image": self.images.get(&frame.image), "address": frame.address });
        let frames: Vec<Value> = stack.frames.iter().map(frame).collect();
        json!({ "stack": stack.id, "end": stack.end.name(), "frames": frames })
    }

    /// A function at a frame, after all calls.
    fn symbol(&self, symbol: &Symbol) -> Value {
        let Frame { image, address } = symbol.frame;
        let (file, line) = symbol.line.clone().unzip();
        json!({
            "function": symbol.name, "image": self.images.get(&image), "address": address,
            "file": file, "line": line,
        })
    }

    fn object(&self, call: &Call, size: Option<(usize, usize)>) -> Value {
        let (vmas, mapped) = size.unzip();
        let name = || call::result(call.result).trim_start_matches('-').to_owned();
        let error = call.failed().then(name);
        json!({
            "time_ns": call.at,
            "pid": self.process(call.tid),
            "tid": call.tid,
            "mm": call.mm,
            "call": call.op.name(),
            "arguments": call.args[..call.op.arity()],
            "result": call.result,
            "error": error,
            "text": call::describe(call, None),
            "vmas": vmas,
            "mapped_bytes": mapped,
            "stack": (call.stack != 0).then_some(call.stack),
        })
    }

    fn process(&self, tid: u32) -> u32 {
        self.threads.get(&tid).map_or(tid, |&(_, process)| process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_their_process_until_their_memory_ends() {
        let mut stream = Stream::new(io::sink());
        let share = |tid, child_tid, vfork| Record::Share { mm: 1, tid, child_tid, vfork };
        stream.record(&share(7, 8, false));
        stream.record(&share(8, 9, false));
        stream.record(&share(9, 10, true));
        assert_eq!([7, 8, 9, 10].map(|tid| stream.process(tid)), [7, 7, 7, 10]);
        stream.record(&Record::Fork { mm: 1, child: 2, tid: 7, child_tid: 9 });
        assert_eq!([8, 9].map(|tid| stream.process(tid)), [7, 9]);
        stream.record(&Record::ExitMmap { mm: 1 });
        assert_eq!(stream.process(8), 8);
    }

    /// A record identifies a userfaultfd by its inode. A reader knows its descriptor.
    #[test]
    fn an_ioctl_has_its_descriptor() {
        let mut stream = Stream::new(io::sink());
        for (told, shown) in [(None, 4711), (Some(3), 3), (None, 4711)] {
            if let Some(descriptor) = told {
                stream.descriptor(descriptor);
            }
            let call = Call::new(2, 7, Op::Ioctl, &[4711, 0xc020_aa00, 0x2000], 0);
            stream.record(&Record::Call(call));
            assert_eq!(stream.call.take().map(|call| call.args[0]), Some(shown), "{told:?}");
        }
    }

    #[test]
    fn an_object_has_numbers_for_programs_and_text_for_people() {
        let stream = Stream::new(io::sink());
        let call = Call::new(2, 7, Op::Mprotect, &[0x1000, 4096, 1], -12);
        let call = Call { at: Some(5), ..call };
        let object = stream.object(&call, Some((3, 8192)));
        let expected = json!({
            "time_ns": 5, "pid": 7, "tid": 7, "mm": 2, "call": "mprotect",
            "arguments": [4096, 4096, 1], "result": -12, "error": "ENOMEM",
            "text": "mprotect(0x1000, 4096, PROT_READ) = -ENOMEM", "vmas": 3, "mapped_bytes": 8192,
            "stack": null,
        });
        assert_eq!(object, expected);
    }
}
