fn main() {
    let mut buffer = itoa::Buffer::new();
    let mut lengths = std::collections::BTreeMap::new();
    for n in 0..100_000u64 {
        *lengths.entry(buffer.format(n * n).len()).or_insert(0u32) += 1;
    }
    println!("{lengths:?}");
}
