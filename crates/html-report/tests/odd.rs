//! Files that no program of ours writes: each is an error or a page, never a panic.

use html_report::{Results, html};

fn page(text: &str) -> String {
    let mut results = Results::default();
    results.read("odd.jsonl", text).unwrap();
    html(&results)
}

/// A row of each plot with this value, size and number of CPUs.
fn rows(value: &str, size: u64, cpus: u64) -> String {
    let kinds = [
        ("gup", "alone", "fast", "time"),
        ("gup", "one call", "fast", "locked instructions"),
        ("vmap", "map, touch, unmap", "lazy", "time"),
        ("vmap", "map, touch, unmap, turns of 9", "lazy", "instructions of all CPUs"),
        ("vmap", "CPUs tick", "lazy", "interrupts an unmap"),
        ("quicklist", "pte", "quicklist", "mean"),
        ("quicklist", "nothing of ours", "quicklist", "lines"),
        ("vmallocinfo", "with 1 readers", "readers without a lock", "lost by a writer"),
        ("vmallocinfo", "get_vmalloc_info", "readers without a lock", "time"),
        ("range-tree", "load", "brie_tree", "time"),
        ("node-sources-counts", "erase", "maple, shared, held", "instructions"),
        ("calls", "vmap, vunmap", "ours", "instructions"),
        ("calls", "vmap, vunmap", "Linux", "time"),
    ];
    let line = |(experiment, case, implementation, metric)| {
        format!(
            "{{\"experiment\":\"{experiment}\",\"case\":\"{case}\",\
             \"implementation\":\"{implementation}\",\"cpus\":{cpus},\"size\":{size},\
             \"metric\":\"{metric}\",\"value\":{value},\"unit\":\"ns\"}}\n"
        )
    };
    kinds.into_iter().map(line).collect()
}

#[test]
fn any_figure_makes_a_page() {
    for value in ["0", "-3", "1", "1e-300", "1e300", "7e-5", "null", "-1e300"] {
        for (size, cpus) in [(4, 1), (0, 0), (1, 2), (u64::MAX, u64::MAX), (0, 1)] {
            let page = page(&rows(value, size, cpus));
            assert!(page.ends_with("</html>\n"), "{value}, {size}, {cpus}");
            for word in ["NaN", ">inf", "\"inf"] {
                assert!(!page.contains(word), "{value}, {size}, {cpus}: {word}");
            }
        }
    }
}

#[test]
fn any_trace_makes_a_page() {
    let max = u64::MAX;
    let bin = format!("{{\"at_us\":{max},\"calls\":{max},\"mapped\":{max},\"vmas\":{max}}}");
    let region = format!(
        "{{\"start\":\"ffffffffffffffff\",\"bytes\":{max},\"kind\":\"<odd>\",\"name\":\"\"}}"
    );
    let trace = format!(
        "{{\"calls\":{max},\"refused\":0,\"address_spaces\":0,\"mismatches\":0,\"vmas_peak\":0,\
         \"kinds\":{{}},\"timeline\":[{bin},{bin}],\"peak\":{{\"exe\":\"\",\"vmas\":1,\
         \"regions\":[{region},{region}]}},\
         \"stacks\":{{\"sites\":[],\"folded\":{{\"calls\":[\"a {max}\",\"a {max}\",\";; 0\"]}}}}}}"
    );
    let text = page(&trace);
    assert!(text.contains("k-odd") && text.contains("&lt;odd&gt;"), "{text}");
    let call = format!(
        "{{\"call\":\"mmap\",\"time_ns\":{max},\"mm\":1,\"vmas\":{max},\"mapped_bytes\":{max}}}\n"
    );
    assert!(page(&format!("{call}{}", call.replace("\"mm\":1", "\"mm\":2"))).contains("mmap"));
}
