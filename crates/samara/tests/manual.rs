//! `samara completions` and `samara man`.

#[path = "common/ran.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod ran;

use std::{fs, path::PathBuf, process::Command};

use ran::{Ran, samara};

fn temporary(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn bash_completes_commands_options_and_values() {
    let out = samara(&["completions", "bash"]).with_code(0);
    let script = temporary("samara.bash");
    fs::write(&script, out.out).unwrap();
    let complete = |words: &[&str]| {
        let (last, all) = (words.len() - 1, words.join(" "));
        let text = format!(
            "source \"$0\"; COMP_WORDS=({all}); COMP_CWORD={last}; _samara samara '{}' '{}'; \
             echo ${{COMPREPLY[@]}}",
            words[last],
            words[last - 1],
        );
        let mut bash = Command::new("bash");
        let ran = Ran::of(bash.args(["-c", &text]).arg(&script).env("LC_ALL", "C")).with_code(0);
        assert_eq!(ran.err, "");
        ran.out.trim().to_string()
    };
    assert_eq!(complete(&["samara", "tra"]), "trace");
    assert_eq!(complete(&["samara", "trace", "--json"]), "--json --json-lines");
    assert_eq!(complete(&["samara", "trace", "--follow", "n"]), "none");
}

#[test]
fn other_shells_have_completions_too() {
    for (shell, expected) in [("zsh", "#compdef samara"), ("fish", "complete -c samara")] {
        let text = samara(&["completions", shell]).out;
        assert!(text.contains(expected) && text.contains("json-lines"), "{shell}");
    }
    samara(&["completions", "csh"]).with_code(2);
}

#[test]
fn every_command_has_a_page_with_its_examples() {
    let directory = temporary("man");
    let _ = fs::remove_dir_all(&directory);
    assert_eq!(samara(&["man", directory.to_str().unwrap()]).with_code(0).err, "");
    let page = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    for name in ["samara.1", "samara-trace.1", "samara-replay.1", "samara-bench.1"] {
        assert!(page(name).starts_with(".ie") && page(name).contains(".TH samara"), "{name}");
    }
    let trace = page("samara-trace.1");
    // An example is a line of its own, so it must stand between .nf and .fi.
    let (_, notes) = trace.split_once(".nf\n").unwrap();
    let (notes, _) = notes.split_once(".fi\n").unwrap();
    let example = "  samara trace \\-\\-verify \\-\\- bash";
    assert!(notes.lines().any(|line| line.starts_with(example)), "{notes}");
    assert!(trace.contains("Exit code") && trace.contains("\\-\\-json\\-lines"), "{trace}");
    assert!(!directory.join("samara-boot-write.1").exists(), "the help does not show it");
    let out = samara(&["man", "/dev/null/x"]).with_code(2);
    assert!(out.err.contains("/dev/null/x"));
}
