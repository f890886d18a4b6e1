//! Steps of a userfaultfd's monitor, and PAGEMAP_SCAN.

use std::fmt;

use crate::program::Span;

/// One call. Modes and flags are Linux's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Opens the program's userfaultfd with these features.
    Open {
        features: u64,
    },
    Close,
    Register {
        span: Span,
        mode: u64,
    },
    Unregister(Span),
    Wake(Span),
    /// UFFDIO_COPY of pages full of a byte.
    Fill {
        span: Span,
        mode: u64,
        byte: u8,
    },
    Zero {
        span: Span,
        mode: u64,
    },
    Continue {
        span: Span,
        mode: u64,
    },
    Poison {
        span: Span,
        mode: u64,
    },
    WriteProtect {
        span: Span,
        mode: u64,
    },
    /// UFFDIO_MOVE to the span.
    Move {
        span: Span,
        from: usize,
        mode: u64,
    },
    Scan {
        span: Span,
        what: Scan,
    },
}

/// The arguments of PAGEMAP_SCAN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Scan {
    pub(crate) flags: u64,
    pub(crate) vec_len: usize,
    pub(crate) max_pages: usize,
    pub(crate) mask: u64,
    pub(crate) anyof: u64,
    pub(crate) inverted: u64,
    pub(crate) returned: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Call::Open { features } => write!(f, "uffd {features:x}"),
            Call::Close => write!(f, "close"),
            Call::Register { span, mode } => write!(f, "register {span} {mode:x}"),
            Call::Unregister(span) => write!(f, "unregister {span}"),
            Call::Wake(span) => write!(f, "wake {span}"),
            Call::Fill { span, mode, byte } => write!(f, "fill {span} {mode:x} {byte:x}"),
            Call::Zero { span, mode } => write!(f, "zero {span} {mode:x}"),
            Call::Continue { span, mode } => write!(f, "continue {span} {mode:x}"),
            Call::Poison { span, mode } => write!(f, "poison {span} {mode:x}"),
            Call::WriteProtect { span, mode } => write!(f, "wp {span} {mode:x}"),
            Call::Move { span, from, mode } => write!(f, "move {span} {from:x} {mode:x}"),
            Call::Scan { span, what } => {
                let Scan { flags, vec_len, max_pages, mask, anyof, inverted, returned } = what;
                write!(f, "scan {span} {flags:x} {vec_len:x} {max_pages:x} ")?;
                write!(f, "{mask:x} {anyof:x} {inverted:x} {returned:x}")
            }
        }
    }
}

/// The call that the words of a line name, if it is one.
pub(crate) fn parse(words: &[&str]) -> Option<Call> {
    let (name, numbers) = words.split_first()?;
    let numbers = numbers.iter().map(|text| u64::from_str_radix(text, 16).ok());
    let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    let span = |at: u64, len: u64| Span { at: at as usize, len: len as usize };
    Some(match (*name, &numbers[..]) {
        ("uffd", &[features]) => Call::Open { features },
        ("close", []) => Call::Close,
        ("register", &[at, len, mode]) => Call::Register { span: span(at, len), mode },
        ("unregister", &[at, len]) => Call::Unregister(span(at, len)),
        ("wake", &[at, len]) => Call::Wake(span(at, len)),
        ("fill", &[at, len, mode, byte]) => {
            Call::Fill { span: span(at, len), mode, byte: byte.try_into().ok()? }
        }
        ("zero", &[at, len, mode]) => Call::Zero { span: span(at, len), mode },
        ("continue", &[at, len, mode]) => Call::Continue { span: span(at, len), mode },
        ("poison", &[at, len, mode]) => Call::Poison { span: span(at, len), mode },
        ("wp", &[at, len, mode]) => Call::WriteProtect { span: span(at, len), mode },
        ("move", &[at, len, from, mode]) => {
            Call::Move { span: span(at, len), from: from as usize, mode }
        }
        ("scan", &[at, len, flags, vec_len, max_pages, mask, anyof, inverted, returned]) => {
            let (vec_len, max_pages) = (vec_len as usize, max_pages as usize);
            let what = Scan { flags, vec_len, max_pages, mask, anyof, inverted, returned };
            Call::Scan { span: span(at, len), what }
        }
        _ => return None,
    })
}
