//! Fuzzes the replay of mutated recordings: it may refuse or report differences, but must not
//! panic.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|text: &[u8]| {
    let _ = trace::replay::replay(text, "fuzz");
});

// Random byte flips rarely pass the parser. So two inputs in three are mutated by whole lines, or
// by copying one field of a line into another: the result is well formed more often.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let choice = seed as usize;
    let Ok(text) = std::str::from_utf8(&data[..size]) else {
        return fuzzer_mutate(data, size, max_size);
    };
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    if choice.is_multiple_of(3) || lines.len() < 3 {
        return fuzzer_mutate(data, size, max_size);
    }
    let from = 1 + (choice / 7) % (lines.len() - 1);
    let to = 1 + (choice / 4099) % (lines.len() - 1);
    match (choice / 3) % 4 {
        0 => drop(lines.remove(from)),
        1 => lines.insert(to, lines[from].clone()),
        2 => lines.swap(from, to),
        _ => {
            let source: Vec<&str> = lines[from].split(' ').collect();
            let mut fields: Vec<&str> = lines[to].split(' ').collect();
            let field = (choice / 65537) % fields.len();
            fields[field] = source[(choice / 11) % source.len()];
            lines[to] = fields.join(" ");
        }
    }
    let mixed = lines.join("\n") + "\n";
    let length = mixed.len().min(max_size);
    data[..length].copy_from_slice(&mixed.as_bytes()[..length]);
    length
});
