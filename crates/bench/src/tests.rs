//! Every map does every case alike; no test looks at a time.

use crate::case::Case;
use crate::maps;
use crate::peer::Support;
use crate::worker::Worker;
use crate::workload::Workload;
use std::rc::Rc;

#[test]
fn all_maps_agree() {
    // Enough for some levels of each tree, and few enough for a debug build.
    for (size, turns) in [(4, 2), (100, 2), (1_000, 1)] {
        let mut subjects = maps::all(&Rc::new(Workload::new(size)));
        for case in Case::ALL {
            for turn in 0..turns {
                let mut expected = None;
                for subject in &mut subjects {
                    if subject.support(case) != Support::Missing {
                        let sample = subject.sample(case, turn);
                        let (name, case) = (subject.name(), case.name());
                        assert!(sample.operations > 0, "{name} did nothing on {case}");
                        let (first, check) = *expected.get_or_insert((name, sample.check));
                        assert_eq!(sample.check, check, "{case} at {size}: {name}, not {first}");
                    }
                }
                assert!(expected.is_some(), "nobody does {}", case.name());
            }
        }
    }
}

#[test]
fn a_worker_answers() {
    let mut worker = Worker::new(maps::all);
    assert_eq!(worker.answer("size 100"), "ok");
    assert!(worker.answer("maps").starts_with("BTreeMap\tbrie_tree\t"));
    assert_eq!(worker.answer("support 0 load"), "own");
    assert_eq!(worker.answer("support 0 gap-up"), "scan");
    assert_eq!(worker.answer("support 1 gap-down"), "missing");
    let sample = worker.answer("sample 0 load 3 0");
    assert_eq!(sample.split(' ').filter(|word| word.parse::<u64>().is_ok()).count(), 3);
    for bad in ["", "size", "size 3", "size x", "sample 99 load 0 0", "sample 0 lode 0 0", "stop"] {
        assert!(worker.answer(bad).starts_with("error"), "{bad}");
    }
}

#[test]
fn memory_is_what_the_maps_say() {
    let mut worker = Worker::new(maps::all);
    worker.answer("size 1000");
    // Not the shared ones: here, guards of other tests' threads hold back what they free.
    for map in 0..3 {
        let bytes: f64 = worker.answer(&format!("bytes {map} holes")).parse().unwrap();
        // Two indices and a value are 24; ours packs less, others leave room.
        assert!((12.0..150.0).contains(&bytes), "map {map}: {bytes}");
    }
}
