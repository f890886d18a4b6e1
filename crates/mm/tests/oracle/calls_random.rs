//! Random programs with calls that most programs do without: advice for forks, mlockall, rare flags
//! of maps, files that are open for reading only, and copies of a program's memory by the kernel.

use crate::{
    program::{Advice, Copied, Kind, Of, PAGE, PAGES, Span, Step},
    random::{self, Rng, Window},
};

const ADVICE: [Advice; 8] = [
    Advice::DontFork,
    Advice::DoFork,
    Advice::WipeOnFork,
    Advice::KeepOnFork,
    Advice::DontDump,
    Advice::DoDump,
    Advice::Sequential,
    Advice::WillNeed,
];
const KINDS: [Kind; 3] = [Kind::Locked, Kind::NoReserve, Kind::Stack];
const SHARED: [Of; 3] = [Of::SharedPopulate, Of::SharedLocked, Of::ReadShared];
const PRIVATE: [Of; 3] = [Of::PrivatePopulate, Of::PrivateLocked, Of::ReadPrivate];

/// The program of a seed: that of other tests, with some steps changed, and some more of them.
pub(crate) fn random(seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed ^ 0x00ca_1157);
    let pages = rng.of(&[6, 12, 24]);
    let window = Window { first: (PAGES - pages) / 2, pages };
    let program = random::random_with_objects(seed ^ 0x77, steps);
    let mut more = Vec::new();
    for step in program {
        more.push(changed(&mut rng, step));
        if rng.one_in(3) {
            let number = more.len();
            more.push(extra(&mut rng, &window, number));
        }
    }
    if rng.one_in(3) { random::with_threads(seed, more) } else { more }
}

fn changed(rng: &mut Rng, mut step: Step) -> Step {
    match &mut step {
        Step::Map { kind, .. } if *kind == Kind::Lazy && rng.one_in(3) => *kind = rng.of(&KINDS),
        Step::Share { of, .. } if *of == Of::Shared && rng.one_in(2) => *of = rng.of(&SHARED),
        Step::Share { of, .. } if *of == Of::Private && rng.one_in(2) => *of = rng.of(&PRIVATE),
        _ => {}
    }
    step
}

fn extra(rng: &mut Rng, window: &Window, number: usize) -> Step {
    match rng.below(20) {
        0..9 => Step::Advise { span: window.span(rng), advice: rng.of(&ADVICE) },
        9 => Step::LockAll { flags: rng.of(&[0, 1, 1, 2, 2, 3, 4, 5, 6, 7]) },
        10..12 => Step::UnlockAll,
        _ => {
            let at = window.byte(rng);
            let len = rng.below(3 * PAGE).min(PAGES * PAGE - at);
            let way = rng.of(&[Copied::Read, Copied::Write, Copied::Peek, Copied::Poke]);
            Step::Copy { way, span: Span { at, len }, byte: (number % 255 + 1) as u8 }
        }
    }
}
