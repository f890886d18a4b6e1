//! Names of functions while the program runs, by a thread of their own.
//!
//! The symbols and the debug information of a file may take seconds to read. The tracer cannot wait
//! for that while threads of the program wait for it. So it asks a thread for the names of new
//! frames, and later takes those that are ready. No frame is asked for twice.
//!
//! The thread ends when its channel does. It reads files that stay open.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use super::{guarded, image::Image, symbols};
use crate::record::{Frame, Symbol};

/// The frames of one image.
type Question = (Arc<Image>, Vec<Frame>);

/// The thread, and the frames that it was asked about.
pub(super) struct Names {
    asked: HashSet<Frame>,
    questions: Sender<Question>,
    answers: Receiver<Vec<Symbol>>,
    /// The questions without an answer.
    open: usize,
}

impl Names {
    /// Starts the thread; `None` if the system has no thread left.
    pub(super) fn start() -> Option<Names> {
        let (questions, asked) = mpsc::channel::<Question>();
        let (answer, answers) = mpsc::channel();
        let work = move || {
            for (image, frames) in asked {
                let symbols = guarded(|| symbols::of(&image, &frames)).unwrap_or_default();
                if answer.send(symbols).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("names".into()).spawn(work).ok()?;
        Some(Names { asked: HashSet::new(), questions, answers, open: 0 })
    }

    /// Whether it has answered all.
    pub(super) fn is_idle(&self) -> bool {
        self.open == 0
    }

    pub(super) fn was_asked(&self, frame: Frame) -> bool {
        self.asked.contains(&frame)
    }

    pub(super) fn ask(&mut self, image: Arc<Image>, frames: Vec<Frame>) {
        self.asked.extend(&frames);
        self.open += usize::from(self.questions.send((image, frames)).is_ok());
    }

    /// The names that are ready.
    pub(super) fn ready(&mut self) -> Vec<Symbol> {
        let answers: Vec<_> = self.answers.try_iter().collect();
        self.open -= answers.len();
        answers.into_iter().flatten().collect()
    }

    /// All names that were asked for.
    pub(super) fn rest(mut self) -> Vec<Symbol> {
        let mut all = self.ready();
        while self.open > 0 {
            let Ok(symbols) = self.answers.recv() else { break };
            all.extend(symbols);
            self.open -= 1;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        live::stacks::image::{Contents, Stamp},
        patience,
    };
    use std::fs::File;

    #[inline(never)]
    fn asked_for() {
        std::hint::black_box(7);
    }

    /// Names of this program, which are ready after a while, and a question that is left open.
    #[test]
    fn names_come_while_the_asker_goes_on() {
        let path = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = maps.lines().find(|line| line.ends_with(path.to_str().unwrap())).unwrap();
        let base = u64::from_str_radix(own.split('-').next().unwrap(), 16).unwrap();
        // The address after its first byte.
        let address = asked_for as fn() as usize as u64 - base + 1;
        let frame = Frame { image: 1, address };
        let file = File::open(&path).unwrap();
        let stamp = Stamp::of(&file).unwrap();
        let path = path.to_str().unwrap().into();
        let contents = Some(Contents::File(file, stamp));
        let image = Arc::new(Image::new(path, contents));
        let mut names = Names::start().unwrap();
        names.ask(image.clone(), vec![frame]);
        assert!(names.was_asked(frame) && !names.is_idle());
        let is_right = |symbols: &[Symbol]| {
            symbols.iter().any(|one| one.frame == frame && one.name.contains("asked_for"))
        };
        let mut ready = Vec::new();
        patience::until("its name is ready", || {
            ready.extend(names.ready());
            names.is_idle()
        });
        assert!(is_right(&ready), "{ready:?}");
        names.ask(image, vec![frame]);
        assert!(is_right(&names.rest()));
    }
}
