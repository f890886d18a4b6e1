//! Helpers for tests of call stacks: running `samara trace --stacks`, and looking into its result.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::traced::{object, ran::Ran, samara, temporary};

/// A traced run: its JSON, its recording and its flame graph.
pub(crate) struct Traced {
    pub(crate) object: Value,
    pub(crate) recording: PathBuf,
    pub(crate) graph: String,
    pub(crate) ran: Ran,
}

pub(crate) fn trace(name: &str, options: &[&str], command: &[&str]) -> Traced {
    let [json, recording, graph] =
        ["json", "vmtrace", "svg"].map(|kind| temporary(&format!("stacks-{name}.{kind}")));
    let files = [
        "--json",
        json.to_str().unwrap(),
        "--record",
        recording.to_str().unwrap(),
        "--flame",
        graph.to_str().unwrap(),
    ];
    let ran = samara(&[&["--stacks"], options, &files, &["--"], command].concat());
    let object = object(&json);
    assert_eq!(object["mismatches"], 0, "{name}: {}", ran.err);
    let graph = fs::read_to_string(graph).unwrap();
    Traced { object, recording, graph, ran }
}

pub(crate) fn all_stacks(object: &Value) -> &[Value] {
    object["stacks"]["stacks"].as_array().unwrap()
}

/// The stacks with this kind of call: names of functions, the innermost first, and the counts.
pub(crate) fn stacks<'a>(
    object: &'a Value,
    call: &'a str,
) -> Vec<(Vec<String>, &'a Value, &'a Value)> {
    let with =
        all_stacks(object).iter().filter_map(|stack| Some((stack, stack["counts"].get(call)?)));
    let name = |frame: &Value| frame["function"].as_str().unwrap_or("?").to_owned();
    with.map(|(stack, counts)| {
        let frames = stack["frames"].as_array().into_iter().flatten();
        (frames.map(name).collect(), counts, &stack["end"])
    })
    .collect()
}

/// The stack of the call that `function` makes, from that function on outwards, with its counts.
pub(crate) fn from<'a>(
    object: &'a Value,
    call: &'a str,
    function: &str,
) -> (Vec<String>, &'a Value) {
    let mut found: Vec<_> = stacks(object, call)
        .into_iter()
        .filter_map(|(names, counts, _)| {
            let at = names.iter().position(|name| name == function)?;
            Some((names[at..].to_vec(), counts))
        })
        .collect();
    found.sort_by_key(|(_, counts)| std::cmp::Reverse(counts["mapped"].as_u64()));
    assert!(!found.is_empty(), "{call} by {function} in {:#}", object["stacks"]["stacks"]);
    found.swap_remove(0)
}

/// The sum of a number over all call sites.
pub(crate) fn sum(object: &Value, key: &str) -> u64 {
    let sites = object["stacks"]["sites"].as_array().unwrap();
    sites.iter().map(|site| site[key].as_u64().unwrap()).sum()
}

/// The bytes in the kernel's last listing of an address space, as recorded.
pub(crate) fn last_listing(recording: &Path, mm: &str) -> u64 {
    let text = fs::read_to_string(recording).unwrap();
    let from = text.lines().position(|line| line.starts_with(&format!("Z {mm} "))).unwrap();
    let lines = text.lines().skip(from + 1).map_while(|line| line.strip_prefix("= "));
    let size = |line: &str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        end - start
    };
    lines.filter(|line| !line.ends_with("[vsyscall]")).map(size).sum()
}

/// Checks that hold for each traced program: the table has all calls, and at the end all that the
/// kernel has mapped in the program's own address space, if that is the only one.
pub(crate) fn adds_up(traced: &Traced, name: &str) {
    let object = &traced.object;
    assert_eq!(sum(object, "calls"), object["calls"].as_u64().unwrap(), "{name}");
    // Equal stacks are one.
    let all = all_stacks(object);
    let different: std::collections::BTreeSet<String> =
        all.iter().map(|one| format!("{} {}", one["end"], one["frames"])).collect();
    assert_eq!(different.len(), all.len(), "{name}");
    let end = &object["stacks"]["at_end"];
    assert_eq!(end["unknown"], 0, "{name}");
    if object["address_spaces"] == 1 {
        let at_end = sum(object, "at_end") + end["execve"].as_u64().unwrap();
        assert_eq!(at_end, last_listing(&traced.recording, "1"), "{name}");
    }
}
