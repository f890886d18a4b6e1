//! Call stacks: the code that made the memory calls, and the bytes that each stack has mapped.
//!
//! The mirror fills [`Stacks`] from records. The other modules only read it: `site` groups stacks
//! by call site, `table` shows the sites, `folded` gives one line a stack, `flame` draws them,
//! `speedscope` is for its page, and `object` for programs.
//!
//! Cost: one look-up in a map for each call with a stack. Names are looked up at the end.

pub(crate) mod flame;
pub(crate) mod folded;
pub(crate) mod object;
pub(crate) mod site;
mod speedscope;
pub(crate) mod table;

use std::collections::{BTreeMap, HashMap};

pub use folded::Measure;

use crate::{
    owner::Owner,
    record::{Frame, Image, ImageId, Op, Stack, StackEnd, StackId, Symbol},
};

/// The stacks of a run, with counts of their calls.
///
/// ```
/// use trace::report::Summary;
/// assert!(Summary::default().stacks.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    images: BTreeMap<ImageId, Image>,
    stacks: BTreeMap<StackId, Stack>,
    /// The functions of a frame, the innermost first. There are several if some were inlined.
    symbols: HashMap<Frame, Vec<Symbol>>,
    counts: BTreeMap<(StackId, Op), SiteCounts>,
    /// The bytes of each owner that were resident at the peak.
    peak: Option<Owned>,
    /// The bytes of each owner that are still mapped at the end.
    end: Option<Owned>,
}

/// The bytes of each owner at a moment.
pub(crate) type Owned = BTreeMap<Owner, u64>;

/// The bytes of an owner.
fn of(owned: Option<&Owned>, owner: Owner) -> u64 {
    owned.and_then(|owned| owned.get(&owner)).copied().unwrap_or(0)
}

/// The counts of one kind of call with one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SiteCounts {
    pub(crate) calls: u64,
    /// The bytes that these calls have mapped.
    pub(crate) mapped: u64,
    /// The maps of theirs, or parts of them, that were unmapped.
    pub(crate) ended: u64,
    /// The nanoseconds that these have lived, in all.
    pub(crate) lived: u64,
    /// The bytes of theirs that were resident at the peak.
    pub(crate) at_peak: u64,
    /// Those of them that are still mapped at the end.
    pub(crate) at_end: u64,
}

impl SiteCounts {
    pub(crate) fn add(&mut self, other: SiteCounts) {
        self.calls += other.calls;
        self.mapped = self.mapped.saturating_add(other.mapped);
        self.ended += other.ended;
        self.lived = self.lived.saturating_add(other.lived);
        self.at_peak = self.at_peak.saturating_add(other.at_peak);
        self.at_end = self.at_end.saturating_add(other.at_end);
    }
}

impl Stacks {
    /// Whether no call has a stack.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    pub(crate) fn add_image(&mut self, image: Image) {
        self.images.insert(image.id, image);
    }

    pub(crate) fn add_stack(&mut self, stack: Stack) {
        self.stacks.insert(stack.id, stack);
    }

    pub(crate) fn add_symbol(&mut self, symbol: Symbol) {
        self.symbols.entry(symbol.frame).or_default().push(symbol);
    }

    /// Counts calls.
    pub(crate) fn count(&mut self, whose: (StackId, Op), calls: u64, mapped: u64) {
        self.counts.entry(whose).or_default().add(SiteCounts {
            calls,
            mapped,
            ..SiteCounts::default()
        });
    }

    /// Counts a map that was unmapped after so many nanoseconds.
    pub(crate) fn count_ended(&mut self, whose: (StackId, Op), lived: u64) {
        let ended = SiteCounts { ended: 1, lived, ..SiteCounts::default() };
        self.counts.entry(whose).or_default().add(ended);
    }

    /// Sets what is mapped at the end.
    pub(crate) fn set_end(&mut self, end: Option<Owned>) {
        self.end = end;
    }

    /// Sets what is resident at the peak.
    pub(crate) fn set_peak(&mut self, peak: Owned) {
        self.peak = Some(peak);
    }

    /// Whether it is known what was resident at the peak. A recording does not tell.
    pub fn has_peak(&self) -> bool {
        self.peak.is_some()
    }

    pub(crate) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Adds the stacks of another run. Its numbers are other ones here.
    pub(crate) fn merge(&mut self, other: Stacks) {
        let last = |id: Option<&u32>| id.copied().unwrap_or(0);
        let (images, stacks) = (last(self.images.keys().last()), last(self.stacks.keys().last()));
        let image = |id: ImageId| if id == 0 { 0 } else { id.saturating_add(images) };
        let stack = |id: StackId| if id == 0 { 0 } else { id.saturating_add(stacks) };
        let moved = |frame: Frame| Frame { image: image(frame.image), ..frame };
        for one in other.images.into_values() {
            self.add_image(Image { id: image(one.id), ..one });
        }
        for one in other.stacks.into_values() {
            let frames = one.frames.into_iter().map(moved).collect();
            self.add_stack(Stack { id: stack(one.id), frames, end: one.end });
        }
        for (frame, symbols) in other.symbols {
            let frame = moved(frame);
            let there = symbols.into_iter().map(|symbol| Symbol { frame, ..symbol });
            self.symbols.insert(frame, there.collect());
        }
        for ((id, op), count) in other.counts {
            self.counts.entry((stack(id), op)).or_default().add(count);
        }
        for (owner, bytes) in other.end.unwrap_or_default() {
            let owner = match owner {
                Owner::Call(id, op) => Owner::Call(stack(id), op),
                other => other,
            };
            let sum = self.end.get_or_insert_default().entry(owner).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    /// The counts of each kind of call with each stack. Calls without a stack have stack 0.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (StackId, Op, SiteCounts)> + '_ {
        self.counts.iter().map(|(&(stack, op), &count)| {
            let owner = Owner::Call(stack, op);
            let (at_peak, at_end) = (of(self.peak.as_ref(), owner), of(self.end.as_ref(), owner));
            (stack, op, SiteCounts { at_peak, at_end, ..count })
        })
    }

    /// The bytes at the peak and at the end that no call with a stack has mapped: by execve, and
    /// those whose owner is not known.
    pub(crate) fn others(&self) -> [SiteCounts; 2] {
        [Owner::Program, Owner::Unknown].map(|owner| SiteCounts {
            at_peak: of(self.peak.as_ref(), owner),
            at_end: of(self.end.as_ref(), owner),
            ..SiteCounts::default()
        })
    }

    /// The number of stacks that end in this way.
    pub(crate) fn ends(&self, end: StackEnd) -> usize {
        self.stacks.values().filter(|stack| stack.end == end).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.stacks.len()
    }

    fn stack(&self, id: StackId) -> Option<&Stack> {
        self.stacks.get(&id)
    }

    /// The functions of a stack, the innermost first: more than frames, if some were inlined.
    pub(crate) fn functions<'a>(&'a self, stack: &'a Stack) -> impl Iterator<Item = Function<'a>> {
        stack.frames.iter().flat_map(|&frame| self.at(frame))
    }

    /// The functions at a frame, the innermost first. Without names it is one.
    fn at(&self, frame: Frame) -> Vec<Function<'_>> {
        let image = self.images.get(&frame.image);
        match self.symbols.get(&frame) {
            Some(all) => {
                all.iter().map(|symbol| Function { frame, image, symbol: Some(symbol) }).collect()
            }
            None => vec![Function { frame, image, symbol: None }],
        }
    }
}

/// A function of a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function<'a> {
    pub(crate) frame: Frame,
    pub(crate) image: Option<&'a Image>,
    pub(crate) symbol: Option<&'a Symbol>,
}

impl Function<'_> {
    /// The last part of its file's path.
    pub(crate) fn file(&self) -> Option<&str> {
        let path = self.image?.path.trim_end_matches(" (deleted)");
        Some(path.rsplit('/').next().unwrap_or(path))
    }

    /// Whether it is a function of a script, which an interpreter runs, or that a just-in-time
    /// compiler has compiled.
    pub(crate) fn is_script(&self) -> bool {
        let no_file = self.image.is_some_and(|image| image.inode == 0 && image.path != "[vdso]");
        // Compiled functions have no line apart from their name. V8 marks those of scripts.
        let named = |symbol: &Symbol| symbol.line.is_some() || symbol.name.starts_with("JS:");
        no_file && self.symbol.is_some_and(named)
    }

    /// Whether it belongs to the interpreter's own library: `<frozen os>` in Python, `node:fs`.
    pub(crate) fn is_built_in(&self) -> bool {
        self.file().is_some_and(|file| file.starts_with('<'))
            || self.symbol.is_some_and(|symbol| symbol.name.contains(" node:"))
    }

    /// Its name; without one, its file and the address there, or the address alone.
    pub(crate) fn name(&self) -> String {
        let address = self.frame.address;
        match (self.symbol, self.file()) {
            (Some(symbol), _) => symbol.name.clone(),
            (None, Some(file)) => format!("{file}+{address:#x}"),
            (None, None) => format!("{address:#x}"),
        }
    }

    /// Its name, with the line in its source if that is known.
    pub(crate) fn place(&self) -> String {
        let line = self.symbol.and_then(|symbol| symbol.line.as_ref());
        match line {
            Some((file, line)) => {
                let file = file.rsplit('/').next().unwrap_or(file);
                format!("{} ({file}:{line})", self.name())
            }
            None => self.name(),
        }
    }
}

#[cfg(test)]
mod tests;
