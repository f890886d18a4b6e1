//! The machine, as a handle. Its traits are implemented elsewhere, next to the code that they use.

/// The machine on which the kernel runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel;
