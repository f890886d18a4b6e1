//! See the library.

fn main() -> std::process::ExitCode {
    samara_bench::table()
}
