//! `samara diff`: the counts of two runs side by side.
//!
//! A run is a recording, which is replayed, or the object of `samara trace --json`. Every number of
//! the objects is a row, except those of single address spaces, whose numbers differ from run to
//! run.

use std::{collections::BTreeMap, fs, path::Path, process::ExitCode};

use serde_json::{Value, json};
use trace::{replay::replay, report::json};

use crate::{
    cli, ending,
    output::{self, Lines},
    replay::RECORDING,
};

/// The numbers of a run by their path in its object, such as `kinds.mmap.calls`.
type Numbers = BTreeMap<String, f64>;

pub(crate) fn run(options: &cli::Diff) -> ExitCode {
    ending(compare(options))
}

fn compare(options: &cli::Diff) -> Result<(), String> {
    // Both are read first: the file of the result may be one of them.
    let [a, b] = [read(&options.a)?, read(&options.b)?];
    let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let rows = keys.iter().map(|&key| (key.as_str(), a.get(key), b.get(key)));
    let json = output::open(options.json.as_deref())?;
    if !matches!(json, Lines::Stdout) {
        Lines::Stdout.write(&table(rows.clone()))?;
    }
    let row = |(key, a, b)| (str::to_owned(key), json!({ "a": a, "b": b }));
    json.write(&format!("{}\n", Value::Object(rows.map(row).collect())))
}

/// The numbers of a recording or of a result.
fn read(path: &Path) -> Result<Numbers, String> {
    let name = path.display();
    let bytes = fs::read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let mut object = if bytes.starts_with(RECORDING) {
        let summary = replay(&bytes[..], &name.to_string()).map_err(|error| error.to_string())?;
        let mut object = json::object(&summary);
        // These are times of the replay, which say nothing about the run.
        object["elapsed_ms"] = Value::Null;
        object
    } else {
        serde_json::from_slice::<Value>(&bytes).map_err(|error| {
            format!("{name} is neither a recording nor a result of samara trace --json: {error}")
        })?
    };
    if !object["calls"].is_u64() {
        return Err(format!("{name} is not a result of samara trace --json: it has no calls"));
    }
    // They describe one address space, and the host.
    object["peak"] = Value::Null;
    object["run"] = Value::Null;
    let mut numbers = Numbers::new();
    flatten("", &object, &mut numbers);
    Ok(numbers)
}

fn flatten(prefix: &str, value: &Value, numbers: &mut Numbers) {
    match value {
        Value::Number(number) => {
            numbers.extend(number.as_f64().map(|number| (prefix.to_owned(), number)));
        }
        Value::Object(map) => {
            for (key, value) in map {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{key}"), value, numbers);
            }
        }
        // The only arrays are lists of address spaces, notices and errors.
        _ => {}
    }
}

fn table<'a>(rows: impl Iterator<Item = (&'a str, Option<&'a f64>, Option<&'a f64>)>) -> String {
    let mut text = format!("{:<40} {:>14} {:>14} {:>9}\n", "", "a", "b", "change");
    let number = |number: Option<&f64>| number.map_or("-".into(), f64::to_string);
    for (key, a, b) in rows {
        let change = match (a, b) {
            (Some(a), Some(b)) if a == b => "=".into(),
            (Some(&a), Some(b)) if a != 0.0 => format!("{:+.1} %", 100.0 * (b / a - 1.0)),
            _ => String::new(),
        };
        let (a, b) = (number(a), number(b));
        text += format!("{key:<40} {a:>14} {b:>14} {change:>9}").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rows_with_their_change() {
        let mut numbers = Numbers::new();
        let value = json!({ "calls": 4, "kinds": { "mmap": { "calls": 3 } }, "spaces": [1] });
        flatten("", &value, &mut numbers);
        let expected = [("calls".to_owned(), 4.0), ("kinds.mmap.calls".to_owned(), 3.0)];
        assert_eq!(numbers, Numbers::from(expected));
        let rows = [("x", Some(&4.0), Some(&6.0)), ("y", None, Some(&2.0)), ("z", None, None)];
        let text = table(rows.into_iter());
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = text.lines().map(words).collect();
        assert_eq!(lines[1], ["x", "4", "6", "+50.0", "%"], "{text}");
        assert_eq!(lines[2], ["y", "-", "2"], "{text}");
    }
}
