//! Compares two runners, and makes a program on which they differ small.

use std::fmt;

use crate::{Runner, program::Step};

/// The answer of ours to a step that it does not carry out, because its effect is not determined.
pub(crate) const LEFT_OUT: &str = "left out";
const NOTHING: Step = Step::Get { at: 0 };

/// Where the runners differ on a program, with as few of its steps as show a difference.
pub(crate) fn compare(
    right: &mut dyn Runner,
    ours: &mut dyn Runner,
    program: &[Step],
) -> Option<Difference> {
    let mut run = |program: &[Step]| {
        let ours = ours.run(program);
        // Instead of a step that ours leaves out, Linux reads a byte of the file.
        let asked = program.iter().zip(&ours);
        let asked = asked.map(|(step, ours)| if ours == LEFT_OUT { NOTHING } else { *step });
        let mut right = right.run(&asked.collect::<Vec<_>>());
        let left_out = right.iter_mut().zip(&ours).filter(|(_, ours)| *ours == LEFT_OUT);
        left_out.for_each(|(right, _)| *right = LEFT_OUT.into());
        (right, ours)
    };
    // Twice: threads of the kernel may change pages, such as khugepaged.
    let mut differs = |program: &[Step]| {
        let mut differ = || {
            let (right, ours) = run(program);
            right != ours
        };
        differ() && differ()
    };
    if !differs(program) {
        return None;
    }
    let program = shrink(program.to_vec(), &mut differs);
    let (right, ours) = run(&program);
    Some(Difference { program, right, ours })
}

/// Leaves out steps, half of the program first, as long as the rest still fails.
fn shrink(mut program: Vec<Step>, fails: &mut dyn FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut size = program.len().div_ceil(2);
    loop {
        let before = program.len();
        let mut at = 0;
        while at < program.len() {
            let mut less = program.clone();
            less.drain(at..(at + size).min(program.len()));
            match fails(&less) {
                true => program = less,
                false => at += size,
            }
        }
        // Once single steps are left out, until none can be.
        match size {
            1 if program.len() == before => return program,
            1 => (),
            _ => size /= 2,
        }
    }
}

/// A program on which the runners differ, with their answers. Its text is a program, too: `parse`
/// skips the indented lines.
pub(crate) struct Difference {
    pub(crate) program: Vec<Step>,
    right: Vec<String>,
    ours: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, (right, ours)) in self.program.iter().zip(self.right.iter().zip(&self.ours)) {
            writeln!(f, "{step}")?;
            match right == ours {
                true => writeln!(f, "    {right}")?,
                false => writeln!(f, "    Linux:  {right}\n    Samara: {ours}")?,
            }
        }
        Ok(())
    }
}
