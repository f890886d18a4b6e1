//! Fuzzes the parser with arbitrary bytes: it returns an error, or a trace that prints and parses
//! to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trace::text::{Error, Parser, Printer};

fn reprint(text: &[u8]) -> Result<Vec<u8>, Error> {
    let mut parser = Parser::new(text, "fuzz")?;
    let mut printer =
        Printer::new(Vec::new(), parser.header()).expect("a write to a Vec cannot fail");
    while let Some(record) = parser.next_record()? {
        printer.record(&record).expect("a write to a Vec cannot fail");
    }
    Ok(printer.into_inner())
}

fuzz_target!(|text: &[u8]| {
    if let Ok(once) = reprint(text) {
        assert_eq!(reprint(&once).expect("a printed trace parses"), once);
    }
});
