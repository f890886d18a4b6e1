//! The header is current. Only with the feature `header`, as `./check test` runs it.
#![cfg(feature = "header")]

use std::path::{Path, PathBuf};
use std::{env, fs};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn path() -> PathBuf {
    Path::new(CRATE).join("include/samara_range.h")
}

/// `SAMARA_BLESS=1 cargo test -p samara-capi --features header` writes it anew.
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
