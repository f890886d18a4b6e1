//! `kernel/IMPLEMENTING.md` agrees with the kernel: its excerpts are in the files that they name,
//! its links exist, and its host has the number of methods that it states. The host runs as a
//! documentation test of `samara-examples`.

use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "kernel/IMPLEMENTING.md";
/// The mark of omitted lines.
const LEFT_OUT: &str = "// ...";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The excerpts of a page, which are no documentation tests: the file that the first line names,
/// and the lines.
fn excerpts(page: &str) -> Vec<(&str, Vec<&str>)> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    let rust = blocks.filter_map(|block| block.strip_prefix("rust,ignore\n"));
    let excerpt = |block| {
        let mut lines = str::lines(block);
        let first = lines.next().unwrap_or_default();
        let file = first.strip_prefix("// ").unwrap_or_else(|| panic!("no file: {first}"));
        (file, lines.collect())
    };
    rust.map(excerpt).collect()
}

/// The first piece of an excerpt that is not in the source after the piece before it.
fn missing<'a>(source: &str, excerpt: &'a [&'a str]) -> Option<&'a [&'a str]> {
    let source: Vec<&str> = source.lines().collect();
    let mut from = 0;
    excerpt.split(|line| *line == LEFT_OUT).find(|piece| {
        let found = source[from..].windows(piece.len()).position(|lines| lines == *piece);
        from += found.map_or(0, |at| at + piece.len());
        found.is_none()
    })
}

#[test]
fn excerpts_are_the_source() {
    let page = read(PAGE);
    let excerpts = excerpts(&page);
    assert!(excerpts.len() >= 2, "{} excerpts", excerpts.len());
    for (file, excerpt) in excerpts {
        let missing = missing(&read(file), &excerpt);
        assert_eq!(missing, None, "{PAGE}: not in {file}, or not in this order");
    }
}

#[test]
fn an_excerpt_that_differs_from_the_source_is_noticed() {
    let source = "a\n    b\nc\nd\n";
    assert_eq!(missing(source, &["a", "    b", LEFT_OUT, "d"]), None);
    for wrong in [&["a", "b"][..], &["a", "c"], &["d", LEFT_OUT, "a"], &["e"]] {
        assert!(missing(source, wrong).is_some(), "{wrong:?}");
    }
}

#[test]
fn links_lead_somewhere() {
    let page = read(PAGE);
    let links = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let links: Vec<&str> = links.collect();
    assert!(links.len() >= 5, "{links:?}");
    for link in links {
        assert!(root().join("kernel").join(link).exists(), "{PAGE}: {link}");
    }
}

/// The methods of the host that serves a first page fault: those of its `impl` blocks.
#[test]
fn the_host_has_so_many_methods() {
    let page = read(PAGE);
    let host = page.split("\n```rust\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let host: Vec<&str> = host.expect("a host").lines().collect();
    let methods = host
        .iter()
        .filter(|line| line.starts_with("    fn ") || line.starts_with("    unsafe fn "));
    assert_eq!(methods.count(), 19);
    assert!(page.contains("**19 methods**"));
    assert!(host.len() <= 150, "the host has {} lines", host.len());
    assert!(page.lines().count() <= 350, "the page is too long");
}
