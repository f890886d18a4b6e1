//! The progress line of a run.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::style::count;

/// The calls and mismatches so far, redrawn in place. Shows nothing unless standard error is a
/// terminal. Dropping it removes the line.
///
/// ```
/// let mut progress = trace::report::Progress::new("ls");
/// progress.update(1000, 0);
/// assert_eq!(progress.suspend(|| 7), 7);
/// ```
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    drawn: Instant,
}

impl Progress {
    /// The least time before the first draw and between two draws. Drawing costs more than a call,
    /// and a short run needs no progress line.
    const PAUSE: Duration = Duration::from_millis(250);

    /// No line.
    pub fn hidden() -> Progress {
        Progress { bar: None, drawn: Instant::now() }
    }

    /// Starts the line. `what` is the name of the program.
    pub fn new(what: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix}: {msg}, {elapsed}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner());
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.with_style(style).with_prefix(what.to_string())
        });
        Progress { bar, drawn: Instant::now() }
    }

    /// Shows the counts, at most four times a second. Cheap enough to call after every memory call.
    pub fn update(&mut self, calls: u64, mismatches: u64) {
        let Some(bar) = &self.bar else { return };
        if self.drawn.elapsed() < Self::PAUSE {
            return;
        }
        self.drawn = Instant::now();
        bar.set_message(format!("{} calls, {} mismatches", count(calls), count(mismatches)));
    }

    /// Removes the line while `write` writes to standard error.
    pub fn suspend<R>(&self, write: impl FnOnce() -> R) -> R {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
