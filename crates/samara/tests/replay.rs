//! `samara replay`, as users and scripts call it.

#[path = "common/ran.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod ran;

use std::{fs, path::PathBuf};

use ran::samara;
use serde_json::Value;

fn data() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn sample(name: &str) -> PathBuf {
    data()
        .into_iter()
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(name))
        .unwrap()
}

fn replay(arguments: &[&str]) -> (Option<i32>, String, String) {
    let out = samara(&[&["replay"], arguments].concat());
    (out.code, out.out, out.err)
}

fn json(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
    serde_json::from_str(text).unwrap()
}

/// Writes a changed recording; `change` edits its lines.
fn changed(name: &str, change: impl FnOnce(&mut Vec<String>)) -> PathBuf {
    let mut lines: Vec<String> = fs::read_to_string(sample("malloc-8threads"))
        .unwrap()
        .lines()
        .map(str::to_string)
        .collect();
    change(&mut lines);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    path
}

#[test]
fn every_recording_agrees_to_the_last_byte() {
    for path in data() {
        let (code, out, err) = replay(&["--json", "-", path.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{}: {err}", path.display());
        let object = json(&out);
        let number =
            |key: &str| object[key].as_u64().unwrap_or_else(|| panic!("{key} in {object}"));
        assert_eq!(
            (number("mismatches"), number("predicted")),
            (0, number("predictable")),
            "{}",
            path.display()
        );
        let text = fs::read_to_string(&path).unwrap();
        let lines =
            |start: &str| text.lines().filter(|line| line.starts_with(start)).count() as u64;
        assert_eq!(number("calls"), lines("M "));
        assert_eq!(number("listings"), lines("C ") + lines("Z "));
        assert_eq!(number("address_spaces"), lines("X ") + lines("K "));
        assert!(number("vmas_peak") > 10 && number("predictable") > 10);
    }
}

/// `./check recordings` replays all of them. Here, one of them brings in less: its 256 MiB at a
/// time take half a minute in this build.
#[test]
fn every_recording_has_pages_and_leaves_none() {
    let one = |path: &PathBuf| {
        let mut path = path.clone();
        if path.ends_with("stressng-mremap.vmtrace") {
            let text = fs::read_to_string(&path).unwrap();
            // Without MAP_POPULATE, MADV_POPULATE_READ and MADV_POPULATE_WRITE.
            let populates = |line: &&str| {
                line.contains(" madvise ") && (line.contains(" 16 = ") || line.contains(" 17 = "))
            };
            let lines: Vec<&str> = text.lines().filter(|line| !populates(line)).collect();
            path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("stressng-lazy.vmtrace");
            fs::write(&path, lines.join("\n").replace(" 8022 ", " 22 ") + "\n").unwrap();
        }
        let (code, out, err) = replay(&["--pages", "--json", "-", path.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{}: {err}", path.display());
        let object = json(&out);
        let pages = &object["pages"][0];
        let number = |key: &str| pages[key].as_u64().unwrap_or_else(|| panic!("{key} in {pages}"));
        assert_eq!(number("calls"), object["calls"].as_u64().unwrap());
        assert_eq!(number("address_spaces"), object["address_spaces"].as_u64().unwrap());
        for key in ["violations", "frames_left", "tables_left"] {
            assert_eq!(number(key), 0, "{key} of {}", path.display());
        }
        for key in ["faults_total", "words_compared", "accesses_refused", "ipis", "tables_peak"] {
            assert!(number(key) > 50, "{key} in {pages}");
        }
        assert!(number("touches") > 2 * number("calls"), "{pages}");
    };
    let files = data();
    std::thread::scope(|scope| files.iter().for_each(|path| drop(scope.spawn(|| one(path)))));
}

#[test]
fn pages_of_several_files_are_reported_one_by_one() {
    let (gcc, malloc) = (sample("gcc"), sample("malloc"));
    let (code, out, err) = replay(&["--pages", gcc.to_str().unwrap(), malloc.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    assert_eq!(err.matches("0 violations; left: 0 frames, 0 tables").count(), 2, "{err}");
    assert!(err.contains("pages of ") && err.contains("faults: "), "{err}");
    // Times of repeated runs are those of VMAs alone.
    let both = replay(&["--pages", "--repeat", "2", gcc.to_str().unwrap()]);
    assert!(both.0 == Some(2) && both.2.contains("cannot be used with"), "{}", both.2);
    // A recording that ends in the middle of a record is malformed, with pages as without.
    let cut = changed("cut-pages.vmtrace", |lines| lines.truncate(10));
    let (code, _, err) = replay(&["--pages", cut.to_str().unwrap()]);
    assert!(code == Some(2) && err.contains(":11: expected 7 more V lines"), "{err}");
}

#[test]
fn several_files_are_one_object() {
    let files = data();
    let names: Vec<&str> = files.iter().map(|path| path.to_str().unwrap()).collect();
    let (code, out, _) = replay(&[&["--json", "-"], &names[..]].concat());
    let single = |name: &&str| json(&replay(&["--json", "-", name]).1)["calls"].as_u64().unwrap();
    assert_eq!(
        (code, json(&out)["calls"].as_u64()),
        (Some(0), Some(names.iter().map(single).sum()))
    );
}

#[test]
fn the_report_goes_to_standard_error() {
    let (code, out, err) = replay(&[sample("gcc").to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
    for expected in ["mmap", "0 mismatches", "predicted", "height", "address space", " free\n"] {
        assert!(err.contains(expected), "{expected} in\n{err}");
    }
    assert!(!err.contains('\x1b'), "colours in a file:\n{err}");
}

#[test]
fn json_goes_to_its_file_and_over_no_recording() {
    let (gcc, malloc) = (sample("gcc"), changed("not-a-result.vmtrace", |_| ()));
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("replay.json");
    let (code, out, err) = replay(&["--json", file.to_str().unwrap(), gcc.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    assert!(err.contains("0 mismatches"), "{err}");
    assert_eq!(json(&fs::read_to_string(&file).unwrap())["mismatches"], 0);
    assert_eq!(replay(&["--json", "-", gcc.to_str().unwrap()]).2, "");
    // An earlier result is replaced, a recording is not.
    assert_eq!(replay(&["--json", file.to_str().unwrap(), gcc.to_str().unwrap()]).0, Some(0));
    let before = fs::read(&malloc).unwrap();
    let (code, _, err) = replay(&["--json", malloc.to_str().unwrap(), gcc.to_str().unwrap()]);
    assert!(code == Some(2) && err.contains("overwrite the recording"), "{err}");
    let (code, _, err) = replay(&["--flame", malloc.to_str().unwrap(), malloc.to_str().unwrap()]);
    assert!(code == Some(2) && err.contains("overwrite the recording"), "{err}");
    assert_eq!(fs::read(&malloc).unwrap(), before);
    let (code, _, err) = replay(&["--json", "/nowhere/x.json", gcc.to_str().unwrap()]);
    assert!(code == Some(2) && err.contains("/nowhere/x.json"), "{err}");
}

#[test]
fn two_runs_stand_side_by_side() {
    let (gcc, malloc) = (sample("gcc"), sample("malloc"));
    let (gcc, malloc) = (gcc.to_str().unwrap(), malloc.to_str().unwrap());
    let result = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("diff.json");
    let result = result.to_str().unwrap();
    assert_eq!(replay(&["--json", result, malloc]).0, Some(0));
    let out = samara(&["diff", "--json", "-", gcc, result]).with_code(0);
    let object = json(&out.out);
    let counts = |name: &str| json(&replay(&["--json", "-", name]).1);
    let (a, b) = (counts(gcc), counts(malloc));
    for (key, a, b) in [
        ("calls", &a["calls"], &b["calls"]),
        ("vmas_peak", &a["vmas_peak"], &b["vmas_peak"]),
        ("kinds.mmap.calls", &a["kinds"]["mmap"]["calls"], &b["kinds"]["mmap"]["calls"]),
    ] {
        assert_eq!(object[key]["a"].as_f64(), a.as_f64(), "{key}");
        assert_eq!(object[key]["b"].as_f64(), b.as_f64(), "{key}");
        assert!(a.is_u64() && b.is_u64() && a != b, "{key}");
    }
    let text = samara(&["diff", gcc, gcc]).out;
    let calls = text.lines().find(|line| line.starts_with("calls ")).unwrap();
    assert!(calls.ends_with(" ="), "{text}");
    for bad in ["/nowhere/at/all", "Cargo.toml"] {
        let out = samara(&["diff", gcc, bad]);
        assert!(out.code == Some(2) && out.err.contains(bad), "{}", out.err);
    }
}

#[test]
fn repeating_measures_each_kind() {
    let (code, out, err) =
        replay(&["--json", "-", "--repeat", "3", sample("gcc").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    let object = json(&out);
    assert_eq!(object["operations"].as_u64().unwrap(), 3 * object["calls"].as_u64().unwrap());
    for rate in ["operations_per_second", "mirrored_per_second"] {
        assert!(object[rate].as_f64().unwrap() > 0.0, "{rate}");
    }
    assert!(object["kinds"]["mmap"]["ours_median_ns"].is_u64());
}

#[test]
fn a_kernel_that_was_not_checked_is_named() {
    let path =
        changed("old.vmtrace", |lines| lines[0] = lines[0].replace("kernel=6.18", "kernel=5.10.1"));
    let (_, out, err) = replay(&["--json", "-", path.to_str().unwrap()]);
    assert!(err.contains("old.vmtrace: recorded on Linux 5.10.1"), "{err}");
    assert!(json(&out)["notices"][0].as_str().unwrap().contains("5.10.1"), "{out}");
}

#[test]
fn a_wrong_listing_is_shown_with_its_call() {
    let path = changed("listing.vmtrace", |lines| {
        let at = lines.iter().position(|line| line.starts_with("M 2 15496 munmap")).unwrap() + 1;
        assert!(lines[at].starts_with("C 2 "));
        lines[at] = "C 2 24 0123456789abcdef".into();
    });
    let (code, out, err) = replay(&["--json", "-", path.to_str().unwrap()]);
    assert_eq!(code, Some(3), "{err}");
    let object = json(&out);
    assert_eq!(object["mismatches"], 1);
    for text in [err.as_str(), object["first_mismatch"].as_str().unwrap()] {
        assert!(
            text.contains("mismatch in address space 2 (/usr/local/bin/mtm, process 15496)"),
            "{text}"
        );
        assert!(text.contains("after munmap(0x7fb259fff000, 46863) = 0"), "{text}");
        assert!(text.contains("kernel  24 lines, FNV-1a 64 0123456789abcdef"), "{text}");
    }
}

#[test]
fn a_wrong_last_listing_stands_next_to_ours() {
    let path = changed("last.vmtrace", |lines| {
        let line = lines
            .iter_mut()
            .rfind(|line| line.starts_with("= ") && line.ends_with("[stack]"))
            .unwrap();
        *line = line.replace("rw-p", "r--p");
    });
    let (code, _, err) = replay(&[path.to_str().unwrap()]);
    assert_eq!(code, Some(3), "{err}");
    let row = err.lines().find(|line| line.starts_with("! ")).unwrap_or_else(|| panic!("{err}"));
    let (ours, kernel) = row.split_once(" | ").unwrap();
    assert!(ours.contains("rw-p") && kernel.contains("r--p"), "{err}");
}

#[test]
fn wrong_flags_and_wrong_addresses_are_noticed() {
    let flags = changed("flags.vmtrace", |lines| {
        let line = lines.iter_mut().rfind(|line| line.starts_with("f ")).unwrap();
        line.push_str(",sl");
    });
    assert_eq!(replay(&[flags.to_str().unwrap()]).0, Some(3));
    let address = changed("address.vmtrace", |lines| {
        let at = lines
            .iter()
            .position(|line| line.starts_with("M ") && line.contains("mmap 0 801000"))
            .unwrap();
        let (call, result) = lines[at].rsplit_once(' ').unwrap();
        lines[at] = format!("{call} {:x}", usize::from_str_radix(result, 16).unwrap() - 0x1000);
    });
    let (code, out, _) = replay(&["--json", "-", address.to_str().unwrap()]);
    let object = json(&out);
    assert_eq!(code, Some(3));
    assert!(object["predicted"].as_u64() < object["predictable"].as_u64(), "{object}");
}

#[test]
fn a_damaged_file_is_named_with_its_line() {
    let cut = changed("cut.vmtrace", |lines| lines.truncate(10));
    let name = cut.to_str().unwrap();
    let (code, out, err) = replay(&[name]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains(&format!("{name}:11: expected 7 more V lines")), "{err}");

    let word = changed("word.vmtrace", |lines| lines[2] = lines[2].replace("vmas=", "areas="));
    let (code, out, err) = replay(&["--json", "-", word.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(err.contains("word.vmtrace:3: expected vmas= and the number of VMAs"), "{err}");
    assert!(json(&out)["errors"][0].as_str().unwrap().contains("word.vmtrace:3:"));

    let good = sample("gcc");
    let (code, out, err) =
        replay(&["--json", "-", name, good.to_str().unwrap(), "/nowhere/at/all"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("/nowhere/at/all: cannot read: No such file"), "{err}");
    assert!(json(&out)["calls"].as_u64().unwrap() > 0, "the good file was replayed all the same");
}

#[test]
fn help_teaches_by_example_and_mistakes_exit_with_two() {
    let help = samara(&["replay", "--help"]).out;
    assert!(help.contains("samara replay --repeat 20 a.vmtrace"));
    assert!(help.contains("samara replay --pages a.vmtrace"));
    samara(&["replay"]).with_code(2);
    samara(&["replay", "--repeat", "0", "x"]).with_code(2);
}
