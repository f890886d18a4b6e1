//! `samara top`: a live view of a process that runs already.
//!
//! The tracer asks every few milliseconds whether it shall go on. In that moment, twice a second,
//! the view is gathered and drawn, and keys are read. So there is one thread that draws, and it
//! never waits for a key. The names of functions come from a thread of the tracer.

mod screen;

use std::{
    fs,
    io::IsTerminal,
    process::ExitCode,
    time::{Duration, Instant},
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers},
};
use trace::{
    live,
    report::View,
    session::{Limits, Session},
};

use crate::{cli, complain};
use screen::{Resident, Screen};

/// The time between two pictures.
const BETWEEN: Duration = Duration::from_millis(500);
/// The most frames of a call stack.
const DEPTH: usize = 128;

pub(crate) fn run(options: &cli::Top) -> ExitCode {
    match follow(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            complain(what);
            ExitCode::FAILURE
        }
    }
}

fn follow(options: &cli::Top) -> Result<(), String> {
    let pid = options.pid;
    if !std::io::stdout().is_terminal() {
        let cure = "samara trace -p PID --for SECONDS writes a report";
        return Err(format!("standard output is no terminal: {cure}"));
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut session =
        Session::<Vec<u8>>::new(live::profile(), None).map_err(|error| error.to_string())?;
    session.set_limits(Limits { time: options.time, calls: None });
    // Messages would disturb the picture, which has no place for them.
    session.set_silent();
    let terminal = ratatui::try_init().map_err(|error| format!("no terminal: {error}"))?;
    let mut top = Top { terminal, pid, screen: Screen::new(pid, name.trim()), drawn: None };
    session.set_watch(move |view| top.goes_on(view));
    let follow = live::Options {
        every: u64::from(u32::MAX),
        forward_signals: true,
        stack_depth: DEPTH,
        ..live::Options::default()
    };
    let followed = live::attach(follow, pid, &mut session);
    ratatui::restore();
    followed.map(drop).map_err(|error| error.to_string())
}

struct Top {
    terminal: DefaultTerminal,
    pid: u32,
    screen: Screen,
    drawn: Option<Instant>,
}

impl Top {
    /// Draws if it is time. Returns whether the user wants more.
    fn goes_on(&mut self, view: &mut dyn FnMut() -> View) -> bool {
        if wants_to_leave() {
            return false;
        }
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < BETWEEN) {
            return true;
        }
        self.drawn = Some(Instant::now());
        self.screen.next(view(), resident(self.pid));
        // A terminal that is gone ends this.
        self.terminal.draw(|frame| screen::draw(frame, &self.screen)).is_ok()
    }
}

/// Whether a key to leave was pressed. Takes all keys that wait.
fn wants_to_leave() -> bool {
    let mut leaves = false;
    while event::poll(Duration::ZERO).unwrap_or(false) {
        let Ok(event) = event::read() else { return true };
        leaves |= matches!(event, Event::Key(key) if is_to_leave(key));
    }
    leaves
}

fn is_to_leave(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
        || control && matches!(key.code, KeyCode::Char('c'))
}

/// The memory and faults of the process, from /proc.
fn resident(pid: u32) -> Resident {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let pages = statm.split_ascii_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    // The name, in parentheses, may have spaces.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|word| word.parse().ok());
    Resident {
        bytes: pages.unwrap_or(0).saturating_mul(4096),
        faults: field(10).unwrap_or(0u64).saturating_add(field(12).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_leave() {
        let key = |code, modifiers| is_to_leave(KeyEvent::new(code, modifiers));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
    }

    #[test]
    fn the_kernel_tells_of_this_process() {
        let found = resident(std::process::id());
        assert!(found.bytes > 1 << 16 && found.faults > 10);
        assert_eq!(resident(u32::MAX).bytes, 0);
    }
}
