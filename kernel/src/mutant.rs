//! Mutants: flushes that are left out on purpose, to show that the trials notice. They are built
//! only with the feature `mutants`.

#[cfg(feature = "mutants")]
use core::sync::atomic::{AtomicU8, Ordering};

/// The flush that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Mutant {
    /// The flush of the CPU that changed a table.
    Local = 1,
    /// The flush that another CPU requests. The request is acknowledged.
    Remote,
    /// The flush at a tick. The quiescent state is reported.
    Tick,
}

#[cfg(feature = "mutants")]
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// Returns whether this mutant is chosen.
#[inline(always)]
pub(crate) fn is(mutant: Mutant) -> bool {
    // Relaxed: the choice is made before any trial.
    #[cfg(feature = "mutants")]
    return CHOSEN.load(Ordering::Relaxed) == mutant as u8;
    #[cfg(not(feature = "mutants"))]
    {
        let _ = mutant;
        false
    }
}

/// Chooses a mutant by name. The error says why that is not possible.
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
