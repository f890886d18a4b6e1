//! `samara report`: a page from real results, and errors that leave the page as it was.

#[path = "common/ran.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod ran;

use std::{
    fs,
    path::{Path, PathBuf},
};

use ran::samara;

fn temporary(name: &str) -> String {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("report");
    fs::create_dir_all(&directory).unwrap();
    directory.join(name).to_str().unwrap().into()
}

fn error(arguments: &[&str]) -> String {
    samara(arguments).with_code(2).err
}

#[test]
fn the_page_shows_what_bench_measured() {
    let [json, html] = ["gup.jsonl", "gup.html"].map(temporary);
    let options = ["bench", "--effort", "least", "--cpus", "1,2", "--json", &json];
    samara(&[&options[..], &["gup", "quicklist"]].concat()).with_code(0);
    samara(&["report", &json, "-o", &html]).with_code(0);
    let page = fs::read_to_string(&html).unwrap();
    for expected in [
        "Pin pages, 2 CPUs at once",
        "Take one page-table page, 128 in a row",
        "samara bench --effort",
        "These files have no figures of it: <code>cargo bench -p samara-bench",
        "samara trace --json FILE",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    let again = samara(&["report", "-o", "-", &json]);
    assert_eq!(again.out, page);
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn the_page_shows_a_trace() {
    let [json, calls] = ["ls.json", "ls.jsonl"].map(temporary);
    let files = ["--json", &json, "--json-lines", &calls];
    let trace = samara(&[&["trace", "-q", "--stacks"], &files[..], &["--", "ls", "/"]].concat());
    trace.with_code(0);
    let page = |file: &str| samara(&["report", "-o", "-", file]).out;
    let of_object = page(&json);
    let run = "trace -q --stacks --json";
    for expected in
        [run, "Memory calls", "class=\"k-stack\"", "[heap]", "Samara's, median ns", "[mmap]"]
    {
        assert!(of_object.contains(expected), "{expected}");
    }
    let of_calls = page(&calls);
    assert!(of_calls.contains("Memory calls") && of_calls.contains("<td>mmap</td>"), "{of_calls}");
    // Only the contents of the files.
    for absent in ["class=\"map\"", "class=\"card\"", "These files have no"] {
        assert!(!of_calls.contains(absent), "{absent}: {of_calls}");
    }
    assert!(!of_object.contains("class=\"missing\""), "{of_object}");
    assert!(of_object.contains("At the peak, ") && of_object.contains("class=\"flame\""));
}

#[test]
fn an_error_names_the_cure_and_leaves_the_page() {
    let [html, wrong, binary] = ["old.html", "wrong.jsonl", "binary"].map(temporary);
    fs::write(&html, "old").unwrap();
    fs::write(&wrong, "{\"run\":1}\n").unwrap();
    fs::write(&binary, b"a\xff").unwrap();
    let told = error(&["report", &wrong, "-o", &html]);
    assert!(told.contains("wrong.jsonl, line 1: it is JSON, but none of Samara's"), "{told}");
    assert!(told.contains("samara bench --json FILE"), "{told}");
    let told = error(&["report", &binary, "-o", &html]);
    assert!(told.contains("is not text at byte 1"), "{told}");
    let told = error(&["report", "/nowhere/x", "-o", &html]);
    assert!(told.contains("cannot read /nowhere/x"), "{told}");
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data");
    let first = fs::read_dir(recording).unwrap().map(|entry| entry.unwrap().path());
    let mut first = first.filter(|path| path.extension().is_some_and(|end| end == "vmtrace"));
    let told = error(&["report", first.next().unwrap().to_str().unwrap(), "-o", &html]);
    assert!(told.contains("is a recording") && told.contains("samara replay --json"), "{told}");
    assert_eq!(fs::read_to_string(&html).unwrap(), "old");
    let told = error(&["report", "-o", "/nowhere/x"]);
    assert!(told.contains("FILE"), "{told}");
}

/// A result took minutes to measure.
#[test]
fn a_result_is_not_overwritten() {
    let result = temporary("result.jsonl");
    let line = r#"{"experiment":"e","target":"t","value":1,"bound":2,"at_least":true}"#;
    fs::write(&result, line).unwrap();
    let told = error(&["report", &result, "-o", &result]);
    assert!(told.contains("would overwrite") && told.contains("-o"), "{told}");
    assert_eq!(fs::read_to_string(&result).unwrap(), line);
}
