//! `samara report`: one page from the results of experiments and traces.

use crate::{cli, ending, output, replay::RECORDING};
use html_report::Results;
use std::{fs, path::Path, process::ExitCode};

pub(crate) fn run(options: &cli::Report) -> ExitCode {
    ending(write(options))
}

/// All files are read before the page is opened, so that an error leaves an older page as it was.
fn write(options: &cli::Report) -> Result<(), String> {
    let mut results = Results::default();
    for path in &options.files {
        let name = path.display().to_string();
        results.read(&name, &text(path)?).map_err(|error| error.to_string())?;
    }
    let output = &options.output;
    let same = |path: &&std::path::PathBuf| is_same(path, output);
    if let Some(path) = options.files.iter().find(same) {
        let cure = "name another file after -o";
        return Err(format!("the page would overwrite the result {}: {cure}", path.display()));
    }
    let text = match output.extension().is_some_and(|extension| extension == "md") {
        true => html_report::markdown(&results),
        false => html_report::html(&results),
    };
    output::open(Some(output))?.write(&text)
}

/// Whether both paths lead to one file.
fn is_same(a: &Path, b: &Path) -> bool {
    fs::canonicalize(a).is_ok_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b))
}

/// The text of a file.
fn text(path: &Path) -> Result<String, String> {
    let name = path.display();
    let bytes = fs::read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    if bytes.starts_with(RECORDING) {
        let cure = format!("samara replay --json FILE {name} makes its counts");
        return Err(format!("{name} is a recording, not a result: {cure}"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("{name} is not text at byte {at}: give files that --json FILE has written")
    })
}
