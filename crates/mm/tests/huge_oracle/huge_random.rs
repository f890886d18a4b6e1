//! Random programs in memory with huge pages. They touch few pages of each 2 MiB.

use std::collections::BTreeSet;

use crate::{
    chunks::{COUNT, HUGE},
    program::{Advice, FILE_PAGES, Kind, Of, PAGE, PAGES, PROCESSES, Place, Span, Step, Way},
    random::{Rng, some_prot, with_threads},
};

const ALL: Span = Span { at: 0, len: PAGES * PAGE };

/// The 2 MiB that a program works on.
struct Window {
    first: usize,
    count: usize,
}

impl Window {
    /// A page's address: mostly at a border of 2 MiB, or near one.
    fn page(&self, rng: &mut Rng) -> usize {
        let at = (self.first + rng.below(self.count + 1)) * HUGE;
        let at = match rng.below(12) {
            0..7 => at,
            7 => at + PAGE,
            8 => at.saturating_sub(PAGE),
            9..11 => at + HUGE / 2,
            _ => at + rng.below(HUGE / PAGE) * PAGE,
        };
        at.min(PAGES * PAGE)
    }

    fn span(&self, rng: &mut Rng) -> Span {
        let (one, other) = (self.page(rng), self.page(rng));
        let (at, end) = (one.min(other), one.max(other));
        let len = if at == end { rng.of(&[PAGE, HUGE / 2, HUGE, HUGE]) } else { end - at };
        let at = at.min(PAGES * PAGE - PAGE);
        let len = len.min(PAGES * PAGE - at);
        match rng.below(100) {
            0 => Span { at: at + 1, len },
            1 => Span { at, len: len - 1 },
            _ => Span { at, len },
        }
    }

    /// A few pages.
    fn few(&self, rng: &mut Rng) -> Span {
        let at = self.byte(rng) & !(PAGE - 1);
        Span { at, len: rng.of(&[PAGE, 2 * PAGE]).min(PAGES * PAGE - at) }
    }

    fn byte(&self, rng: &mut Rng) -> usize {
        let chunk = (self.first + rng.below(self.count)) * HUGE;
        let page = rng.of(&[0, 0, 1, 255, 256, 511]);
        chunk + page * PAGE + rng.of(&[0, PAGE - 1])
    }
}

/// The program of a seed. One of four has a file and shared memory, and then does not collapse.
/// One of two has forks, and one of four has threads.
pub(crate) fn random(seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed ^ 0x4b16_9a6e);
    let count = rng.of(&[1, 2, 3, COUNT]);
    let window = Window { first: (COUNT - count) / 2, count };
    let (objects, forks, threads) = (rng.one_in(4), rng.one_in(2), rng.one_in(4));
    let whole = Span { at: window.first * HUGE, len: count * HUGE };
    let mut program =
        vec![Step::Map { span: whole, prot: 3, place: Place::Fixed, kind: Kind::Lazy }];
    if !rng.one_in(10) {
        program.push(Step::Advise { span: whole, advice: Advice::HugePage });
    }
    let (mut alive, mut forked, mut now) = (vec![0], 0, 0);
    while program.len() + 4 < steps {
        let next = rng.of(&alive);
        match rng.below(30) {
            0 if forks && forked + 1 < PROCESSES => {
                forked += 1;
                alive.push(forked);
                program.push(Step::Fork);
            }
            1..4 if next != now => {
                now = next;
                program.push(Step::Switch { to: now });
            }
            4 if now != 0 && next != now && rng.one_in(2) => {
                alive.retain(|process| *process != now);
                program.push(Step::Exit { to: next });
                now = next;
            }
            5..7 if objects => program.push(of_object(&mut rng, &window)),
            _ => {
                let number = program.len();
                let step = step(&mut rng, &window, number, objects);
                program.push(step);
                if now == 0 && rng.one_in(3) {
                    program.push(Step::Chunks);
                }
            }
        }
    }
    let program = if threads { with_threads(seed, program) } else { program };
    with_looks(program, &alive, now)
}

/// Each process looks at its VMAs and at all bytes that were touched, the first also at its pages.
fn with_looks(mut program: Vec<Step>, alive: &[usize], mut now: usize) -> Vec<Step> {
    let touched: BTreeSet<usize> = program
        .iter()
        .filter_map(|step| match *step {
            Step::Read { at } | Step::Write { at, .. } => Some(at),
            _ => None,
        })
        .collect();
    for (number, to) in alive.iter().copied().enumerate() {
        if number != 0 || now != to {
            program.push(Step::Switch { to });
        }
        program.extend([Step::Maps, Step::Sizes]);
        if to == 0 {
            program.extend([Step::Chunks, Step::InCore(ALL), Step::Smaps]);
        }
        program.extend(touched.iter().map(|at| Step::Read { at: *at }));
        now = to;
    }
    program
}

fn of_object(rng: &mut Rng, window: &Window) -> Step {
    match rng.below(4) {
        0 => Step::SetSize { len: rng.below(FILE_PAGES + 1) * PAGE },
        _ => {
            let of = rng.of(&[Of::Shared, Of::Private, Of::Anonymous, Of::Anonymous]);
            let place = rng.of(&[Place::Fixed, Place::Fixed, Place::NoReplace]);
            let span = window.span(rng);
            Step::Share { span, prot: some_prot(rng), place, of, offset: 0 }
        }
    }
}

fn step(rng: &mut Rng, window: &Window, number: usize, objects: bool) -> Step {
    let byte = (number % 255 + 1) as u8;
    match rng.below(100) {
        0..6 => {
            let place = rng.of(&[Place::Fixed, Place::Fixed, Place::NoReplace, Place::Hint]);
            let kind = rng.of(&[Kind::Lazy, Kind::Lazy, Kind::Lazy, Kind::Populate]);
            let kind = if rng.one_in(20) { Kind::GrowsDown } else { kind };
            let span = window.span(rng);
            Step::Map { span, prot: rng.of(&[3, 3, 3, 1]), place, kind }
        }
        6..12 => Step::Unmap(window.span(rng)),
        12..19 => Step::Protect { span: window.span(rng), prot: some_prot(rng) },
        19..23 => {
            let advice = rng.of(&[Advice::DontNeed, Advice::DontNeed, Advice::DontNeedLocked]);
            let advice = if rng.one_in(4) { Advice::Free } else { advice };
            Step::Advise { span: window.span(rng), advice }
        }
        23..31 => Step::Advise { span: window.span(rng), advice: Advice::HugePage },
        31..33 => Step::Advise { span: window.span(rng), advice: Advice::NoHugePage },
        33..39 if !objects => {
            let chunk = Span { at: (window.first + rng.below(window.count)) * HUGE, len: HUGE };
            let span = if rng.one_in(2) { chunk } else { window.span(rng) };
            Step::Advise { span, advice: Advice::Collapse }
        }
        33..39 => Step::Advise { span: window.span(rng), advice: Advice::HugePage },
        39..41 => {
            let advice = rng.of(&[Advice::PopulateRead, Advice::PopulateWrite]);
            Step::Advise { span: window.span(rng), advice }
        }
        41..44 => {
            let advice = rng.of(&[Advice::GuardInstall, Advice::GuardInstall, Advice::GuardRemove]);
            let span = if rng.one_in(3) { window.span(rng) } else { window.few(rng) };
            Step::Advise { span, advice }
        }
        44..46 => {
            let advice = rng.of(&[Advice::Random, Advice::Normal]);
            Step::Advise { span: window.span(rng), advice }
        }
        46..50 => match rng.one_in(2) {
            true => Step::Lock { span: window.span(rng), on_fault: rng.one_in(3) },
            false => Step::Unlock(window.span(rng)),
        },
        50..59 => {
            let (span, target) = (window.span(rng), window.span(rng));
            let ways = [Way::Stay, Way::MayMove, Way::Fixed, Way::Fixed, Way::FixedDontUnmap];
            let way = if rng.one_in(12) { Way::DontUnmap } else { rng.of(&ways) };
            let room = PAGES * PAGE - span.at.max(target.at);
            let len = if rng.one_in(2) { span.len } else { target.len };
            Step::Remap { span, len: len.min(room), way, to: target.at }
        }
        59 => Step::Brk { to: window.page(rng) },
        60..62 => Step::Advise { span: window.few(rng), advice: Advice::DontNeed },
        62..76 => Step::Read { at: window.byte(rng) },
        76..96 => Step::Write { at: window.byte(rng), byte },
        96 => Step::InCore(window.span(rng)),
        97 => Step::PageMap(window.span(rng)),
        98 => Step::Smaps,
        _ => Step::Maps,
    }
}
