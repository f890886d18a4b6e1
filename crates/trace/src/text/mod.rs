//! Traces as text: one record a line, so that `grep`, `diff` and `git` work on them.
//!
//! [`Parser`] reads a trace one record at a time and never holds more than the longest listing;
//! [`Printer`] writes records in the one spelling of each, so that parsing and printing a trace
//! gives back its bytes. Numbers are hexadecimal except for counts, ids of address spaces, files,
//! threads, inodes, and error codes.
//!
//! A parser that returns records without an [`Error`] to the end has shown that the trace is
//! *complete*: each promised line is there, each file and address space was introduced before it
//! was used, and each address space ended. So a truncated file is told from a short one.
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

pub use error::Error;
pub use header::Header;
pub use parse::Parser;
pub use print::Printer;

/// FNV-1a 64 of a listing's bytes, as the `C` lines carry it. One multiplication a byte, no
/// allocation.
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
