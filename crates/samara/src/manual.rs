//! `samara completions` and `samara man`: completions for shells, and manual pages. Both are made
//! from the command line's own description, so they always have its options.

use std::{fs, io, path::Path, process::ExitCode};

use clap::{Command, CommandFactory};

use crate::{cli, ending, output::Lines};

/// Writes a shell's completions to standard output.
pub(crate) fn completions(options: &cli::Completions) -> ExitCode {
    let mut script = Vec::new();
    let mut command = cli::Arguments::command();
    clap_complete::generate(options.shell, &mut command, "samara", &mut script);
    ending(Lines::Stdout.write(&String::from_utf8_lossy(&script)))
}

/// Writes a manual page for each command to a directory.
pub(crate) fn man(options: &cli::Man) -> ExitCode {
    let directory = &options.directory;
    let mut command = cli::Arguments::command().disable_help_subcommand(true);
    // Names the commands below: samara-trace.
    command.build();
    let written = fs::create_dir_all(directory).and_then(|()| pages(&command, directory));
    ending(written.map_err(|error| format!("cannot write to {}: {error}", directory.display())))
}

/// The pages of a command and of all below it that the help shows.
fn pages(command: &Command, directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    fs::write(directory.join(format!("{name}.1")), page(command)?)?;
    let mut shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    shown.try_for_each(|below| pages(below, directory))
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut page = Vec::new();
    // The examples are a table, which must not be filled like a paragraph.
    let command = command.clone().after_help(None::<&'static str>);
    clap_mangen::Man::new(command).render(&mut page)?;
    if !notes.is_empty() {
        page.extend_from_slice(b".SH NOTES\n.nf\n");
        notes.lines().for_each(|line| page.extend_from_slice(unfilled(line).as_bytes()));
        page.extend_from_slice(b".fi\n");
    }
    Ok(page)
}

/// A line of text as roff: no character of it is a request.
fn unfilled(line: &str) -> String {
    let escaped = line.replace('\\', "\\e").replace('-', "\\-");
    let request = escaped.starts_with(['.', '\'']);
    format!("{}{escaped}\n", if request { "\\&" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_a_request() {
        let lines = [".nf", "'x", "a\\b --c", ""].map(unfilled);
        assert_eq!(lines, ["\\&.nf\n", "\\&'x\n", "a\\eb \\-\\-c\n", "\n"]);
    }
}
