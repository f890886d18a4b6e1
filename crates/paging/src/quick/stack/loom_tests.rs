//! One CPU asks for the pages of another one's list, under loom: it is heard.

use super::Stack;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

type List = Stack<AtomicU32, 2, 2>;

/// Another CPU asks twice, while this one puts pages on its list and then answers, as at its timer
/// interrupt. Who was told that there are pages finds none left in the end, or this CPU still knows
/// that it was asked. `answer` says whether it was.
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
        assert!(!told || list.len() == 0 || list.is_asked(), "pages stay that were asked for");
    });
}

#[test]
fn who_asks_is_heard() {
    ask_and_answer(List::answer);
}

/// While pages come from far, there is no moment without any.
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
#[should_panic(expected = "pages stay that were asked for")]
fn taking_back_what_was_not_seen_is_caught() {
    ask_and_answer(|list| {
        let asked = list.is_asked();
        list.asked.store(0, Relaxed);
        asked
    });
}
