//! Replays the memory calls of a real program on Samara's VMAs, and checks every recorded answer.
//!
//! ```sh
//! cargo run -p samara-examples --bin replay_recording [FILE.vmtrace]
//! ```

use samara::trace::replay;
use samara::trace::report::{Style, mismatch, tables};
use std::{env, error::Error, fs::File, io::BufReader};

fn main() -> Result<(), Box<dyn Error>> {
    // gcc compiles a small program: about three hundred calls.
    let example =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/trace/tests/data/gcc-O2-hello.vmtrace");
    let path = env::args().nth(1).unwrap_or_else(|| example.into());
    let summary = replay::replay(BufReader::new(File::open(&path)?), &path)?;
    let style = Style::PLAIN;
    print!("{}", tables::render(&summary, style));
    if let Some(first) = &summary.first_mismatch {
        return Err(mismatch::render(first, style).into());
    }
    Ok(())
}
