//! `samara replay --pages` in a build without the feature `full`, which refuses it.

use std::{fs::File, io::BufReader};

use serde_json::Value;
use trace::{replay::replay, report::Summary, text::Error};

use crate::not_built;

/// There are no results.
pub(crate) struct PagesOfAll {
    pub(crate) objects: Vec<Value>,
    pub(crate) texts: Vec<String>,
    pub(crate) failed: bool,
}

impl PagesOfAll {
    /// Refuses `--pages`.
    pub(crate) fn new(wanted: bool) -> Result<PagesOfAll, String> {
        match wanted {
            true => Err(not_built("samara replay --pages")),
            false => Ok(PagesOfAll { objects: Vec::new(), texts: Vec::new(), failed: false }),
        }
    }

    /// Replays without pages. No caller gets here, because `new` refuses.
    pub(crate) fn replay(&mut self, reader: BufReader<File>, name: &str) -> Result<Summary, Error> {
        replay(reader, name)
    }
}
