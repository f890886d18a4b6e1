//! `samara trace` on a platform where it cannot follow programs: says so.

use std::process::ExitCode;

use crate::{cli, complain};

/// The program could not be followed. The same code as on x86-64 Linux.
const FAILED: u8 = 125;

pub(crate) fn run(_: &cli::Trace) -> ExitCode {
    complain("samara trace follows programs only on x86-64 Linux; samara replay works here");
    FAILED.into()
}
