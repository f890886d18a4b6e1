//! Random programs of a monitor.

use crate::{
    monitor::{Call, Scan},
    monitored::CATEGORIES,
    program::{Advice, Kind, Of, PAGE, PAGES, Place, Span, Step, Way},
    random::{Rng, Window, of_object, some_prot, step},
};

/// The features of userfaultfd that programs use.
pub(crate) mod feature {
    pub(crate) const SIGBUS: u64 = 1 << 7;
    pub(crate) const WP_UNPOPULATED: u64 = 1 << 13;
    pub(crate) const WP_ASYNC: u64 = 1 << 15;
    /// Those that the running kernel must have: WP of shared memory, POISON, and MOVE.
    pub(crate) const ALL: u64 = SIGBUS | 1 << 12 | WP_UNPOPULATED | 1 << 14 | 1 << 16;
}

/// The subject of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// userfaultfd.
    Monitors,
    /// PAGEMAP_SCAN, with write-protection.
    Scans,
}

/// The whole window.
const ALL: Span = Span { at: 0, len: PAGES * PAGE };

/// A scan that tells everything.
pub(crate) fn everything() -> Step {
    let what = Scan { vec_len: PAGES, returned: CATEGORIES, ..Scan::default() };
    Step::Monitor(Call::Scan { span: ALL, what })
}

/// The program of a seed. Every other one has a file and shared memory, and some have forks.
pub(crate) fn random(about: About, seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed ^ 0x00f1_1e5d);
    let pages = rng.of(&[6, 12, 24]);
    let window = Window { first: (PAGES - pages) / 2, pages };
    let objects = rng.one_in(2);
    let forks = rng.one_in(4);
    let mut features = feature::SIGBUS;
    features |= match about {
        // It marks absent pages, too.
        About::Scans if !rng.one_in(4) => feature::WP_ASYNC,
        _ if rng.one_in(2) => feature::WP_UNPOPULATED,
        _ => 0,
    };
    // All with WP, or none: where a registration without it follows one with it, Linux leaves the
    // marks in the entries. Only PAGEMAP_SCAN sees them then, and ours forgets them.
    let modes: &[u64] = match about {
        About::Monitors if rng.one_in(3) => &[1, 1, 4, 5, 0],
        About::Monitors => &[2, 3, 2, 3, 0, 6, 7],
        About::Scans => &[2],
    };
    let marks = modes[0] == 2;
    let mut program = begin(&mut rng, &window, objects);
    program.push(Step::Monitor(Call::Open { features }));
    let mode = rng.of(&modes[..modes.len().min(4)]);
    let span = Span { at: window.first * PAGE, len: pages * PAGE };
    program.push(Step::Monitor(Call::Register { span, mode }));
    let mut now = 0;
    while program.len() + 4 < steps {
        let number = program.len();
        match rng.below(20) {
            0 if forks && rng.one_in(3) => match program.contains(&Step::Fork) {
                false => program.push(Step::Fork),
                true => {
                    now = 1 - now;
                    program.push(Step::Switch { to: now });
                }
            },
            0..3 if objects => match of_object(&mut rng, &window, number) {
                // Over the marker of an absent page of an object, Linux repeats it endlessly.
                Step::Advise { advice: Advice::GuardInstall, .. } if marks => {}
                step => program.push(step),
            },
            3..6 => program.push(Step::Write { at: window.byte(&mut rng), byte: byte(number) }),
            6..8 => program.push(Step::Read { at: window.byte(&mut rng) }),
            8..12 => match step(&mut rng, &window, number) {
                // Limits and the heap have nothing to do with it.
                Step::Limit { .. } | Step::Brk { .. } => {}
                Step::Advise { advice: Advice::GuardInstall, .. } if objects && marks => {}
                // Where mremap unregisters a VMA that the moved one joins, Linux leaves its marks.
                Step::Remap { way, .. } if marks && way != Way::Stay => {}
                step => program.push(step),
            },
            12..15 if about == About::Scans => program.push(scan(&mut rng, &window)),
            19 if rng.one_in(8) && !forks => {
                program.push(Step::Monitor(Call::Close));
                program.push(Step::Monitor(Call::Open { features }));
            }
            _ if about == About::Scans => {}
            _ => match call(&mut rng, &window, modes, number) {
                // Linux's fork leaves out shared memory, so that a child has no poison there. Ours
                // shares the tables with it.
                Call::Poison { .. } if objects && forks => {}
                call => program.push(Step::Monitor(call)),
            },
        }
    }
    if now != 0 {
        program.push(Step::Switch { to: 0 });
    }
    program.extend([Step::Maps, everything(), Step::Smaps, Step::PageMap(ALL)]);
    program
}

fn byte(number: usize) -> u8 {
    (number % 255 + 1) as u8
}

/// Maps the pages of the window.
fn begin(rng: &mut Rng, window: &Window, objects: bool) -> Vec<Step> {
    let (at, half) = (window.first * PAGE, window.pages / 2 * PAGE);
    let mut map = |at, len| {
        let (span, prot) = (Span { at, len }, if rng.one_in(6) { some_prot(rng) } else { 3 });
        let (place, of) = (Place::Fixed, rng.of(&[Of::Shared, Of::Private, Of::Anonymous]));
        match objects && rng.one_in(2) {
            true => Step::Share { span, prot, place, of, offset: 0 },
            false => Step::Map { span, prot, place, kind: Kind::Lazy },
        }
    };
    vec![map(at, half), map(at + half, half)]
}

/// A mode with one of these values, rarely with a bit that does not exist.
fn mode(rng: &mut Rng, values: &[u64]) -> u64 {
    rng.of(values) | if rng.one_in(40) { 8 << rng.below(8) } else { 0 }
}

fn call(rng: &mut Rng, window: &Window, modes: &[u64], number: usize) -> Call {
    let span = window.span(rng);
    match rng.below(20) {
        0..2 => Call::Register { span, mode: mode(rng, modes) },
        2 => Call::Unregister(span),
        3 => Call::Wake(span),
        4..8 => Call::Fill { span, mode: mode(rng, &[0, 0, 1, 2]), byte: byte(number) },
        8..10 => Call::Zero { span, mode: mode(rng, &[0, 1]) },
        10..12 => Call::Continue { span, mode: mode(rng, &[0, 0, 1, 2]) },
        12 => Call::Poison { span, mode: mode(rng, &[0, 1]) },
        13..17 => Call::WriteProtect { span, mode: mode(rng, &[1, 1, 1, 0, 0, 2, 3]) },
        _ => {
            let from = window.span(rng).at;
            Call::Move { span, from, mode: mode(rng, &[0, 1, 2, 2]) }
        }
    }
}

fn scan(rng: &mut Rng, window: &Window) -> Step {
    let span = match rng.one_in(3) {
        true => ALL,
        false => window.span(rng),
    };
    let some = |rng: &mut Rng| {
        let bits = CATEGORIES & 1 << rng.below(9);
        bits | if rng.one_in(3) { CATEGORIES & 1 << rng.below(9) } else { 0 }
    };
    let flags = if rng.one_in(40) { 1 << rng.below(4) } else { rng.of(&[0, 1, 1, 2, 3]) };
    let mask = rng.of(&[0, 2, 8, 10]);
    let mask = mask | if rng.one_in(6) { some(rng) } else { 0 };
    let inverted = if rng.one_in(4) { some(rng) & !8 } else { 0 };
    let what = Scan {
        flags,
        // Without a vector, Linux protects all pages, also those that do not match.
        vec_len: rng.of(&[flags as usize & 1, 1, 2, 3, PAGES, PAGES]),
        max_pages: rng.of(&[0, 0, 1, 2, 5]),
        mask,
        anyof: if rng.one_in(3) { some(rng) } else { 0 },
        inverted,
        returned: if rng.one_in(4) { some(rng) } else { CATEGORIES },
    };
    Step::Monitor(Call::Scan { span, what })
}
