//! Names for people.

use std::borrow::Cow;

/// Longer names of functions are cut there. Some templates of C++ have far longer ones.
const LONGEST: usize = 1000;

/// A name for people: without the hash of Rust's symbols, without characters that end a field, and
/// not too long.
pub(super) fn tidy(name: Cow<'_, str>) -> String {
    let name = match name.rsplit_once("::h") {
        Some((short, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            short
        }
        _ => &name,
    };
    let space = |c: char| if c.is_control() { ' ' } else { c };
    name.chars().take(LONGEST).map(space).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_name_fits_a_field() {
        assert_eq!(super::tidy("a\tb".into()), "a b");
        assert_eq!(super::tidy("x".repeat(9999).into()).len(), super::LONGEST);
    }
}
