//! The header: current, and complete.

use super::{CRATE, has, library, run};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn path() -> std::path::PathBuf {
    Path::new(CRATE).join("include/samara_range.h")
}

/// `SAMARA_BLESS=1 cargo test -p samara-capi --test c header` writes it anew.
#[test]
fn the_header_is_current() {
    let mut bytes = Vec::new();
    cbindgen::Builder::new()
        .with_crate(CRATE)
        .with_config(cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).unwrap())
        .generate()
        .unwrap()
        .write(&mut bytes);
    let current = String::from_utf8(bytes).unwrap();
    if env::var_os("SAMARA_BLESS").is_some() {
        fs::write(path(), &current).unwrap();
    }
    let stored = fs::read_to_string(path()).unwrap();
    assert!(stored == current, "the header is stale: run this test with SAMARA_BLESS=1");
    let [major, minor, patch] =
        ["MAJOR", "MINOR", "PATCH"].map(|part| format!("#define SAMARA_RANGE_VERSION_{part} "));
    let number =
        |define: &str| stored.split_once(define).unwrap().1.lines().next().unwrap().to_owned();
    let version = [number(&major), number(&minor), number(&patch)].join(".");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

/// The library has each function of the header, and no other symbol.
#[test]
fn symbols_are_those_of_the_header() {
    if !has(&["nm"]) {
        return;
    }
    let header = fs::read_to_string(path()).unwrap();
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .collect();
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library().join("libsamara_range.so")));
    let defined: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(declared, defined);
}
