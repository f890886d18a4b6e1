//! The calls of `samara trace --json-lines`, as a trace.

use super::{Bin, CallKind, Stacks, Trace};
use crate::json::{empty_if_null, parsed};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The bins of the course.
const BINS: u64 = 64;

/// The calls so far.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// By kind.
    kinds: BTreeMap<String, u64>,
    /// The time of each, in nanoseconds, and the sizes of all address spaces then.
    course: Vec<(u64, u64, u64)>,
    /// The VMAs and mapped bytes of each address space.
    sizes: BTreeMap<u64, (u64, u64)>,
    failed: u64,
    /// The frames of each stack by its number, the innermost first.
    stacks: BTreeMap<u64, Vec<Frame>>,
    names: BTreeMap<Frame, String>,
    /// The calls of each stack.
    calls: BTreeMap<u64, u64>,
}

/// The path of an image, if it is known, and an address in it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    #[serde(default, deserialize_with = "empty_if_null")]
    image: String,
    address: u64,
}

/// The line of a call.
#[derive(Deserialize)]
struct CallRow {
    time_ns: u64,
    call: String,
    mm: u64,
    vmas: u64,
    mapped_bytes: u64,
    stack: Option<u64>,
    error: Option<Value>,
}

/// The line of a stack.
#[derive(Deserialize)]
struct Stack {
    stack: u64,
    frames: Vec<Frame>,
}

impl Calls {
    /// Adds a line.
    ///
    /// # Errors
    /// A part is missing.
    pub(crate) fn add(&mut self, value: &Value) -> Result<(), String> {
        let CallRow { time_ns, call, mm, vmas, mapped_bytes, stack, error } = parsed(value)?;
        self.sizes.insert(mm, (vmas, mapped_bytes));
        *self.kinds.entry(call).or_default() += 1;
        if let Some(stack) = stack {
            *self.calls.entry(stack).or_default() += 1;
        }
        self.failed += u64::from(error.is_some());
        let all = self.sizes.values().fold((0, 0), |sum: (u64, u64), size| {
            (sum.0.saturating_add(size.0), sum.1.saturating_add(size.1))
        });
        self.course.push((time_ns, all.0, all.1));
        Ok(())
    }

    /// Adds the line of a stack.
    ///
    /// # Errors
    /// A part is missing.
    pub(crate) fn add_stack(&mut self, value: &Value) -> Result<(), String> {
        let Stack { stack, frames } = parsed(value)?;
        self.stacks.insert(stack, frames);
        Ok(())
    }

    /// Adds the line of the name of a frame. A frame without a symbol has none.
    ///
    /// # Errors
    /// A part is missing.
    pub(crate) fn add_name(&mut self, value: &Value) -> Result<(), String> {
        if let Some(name) = value["function"].as_str() {
            self.names.insert(parsed(value)?, name.into());
        }
        Ok(())
    }

    /// The stacks of the calls, the outermost function first.
    fn stacks(&self) -> Option<Stacks> {
        let name = |frame: &Frame| {
            let file = frame.image.rsplit('/').next().unwrap_or("").to_owned();
            match self.names.get(frame) {
                Some(name) => (name.clone(), file),
                None => (format!("{file}+{:#x}", frame.address), file),
            }
        };
        let one = |(stack, calls): (&u64, &u64)| {
            let frames = self.stacks.get(stack)?;
            Some((frames.iter().rev().map(name).collect::<Vec<_>>(), *calls))
        };
        (!self.stacks.is_empty()).then(|| Stacks::of_calls(self.calls.iter().filter_map(one)))
    }

    pub(crate) fn trace(self, title: &str) -> Trace {
        let calls = self.course.len() as u64;
        let most = self.course.iter().map(|call| call.1).max().unwrap_or(0);
        let kind = |(name, calls)| (name, CallKind { calls, ..CallKind::default() });
        Trace {
            title: title.into(),
            facts: vec![
                ("memory calls", calls),
                ("refused", self.failed),
                ("address spaces", self.sizes.len() as u64),
                ("most VMAs", most),
            ],
            bins: bins(&self.course),
            stacks: self.stacks(),
            kinds: self.kinds.into_iter().map(kind).collect(),
            ..Trace::default()
        }
    }
}

/// Bins of equal length. One without calls has the size of the one before.
fn bins(course: &[(u64, u64, u64)]) -> Vec<Bin> {
    let Some(last) = course.iter().map(|call| call.0).max() else { return Vec::new() };
    let length = last / BINS + 1;
    let bin = |number| Bin { at: number * length / 1000, ..Bin::default() };
    let mut bins: Vec<Bin> = (0..=last / length).map(bin).collect();
    for &(at, vmas, mapped) in course {
        let bin = &mut bins[(at / length) as usize];
        bin.calls += 1;
        (bin.vmas, bin.mapped) = (bin.vmas.max(vmas), bin.mapped.max(mapped));
    }
    for at in 1..bins.len() {
        if bins[at].calls == 0 {
            (bins[at].vmas, bins[at].mapped) = (bins[at - 1].vmas, bins[at - 1].mapped);
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_of_all_address_spaces_add_up() {
        let mut calls = Calls::default();
        for (at, mm, vmas) in [(0, 1, 3), (50_000, 2, 4), (6_400_000, 1, 5)] {
            let error = if mm == 2 { json!("EINVAL") } else { Value::Null };
            let line = json!({
                "time_ns": at, "call": "mmap", "mm": mm, "vmas": vmas, "mapped_bytes": 4096,
                "error": error,
            });
            calls.add(&line).unwrap();
        }
        let trace = calls.trace("a");
        assert!(trace.stacks.is_none());
        assert_eq!(trace.bins.len(), 64);
        let sum: u64 = trace.bins.iter().map(|bin| bin.calls).sum();
        assert_eq!((sum, trace.bins[0].vmas, trace.bins[63].vmas), (3, 7, 9));
        assert_eq!((trace.bins[30].vmas, trace.bins[30].mapped), (7, 8192));
        assert_eq!((trace.kinds[0].1.calls, trace.facts[1].1), (3, 1));
    }

    #[test]
    fn stacks_of_calls_are_named_from_the_outside() {
        let mut calls = Calls::default();
        let frames = [json!({ "image": "/x/a.so", "address": 16 }), json!({ "address": 2 })];
        calls.add_stack(&json!({ "stack": 7, "end": "root", "frames": frames })).unwrap();
        for stack in [json!(7), json!(7), Value::Null] {
            let line = json!({
                "time_ns": 1, "call": "brk", "mm": 1, "vmas": 1, "mapped_bytes": 1, "stack": stack,
            });
            calls.add(&line).unwrap();
        }
        let name =
            |address: u64, name| json!({ "image": "", "address": address, "function": name });
        calls.add_name(&name(2, json!("main"))).unwrap();
        calls.add_name(&name(3, Value::Null)).unwrap();
        let html = calls.trace("a").stacks.unwrap().show().into_string();
        let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}: {html}"));
        assert!(at("main: 2, 100.0 %") < at("a.so+0x10 (a.so): 2, 100.0 %"));
    }
}
