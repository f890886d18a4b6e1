//! Commands that this build lacks. They are in the help, and running one names the cure.

use std::ffi::OsString;

/// The arguments of such a command, which nothing reads.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Absent {
    /// This build only traces, replays and compares. All of the command is built by
    /// `cargo build --release --features full`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    _arguments: Vec<OsString>,
}
