//! The five sources, each as a card: the bottleneck, our way, the ratio, where it was measured, and
//! its limits.

use crate::data::Results;
use crate::plot::short;
use crate::table::grouped;
use maud::{Markup, html};
use report::Row;

/// A source.
struct Source {
    name: &'static str,
    /// The bottleneck that it removed.
    was: &'static str,
    /// Our way instead.
    ours: &'static str,
    published: &'static str,
    /// The measures that show it, the best first.
    measures: &'static [Measure],
    /// The command that makes the first of them.
    command: &'static str,
}

/// The CPUs that take part.
enum Cpus {
    One,
    /// As many as there are figures of, two at least.
    Several,
}

/// A pair of figures of one run.
struct Measure {
    what: &'static str,
    experiment: &'static str,
    metric: &'static str,
    /// The beginning of the case.
    case: &'static str,
    before: &'static str,
    after: &'static str,
    /// The size, or any: the largest then.
    size: Option<usize>,
    cpus: Cpus,
    /// Whether figures of a run that counts instructions show it, too.
    counted: bool,
    caveat: &'static str,
}

const AREAS: Measure = Measure {
    what: "map, touch and unmap 4 pages, work of all CPUs, waiting included",
    experiment: "vmap",
    metric: "instructions of all CPUs",
    case: "map, touch, unmap",
    before: "one lock, a flush each",
    after: "lazy",
    size: Some(4),
    cpus: Cpus::Several,
    counted: true,
    caveat: "An emulator counts an IPI as some 90 instructions and has no cost for a \
        cache line of another CPU.",
};

const LISTING: Measure = Measure {
    what: "time that a writer loses to one reader of all areas",
    experiment: "vmallocinfo",
    metric: "lost by a writer",
    case: "with 1 readers",
    before: "readers take the lock",
    after: "readers without a lock",
    size: None,
    cpus: Cpus::Several,
    counted: false,
    caveat: "A loss below 1 % is within the spread of the measurement.",
};

const TABLE_PAGE: Measure = Measure {
    what: "take one page-table page (pte), in long runs",
    experiment: "quicklist",
    metric: "mean",
    case: "pte",
    before: "frame source, cleared",
    after: "quicklist",
    size: None,
    cpus: Cpus::One,
    counted: true,
    caveat: "The longer the run, the less of the cleared pages stays in the cache. \
        Instructions leave that out.",
};

const PIN: Measure = Measure {
    what: "pin one page, two CPUs or more at once",
    experiment: "gup",
    metric: "time",
    case: "alone",
    before: "address-space lock",
    after: "fast",
    size: Some(1),
    cpus: Cpus::Several,
    counted: false,
    caveat: "Calls of many pages gain less: the pin itself, which no way can do \
        without, takes most of their time.",
};

const LOOKUP: Measure = Measure {
    what: "lookup in 1,000 ranges by a reader concurrent with a writer",
    experiment: "two-processors",
    metric: "time_together",
    case: "reader+writer, reader",
    before: "RwLock<BTreeMap>, each",
    after: "maple, shared, each",
    size: Some(1000),
    cpus: Cpus::Several,
    counted: false,
    caveat: "Small writes to a tree of 100 ranges are faster in a BTreeMap.",
};

const SOURCES: [Source; 5] = [
    Source {
        name: "vmap rewrite",
        was: "Each unmapping of kernel addresses flushed the TLBs of all CPUs by IPIs, under one \
            global lock. Areas were in a list.",
        ours: "An unmapping sends no IPI. Addresses wait for a grace period of flushes that each \
            CPU does anyway; small areas come from blocks of the CPU.",
        published: "N. Piggin, 2008: map, touch and unmap 4 pages on 8 threads, 70,631 ns before, \
            2,900 ns after (25 times).",
        measures: &[
            AREAS,
            Measure {
                what: "map, touch and unmap 4 pages",
                metric: "time",
                counted: false,
                caveat: "More CPUs than the host has processors take turns, which makes locks and \
                    IPIs slower than they are.",
                ..AREAS
            },
        ],
        command: "samara boot --cpus 8 bench --count --waiting --json FILE vmap",
    },
    Source {
        name: "lock-free vmallocinfo",
        was: "Readers of the list of kernel areas took the allocator's spinlock: 5 to 15 % of a \
            parallel package build.",
        ours: "Readers walk the tree without a lock. The sums that /proc/meminfo shows are kept up \
            to date, so no area is visited.",
        published: "R. Yao, 2013: get_vmalloc_info took 6.64 % of the system's time before, 0.50 % \
            after.",
        measures: &[
            LISTING,
            Measure {
                what: "the sums over 100 areas, one call",
                metric: "time",
                case: "get_vmalloc_info",
                size: Some(100),
                cpus: Cpus::One,
                counted: true,
                caveat: "With more areas the old way takes longer, and ours does not. samara bench \
                    --json FILE vmallocinfo measures the time that a writer loses to readers.",
                ..LISTING
            },
        ],
        command: "samara bench --json FILE vmallocinfo",
    },
    Source {
        name: "quicklists",
        was: "A page-table page cost a trip to the page allocator, and 4 KiB to clear.",
        ours: "Page-table pages wait, in their initial state, on a list of the CPU.",
        published: "C. Lameter, 2007: mean of an allocation, pte 401 to 8 ns, pgd 920 to 8 ns.",
        measures: &[
            TABLE_PAGE,
            Measure {
                what: "take one page-table page (pte), instructions",
                metric: "instructions",
                caveat: "Instructions leave out the cache misses of clearing.",
                ..TABLE_PAGE
            },
        ],
        command: "samara bench --json FILE quicklist",
    },
    Source {
        name: "get_user_pages_fast",
        was: "Direct I/O took the address space's lock, and locks of page tables, to pin pages.",
        ours: "A pin walks the page table without a lock, as the MMU does. One locked instruction a \
            page is left.",
        published: "N. Piggin, 2008: DB2 OLTP 9.8 % faster; samples in the lock 2.8 % to 0.05 %.",
        measures: &[
            PIN,
            Measure {
                what: "locked instructions of a pin of one page",
                metric: "locked instructions",
                case: "one call",
                cpus: Cpus::One,
                counted: true,
                caveat: "On one CPU. samara bench --json FILE gup measures the gain of several CPUs, \
                    in time.",
                ..PIN
            },
            Measure {
                what: "pin one page and give it up",
                cpus: Cpus::One,
                counted: true,
                caveat: "On one CPU, where the lock costs least. samara bench --json FILE gup \
                    measures the gain of several CPUs, in time.",
                ..PIN
            },
        ],
        command: "samara bench --json FILE gup",
    },
    Source {
        name: "maple tree",
        was: "VMAs were in a red-black tree, a list and a cache, all under one lock.",
        ours: "A range tree whose readers take no lock and never wait, with an index of gaps. \
            Leaves and inner nodes are searched by vector instructions.",
        published: "L. Howlett, 2020: malloc1 with threads 27 to 1,295 % faster, but brk1 24 to \
            31 % slower.",
        measures: &[
            LOOKUP,
            Measure {
                what: "lookup in 100,000 ranges",
                experiment: "range-tree",
                metric: "time",
                case: "load",
                before: "BTreeMap",
                after: "maple, shared, held",
                size: Some(100_000),
                cpus: Cpus::One,
                ..LOOKUP
            },
            Measure {
                what: "lookup in 100,000 ranges, instructions",
                experiment: "range-tree-counts",
                metric: "instructions",
                case: "load",
                before: "BTreeMap",
                after: "maple, shared, held",
                size: Some(100_000),
                cpus: Cpus::One,
                counted: true,
                caveat: "Counted without AVX-512. A reader concurrent with a writer is a matter of time: \
                    cargo bench -p samara-bench -- --json FILE measures it.",
            },
        ],
        command: "cargo bench -p samara-bench -- --json FILE",
    },
];

/// Two figures of one run.
struct FoundPair<'a> {
    measure: &'static Measure,
    run: usize,
    before: &'a Row,
    after: &'a Row,
}

impl Measure {
    fn is(&self, row: &Row) -> bool {
        row.experiment == self.experiment
            && row.metric == self.metric
            && row.case.starts_with(self.case)
            && (row.implementation == self.before || row.implementation == self.after)
            && self.size.is_none_or(|size| row.size == size)
            && match self.cpus {
                Cpus::One => row.cpus == 1,
                Cpus::Several => row.cpus > 1,
            }
    }

    /// The pair with most CPUs, then the largest; of equal ones a time, then the first.
    fn find<'a>(&'static self, results: &'a Results) -> Option<FoundPair<'a>> {
        let mut found: Option<FoundPair<'a>> = None;
        let with = |counts| {
            (0..results.runs.len()).filter(move |&run| results.runs[run].counts() == counts)
        };
        for run in with(false).chain(with(true).filter(|_| self.counted)) {
            let rows = || {
                let rows = results.rows.iter().filter(|row| row.run == run).map(|row| &row.item);
                rows.filter(|row| self.is(row) && row.value.is_finite())
            };
            for after in rows().filter(|row| row.implementation == self.after) {
                let same = |row: &&Row| {
                    row.implementation == self.before
                        && (&row.case, row.cpus, row.size) == (&after.case, after.cpus, after.size)
                };
                let Some(before) = rows().find(same) else { continue };
                let better = found.as_ref().is_none_or(|found| {
                    (found.after.cpus, found.after.size) < (after.cpus, after.size)
                });
                if better {
                    found = Some(FoundPair { measure: self, run, before, after });
                }
            }
        }
        found
    }
}

/// A source with the figures that show it, as text.
pub(crate) struct SourceLine {
    pub(crate) name: &'static str,
    /// The measured quantity, and the number of CPUs if there are several.
    pub(crate) what: String,
    /// The unit of both.
    pub(crate) unit: String,
    pub(crate) before: String,
    pub(crate) after: String,
    /// `None` if nothing measurable is left.
    pub(crate) ratio: Option<String>,
    pub(crate) run: usize,
    /// The limits of the figures.
    pub(crate) caveat: String,
}

/// The sources of which there are figures.
pub(crate) fn lines(results: &Results) -> Vec<SourceLine> {
    SOURCES.iter().filter_map(|source| source.line(results)).collect()
}

impl Source {
    fn line(&self, results: &Results) -> Option<SourceLine> {
        let found = self.measures.iter().find_map(|measure| measure.find(results))?;
        let FoundPair { measure, run, before, after } = found;
        let load = results.runs[run].disturbed().map(|load| format!(" {load}"));
        Some(SourceLine {
            name: self.name,
            what: match after.cpus {
                0 | 1 => measure.what.into(),
                cpus => format!("{}, {cpus} CPUs", measure.what),
            },
            unit: results.unit(run, after),
            before: figure(before.value),
            after: figure(after.value),
            ratio: (after.value > 0.0).then(|| figure(before.value / after.value)),
            run,
            caveat: measure.caveat.to_owned() + &load.unwrap_or_default(),
        })
    }
}

/// The cards.
pub(crate) fn cards(results: &Results) -> Markup {
    html! { div.cards { @for source in &SOURCES { (card(source, results)) } } }
}

fn card(source: &Source, results: &Results) -> Markup {
    let line = source.line(results);
    html! {
        article.card {
            h3 { (source.name) }
            @match &line {
                Some(line) => {
                    p.ratio {
                        @match &line.ratio {
                            Some(ratio) => { b { (ratio) } " times less" },
                            None => { b { "Nothing" } " measurable is left" },
                        }
                    }
                    p { (line.what) ": " (line.before) " before, " (line.after) " now ("
                        (line.unit) ")" }
                },
                None => p.missing { "These files have no figures of it: " code { (source.command) }
                    " measures it." },
            }
            dl {
                dt { "Was" } dd { (source.was) }
                dt { "Ours" } dd { (source.ours) }
                dt { "Published" } dd { (source.published) }
                @if let Some(line) = &line {
                    dt { "Measured" }
                    dd { (results.runs[line.run].machine()) ", by run " (line.run + 1) "." }
                    dt { "Beware" }
                    dd { (line.caveat) }
                }
            }
        }
    }
}

/// A figure, with commas: cards have room.
fn figure(value: f64) -> String {
    match value.abs() {
        1e3..1e15 => grouped(value.round() as u64),
        _ => short(rounded(value)),
    }
}

/// To two digits, or to a whole number.
pub(crate) fn rounded(value: f64) -> f64 {
    match value.abs() {
        10.0.. => value.round(),
        1.0.. => (value * 10.0).round() / 10.0,
        _ => (value * 100.0).round() / 100.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(lines: &str) -> Results {
        let mut results = Results::default();
        results.read("a", lines).unwrap();
        results
    }

    fn row(implementation: &str, cpus: usize, value: f64) -> Row {
        Row::new("gup", "alone", implementation, cpus, 1).with("time", value, "ns/page")
    }

    fn lines(clock: report::Clock, rows: Vec<Row>) -> String {
        let run = Some(report::Run { clock, ..report::Run::default() });
        report::Report { run, rows, ..Default::default() }.json_lines()
    }

    #[test]
    fn a_ratio_is_of_two_figures_of_one_run_on_most_cpus() {
        let rows = vec![
            row("address-space lock", 2, 200.0),
            row("fast", 2, 20.0),
            row("address-space lock", 4, 900.0),
            row("fast", 4, 30.0),
            row("fast", 8, 1.0),
        ];
        let alone = lines(report::Clock::Time, vec![row("address-space lock", 8, 9e9)]);
        let text = alone + &lines(report::Clock::Time, rows);
        let html = cards(&results(&text)).into_string();
        assert!(html.contains("<b>30</b> times less"), "{html}");
        assert!(html.contains("4 CPUs: 900 before, 30 now (ns/page)"), "{html}");
        assert!(html.contains("by run 2."), "{html}");
    }

    /// Instructions of an emulator say nothing about contention.
    #[test]
    fn counted_figures_show_only_what_counts_can_show() {
        let rows = |cpus| vec![row("address-space lock", cpus, 400.0), row("fast", cpus, 200.0)];
        let html = cards(&results(&lines(report::Clock::Instructions, rows(2)))).into_string();
        assert!(!html.contains("times less"), "{html}");
        let html = cards(&results(&lines(report::Clock::Instructions, rows(1)))).into_string();
        assert!(html.contains("<b>2</b> times less") && html.contains("On one CPU"), "{html}");
        assert!(html.contains("(instructions/page)"), "{html}");
    }

    #[test]
    fn a_card_without_figures_names_the_command() {
        let html = cards(&Results::default()).into_string();
        assert_eq!(html.matches("These files have no figures").count(), 5, "{html}");
        for source in &SOURCES {
            assert!(html.contains(source.command), "{}", source.command);
        }
    }
}
