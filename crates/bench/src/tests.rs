//! Every map gives the same results on every case. No test depends on a time.

use crate::case::Case;
use crate::maps;
use crate::peer::Support;
use crate::worker::Worker;
use crate::workload::{Layout, Workload};
use std::rc::Rc;

#[test]
fn all_maps_agree() {
    // Enough for several levels of each tree, and few enough for a debug build.
    let listed = Layout::Listed((1..30).map(|i| (0x4000 * i, 0x4000 * i + 0x2fff)).collect());
    let mut layouts = vec![(Layout::Dense, 60, 1), (listed, 18, 1)];
    if std::env::var_os("SAMARA_ALL").is_some() {
        layouts.extend([
            (Layout::Dense, 4, 2),
            (Layout::Dense, 200, 2),
            (Layout::Spread, 40, 1),
            (Layout::Keys, 40, 1),
        ]);
    }
    for (layout, size, turns) in layouts {
        let mut subjects = maps::all(&Rc::new(Workload::laid_out(&layout, size)));
        for case in Case::ALL.iter().copied() {
            // Only dense ranges have holes that are as rare as these cases need.
            if layout != Layout::Dense && case.is_gap() {
                continue;
            }
            for turn in 0..turns {
                let mut expected = None;
                for subject in &mut subjects {
                    if subject.support(case) != Support::Missing {
                        let sample = subject.sample(case, turn);
                        let (name, case) = (subject.name(), case.name());
                        assert!(sample.operations > 0, "{name} did nothing on {case}");
                        let (first, check) = *expected.get_or_insert((name, sample.check));
                        assert_eq!(
                            sample.check, check,
                            "{case} at {size}, {layout:?}: {name}, not {first}"
                        );
                    }
                }
                assert!(expected.is_some(), "no map supports {}", case.name());
            }
        }
    }
}

/// The driver chooses maps by their names.
#[test]
fn a_worker_has_each_source_of_nodes() {
    let mut worker = Worker::new(maps::all);
    worker.answer("size 100");
    let names = worker.answer("maps");
    for name in crate::results::NODES {
        assert!(names.split('\t').any(|one| one == name), "{name} is not in {names}");
    }
}

#[test]
fn a_worker_answers() {
    let mut worker = Worker::new(maps::all);
    assert_eq!(worker.answer("size 100"), "ok");
    assert!(worker.answer("maps").starts_with("BTreeMap\tBTreeMap, key by key\tbrie_tree\t"));
    assert_eq!(worker.answer("support 0 load"), "own");
    assert_eq!(worker.answer("support 0 gap-up"), "scan");
    assert_eq!(worker.answer("support 2 gap-down"), "missing");
    assert_eq!(worker.answer("size 50 keys"), "ok");
    let list: Vec<String> = (1..=20).map(|i| format!("{:x}-{:x}", 100 * i, 100 * i + 9)).collect();
    assert_eq!(worker.answer(&format!("list {}", list.join(" "))), "ok 11");
    let sample = worker.answer("sample 0 load 3 0");
    assert_eq!(sample.split(' ').filter(|word| word.parse::<u64>().is_ok()).count(), 3);
    for bad in [
        "",
        "size",
        "size 3",
        "size x",
        "sample 99 load 0 0",
        "sample 0 lode 0 0",
        "stop",
        "size 9 x",
        "list",
        "list 9-1",
        "list 5-8 1-2",
    ] {
        assert!(worker.answer(bad).starts_with("error"), "{bad}");
    }
}

#[test]
fn memory_matches_the_maps_own_count() {
    let mut worker = Worker::new(maps::all);
    worker.answer("size 1000");
    // Without the shared trees: guards of other tests' threads defer their frees.
    for map in [0, 2, 3] {
        let bytes: f64 = worker.answer(&format!("bytes {map} holes")).parse().unwrap();
        // Two indices and a value take 24 bytes. Our tree packs them tighter, others leave room.
        assert!((12.0..150.0).contains(&bytes), "map {map}: {bytes}");
    }
}

/// The build without a standard library and vector registers gives the same answers to the same
/// work. The step `portable` runs it: it takes a build of its own.
#[test]
#[ignore = "builds a program"]
fn the_freestanding_worker_agrees() {
    let program = crate::builds::freestanding().unwrap();
    let mut other = crate::process::Process::start(&program, &[]).unwrap();
    let mut worker = Worker::new(maps::all);
    assert_eq!(other.ask("size 300").unwrap(), worker.answer("size 300"));
    let name = other.ask("maps").unwrap();
    let names = worker.answer("maps");
    let place = names.split('\t').position(|one| one == name).unwrap();
    for case in Case::ALL.iter().copied() {
        let check = |answer: String| answer.split(' ').nth(2).map(String::from);
        let theirs = check(other.ask(&format!("sample 0 {} 1 0", case.name())).unwrap());
        let ours = check(worker.answer(&format!("sample {place} {} 1 0", case.name())));
        assert!(theirs.is_some());
        assert_eq!(theirs, ours, "{}", case.name());
    }
    assert!(other.ask("nonsense").unwrap_err().contains("not a request"));
}

#[test]
fn two_threads_answer() {
    // Two processors, or an error that names the lack of them.
    let answer = crate::pairs::answer("pair two-writers 0 64 1 1").unwrap();
    if crate::cpus::allowed().unwrap().len() < 2 {
        assert!(answer.starts_with("error two processors"));
    } else {
        let numbers = answer.split(' ').filter_map(|word| word.parse::<f64>().ok());
        assert_eq!(numbers.filter(|number| *number > 0.0).count(), 8, "{answer}");
    }
    assert!(crate::pairs::answer("pair nothing 0 64 1 1").is_none());
}
