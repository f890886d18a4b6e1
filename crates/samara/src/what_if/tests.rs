use trace::replay::replay_with_shadow;

use super::*;

/// A recording of calls of one thread: name, arguments, result.
fn recording(calls: &[&str]) -> String {
    let mut text = String::from(
        "# vmtrace 1 kernel=6.18.0 max_map_count=65530\n\
         X 1 7 vmas=0 brk=0 start_brk=0 start_stack=0 mmap_base=7f0000000000 exe=/bin/x\n",
    );
    calls.iter().for_each(|call| text += &format!("M 1 7 {call}\n"));
    text + "Q 1\n"
}

fn ask(rules: &[&str], calls: &[&str]) -> serde_json::Value {
    let rules: Vec<Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let text = recording(calls);
    let (summary, asked) = replay_with_shadow(text.as_bytes(), "a", WhatIf::new(&rules))
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(summary.total.mismatches, 0, "{:?}", summary.first_mismatch);
    let report = asked.finish();
    assert!(report.text("a", &rules).starts_with("a with "));
    report.json("a", &rules)
}

/// Five anonymous pages with holes between them, and a mprotect that cuts one map of three pages.
const CUTS: [&str; 6] = [
    "mmap 10000 1000 3 32 ffffffff 0 f0 = 10000",
    "mmap 20000 1000 3 32 ffffffff 0 f0 = 20000",
    "mmap 30000 1000 3 32 ffffffff 0 f0 = 30000",
    "mmap 40000 3000 3 32 ffffffff 0 f0 = 40000",
    "mprotect 41000 1000 1 = 0",
    "munmap 10000 1000 = 0",
];

#[test]
fn a_lower_limit_refuses_calls_one_by_one() {
    let all = ask(&["max_map_count=65530"], &CUTS);
    assert_eq!((&all["calls"], &all["vmas_peak"]), (&6.into(), &6.into()));
    for kind in ["refused", "allowed", "elsewhere", "fewer_vmas", "more_vmas"] {
        assert_eq!(all[kind]["calls"], 0, "{kind}");
        assert!(all[kind]["first"].is_null());
    }
    // mmap is refused above the limit only, as in Linux; a cut counts the VMAs that it adds.
    let five = ask(&["max_map_count=5"], &CUTS);
    assert_eq!(five["refused"]["calls"], 1);
    assert_eq!(five["refused"]["first"]["line"], 7);
    assert_eq!(five["refused"]["first"]["call"], "mprotect");
    assert_eq!(five["refused"]["first"]["vmas"], 4);
    // The calls after a refused one are asked about as they were recorded.
    let two = ask(&["max_map_count=2"], &CUTS);
    assert_eq!(two["refused"]["calls"], 2, "{two}");
    assert_eq!(two["refused"]["first"]["line"], 6);
    assert_eq!(ask(&["max_map_count=0"], &CUTS)["refused"]["calls"], 4);
}

#[test]
fn without_alignment_large_maps_are_elsewhere_and_merge() {
    let calls = [
        "mmap 0 1000 3 22 ffffffff 0 f0 = 7efffffff000",
        // Aligned, it leaves a hole.
        "mmap 0 200000 3 22 ffffffff 0 f0 = 7effffc00000",
    ];
    assert_eq!(ask(&["huge_align=on"], &calls)["elsewhere"]["calls"], 0);
    for rule in ["huge_align=off", "kernel=6.1"] {
        let other = ask(&[rule], &calls);
        assert_eq!(other["elsewhere"]["calls"], 1, "{rule}");
        assert_eq!(
            other["elsewhere"]["first"]["text"],
            "returns 7effffdff000 instead of 7effffc00000"
        );
        assert_eq!(other["fewer_vmas"]["first"]["text"], "leaves 1 VMAs instead of 2");
        assert_eq!(
            (&other["refused"]["calls"], &other["more_vmas"]["calls"]),
            (&0.into(), &0.into())
        );
    }
    // Below the lowest address there is no room, so the search goes upwards.
    assert_eq!(ask(&["mmap_min_addr=0x7effffc01000"], &calls)["elsewhere"]["calls"], 1);
}

#[test]
fn rules_that_there_are_not_have_errors_with_a_cure() {
    for (text, cure) in [
        ("max_map_count", "write kernel=6.1"),
        ("max_map_count=many", "a number, not many"),
        ("max_map_count=-1", "a number"),
        ("huge_align=maybe", "on or off"),
        ("overcommit=3", "0 or 1 or 2"),
        ("kernel=new", "a release such as 6.1"),
        ("kernel=", "a release"),
        ("stack_guard_gap=99999999999999999999", "a number"),
        ("stack_guard_gap=9999999999999999", "too many"),
        ("mmap_min_addr=0xffffffffffffffff", "too high"),
        ("colour=red", "colour is no rule; write kernel="),
    ] {
        let error = text.parse::<Rule>().expect_err(text);
        assert!(error.contains(cure), "{text}: {error}");
    }
}
