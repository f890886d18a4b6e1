//! Loom model: one CPU asks for the pages of another CPU's list, and the request is seen.

use super::Stack;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

type List = Stack<AtomicU32, 2, 2>;

/// Another CPU asks twice, while this one pushes pages and then answers, as at its timer interrupt.
/// If the other CPU was told that there are pages, then in the end none are left, or this CPU still
/// sees the request. `answer` returns whether there was a request.
fn ask_and_answer(answer: fn(&List) -> bool) {
    loom::model(move || {
        let list = Arc::new(List::default());
        let asker = thread::spawn({
            let list = Arc::clone(&list);
            move || [list.ask(), list.ask()].contains(&true)
        });
        for page in 0..3 {
            list.push(page, thread::yield_now);
        }
        if answer(&list) {
            while list.pop(|| ()).is_some() {}
        }
        let told = asker.join().unwrap();
        assert!(!told || list.len() == 0 || list.is_asked(), "requested pages stay");
    });
}

#[test]
fn who_asks_is_heard() {
    ask_and_answer(List::answer);
}

/// While far pages become near, the list never looks empty.
#[test]
fn a_list_with_pages_never_looks_empty() {
    loom::model(|| {
        let list = Arc::new(List::default());
        assert!((0..4).all(|page| list.push(page, || ())));
        let other = thread::spawn({
            let list = Arc::clone(&list);
            move || assert_ne!(list.len(), 0, "there is a page all the time")
        });
        (0..3).for_each(|_| assert!(list.pop(|| ()).is_some()));
        other.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "requested pages stay")]
fn taking_back_what_was_not_seen_is_caught() {
    ask_and_answer(|list| {
        let asked = list.is_asked();
        list.asked.store(0, Relaxed);
        asked
    });
}
