//! Makes a script that fails shorter.

use crate::{
    check::{Sequential, Wrong},
    run::Script,
};

/// The seeds that a shorter script is tried with.
const SEEDS: u64 = 40;

/// Tries a script with its laws and with seeds.
pub(crate) fn attempt(script: &Script, first: u64, seeds: u64) -> Result<Sequential<'_>, Wrong> {
    let mut known = Sequential::new(script);
    known.check_laws()?;
    if script.is_chain() {
        return Ok(known);
    }
    for seed in first..first + seeds {
        if !known.check(seed)? {
            break;
        }
    }
    Ok(known)
}

/// The script without one of its operations, for each of them.
fn shorter(script: &Script) -> Vec<Script> {
    let mut all = Vec::new();
    for (number, thread) in script.threads.iter().enumerate() {
        for op in 0..thread.ops.len() {
            let mut less = script.clone();
            less.threads[number].ops.remove(op);
            less.threads.retain(|thread| !thread.ops.is_empty());
            if !less.threads.is_empty() {
                all.push(less);
            }
        }
    }
    all
}

/// The shortest script that was found to fail in the same way.
pub(crate) fn shrink(mut wrong: Wrong) -> Wrong {
    loop {
        let sort = wrong.what.sort();
        let less = shorter(&wrong.script).into_iter().find_map(|script| {
            // The seed of the longer one is one as good as any.
            attempt(&script, 0, SEEDS).err().filter(|less| less.what.sort() == sort)
        });
        match less {
            Some(less) => wrong = less,
            None => return wrong,
        }
    }
}
