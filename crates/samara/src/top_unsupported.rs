//! `samara top` where no program can be followed.

use std::process::ExitCode;

use crate::{cli, complain};

pub(crate) fn run(_options: &cli::Top) -> ExitCode {
    complain("following programs needs Linux on x86-64");
    ExitCode::FAILURE
}
