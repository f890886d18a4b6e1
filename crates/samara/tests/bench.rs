//! `samara bench`: rows and targets as JSON lines, tables, and errors that name the cause.

#[path = "common/ran.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod ran;

use ran::{Ran, samara};
use serde_json::Value;

fn bench(arguments: &[&str]) -> Ran {
    samara(&[&["bench"], arguments].concat())
}

#[test]
fn json_lines_have_rows_and_targets() {
    // `docs/check` runs all experiments, and draws what they measure. vmap takes a minute here.
    let all = std::env::var_os("SAMARA_ALL").is_some();
    let names = if all { &["gup", "vmap"][..] } else { &["gup"] };
    let options = ["--effort", "least", "--cpus", "1,2", "--json", "-"];
    let output = bench(&[&options[..], names].concat()).with_code(0);
    let lines = output.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let (notes, lines): (Vec<_>, Vec<_>) = lines.partition(|line| line.get("note").is_some());
    for note in &notes {
        assert!(note["case"].is_string() && note["cpus"].is_u64() && note["note"].is_string());
    }
    // The first line tells the run.
    let (run, lines) = lines.split_first().unwrap();
    assert!(run["run"].as_str().unwrap().starts_with("samara bench --effort least"), "{run}");
    assert!(run["processors"].as_u64().unwrap() > 0 && run["clock"] == "time", "{run}");
    let (targets, rows): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line.get("target").is_some());
    for row in &rows {
        for name in ["experiment", "case", "implementation", "metric", "unit"] {
            assert!(row[name].is_string(), "{row}");
        }
        assert!(row["cpus"].is_u64() && row["size"].is_u64() && row["value"].is_f64(), "{row}");
    }
    for target in &targets {
        assert!(target["experiment"].is_string() && target["bound"].is_f64(), "{target}");
        // A target that was not measured (two CPUs on a busy host) has no value and is not met.
        let measured = target["value"].is_f64() && target["met"].is_boolean();
        assert!(measured || target["value"].is_null() && target["met"] == false, "{target}");
    }
    let slow = targets.iter().find(|target| target["target"] == "fast_gup_slow").unwrap();
    assert_eq!(slow["met"], true, "{slow}");
    // One locked instruction for each page, if this host lets us count.
    let told = output.err;
    let counted = rows.iter().filter(|row| row["metric"] == "locked instructions");
    let fast: Vec<_> = counted.filter(|row| row["implementation"] == "fast").collect();
    assert_eq!(fast.is_empty(), told.contains("nothing is counted"), "{told}");
    for row in fast {
        assert_eq!(row["value"].as_f64(), row["size"].as_f64(), "{row}");
    }
    // The old way sends an interrupt to each other CPU at each unmap; ours none where CPUs tick.
    let of = |row: &Value, name: &str| row[name].as_str().unwrap().to_string();
    let sent = rows.iter().filter(|row| of(row, "metric") == "interrupts an unmap");
    let sent: Vec<_> = sent.filter(|row| row["cpus"] == 64).collect();
    assert_eq!(sent.len(), if all { 5 } else { 0 });
    for row in sent {
        let value = row["value"].as_f64().unwrap();
        match of(row, "implementation").as_str() {
            "lazy" => assert_eq!(value, 0.0, "{row}"),
            // Linux's of today broadcasts when enough waits.
            "nodes and pools" => assert!(value < 1.0, "{row}"),
            _ => assert_eq!(value, 63.0, "{row}"),
        }
    }
    for &name in names {
        let is_of = |line: &&&Value| line["experiment"] == name;
        assert!(
            rows.iter().any(|row| is_of(&row)) && targets.iter().any(|target| is_of(&target)),
            "{name}"
        );
    }
}

#[test]
fn tables_are_for_people() {
    let text = bench(&["--effort", "least", "--cpus", "1", "quicklist"]).out;
    assert!(text.contains("**quicklist: mean**") && text.contains("| pgd"), "{text}");
    assert!(text.contains("targets met") && !text.contains("gup"), "{text}");
}

#[test]
fn a_result_that_cannot_be_written_is_reported() {
    let options = ["--effort", "least", "--cpus", "1", "--json", "/nowhere/at/all", "quicklist"];
    assert!(bench(&options).with_code(2).err.contains("/nowhere/at/all"));
    bench(&["--cpus", "65"]).with_code(2);
}

#[test]
fn experiments_of_other_machines_name_their_command() {
    assert!(bench(&["calls"]).with_code(2).err.contains("samara boot bench calls"));
}
