//! Traces as text: one record per line, so that `grep`, `diff` and `git` work on them.
//!
//! [`Parser`] reads a trace one record at a time and never holds more than the longest listing.
//! [`Printer`] writes each record in its only spelling, so parsing and printing a trace gives the
//! same bytes. Numbers are hexadecimal, except counts, error codes, inodes, and the numbers of
//! address spaces, files and threads.
//!
//! A line `#@ NANOSECONDS` before an `M` line has the time of that call. Parsers of earlier
//! versions skip it as a comment, and recordings of earlier versions have none. The lines of call
//! stacks are comments, too (see `stacks`).
//!
//! A parser that reaches the end without an [`Error`] has shown that the trace is *complete*: each
//! announced line is there, each file and address space was introduced before its use, and each
//! address space ended. So a truncated file is recognised.
//!
//! ```
//! use trace::text::{Parser, Printer};
//!
//! let text = "# vmtrace 1 kernel=6.18\nQ 1\n";
//! let mut parser = Parser::new(text.as_bytes(), "example")?;
//! let mut out = Vec::new();
//! let mut printer = Printer::new(&mut out, parser.header())?;
//! while let Some(record) = parser.next_record()? {
//!     printer.record(&record)?;
//! }
//! assert_eq!(out, text.as_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod complete;
mod error;
mod fields;
mod header;
mod lines;
mod parse;
mod print;
mod stacks;

pub use error::Error;
pub use header::Header;
pub use parse::Parser;
pub use print::Printer;

/// FNV-1a 64 of a listing's bytes, as in the `C` lines. One multiplication per byte, no allocation.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn fnv_of_the_published_vectors() {
        assert_eq!(super::fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(super::fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
