//! The command lines of `samara bench`, `report`, `completions` and `man`.

use std::path::PathBuf;
use std::time::Duration;

use crate::bench::names;
use clap::Args;
use clap::builder::PossibleValuesParser;

#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// The experiments to run [default: all]
    #[arg(value_name = "EXPERIMENT", value_parser = PossibleValuesParser::new(names()))]
    pub(crate) experiments: Vec<String>,

    /// The effort of the measurement
    #[arg(long, value_enum, default_value_t = Effort::Full)]
    pub(crate) effort: Effort,

    /// The numbers of CPUs; each CPU is a thread
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) cpus: Vec<u8>,

    /// Write figures and targets to FILE as JSON lines; - for standard output, instead of the
    /// tables
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Report {
    /// Write the page to FILE; - for standard output. If the name of FILE ends with .md, write the
    /// same figures as text instead, without traces
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,

    /// Results
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// The process
    #[arg(short = 'p', long = "attach", value_name = "PID",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: u32,

    /// Leave the process after this time
    #[arg(long = "for", value_name = "SECONDS", value_parser = super::seconds)]
    pub(crate) time: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The directory; it is made if it is missing
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

/// The effort of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Effort {
    /// For figures: some minutes
    Full,
    /// For a first look
    Quick,
    /// To see that it works; the times mean nothing
    Least,
}

#[cfg(test)]
mod tests {
    use crate::cli::{Arguments, Command};
    use clap::Parser;

    #[test]
    fn experiments_and_cpus_are_checked() {
        let line = ["samara", "bench", "--cpus", "1,8", "gup"];
        let Command::Bench(bench) = Arguments::try_parse_from(line).unwrap().command else {
            panic!("not a bench")
        };
        assert_eq!((bench.experiments, bench.cpus), (vec!["gup".into()], vec![1, 8]));
        assert!(Arguments::try_parse_from(["samara", "bench", "gupp"]).is_err());
        assert!(Arguments::try_parse_from(["samara", "bench", "--cpus", "0"]).is_err());
    }
}
