//! Results that Linux documents as weaker, and translations that a TLB may still have.

use crate::{
    ops::Op,
    orders::Span,
    run::{Script, Seen},
    world::WorldKind,
};

/// Operations whose results are not compared, with the reason. Their effects are.
const WEAKER: &[(&str, &str)] =
    &[("Listing", "proc(5): a listing of maps that change is no snapshot")];

/// Leaves out the results that may differ.
///
/// Also, while a call removes pages or rights, a fault may see its VMAs before, and a TLB its pages
/// until its end. So, of a thread's accesses to different pages, only the last is compared.
pub(crate) fn weaken(script: &Script, mut seen: Seen) -> Seen {
    for (thread, outs) in script.threads.iter().zip(&mut seen.outs) {
        let pages: Vec<_> = thread.ops.iter().map(|op| op.accesses_pages()).collect();
        for (number, (op, out)) in thread.ops.iter().zip(outs).enumerate() {
            let name = op.name();
            let is_weaker = WEAKER.iter().any(|(weaker, _)| *weaker == name);
            let later = pages[number + 1..].iter().flatten();
            let is_early =
                pages[number].is_some_and(|page| later.copied().any(|other| other != page));
            if is_weaker || is_early {
                *out = Default::default();
            }
        }
    }
    // Under `UnmapPolicy::Grace`, a thread may for a while use pages that another one has unmapped.
    let unmaps = |op: &Op| matches!(op, Op::Unmap(..));
    for (number, outs) in
        seen.outs.iter_mut().enumerate().filter(|_| script.kind == WorldKind::Graced)
    {
        let others = script.threads.iter().enumerate().filter(|(other, _)| *other != number);
        if others.into_iter().any(|(_, other)| other.ops.iter().any(unmaps)) {
            let accesses = script.threads[number].ops.iter().zip(outs);
            accesses
                .filter(|(op, _)| op.is_access())
                .for_each(|(_, out)| *out = Default::default());
        }
    }
    // Clearing soft-dirty is one step for each page, during faults. It has no call for
    // one page, so it cannot be split: where another operation has several steps, the marks are
    // left out.
    let several = |op: Op| !op.is_access() && op.parts(script.kind).ops.len() > 1;
    if script.ops().any(|op| op == Op::ClearSoftDirty) && script.ops().any(several) {
        seen.state.iter_mut().for_each(|line| line.retain(|char| char != '*'));
    }
    seen
}

/// An access that may have used an old translation although its thread, or another one, has seen
/// before that the page or the right is gone: until a call that takes pages or rights has ended, a
/// TLB may have them. So the access may count as one that was made earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stale {
    pub(crate) thread: usize,
    pub(crate) op: usize,
    /// When the first such call began.
    pub(crate) since: u32,
}

/// The accesses that may be stale.
pub(crate) fn stale_accesses(spans: &[Vec<Span>]) -> Vec<Stale> {
    let all = || {
        spans.iter().enumerate().flat_map(|(thread, spans)| {
            spans.iter().enumerate().map(move |(op, span)| ((thread, op), *span))
        })
    };
    let since = |access: (usize, usize), span: Span| {
        let calls = all().filter(|(place, call)| {
            place.0 != access.0 && !call.is_access && call.ended >= span.begun
        });
        // Something has ended while the call ran, and before the access.
        let calls = calls.map(|(place, call)| (place, call.begun)).filter(|&(place, begun)| {
            all().any(|(other, seen)| {
                other != place && seen.ended >= begun && seen.ended < span.begun
            })
        });
        calls.map(|(_, begun)| begun).min()
    };
    all()
        .filter(|(_, span)| span.is_access)
        .filter_map(|((thread, op), span)| {
            Some(Stale { thread, op, since: since((thread, op), span)? })
        })
        .collect()
}

#[test]
fn an_access_during_a_call_may_be_stale_after_a_look() {
    let span = |begun, ended, is_access| Span { begun, ended, is_access, steps: 1 };
    let call = vec![span(0, 9, false)];
    // A look that has ended, and then an access, both during the call.
    let stale = Stale { thread: 0, op: 1, since: 0 };
    assert_eq!(stale_accesses(&[vec![span(1, 2, false), span(3, 4, true)], call]), [stale]);
    // The access was first, or the call had ended.
    let call = vec![span(0, 2, false)];
    assert_eq!(stale_accesses(&[vec![span(1, 5, true)], call.clone()]), []);
    assert_eq!(stale_accesses(&[vec![span(0, 1, false), span(3, 4, true)], call]), []);
}
