//! The parser, on any bytes: an error or a trace that prints and reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trace::text::{Error, Parser, Printer};

fn reprint(text: &[u8]) -> Result<Vec<u8>, Error> {
    let mut parser = Parser::new(text, "fuzz")?;
    let mut printer = Printer::new(Vec::new(), parser.header()).expect("a vector takes everything");
    while let Some(record) = parser.next_record()? {
        printer.record(&record).expect("a vector takes everything");
    }
    Ok(printer.into_inner())
}

fuzz_target!(|text: &[u8]| {
    if let Ok(once) = reprint(text) {
        assert_eq!(reprint(&once).expect("what was printed reads back"), once);
    }
});
