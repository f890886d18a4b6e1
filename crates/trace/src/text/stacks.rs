//! The lines of call stacks. All begin with `#`, so parsers of earlier versions skip them as
//! comments, and recordings of earlier versions have none.
//!
//! - `#i IMAGE MAJOR:MINOR INODE PATH` describes a file with code.
//! - `#s STACK END FRAME...` is a stack, the innermost frame first. A frame is `IMAGE+ADDRESS`, or
//!   an `ADDRESS` alone outside of files. END is `root`, `cut` or `lost`.
//! - `#^ STACK` before an `M` line is the stack of that call.
//! - `#n IMAGE ADDRESS NAME`, or the same with a tab, a line and a source file after it, is a
//!   function at a frame. These come after the last address space has ended: a trace that is cut
//!   among them is complete but for names.

use std::fmt::{self, Write as _};

use super::{
    error::Expected,
    fields::{Fields, decimal, hex},
    print::OneLine,
};
use crate::record::{Frame, Image, Record, Stack, StackEnd, StackId, Symbol};

/// The start of the line before an `M` line that has the stack of the call.
pub(super) const STACK_OF: &str = "#^ ";

pub(super) fn write_image(out: &mut String, image: &Image) -> fmt::Result {
    let (major, minor) = image.dev;
    let path = OneLine(&image.path);
    writeln!(out, "#i {} {major:x}:{minor:x} {} {path}", image.id, image.inode)
}

pub(super) fn write_stack(out: &mut String, stack: &Stack) -> fmt::Result {
    write!(out, "#s {} {}", stack.id, stack.end.name())?;
    for frame in &stack.frames {
        match frame.image {
            0 => write!(out, " {:x}", frame.address)?,
            image => write!(out, " {image}+{:x}", frame.address)?,
        }
    }
    writeln!(out)
}

pub(super) fn write_symbol(out: &mut String, symbol: &Symbol) -> fmt::Result {
    let Frame { image, address } = symbol.frame;
    write!(out, "#n {image} {address:x} {}", OneLine(&symbol.name))?;
    if let Some((file, line)) = &symbol.line {
        write!(out, "\t{line}\t{}", OneLine(file))?;
    }
    writeln!(out)
}

/// Parses a line of stacks that is a record; `None` for any other comment.
pub(super) fn record(line: &str) -> Option<Result<Record, Expected>> {
    let kind = line.get(..3)?;
    let mut fields = Fields::new(&line[3..]);
    match kind {
        "#i " => Some(image(&mut fields)),
        "#s " => Some(stack(&mut fields)),
        "#n " => Some(symbol(&mut fields)),
        _ => None,
    }
}

const IMAGE: &str = "the number of a file with code";
const STACK: &str = "the number of a stack, from 1";

fn image(f: &mut Fields<'_>) -> Result<Record, Expected> {
    let id = f.decimal(IMAGE)?;
    if id == 0 {
        return Err("the number of a file with code, from 1".into());
    }
    let dev = f.device()?;
    let inode = f.decimal("the inode")?;
    Ok(Record::Image(Image { id, dev, inode, path: f.tail("the file's path")?.to_string() }))
}

fn stack(f: &mut Fields<'_>) -> Result<Record, Expected> {
    const END: &str = "root, cut or lost";
    const FRAME: &str = "a frame: a file's number, + and an address, or an address alone";
    let id = f.decimal::<StackId>(STACK).ok().filter(|id| *id > 0).ok_or(STACK)?;
    let end = StackEnd::named(f.word(END)?).ok_or(END)?;
    let mut frames = Vec::new();
    while f.more() {
        let word = f.word(FRAME)?;
        let (image, address) = word.split_once('+').unwrap_or(("0", word));
        let image = decimal(image).filter(|&image| (image == 0) != word.contains('+'));
        let (image, address) = (image.ok_or(FRAME)?, hex(address).ok_or(FRAME)? as u64);
        frames.push(Frame { image, address });
    }
    Ok(Record::Stack(Stack { id, frames, end }))
}

fn symbol(f: &mut Fields<'_>) -> Result<Record, Expected> {
    const NAME: &str = "the name of a function; a tab, a line and a file may follow";
    let frame = Frame { image: f.decimal(IMAGE)?, address: f.hash("an address")? };
    let mut parts = f.tail(NAME)?.splitn(3, '\t');
    let name = parts.next().filter(|name| !name.is_empty()).ok_or(NAME)?.to_string();
    let line = match (parts.next(), parts.next()) {
        (None, _) => None,
        (Some(line), Some(file)) if !file.is_empty() => {
            Some((file.to_string(), decimal(line).ok_or(NAME)?))
        }
        _ => return Err(NAME.into()),
    };
    Ok(Record::Symbol(Symbol { frame, name, line }))
}

/// The stack of the call in the next line.
pub(super) fn stack_of(line: &str) -> Result<StackId, Expected> {
    let id = line.strip_prefix(STACK_OF).and_then(decimal).filter(|id| *id > 0);
    id.ok_or("#^ and the number of a stack".into())
}
