//! The table of lines of a code object (PEP 626, in the form of 3.11 and later).
//!
//! An entry covers some instructions. Its first byte alone has the highest bit: then four bits for
//! its form, and three for its length in instructions less one. Most forms have a line relative to
//! that of the entry before.

/// The line of the instruction with this number; `None` if it has none.
pub(super) fn line(table: &[u8], first: u32, instruction: usize) -> Option<u32> {
    let mut line = i64::from(first);
    let mut end = 0;
    let mut at = 0;
    while let Some(&head) = table.get(at) {
        let length = table[at + 1..].iter().take_while(|byte| **byte < 0x80).count();
        let rest = &table[at + 1..at + 1 + length];
        let form = head >> 3 & 15;
        line += match form {
            // With columns and without.
            13 | 14 => signed(rest)?,
            10..=12 => i64::from(form - 10),
            _ => 0,
        };
        end += usize::from(head & 7) + 1;
        if instruction < end {
            return if form == 15 { None } else { u32::try_from(line).ok() };
        }
        at += 1 + length;
    }
    None
}

/// A number in pieces of six bits, the lowest first; the lowest bit is the sign.
fn signed(bytes: &[u8]) -> Option<i64> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 63).checked_shl(6 * at as u32)?;
        if byte & 64 == 0 {
            let half = (value >> 1) as i64;
            return Some(if value & 1 == 0 { half } else { -half });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn lines_are_those_of_the_table() {
        // Of one instruction: no line; long, +2 lines; of two: one line on; short; no columns, -3.
        let table = [
            0x80 | 15 << 3,
            0x80 | 14 << 3,
            4,
            0,
            1,
            1,
            0x80 | 11 << 3 | 1,
            1,
            1,
            0x80,
            0,
            0x80 | 13 << 3,
            7,
        ];
        let lines: Vec<_> = (0..7).map(|at| line(&table, 10, at)).collect();
        assert_eq!(lines, [None, Some(12), Some(13), Some(13), Some(13), Some(10), None]);
        // 100 lines on take two bytes.
        assert_eq!(line(&[0x80 | 13 << 3, 0x40 | 8, 3], 1, 0), Some(101));
        assert_eq!(line(&[0x80 | 13 << 3], 1, 0), None, "cut off");
    }
}
