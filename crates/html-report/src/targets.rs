//! The targets that are missed, by name.

use crate::data::{Of, Results};
use crate::plot::short;
use crate::sources::rounded;
use crate::table::{Cell, number, table};
use maud::{Markup, html};
use report::Target;

/// The head of a table of missed targets.
pub(crate) const HEAD: [&str; 6] = ["experiment", "target", "value", "bound", "missed by", "run"];

/// A line for each target that is missed.
pub(crate) fn missed(results: &Results) -> Vec<Vec<Cell>> {
    let missed = results.targets.iter().filter(|of| !of.item.met() && is_measured(of));
    missed.map(line).collect()
}

/// The names of the targets that were not measured.
pub(crate) fn unmeasured(results: &Results) -> Vec<Of<String>> {
    let unknown = results.targets.iter().filter(|of| !is_measured(of));
    unknown
        .map(|of| {
            let Target { experiment, target, .. } = &of.item;
            Of { run: of.run, item: format!("{experiment}: {target}") }
        })
        .collect()
}

/// The numbers of targets, in words.
pub(crate) fn sum(results: &Results) -> String {
    let all = results.targets.len();
    let (missed, unknown) = (missed(results).len(), unmeasured(results).len());
    format!(
        "{} of {all} targets are met, {missed} are missed, {unknown} were not measured. \
         DECISIONS.md has the reasons. In runs that count instructions, factors are of \
         instructions, and their bounds are meant for times.",
        all - missed - unknown
    )
}

fn is_measured(of: &Of<Target>) -> bool {
    of.item.value.is_finite()
}

pub(crate) fn targets(results: &Results) -> Markup {
    let (missed, unknown) = (missed(results), unmeasured(results));
    html! {
        section #missed {
            h2 { "Missed targets" }
            @if results.targets.is_empty() {
                p.missing { "These files have no targets: " code { "samara bench --json FILE" }
                    " and " code { "cargo bench -p samara-bench -- --json FILE" } " have some." }
            } @else {
                p.sum { (sum(results)) }
                @if !missed.is_empty() {
                    (table("Missed targets", &HEAD, missed))
                }
                @if !unknown.is_empty() {
                    h3 { "Not measured in these runs" }
                    p { "The machine of a run lacks the caches or the number of processors that a \
                        target needs." }
                    ul.targets {
                        @for of in unknown {
                            li { (of.item) " (run " (of.run + 1) ")" }
                        }
                    }
                }
            }
        }
    }
}

fn line(of: &Of<Target>) -> Vec<Cell> {
    let Target { experiment, target, value, bound, at_least } = &of.item;
    let sign = if *at_least { "≥" } else { "≤" };
    let excess = of.item.excess();
    let by = match excess.is_finite() && excess > 0.0 {
        true => format!("{} times", short((excess * 100.0).round() / 100.0)),
        false => "-".into(),
    };
    vec![
        experiment.as_str().into(),
        target.as_str().into(),
        number(*value, short(rounded(*value))),
        number(*bound, format!("{sign} {}", short(*bound))),
        number(excess, by),
        number((of.run + 1) as f64, (of.run + 1).to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_targets_are_named_and_counted() {
        let targets = vec![
            Target::at_least("gup", "kept", 0.5, 1.0),
            Target::at_most("gup", "slow", 0.0, 0.0),
            Target::at_most("gup", "lines", f64::NAN, 2.0),
        ];
        let mut results = Results::default();
        let lines = report::Report { targets, ..Default::default() }.json_lines();
        results.read("a", &lines).unwrap();
        let html = super::targets(&results).into_string();
        assert!(html.contains("1 of 3 targets are met, 1 are missed, 1 were not"), "{html}");
        assert!(html.contains("<td>kept</td>") && !html.contains("<td>slow</td>"), "{html}");
        assert!(html.contains("≥ 1<") && html.contains(">2 times<"), "{html}");
        assert!(html.contains("gup: lines (run 1)"), "{html}");
        assert!(super::targets(&Results::default()).into_string().contains("have no targets"));
    }
}
