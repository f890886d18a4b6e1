//! Random programs.

use crate::program::{
    ADVICE, Advice, FILE_PAGES, Kind, Of, PAGE, PAGES, PROCESSES, Place, Span, Step, THREADS, Way,
};

/// A xorshift generator: the seed alone decides a program.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not begin alike, and the state must not be 0.
        Rng((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit as u64) as usize
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

/// The pages that a program works on, in the middle of the window.
pub(crate) struct Window {
    pub(crate) first: usize,
    pub(crate) pages: usize,
}

impl Window {
    /// One to six pages, rarely at an address or of a length that calls refuse.
    pub(crate) fn span(&self, rng: &mut Rng) -> Span {
        let at = (self.first + rng.below(self.pages)) * PAGE;
        let len = (1 + rng.below(6)) * PAGE;
        let len = len.min(PAGES * PAGE - at);
        match rng.below(60) {
            0 => Span { at: at + rng.below(PAGE), len },
            1 => Span { at, len: len - rng.below(PAGE) },
            2 => Span { at, len: 0 },
            _ => Span { at, len },
        }
    }

    pub(crate) fn byte(&self, rng: &mut Rng) -> usize {
        (self.first + rng.below(self.pages)) * PAGE + rng.of(&[0, 1, PAGE / 2, PAGE - 1])
    }
}

/// Every `PROT_*` but the lone PROT_EXEC: some processors can forbid to read such pages.
pub(crate) fn some_prot(rng: &mut Rng) -> u32 {
    if rng.one_in(6) { rng.of(&[0, 1, 2, 3, 5, 6, 7]) } else { rng.of(&[3, 3, 3, 1, 0]) }
}

/// The program of a seed. It looks at the whole window at its end.
pub(crate) fn random(seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let pages = rng.of(&[6, 12, 24, PAGES]);
    let window = Window { first: (PAGES - pages) / 2, pages };
    let mut program: Vec<Step> = (3..steps).map(|n| step(&mut rng, &window, n)).collect();
    let all = Span { at: 0, len: PAGES * PAGE };
    program.extend([Step::Maps, Step::Sizes, Step::PageMap(all), Step::InCore(all)]);
    program
}

/// The program of a seed, with a file, shared memory, and up to [`PROCESSES`] processes. Each looks
/// at the whole window at its end. Only the first looks for present pages: a fork of Linux copies
/// no pages of VMAs without an anon_vma, so the child has to fault for them; ours shares all.
pub(crate) fn random_with_objects(seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed ^ 0x0b1e_c700);
    let pages = rng.of(&[6, 12, 24, PAGES]);
    let window = Window { first: (PAGES - pages) / 2, pages };
    let (mut program, mut alive, mut forks, mut now) = (Vec::new(), vec![0], 0, 0);
    let all = Span { at: 0, len: PAGES * PAGE };
    while program.len() < steps {
        let next = rng.of(&alive);
        match rng.below(40) {
            0 if forks + 1 < PROCESSES => {
                forks += 1;
                alive.push(forks);
                program.push(Step::Fork);
            }
            1..5 if next != now => {
                now = next;
                program.push(Step::Switch { to: now });
            }
            5 if now != 0 && next != now && rng.one_in(3) => {
                alive.retain(|process| *process != now);
                program.extend([Step::Maps, Step::Exit { to: next }]);
                now = next;
            }
            6..18 => program.push(of_object(&mut rng, &window, program.len())),
            _ => match step(&mut rng, &window, program.len()) {
                Step::PageMap(_) | Step::InCore(_) if now != 0 => {}
                step => program.push(step),
            },
        }
    }
    for (number, to) in alive.into_iter().enumerate() {
        if number != 0 || now != to {
            program.push(Step::Switch { to });
        }
        program.extend([Step::Maps, Step::Sizes]);
        if to == 0 {
            program.extend([Step::PageMap(all), Step::InCore(all), Step::Smaps]);
        }
        now = to;
    }
    program
}

/// A program whose steps are those of several threads of each process. Another thread often touches
/// a page before a call that may change it, and after it: its CPU has an old translation.
pub(crate) fn with_threads(seed: u64, program: Vec<Step>) -> Vec<Step> {
    let mut rng = Rng::new(seed ^ 0x7412_ead5);
    let mut threaded = Vec::new();
    for (number, step) in program.into_iter().enumerate() {
        let changed = match step {
            Step::Unmap(span) | Step::Protect { span, .. } | Step::Advise { span, .. } => {
                Some(span)
            }
            Step::Remap { span, .. } | Step::Map { span, .. } => Some(span),
            _ => None,
        };
        let Some(span) = changed.filter(|_| rng.one_in(3)) else {
            if rng.one_in(3) {
                threaded.push(Step::Thread { to: rng.below(THREADS) });
            }
            threaded.push(step);
            continue;
        };
        let (one, other) = (rng.below(THREADS), rng.below(THREADS));
        let byte = (number % 255 + 1) as u8;
        let touch = |write| {
            if write { Step::Write { at: span.at, byte } } else { Step::Read { at: span.at } }
        };
        threaded.extend([
            Step::Thread { to: one },
            touch(rng.one_in(2)),
            Step::Thread { to: other },
        ]);
        threaded.extend([step, Step::Thread { to: one }, touch(rng.one_in(2))]);
    }
    threaded
}

pub(crate) fn of_object(rng: &mut Rng, window: &Window, number: usize) -> Step {
    let at = rng.below(FILE_PAGES) * PAGE + rng.of(&[0, 1, PAGE - 1]);
    match rng.below(15) {
        12..14 => Step::Advise { span: window.span(rng), advice: Advice::GuardInstall },
        14 => Step::Advise { span: window.span(rng), advice: Advice::GuardRemove },
        0..5 => {
            let place = rng.of(&[Place::Fixed, Place::Fixed, Place::NoReplace, Place::Hint]);
            let of = rng.of(&[Of::Shared, Of::Shared, Of::Private, Of::Private, Of::Anonymous]);
            let offset = rng.below(FILE_PAGES) * PAGE;
            Step::Share { span: window.span(rng), prot: some_prot(rng), place, of, offset }
        }
        5..7 => Step::SetSize { len: if rng.one_in(2) { at } else { FILE_PAGES * PAGE } },
        // Linux also unmaps the other pages, needlessly, if the hole ends in the first page.
        7 => Step::Punch(Span { at, len: (1 + rng.below(3 * PAGE)).max(PAGE.saturating_sub(at)) }),
        8 => Step::Sync { span: window.span(rng), flags: rng.of(&[0, 1, 2, 4, 5, 6]) },
        9 => Step::Get { at },
        _ => Step::Put { at, byte: (number % 255 + 1) as u8 },
    }
}

pub(crate) fn step(rng: &mut Rng, window: &Window, number: usize) -> Step {
    match rng.below(100) {
        0..18 => {
            let place = rng.of(&[Place::Fixed, Place::Fixed, Place::NoReplace, Place::Hint]);
            let kind = match rng.below(16) {
                0..2 => Kind::Populate,
                2 => Kind::GrowsDown,
                _ => Kind::Lazy,
            };
            Step::Map { span: window.span(rng), prot: some_prot(rng), place, kind }
        }
        18..26 => Step::Unmap(window.span(rng)),
        26..36 => Step::Protect { span: window.span(rng), prot: some_prot(rng) },
        36..44 => {
            let advice = if rng.one_in(2) { rng.of(&ADVICE[..8]).0 } else { Advice::DontNeed };
            Step::Advise { span: window.span(rng), advice }
        }
        44..50 => remap(rng, window),
        50..52 if rng.one_in(2) => Step::Unlock(window.span(rng)),
        50..52 => Step::Lock { span: window.span(rng), on_fault: rng.one_in(3) },
        52..56 => {
            let page = window.first + rng.below(window.pages + 1);
            let odd = if rng.one_in(4) { rng.below(PAGE) } else { 0 };
            Step::Brk { to: (page * PAGE + odd).min(PAGES * PAGE) }
        }
        56..72 => Step::Read { at: window.byte(rng) },
        // Never 0, and not the byte of a step nearby.
        72..90 => Step::Write { at: window.byte(rng), byte: (number % 255 + 1) as u8 },
        90..93 => Step::InCore(window.span(rng)),
        93..96 => Step::PageMap(window.span(rng)),
        96..98 => Step::Sizes,
        98 => Step::Limit { bytes: if rng.one_in(3) { 0 } else { (1 + rng.below(40)) * PAGE } },
        _ => Step::Maps,
    }
}

fn remap(rng: &mut Rng, window: &Window) -> Step {
    let (span, target) = (window.span(rng), window.span(rng));
    let way = rng.of(&[Way::Stay, Way::MayMove, Way::Fixed, Way::Fixed, Way::FixedDontUnmap]);
    let way = if rng.one_in(8) { Way::DontUnmap } else { way };
    let same = rng.one_in(2);
    // It can grow where it is.
    let room = PAGES * PAGE - span.at.max(target.at);
    let len = if same { span.len } else { target.len };
    Step::Remap { span, len: len.min(room), way, to: target.at }
}

#[test]
fn a_program_is_read_as_it_was_written() {
    for seed in 0..50 {
        let threaded = with_threads(seed, random_with_objects(seed, 100));
        for step in random(seed, 100).into_iter().chain(threaded) {
            assert_eq!(step.to_string().parse(), Ok(step));
        }
    }
    assert!("map 0 1000 rw- nowhere lazy".parse::<Step>().is_err());
}
