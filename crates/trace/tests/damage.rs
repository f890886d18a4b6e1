//! Tests damaged recordings: the replayer reports the damage or continues, and never panics.

use std::{fs, path::PathBuf, sync::LazyLock};

use proptest::prelude::*;
use trace::{replay::replay, text::Error};

/// The first lines of each recording: enough for every kind of record, and few enough to be fast.
static SAMPLES: LazyLock<Vec<Vec<String>>> = LazyLock::new(|| {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let head = |path: PathBuf| {
        fs::read_to_string(path).unwrap().lines().take(600).map(str::to_string).collect()
    };
    files.into_iter().map(head).collect()
});

/// A change to a recording. Positions are taken modulo the number of bytes, lines or fields.
#[derive(Clone, Debug)]
enum Edit {
    Flip {
        byte: usize,
        bit: u8,
    },
    Drop {
        line: usize,
    },
    Repeat {
        line: usize,
        to: usize,
    },
    /// Replaces one field of one line by another number.
    Field {
        line: usize,
        field: usize,
        value: String,
    },
    Truncate {
        bytes: usize,
    },
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "0",
            "1",
            "fff",
            "1000",
            "7fffffffffff",
            "7ffffffff000",
            "ffffffffffffffff",
            "-12",
            "f0",
            "f1"
        ])
        .prop_map(str::to_string),
        (0usize..1 << 47).prop_map(|page| format!("{:x}", page & !0xfff)),
        any::<u64>().prop_map(|value| format!("{value:x}")),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        (any::<usize>(), 0u8..8).prop_map(|(byte, bit)| Edit::Flip { byte, bit }),
        any::<usize>().prop_map(|line| Edit::Drop { line }),
        (any::<usize>(), any::<usize>()).prop_map(|(line, to)| Edit::Repeat { line, to }),
        (any::<usize>(), 1usize..12, value()).prop_map(|(line, field, value)| Edit::Field {
            line,
            field,
            value
        }),
        any::<usize>().prop_map(|bytes| Edit::Truncate { bytes }),
    ]
}

fn damage(lines: &[String], edits: &[Edit]) -> Vec<u8> {
    let mut lines = lines.to_vec();
    for edit in edits {
        // The header stays, because without it nothing else is parsed.
        let at = |line: usize, lines: &[String]| 1 + line % (lines.len() - 1);
        match edit {
            Edit::Drop { line } if lines.len() > 2 => drop(lines.remove(at(*line, &lines))),
            Edit::Repeat { line, to } => {
                lines.insert(at(*to, &lines), lines[at(*line, &lines)].clone())
            }
            Edit::Field { line, field, value } => {
                let line = at(*line, &lines);
                let mut fields: Vec<&str> = lines[line].split(' ').collect();
                let field = field % fields.len();
                fields[field] = value;
                lines[line] = fields.join(" ");
            }
            _ => {}
        }
    }
    let mut text = (lines.join("\n") + "\n").into_bytes();
    for edit in edits {
        match edit {
            Edit::Flip { byte, bit } => {
                let byte = byte % text.len();
                text[byte] ^= 1 << bit;
            }
            Edit::Truncate { bytes } => text.truncate(bytes % text.len() + 1),
            _ => {}
        }
    }
    text
}

/// The test fails if this panics, or if an error names a line that does not exist.
fn survives(text: &[u8]) {
    match replay(text, "damaged") {
        Ok(summary) => assert!(summary.total.predicted <= summary.total.predictable),
        Err(Error { line, .. }) => {
            let lines = text.split(|byte| *byte == b'\n').count();
            assert!((1..=lines).contains(&line), "line {line} of {lines}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_recordings_are_survived(sample in any::<prop::sample::Index>(), edits in prop::collection::vec(edit(), 1..6)) {
        let lines: &Vec<String> = sample.get(&SAMPLES[..]);
        survives(&damage(lines, &edits));
    }
}

#[test]
fn one_dropped_line_is_survived_wherever_it_is() {
    for lines in SAMPLES.iter() {
        for line in (1..lines.len().min(200)).step_by(11) {
            survives(&damage(lines, &[Edit::Drop { line: line - 1 }]));
        }
    }
}
