//! Loom model: one CPU requests the pages of another CPU's list, and the request is seen.

use super::Stack;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

type List = Stack<AtomicU32, 2, 2>;

/// Another CPU requests twice, while this one pushes pages and then takes the request, as at its
/// timer interrupt. If the other CPU was told that there are pages, then in the end none are left,
/// or this CPU still sees the request.
#[test]
fn a_request_is_seen() {
    loom::model(|| {
        let list = Arc::new(List::default());
        let requester = thread::spawn({
            let list = Arc::clone(&list);
            move || [list.request(), list.request()].contains(&true)
        });
        for page in 0..3 {
            list.push(page, thread::yield_now);
        }
        if list.take_request() {
            while list.pop(|| ()).is_some() {}
        }
        let told = requester.join().unwrap();
        assert!(!told || list.len() == 0 || list.is_requested(), "requested pages stay");
    });
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
