//! The orders of steps that a run allows.
//!
//! A thread's steps keep their order. A step of an operation that began after another one had
//! ended comes after it, but for two accesses: between a call's change of an entry and the end of
//! its flush, one CPU may see the change and another one not yet.

/// When an operation has begun and ended in a run, whether it is an access, and of how many steps
/// it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) begun: u32,
    pub(crate) ended: u32,
    pub(crate) is_access: bool,
    pub(crate) steps: usize,
}

/// A walk through the orders.
struct Walk<'a> {
    threads: &'a [Vec<Span>],
    /// The operation that each thread comes to, and the step of it.
    next: Vec<(usize, usize)>,
    order: Vec<u8>,
    each: &'a mut dyn FnMut(&[u8]) -> bool,
}

/// Calls `each` with the orders, each the thread of each step, until it returns true. Returns
/// whether it did. The first ones are nearest to the order in which the operations have ended.
pub(crate) fn any(threads: &[Vec<Span>], each: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let next = vec![(0, 0); threads.len()];
    Walk { threads, next, order: Vec::new(), each }.go()
}

impl Walk<'_> {
    fn current(&self, thread: usize) -> Option<Span> {
        self.threads[thread].get(self.next[thread].0).copied()
    }

    /// Whether all that must come before this operation has come.
    fn may_begin(&self, span: Span) -> bool {
        self.threads.iter().zip(&self.next).all(|(spans, next)| {
            spans[next.0..]
                .iter()
                .all(|other| other.ended >= span.begun || (other.is_access && span.is_access))
        })
    }

    fn go(&mut self) -> bool {
        let mut ready: Vec<_> = (0..self.threads.len())
            .filter_map(|thread| Some((self.current(thread)?, thread)))
            .collect();
        if ready.is_empty() {
            return (self.each)(&self.order);
        }
        ready.sort_by_key(|(span, _)| span.ended);
        for (span, thread) in ready {
            if !self.may_begin(span) {
                continue;
            }
            let before = self.next[thread];
            self.next[thread] = match before.1 + 1 {
                step if step < span.steps => (before.0, step),
                _ => (before.0 + 1, 0),
            };
            self.order.push(thread as u8);
            let found = self.go();
            self.order.pop();
            self.next[thread] = before;
            if found {
                return true;
            }
        }
        false
    }
}

#[test]
fn orders_of_two_threads() {
    let span = |begun, ended, steps| Span { begun, ended, is_access: false, steps };
    let count = |threads: &[Vec<Span>]| {
        let mut orders = std::collections::BTreeSet::new();
        any(threads, &mut |order| {
            assert!(orders.insert(order.to_vec()), "an order comes twice");
            false
        });
        orders.len()
    };
    assert_eq!(count(&[vec![span(0, 9, 2)], vec![span(1, 8, 2)]]), 6);
    assert_eq!(count(&[vec![span(0, 3, 2)], vec![span(4, 8, 2)]]), 1);
    let third = vec![span(0, 9, 1)];
    assert_eq!(count(&[vec![span(0, 3, 1), span(4, 9, 1)], vec![span(1, 9, 1)], third]), 12);
    let access = |begun, ended| Span { is_access: true, ..span(begun, ended, 1) };
    assert_eq!(count(&[vec![access(0, 3)], vec![access(4, 8)]]), 2);
}
