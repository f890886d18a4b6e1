//! The layouts that the driver asks workers for, by name.

use crate::case::Case;
use crate::process::Process;

/// Address spaces of programs, as recorded: the ranges of the VMAs when there were most, a line
/// each.
const RECORDED: [(&str, &str); 3] = [
    ("node", include_str!("../layouts/node.txt")),
    ("numpy", include_str!("../layouts/numpy.txt")),
    ("gcc", include_str!("../layouts/gcc.txt")),
];
/// The name of the layout that is measured on all cases.
pub(crate) const DENSE: &str = "dense";
/// The cases of the other layouts, unless the command line names some.
const CASES: [Case; 7] = [
    Case::Load,
    Case::Lookup,
    Case::Find,
    Case::InsertRandom,
    Case::Erase,
    Case::Move,
    Case::Resize,
];

/// A layout.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) name: String,
    /// The ranges of a list, as requests have them. `None`: a worker makes ranges of any number.
    list: Option<String>,
}

impl Layout {
    /// All layouts with a name of their own.
    pub(crate) fn all() -> Vec<Layout> {
        let made = [DENSE, "spread", "keys"].map(|name| Layout { name: name.into(), list: None });
        let read = RECORDED.map(|(name, text)| {
            let list = Some(parse(text).expect("the committed lists are right"));
            Layout { name: name.into(), list }
        });
        made.into_iter().chain(read).collect()
    }

    /// The layout of that name, or of a file in the format of `/proc/PID/maps`.
    pub(crate) fn named(name: &str) -> Result<Layout, String> {
        if let Some(layout) = Layout::all().into_iter().find(|layout| layout.name == name) {
            return Ok(layout);
        }
        let names: Vec<String> = Layout::all().into_iter().map(|layout| layout.name).collect();
        let names = names.join(", ");
        let text = std::fs::read_to_string(name).map_err(|error| {
            format!("--layouts: {name} is none of {names}, and no file: {error}")
        })?;
        let list = Some(parse(&text).map_err(|cause| format!("--layouts: {name}: {cause}"))?);
        Ok(Layout { name: name.into(), list })
    }

    pub(crate) fn is_dense(&self) -> bool {
        self.name == DENSE
    }

    /// The numbers of ranges to measure. A list has one: `None`.
    pub(crate) fn sizes(&self, wanted: &[usize]) -> Vec<Option<usize>> {
        match self.list {
            Some(_) => vec![None],
            None => wanted.iter().copied().map(Some).collect(),
        }
    }

    /// Has a worker build the maps. Returns their number of ranges.
    pub(crate) fn build(&self, worker: &mut Process, size: Option<usize>) -> Result<usize, String> {
        let (name, list) = (&self.name, self.list.as_deref().unwrap_or(""));
        let answer = match size {
            Some(size) if self.is_dense() => worker.ask(&format!("size {size}"))?,
            Some(size) => worker.ask(&format!("size {size} {name}"))?,
            None => worker.ask(&format!("list {list}"))?,
        };
        let built = answer.strip_prefix("ok ").and_then(|number| number.parse().ok());
        built.or(size).ok_or_else(|| format!("the worker answered {answer} to {name}"))
    }

    /// Whether a case is measured if the command line names none.
    pub(crate) fn has(&self, case: Case) -> bool {
        self.is_dense() || CASES.contains(&case)
    }
}

/// The ranges of a listing, as a request has them: each line begins with the start and the end,
/// which is not part of the range.
fn parse(text: &str) -> Result<String, String> {
    let mut words = Vec::new();
    let mut last = None;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
        let index = |digits| usize::from_str_radix(digits, 16).ok();
        let range = range.and_then(|(start, end)| Some((index(start)?, index(end)?)));
        let (start, end) = range
            .filter(|&(start, end)| start < end && last.is_none_or(|last| start > last))
            .ok_or_else(|| {
                format!("not a line of /proc/PID/maps, or not in ascending order: {line}")
            })?;
        last = Some(end - 1);
        words.push(format!("{start:x}-{:x}", end - 1));
    }
    Ok(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_becomes_a_request() {
        let text = "1000-3000 r--p 0 0:0 0 [heap]\n\n3000-4000\n";
        assert_eq!(parse(text).unwrap(), "1000-2fff 3000-3fff");
        for bad in ["x", "1000", "2000-1000", "1000-1000", "1000-3000\n2000-4000"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_known() {
        assert!(Layout::named("dense").unwrap().is_dense());
        assert_eq!(Layout::named("node").unwrap().sizes(&[4, 5]), [None]);
        assert_eq!(Layout::named("keys").unwrap().sizes(&[4, 5]), [Some(4), Some(5)]);
        assert!(Layout::named("/nowhere").unwrap_err().contains("dense, spread, keys, node"));
    }
}
