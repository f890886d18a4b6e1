//! samara
fn main() {}
