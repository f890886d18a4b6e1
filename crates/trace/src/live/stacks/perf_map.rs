//! The functions of a just-in-time compiler, by the file `/tmp/perf-PID.map`.
//!
//! A compiler writes a line for each function: its address, its size and its name. The file counts
//! only if it belongs to the user of the process, because everyone may write to `/tmp`. It is read
//! at the end. Of two functions at one address the later one counts.

use std::{collections::BTreeMap, fs::File, io::Read, os::unix::fs::MetadataExt};

use super::symbol_name::tidy;
use crate::{
    live::{image, sys::Tid},
    record::{Frame, Symbol},
};

/// Of a larger file, only the beginning is read.
const LONGEST: u64 = 256 << 20;

/// Opens the file of a process, which has a path in the process's view. `None` if there is none.
pub(super) fn open(tid: Tid) -> Option<(String, File)> {
    let status = image::proc_text(tid, "status").ok()?;
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    // The last one is that in the process's own namespace.
    let pid = field("NStgid:")?.split_ascii_whitespace().last()?;
    let user: u32 = field("Uid:")?.split_ascii_whitespace().next()?.parse().ok()?;
    let path = format!("/tmp/perf-{pid}.map");
    let there = format!("/proc/{tid}/root{path}");
    let is_own = |meta: std::fs::Metadata| meta.is_file() && meta.uid() == user;
    if !std::fs::symlink_metadata(&there).is_ok_and(is_own) {
        return None;
    }
    Some((path, File::open(there).ok()?))
}

/// The functions at frames, which have addresses of the process.
pub(super) fn names(file: &File, frames: &[Frame]) -> Vec<Symbol> {
    let mut bytes = Vec::new();
    if file.take(LONGEST).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    find(&parse(&String::from_utf8_lossy(&bytes)), frames)
}

/// The size and the name of each function by its address.
type Functions = BTreeMap<u64, (u64, String)>;

fn find(functions: &Functions, frames: &[Frame]) -> Vec<Symbol> {
    let name = |&frame: &Frame| {
        let at = frame.address.wrapping_sub(1);
        let (start, (size, name)) = functions.range(..=at).next_back()?;
        (at - start < *size).then(|| Symbol { frame, name: name.clone(), line: None })
    };
    frames.iter().filter_map(name).collect()
}

fn parse(text: &str) -> Functions {
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let one = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (start, size) = (hex(words.next()?)?, hex(words.next()?)?);
        let name = words.next().filter(|name| !name.is_empty())?;
        Some((start, (size, tidy(name.into()))))
    };
    text.lines().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_function_at_an_address_counts() {
        let text = "1000 20 old\nnonsense\n0x2000 8 b c\n1000 10 LazyCompile:~f a.js:3\n";
        let frames = [0x1001, 0x1010, 0x1011, 0x2008].map(|address| Frame { image: 1, address });
        let names: Vec<_> = find(&parse(text), &frames)
            .into_iter()
            .map(|one| (one.frame.address, one.name))
            .collect();
        let expected =
            [(0x1001, "LazyCompile:~f a.js:3"), (0x1010, "LazyCompile:~f a.js:3"), (0x2008, "b c")];
        assert_eq!(names, expected.map(|(at, name)| (at, name.to_owned())));
    }
}
