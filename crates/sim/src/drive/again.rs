//! The command that runs a failed test again with its seed.

use std::env;
use std::fmt;
use std::path::Path;

/// Shows the command, as far as the process tells it: Cargo sets the package, the test's thread has
/// its name, and the folder of the program has that of the profile.
pub(super) struct Again(pub(super) u64);

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SAMARA_SEED={} ", self.0)?;
        let thread = std::thread::current();
        let name = thread.name().filter(|name| *name != "main");
        let (Some(name), Ok(package), Ok(program)) =
            (name, env::var("CARGO_PKG_NAME"), env::current_exe())
        else {
            return f.write_str("replays it");
        };
        f.write_str("cargo test ")?;
        if program.components().any(|part| part.as_os_str() == "release") {
            f.write_str("--release ")?;
        }
        write!(f, "-p {package} ")?;
        match target(&program) {
            Some(target) if target != package.trim_start_matches("samara-").replace('-', "_") => {
                write!(f, "--test {target} ")?;
            }
            _ => f.write_str("--lib ")?,
        }
        write!(f, "-- --exact {name}")
    }
}

/// The name of a test program without the hash that Cargo adds.
fn target(program: &Path) -> Option<&str> {
    Some(program.file_stem()?.to_str()?.rsplit_once('-')?.0)
}

#[cfg(test)]
mod tests {
    /// This test itself would run again.
    #[test]
    fn a_command_names_this_test() {
        let command = super::Again(17).to_string();
        let profile = if command.contains("--release") { "--release " } else { "" };
        let test = "drive::again::tests::a_command_names_this_test";
        let expected = format!("cargo test {profile}-p samara-sim --lib -- --exact {test}");
        assert_eq!(command, format!("SAMARA_SEED=17 {expected}"));
    }
}
