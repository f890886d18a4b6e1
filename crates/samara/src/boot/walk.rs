//! The walk along a path from the root of a tree, name by name, where links lead.

/// The most links of a path that are followed, as on Linux.
const MOST_LINKS: usize = 40;

pub(super) struct Walk {
    /// The names on the way to the current place.
    at: Vec<String>,
    /// The names to come, the next one last.
    todo: Vec<String>,
    links: usize,
}

impl Walk {
    pub(super) fn new(path: &str) -> Walk {
        Walk { at: Vec::new(), todo: names(path), links: 0 }
    }

    /// Goes to the next name, and returns its path from the root. `None` at the end.
    pub(super) fn step(&mut self) -> Option<String> {
        loop {
            let name = self.todo.pop()?;
            match name.as_str() {
                "" | "." => {}
                ".." => drop(self.at.pop()),
                _ => {
                    self.at.push(name);
                    return Some(self.place());
                }
            }
        }
    }

    /// Goes where the link at the current place leads. `None` after too many links.
    pub(super) fn follow(&mut self, target: &str) -> Option<()> {
        self.links += 1;
        self.at.pop();
        if target.starts_with('/') {
            self.at.clear();
        }
        self.todo.extend(names(target));
        (self.links <= MOST_LINKS).then_some(())
    }

    /// Whether there is no further name.
    pub(super) fn is_at_end(&self) -> bool {
        self.todo.is_empty()
    }

    /// The path of the current place from the root.
    pub(super) fn place(&self) -> String {
        self.at.join("/")
    }
}

/// The names in a path, the first one last.
fn names(path: &str) -> Vec<String> {
    path.split('/').rev().map(String::from).collect()
}
