//! Tests of stacks by example: how a chain of calls is shown.

use std::collections::BTreeMap;

use super::{Measure, SiteCounts, Stacks};
use crate::{
    owner::Owner,
    record::{Frame, Image, Op, Stack, StackEnd, StackId, Symbol},
    report::{Style, Summary, json, tables},
};

/// Adds a stack of functions, the innermost first. A name has its file before a colon.
fn add(stacks: &mut Stacks, id: StackId, end: StackEnd, functions: &[&str]) {
    let mut frames = Vec::new();
    for function in functions {
        let (file, name) = function.split_once(':').unwrap();
        let known = stacks.images.values().find(|image| image.path.ends_with(file));
        let image = known.map(|image| image.id).unwrap_or_else(|| {
            let id = stacks.images.len() as u32 + 1;
            let path = format!("/usr/lib/{file}");
            // A script and compiled code have no file.
            let inode = if file.ends_with(".py") || file.ends_with(".map") { 0 } else { id.into() };
            stacks.add_image(Image { id, dev: (8, 1), inode, path });
            id
        });
        // Equal names are at equal places.
        let address = crate::text::fnv1a64(name.as_bytes()) & 0xffff;
        let frame = Frame { image, address };
        frames.push(frame);
        let known = stacks.symbols.contains_key(&frame);
        if !known && !name.is_empty() {
            let line = file.ends_with(".py").then(|| (file.to_owned(), 7));
            stacks.add_symbol(Symbol { frame, name: name.into(), line });
        }
    }
    stacks.add_stack(Stack { id, frames, end });
}

fn sites(stacks: &Stacks) -> Vec<(String, Option<String>, SiteCounts)> {
    stacks.sites().into_iter().map(|(site, count)| (site.place, site.via, count)).collect()
}

#[test]
fn the_site_is_the_caller_of_the_allocator() {
    for (functions, place, via) in [
        (&["libc.so.6:mmap64", "x:c", "x:b", "x:main"][..], "c", Some("mmap64")),
        (&["libc.so.6:brk", "libc.so.6:sysmalloc", "libc.so.6:malloc", "x:f"], "f", Some("malloc")),
        // A static program.
        (&["x:mmap", "x:sysmalloc_mmap.constprop.0", "x:malloc", "x:f"], "f", Some("malloc")),
        (&["x:mmap", "x:_int_malloc", "x:malloc@@GLIBC_2.2", "x:_dl_x", "x:f"], "f", Some("_dl_x")),
        // Through a library and back.
        (&["libc.so.6:mmap", "x:f", "libc.so.6:qsort", "x:main"], "f", Some("mmap")),
        (
            &["libc.so.6:malloc", "libstdc++.so.6:operator new(unsigned long)", "x:f", "x:main"],
            "f",
            Some("operator new(unsigned long)"),
        ),
        (
            &["x:__mmap", "x:__rust_alloc", "x:alloc::alloc::alloc", "x:f"],
            "f",
            Some("alloc::alloc::alloc"),
        ),
        // The innermost line of a script, by the function that would be the site otherwise.
        (
            &[
                "libc.so.6:mmap",
                "libc.so.6:malloc",
                "libpython3.12.so:PyList_New",
                "a.py:f",
                "x:main",
            ],
            "f (a.py:7)",
            Some("PyList_New"),
        ),
        (
            &["x:mmap", "x:new", "perf-7.map:JS:~alloc node:buffer:9", "perf-7.map:JS:*f /a.js:1"],
            "JS:*f /a.js:1",
            Some("new"),
        ),
        (&["x:mmap", "x:f", "perf-7.map:Builtin:Call", "x:g"], "f", Some("mmap")),
        // All of it in the loader.
        (
            &[
                "ld-linux-x86-64.so.2:__mmap64",
                "ld-linux-x86-64.so.2:map",
                "ld-linux-x86-64.so.2:run",
            ],
            "map",
            Some("__mmap64"),
        ),
        (&["libc.so.6:mmap"], "mmap", None),
        (&["libfoo.so:"], "libfoo.so+0x2325", None),
    ] {
        let mut stacks = Stacks::default();
        add(&mut stacks, 1, StackEnd::Root, functions);
        stacks.count((1, Op::Mmap), 1, 4096);
        let found = sites(&stacks);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0.as_str(), found[0].1.as_deref()), (place, via), "{functions:?}");
    }
}

/// Two stacks of one site, a stack of another, a call without a stack, and maps of execve.
fn example() -> Stacks {
    let mut stacks = Stacks::default();
    add(&mut stacks, 1, StackEnd::Root, &["libc.so.6:mmap", "x:c", "x:b", "x:a", "x:main"]);
    add(&mut stacks, 2, StackEnd::Cut, &["libc.so.6:mmap", "x:c", "x:c"]);
    add(&mut stacks, 3, StackEnd::Lost, &["libc.so.6:munmap", "x:operator<;>"]);
    stacks.count((1, Op::Mmap), 2, 8192);
    stacks.count((2, Op::Mmap), 1, 4096);
    stacks.count((3, Op::Munmap), 5, 0);
    stacks.count((0, Op::Brk), 1, 1024);
    stacks.set_end(Some(BTreeMap::from([
        (Owner::Program, 512),
        (Owner::Call(1, Op::Mmap), 4096),
        (Owner::Call(0, Op::Brk), 1024),
    ])));
    stacks
}

fn summary(stacks: Stacks) -> Summary {
    let mut summary = Summary::default();
    summary.stacks = stacks;
    summary
}

#[test]
fn the_table_adds_up() {
    let summary = summary(example());
    let text = tables::render(&summary, Style::PLAIN);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let from = text.lines().position(|line| line.contains("at the end")).unwrap();
    let lines: Vec<_> = text.lines().skip(from + 1).map(words).collect();
    let expected = [
        "mmap 3 12.00 KiB 4.00 KiB c, by mmap",
        "brk 1 1.00 KiB 1.00 KiB (no stack)",
        "munmap 5 - - operator<;>, by munmap",
        "- - 512 B execve",
        "9 13.00 KiB 5.50 KiB all",
    ];
    assert_eq!(lines[..5], expected.map(words), "{text}");
    assert!(text.contains("3 different stacks; 1 cut: "), "{text}");
    assert!(text.contains("; 1 not followed to the first function"), "{text}");
    // Only the calls that are asked for.
    let mut summary = summary;
    summary.shown = Some(vec![Op::Munmap]);
    let text = tables::render(&summary, Style::PLAIN);
    assert!(text.contains("operator<;>") && !text.contains("c, by mmap"), "{text}");
}

#[test]
fn many_sites_are_cut_to_those_that_mapped_most() {
    let mut stacks = Stacks::default();
    for id in 1..=100 {
        add(&mut stacks, id, StackEnd::Root, &["libc.so.6:mmap", &format!("x:site_{id}")]);
        stacks.count((id, Op::Mmap), 1, u64::from(id) << 20);
    }
    let summary = summary(stacks);
    let text = tables::render(&summary, Style::PLAIN);
    assert!(text.contains("site_100,") && text.contains("site_81,"), "{text}");
    assert!(!text.contains("site_80,") && text.contains("80 other sites"), "{text}");
    // 1 to 100 MiB, whether or not they are shown.
    let all = text.lines().find(|line| line.ends_with(" all")).unwrap();
    assert_eq!(all.split_whitespace().collect::<Vec<_>>(), ["100", "4.93", "GiB", "-", "all"]);
    let full = tables::render(&summary, Style { full: true, ..Style::PLAIN });
    assert!(full.contains("site_1,") && !full.contains("other sites"), "{full}");
}

#[test]
fn folded_lines_begin_with_the_outermost_function() {
    let stacks = example();
    let lines = |measure| stacks.folded(measure).lines().map(str::to_owned).collect::<Vec<_>>();
    let whole = "main;a;b;c;mmap;[mmap]";
    let expected =
        ["[cut];c;c;mmap;[mmap] 4096", "[no stack];[brk] 1024", &format!("{whole} 8192")];
    assert_eq!(lines(Measure::Mapped), expected);
    let calls = lines(Measure::Calls);
    assert!(calls.contains(&"[lost];operator<:>;munmap;[munmap] 5".into()), "{calls:?}");
    let expected = ["[execve] 512", "[no stack];[brk] 1024", &format!("{whole} 4096")];
    assert_eq!(lines(Measure::AtEnd), expected);
}

#[test]
fn a_flame_graph_has_each_function_in_proportion() {
    let svg = example().flame_graph(Measure::Mapped, "a <b>");
    // The value of an attribute of the box with this title.
    let value = |title: &str, name: &str| {
        let at = svg.find(title).unwrap_or_else(|| panic!("{title} in {svg}"));
        let rest = svg[at..].split_once(&format!(" {name}=\"")).unwrap().1;
        rest.split('"').next().unwrap().parse::<f64>().unwrap()
    };
    let titles =
        ["all: 13.00 KiB, 100.0 %", "main: 8.00 KiB, 61.5 %", "a: 8.00 KiB", "b: 8.00 KiB"];
    let rows = titles.map(|title| value(title, "y"));
    assert!(rows.is_sorted() && rows.windows(2).all(|two| two[1] - two[0] == 18.0), "{rows:?}");
    let [all, main] = [titles[0], titles[1]].map(|title| value(title, "width"));
    assert!((main / all - 8.0 / 13.0).abs() < 1e-4, "{main} of {all}");
    assert!(svg.contains("Bytes mapped: a &lt;b&gt;") && !svg.contains("<b>"));
    // Each box is in the picture.
    for part in svg.split("<rect x=\"").skip(1) {
        let numbers: Vec<f64> =
            part.split('"').step_by(2).take(4).filter_map(|text| text.parse().ok()).collect();
        assert!(numbers[0] >= 10.0 && numbers[0] + numbers[2] <= 1190.01, "{numbers:?}");
    }
    // Boxes of one row are side by side.
    let mut boxes: Vec<(u32, f64, f64)> = Vec::new();
    for part in svg.split("data-row=\"").skip(1) {
        let number = |name: &str| {
            let rest = part.split_once(&format!(" {name}=\"")).unwrap().1;
            rest.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        let row = part.split('"').next().unwrap().parse().unwrap();
        boxes.push((row, number("x"), number("width")));
    }
    boxes.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(boxes.iter().filter(|(row, ..)| *row == 1).count(), 3, "{boxes:?}");
    for two in boxes.windows(2).filter(|two| two[0].0 == two[1].0) {
        assert!(two[0].1 + two[0].2 <= two[1].1 + 0.02, "{two:?}");
    }
    let calls = example().flame_graph(Measure::Calls, "x");
    assert!(calls.contains("operator&lt;;&gt;: 5 calls, 55.6 %"), "{calls}");
}

#[test]
fn a_label_fits_its_box() {
    for (name, width, expected) in [
        ("main", 100.0, "main"),
        ("main", 36.0, "main"),
        ("main", 35.0, "m.."),
        ("main", 20.0, ""),
        ("ä²³ⓐx", 37.0, "ä².."),
        ("", 50.0, ""),
    ] {
        assert_eq!(super::flame::label(name, width), expected, "{name} in {width}");
    }
}

#[test]
fn json_has_sites_stacks_and_folded_lines() {
    let summary = summary(example());
    let object = json::object(&summary);
    let stacks = &object["stacks"];
    let site = stacks["sites"].as_array().unwrap().iter().find(|site| site["site"] == "c").unwrap();
    assert_eq!((&site["calls"], &site["mapped"]), (&3.into(), &12288.into()), "{site}");
    assert_eq!(site["by"], "mmap");
    let first = stacks["stacks"].as_array().unwrap().iter().find(|one| one["id"] == 1).unwrap();
    let names: Vec<_> =
        first["frames"].as_array().unwrap().iter().map(|frame| &frame["function"]).collect();
    assert_eq!(names, ["mmap", "c", "b", "a", "main"]);
    assert_eq!(first["counts"]["mmap"]["at_end"], 4096);
    assert_eq!(stacks["at_end"]["execve"], 512);
    assert_eq!(stacks["folded"]["calls"].as_array().unwrap().len(), 4);
    assert!(json::object(&Summary::default())["stacks"].is_null());
}

#[test]
fn runs_add_up_whatever_their_numbers() {
    let mut both = summary(example());
    let mut other = Stacks::default();
    add(&mut other, 1, StackEnd::Root, &["libm.so:f", "libc.so.6:mmap", "x:c"]);
    other.count((1, Op::Mmap), 1, 64);
    other.set_end(Some(BTreeMap::from([(Owner::Call(1, Op::Mmap), 64), (Owner::Program, 8)])));
    both.merge(summary(other));
    let lines = both.stacks.folded(Measure::AtEnd);
    let expected = [
        "[execve] 520",
        "[no stack];[brk] 1024",
        "c;mmap;f;[mmap] 64",
        "main;a;b;c;mmap;[mmap] 4096",
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    assert_eq!(both.stacks.len(), 4);
}

/// Each stack is one sample of each profile in which it has a value, from the outermost function
/// on, and the weights have the sum of the table.
#[test]
fn speedscope_has_a_profile_for_each_measure() {
    let mut stacks = example();
    stacks.set_peak(BTreeMap::from([(Owner::Program, 512), (Owner::Call(1, Op::Mmap), 1024)]));
    let text = stacks.speedscope(Measure::AtEnd, "a b");
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let frames = file["shared"]["frames"].as_array().unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    let active = &profiles[file["activeProfileIndex"].as_u64().unwrap() as usize];
    assert_eq!(active["name"], "Bytes still mapped at the end");
    let sums: Vec<u64> = profiles.iter().map(|one| one["endValue"].as_u64().unwrap()).collect();
    assert_eq!(sums, [1536, 13 << 10, 9, 5632]);
    for profile in profiles {
        let weights = profile["weights"].as_array().unwrap();
        let sum: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
        assert_eq!(profile["endValue"], sum);
        assert_eq!(profile["samples"].as_array().unwrap().len(), weights.len());
    }
    let first =
        active["samples"].as_array().unwrap().iter().find(|one| one.as_array().unwrap().len() > 3);
    let names = first.unwrap().as_array().unwrap().iter();
    let names: Vec<_> = names.map(|at| &frames[at.as_u64().unwrap() as usize]["name"]).collect();
    assert_eq!(names, ["main", "a", "b", "c", "mmap", "[mmap]"]);
    // A recording has no peak.
    assert_eq!(example().speedscope(Measure::Calls, "x").matches("\"sampled\"").count(), 3);
}
