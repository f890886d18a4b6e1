//! The machine, as a handle. Its traits are implemented elsewhere, next to what they need.

/// The machine on which the kernel runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel;
