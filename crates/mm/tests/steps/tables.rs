//! Two tables: faults that are still open, and results that Linux documents as weaker.

use crate::{
    check::What,
    ops::Op,
    run::{Script, Seen},
    world::Kind,
};

/// Scripts that fail by a fault that is known and still open: they have all of these operations,
/// in one of these worlds, or in any if none is named.
pub(crate) struct Open {
    pub(crate) fault: &'static str,
    pub(crate) kinds: &'static [Kind],
    pub(crate) ops: &'static [&'static str],
    /// The sort of the failure.
    pub(crate) sort: u8,
}

/// The faults. A number is that of the list of confirmed faults; the others were found here.
pub(crate) const KNOWN: &[Open] = &[
    Open {
        fault: "UFFDIO_MOVE moves a page that is pinned after its look at the pins",
        kinds: &[],
        ops: &["MovePages", "Pin|PinLong|PinRead|Read|Write"],
        sort: 2,
    },
    Open {
        fault: "MADV_POPULATE of device memory that goes: ENOMEM, not EINVAL",
        kinds: &[Kind::Device],
        ops: &["PopulateRead|PopulateWrite"],
        sort: 2,
    },
];

impl Open {
    /// Whether a script may fail by this fault.
    pub(crate) fn covers(&self, script: &Script, what: &What) -> bool {
        let names: Vec<_> = script.ops().map(Op::name).collect();
        self.sort == what.sort()
            && (self.kinds.is_empty() || self.kinds.contains(&script.kind))
            && self.ops.iter().all(|op| op.split('|').any(|op| names.iter().any(|name| name == op)))
    }
}

/// Operations whose results are not compared, with the reason. What they change is.
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
    seen
}
