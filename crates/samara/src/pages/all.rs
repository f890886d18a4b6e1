//! The results with pages of all recordings that a command replays.

use std::{fs::File, io::BufReader};

use serde_json::{Value, json};
use trace::{
    replay::{replay, replay_with_shadow},
    report::Summary,
    text::Error,
};

use super::{Failure, Figures, Pages};
use crate::complain;

/// The results of all recordings that were replayed with pages.
#[derive(Default)]
pub(crate) struct PagesOfAll {
    pub(crate) objects: Vec<Value>,
    pub(crate) texts: Vec<String>,
    pub(crate) failed: bool,
}

impl PagesOfAll {
    /// No results yet.
    pub(crate) fn new(_wanted: bool) -> Result<PagesOfAll, String> {
        Ok(PagesOfAll::default())
    }

    pub(crate) fn replay(&mut self, reader: BufReader<File>, name: &str) -> Result<Summary, Error> {
        let pages = match Pages::new(name) {
            Ok(pages) => pages,
            Err(error) => {
                self.fail(format!("{name}: no machine for the pages: {error}"));
                return replay(reader, name);
            }
        };
        let (summary, pages) = replay_with_shadow(reader, name, pages)?;
        let (figures, failure) = pages.finish();
        self.add(name, figures, failure);
        Ok(summary)
    }

    fn add(&mut self, name: &str, figures: Figures, failure: Option<Failure>) {
        let mut object = figures.json();
        object["file"] = json!(name);
        if let Some(failure) = failure {
            object["failure"] = json!({ "line": failure.line, "text": failure.text });
            self.fail(format!("{name}:{}: with pages: {}", failure.line, failure.text));
        }
        self.objects.push(object);
        self.texts.push(figures.text(name));
    }

    fn fail(&mut self, what: String) {
        complain(what);
        self.failed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_with_pages_is_in_the_object() {
        let mut all = PagesOfAll::default();
        let failure = Failure { line: 7, text: "a page is lost".into() };
        all.add("a.vmtrace", Figures::default(), Some(failure));
        assert!(all.failed && all.texts[0].contains("a.vmtrace"));
        assert_eq!(all.objects[0]["failure"]["line"], 7);
        assert_eq!(all.objects[0]["file"], "a.vmtrace");
    }
}
