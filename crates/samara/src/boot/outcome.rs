//! The end of a program in the machine: the kernel's record of it, as an exit code and a table.
//!
//! The record is a JSON object with `exit`, the exit code, or `signal`, and with statistics:
//! numbers, or objects of them.

use super::ending::Failure;
use nix::sys::signal::Signal;
use serde_json::{Map, Value};
use std::fmt::Write;

/// The end of the program.
#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    record: Map<String, Value>,
    signal: Option<u8>,
    code: u8,
}

impl Outcome {
    /// # Errors
    /// There is no record, or it has no ending.
    pub(super) fn of(record: Option<Value>) -> Result<Outcome, Failure> {
        let unknown =
            || Failure::no_machine("the kernel ended without a record of the program's end");
        let Some(Value::Object(record)) = record else { return Err(unknown()) };
        let number = |name: &str| record.get(name)?.as_u64()?.try_into().ok();
        let signal = number("signal").filter(|signal| *signal < 128);
        let code: Option<u8> = signal.map(|signal: u8| 128 + signal).or_else(|| number("exit"));
        let code = code.ok_or_else(unknown)?;
        Ok(Outcome { record, signal, code })
    }

    /// The exit code of the program: 128 + the signal if one killed it.
    pub(super) fn code(&self) -> u8 {
        self.code
    }

    /// The record as one line of JSON.
    pub(super) fn json(&self) -> String {
        format!("{}\n", Value::Object(self.record.clone()))
    }

    /// The ending and the statistics, for people.
    pub(super) fn table(&self) -> String {
        let mut text = match self.signal {
            None => format!("exit code {}\n", self.code),
            Some(signal) => match Signal::try_from(i32::from(signal)) {
                Ok(name) => format!("killed by {name}\n"),
                Err(_) => format!("killed by signal {signal}\n"),
            },
        };
        let numbers =
            self.record.iter().filter(|(name, _)| !["exit", "signal"].contains(&&***name));
        rows(&mut text, numbers, 2);
        text
    }
}

/// Adds a line for each value, indented by `depth`: numbers first, then groups with their names.
fn rows<'a>(
    text: &mut String,
    values: impl Iterator<Item = (&'a String, &'a Value)>,
    depth: usize,
) {
    let (groups, numbers): (Vec<_>, Vec<_>) = values.partition(|(_, value)| value.is_object());
    let numbers: Vec<_> =
        numbers.into_iter().map(|(name, value)| (name, value.to_string())).collect();
    let names = numbers.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let width = numbers.iter().map(|(_, value)| value.chars().count()).max().unwrap_or(0);
    // A write to a string does not fail.
    for (name, value) in numbers {
        let _ = writeln!(text, "{:depth$}{name:names$}  {value:>width$}", "");
    }
    for (name, group) in groups {
        let _ = writeln!(text, "{:depth$}{name}", "");
        rows(text, group.as_object().into_iter().flatten(), depth + 2);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ending::NO_MACHINE;
    use super::*;
    use serde_json::json;

    #[test]
    fn the_record_is_an_exit_code() {
        let code = |record: Value| Outcome::of(Some(record)).map(|outcome| outcome.code());
        assert_eq!(code(json!({"exit": 0})), Ok(0));
        assert_eq!(code(json!({"exit": 255, "calls": {}})), Ok(255));
        assert_eq!(code(json!({"signal": 11})), Ok(139));
        let wrong = [json!({}), json!({"exit": 256}), json!({"exit": -1}), json!({"signal": 128})];
        for record in wrong.into_iter().chain([json!([1]), json!({"exit": "0"})]) {
            assert_eq!(code(record.clone()).unwrap_err().code, NO_MACHINE, "{record}");
        }
        assert_eq!(Outcome::of(None).unwrap_err().code, NO_MACHINE);
    }

    #[test]
    fn the_table_has_all_numbers() {
        let record = json!({
            "exit": 3, "interrupts": 7, "calls": {"mmap": 12, "read": 1234, "of": {"brk": 1}}
        });
        let outcome = Outcome::of(Some(record.clone())).unwrap();
        let expected = "exit code 3\n  interrupts  7\n  calls\n    mmap    12\n    read  1234\n    \
                        of\n      brk  1\n";
        assert_eq!(outcome.table(), expected);
        assert_eq!(serde_json::from_str::<Value>(&outcome.json()).unwrap(), record);
        let killed = Outcome::of(Some(json!({"signal": 11}))).unwrap();
        assert_eq!(killed.table(), "killed by SIGSEGV\n");
    }
}
