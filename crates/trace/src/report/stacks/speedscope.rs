//! Stacks in the format of speedscope, with one profile for each measure.
//!
//! Its page also opens folded lines, but these have neither files nor lines.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Function, Measure, Stacks};

/// The frames of a file. Each has a number.
#[derive(Default)]
struct Frames {
    numbers: HashMap<(String, Option<String>, Option<u32>), usize>,
    all: Vec<Value>,
}

impl Frames {
    fn number(&mut self, name: String, file: Option<String>, line: Option<u32>) -> usize {
        let next = self.all.len();
        let key = (name, file, line);
        if let Some(&known) = self.numbers.get(&key) {
            return known;
        }
        let mut frame = json!({ "name": key.0 });
        if let Some(file) = &key.1 {
            frame["file"] = json!(file);
        }
        if let Some(line) = key.2 {
            frame["line"] = json!(line);
        }
        self.all.push(frame);
        self.numbers.insert(key, next);
        next
    }

    fn of(&mut self, function: &Function<'_>) -> usize {
        let line = function.symbol.and_then(|symbol| symbol.line.clone());
        let image = function.image.map(|image| image.path.clone());
        match line {
            Some((file, line)) => self.number(function.name(), Some(file), Some(line)),
            None => self.number(function.name(), image, None),
        }
    }
}

impl Stacks {
    /// The stacks of a run of `program` as a file for speedscope, which shows `measure` first.
    ///
    /// ```
    /// use trace::report::{Summary, stacks::Measure};
    /// let text = Summary::default().stacks.speedscope(Measure::Mapped, "true");
    /// assert!(text.contains("file-format-schema.json"));
    /// ```
    pub fn speedscope(&self, measure: Measure, program: &str) -> String {
        let mut frames = Frames::default();
        let mut stacks = Vec::new();
        for (id, op, count) in self.counts() {
            let mut chain = match self.stack(id) {
                Some(stack) => self.functions(stack).map(|one| frames.of(&one)).collect(),
                None => vec![frames.number("[no stack]".into(), None, None)],
            };
            chain.reverse();
            chain.push(frames.number(format!("[{}]", op.name()), None, None));
            stacks.push((chain, count));
        }
        for (name, other) in ["[execve]", "[unknown]"].into_iter().zip(self.others()) {
            stacks.push((vec![frames.number(name.into(), None, None)], other));
        }
        let profile = |measure: Measure| {
            let of = |(chain, count): &(Vec<usize>, _)| (chain.clone(), measure.of(*count));
            let has_value = |(_, value): &(Vec<usize>, u64)| *value > 0;
            let (samples, weights): (Vec<_>, Vec<u64>) =
                stacks.iter().map(of).filter(has_value).unzip();
            json!({
                "type": "sampled",
                "name": measure.title(),
                "unit": if measure == Measure::Calls { "none" } else { "bytes" },
                "startValue": 0,
                "endValue": weights.iter().fold(0, |sum: u64, one| sum.saturating_add(*one)),
                "samples": samples,
                "weights": weights,
            })
        };
        let known = |one: &Measure| *one != Measure::AtPeak || self.has_peak();
        let shown: Vec<Measure> = Measure::ALL.into_iter().filter(known).collect();
        let file = json!({
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": program,
            "exporter": "samara",
            "activeProfileIndex": shown.iter().position(|one| *one == measure).unwrap_or(0),
            "profiles": shown.into_iter().map(profile).collect::<Vec<_>>(),
            "shared": { "frames": frames.all },
        });
        format!("{file}\n")
    }
}
