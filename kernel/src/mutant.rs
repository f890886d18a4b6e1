//! Errors on purpose, each a flush that is left out, to show that trials see it. Built only with
//! the feature `mutants`; without, all of it is nothing.

#[cfg(feature = "mutants")]
use core::sync::atomic::{AtomicU8, Ordering};

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Mutant {
    /// The flush of the CPU that has changed a table.
    Local = 1,
    /// The flush that another CPU asks for; it is acknowledged.
    Remote,
    /// The flush at a tick; it is announced.
    Tick,
}

#[cfg(feature = "mutants")]
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// Whether this one is chosen.
#[inline(always)]
pub(crate) fn is(mutant: Mutant) -> bool {
    // Relaxed: it is chosen before anything is tried.
    #[cfg(feature = "mutants")]
    return CHOSEN.load(Ordering::Relaxed) == mutant as u8;
    #[cfg(not(feature = "mutants"))]
    {
        let _ = mutant;
        false
    }
}

/// Chooses by name. Says why not, if it cannot be.
pub(crate) fn choose(name: &str) -> Result<(), &'static str> {
    let all = [("local", Mutant::Local), ("remote", Mutant::Remote), ("tick", Mutant::Tick)];
    let found = all.iter().find(|(of, _)| *of == name);
    let (_, mutant) = found.ok_or("there is no such mutant: there are local, remote, tick")?;
    #[cfg(feature = "mutants")]
    CHOSEN.store(*mutant as u8, Ordering::Relaxed);
    #[cfg(not(feature = "mutants"))]
    let _ = mutant;
    if cfg!(feature = "mutants") {
        Ok(())
    } else {
        Err("mutants are not built in: --features mutants")
    }
}
