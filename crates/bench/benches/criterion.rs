//! See the library.

fn main() {
    samara_bench::criterion();
}
