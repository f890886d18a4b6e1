//! Each format inverts itself for all that it can express, and matches the manuals.

mod manuals;

use super::*;
use proptest::prelude::*;

const ALL_CACHES: [Cache; 6] = [
    Cache::WriteBack,
    Cache::WriteThrough,
    Cache::UncachedMinus,
    Cache::Uncached,
    Cache::WriteCombining,
    Cache::WriteProtect,
];

fn attrs() -> impl Strategy<Value = Attrs> {
    let cache = prop::sample::select(&ALL_CACHES);
    (any::<u8>(), cache, 0u8..18, 0u16..1024).prop_map(|(flags, cache, key, soft)| Attrs {
        flags: Flags::from_bits_truncate(flags),
        cache,
        key,
        soft: soft >> (soft % 11),
    })
}

/// Properties of a format that the tests take from the manuals.
trait Known: Format {
    /// Whether a page can have these rights.
    fn has(flags: Flags) -> bool;
    const CACHES: &[Cache];
    /// The entry of a page after hardware has set its accessed and dirty bits.
    fn used(entry: u64) -> u64;
    /// Whether hardware sets dirty bits also where software allows no write.
    const MARKS_ALL: bool = true;
    /// Whether pages can be shared with the host.
    const DECRYPTED: bool = false;
    /// Whether hardware regards an entry.
    fn is_valid(entry: u64) -> bool {
        entry & 1 != 0
    }
}

impl<const LEVELS: u8> Known for X86_64<LEVELS> {
    fn has(flags: Flags) -> bool {
        flags.contains(Flags::READ) || !flags.intersects(Flags::RWX)
    }
    const CACHES: &[Cache] = &ALL_CACHES;
    fn used(entry: u64) -> u64 {
        entry | 1 << 5 | 1 << 6
    }
}

impl<const LEVELS: u8> Known for Npt<LEVELS> {
    fn has(flags: Flags) -> bool {
        let user = flags.contains(Flags::USER) || !flags.contains(Flags::READ);
        X86_64::<LEVELS>::has(flags) && user && !flags.contains(Flags::GLOBAL)
    }
    const CACHES: &[Cache] = &ALL_CACHES;
    fn used(entry: u64) -> u64 {
        entry | 1 << 5 | 1 << 6
    }
}

impl<const LEVELS: u8> Known for Ept<LEVELS> {
    fn has(flags: Flags) -> bool {
        let user = flags.contains(Flags::USER) == flags.contains(Flags::READ);
        X86_64::<LEVELS>::has(flags) && user && !flags.contains(Flags::GLOBAL)
    }
    const CACHES: &[Cache] = &[
        Cache::WriteBack,
        Cache::WriteThrough,
        Cache::Uncached,
        Cache::WriteCombining,
        Cache::WriteProtect,
    ];
    fn used(entry: u64) -> u64 {
        entry | 1 << 8 | 1 << 9
    }
    fn is_valid(entry: u64) -> bool {
        entry & 7 != 0
    }
}

/// The bit belongs to no address, and each decrypted page is also a private one.
impl<F: Known, const BIT: u32, const SET: bool> Known for Encrypted<F, BIT, SET> {
    fn has(flags: Flags) -> bool {
        F::has(flags - Flags::DECRYPTED)
    }
    const CACHES: &[Cache] = F::CACHES;
    fn used(entry: u64) -> u64 {
        F::used(entry)
    }
    const MARKS_ALL: bool = F::MARKS_ALL;
    const DECRYPTED: bool = true;
    fn is_valid(entry: u64) -> bool {
        F::is_valid(entry)
    }
}

/// Stage 1, with any granule.
impl<const LEVELS: u8, const GRANULE: u32, const BITS: u32> Known
    for Vmsa<Stage1, LEVELS, GRANULE, BITS>
{
    fn has(flags: Flags) -> bool {
        X86_64L4::has(flags)
    }
    const CACHES: &[Cache] =
        &[Cache::WriteBack, Cache::Uncached, Cache::WriteCombining, Cache::WriteThrough];
    fn used(entry: u64) -> u64 {
        let clean = if entry >> 51 & 1 != 0 { 1 << 7 } else { 0 };
        (entry | 1 << 10) & !clean
    }
    const MARKS_ALL: bool = false;
}

impl Known for Aarch64Stage2 {
    fn has(flags: Flags) -> bool {
        Ept4::has(flags)
    }
    const CACHES: &[Cache] = Aarch64::CACHES;
    fn used(entry: u64) -> u64 {
        entry | 1 << 10 | (entry >> 51 & 1) << 7
    }
    const MARKS_ALL: bool = false;
}

impl<const LEVELS: u8, const SVNAPOT: bool> Known for Riscv<LEVELS, SVNAPOT> {
    fn has(flags: Flags) -> bool {
        flags.contains(Flags::READ) || !flags.contains(Flags::WRITE)
    }
    const CACHES: &[Cache] = &[Cache::WriteBack, Cache::WriteCombining, Cache::Uncached];
    fn used(entry: u64) -> u64 {
        entry | 1 << 6 | 1 << 7
    }
}

/// Whether the format should be able to express it.
fn sayable<F: Known>(size: PageSize, frame: Frame, attrs: Attrs) -> bool {
    F::has(attrs.flags)
        && (F::DECRYPTED || !attrs.flags.contains(Flags::DECRYPTED))
        && F::level_of(size).is_some()
        && F::CACHES.contains(&attrs.cache)
        && attrs.key < F::KEYS
        && attrs.soft < 1 << F::SOFT_BITS
        && frame.number().is_multiple_of(size.frames())
        && frame.number() < 1 << (F::PHYSICAL_BITS - 12)
}

fn round<F: Known>(number: u64, attrs: Attrs, raw: u64) -> Result<(), TestCaseError> {
    for size in PageSize::ALL {
        let level = F::level_of(size).unwrap_or(F::LEVELS);
        prop_assert_eq!(F::size_at(level), F::level_of(size).map(|_| size));
        for number in [number, number & !(size.frames() - 1)] {
            let frame = Frame::new(number).unwrap();
            let entry = F::page(size, frame, attrs);
            prop_assert_eq!(entry.is_ok(), sayable::<F>(size, frame, attrs), "{:?}", entry);
            let Ok(entry) = entry else { continue };
            prop_assert_eq!(F::decode(entry, level), Decoded::Page(frame, attrs));
            if level == 0 {
                let first = F::page(size, Frame::default(), attrs).unwrap();
                prop_assert_eq!(F::alike(first, frame), Ok(entry));
                group_round::<F>(entry, number >> F::PAGE.order())?;
            }
            let dirty = F::MARKS_ALL || attrs.flags.contains(Flags::WRITE);
            let dirty = if dirty { Flags::DIRTY } else { Flags::empty() };
            let used = attrs.flags | Flags::ACCESSED | dirty;
            let used = Decoded::Page(frame, Attrs { flags: used, ..attrs });
            prop_assert_eq!(F::decode(F::used(entry), level), used);
            short_answers::<F>(entry, level)?;
            short_answers::<F>(entry ^ 1 << (raw & 63), level)?;
            // Hardware translates exactly the pages that have a right.
            prop_assert_eq!(F::is_valid(entry), attrs.flags.intersects(Flags::RWX));
        }
    }
    for number in [number, number & !(F::PAGE.frames() - 1)] {
        table_round::<F>(Frame::new(number).unwrap(), raw)?;
    }
    // Any bits decode, and a decoded page can be encoded again.
    for level in 0..F::LEVELS {
        if let Decoded::Page(frame, attrs) = F::decode(raw, level) {
            let size = F::size_at(level).unwrap();
            let again = F::page(size, frame, attrs).unwrap();
            prop_assert_eq!(F::decode(again, level), Decoded::Page(frame, attrs));
        }
        short_answers::<F>(raw, level)?;
        let alone = F::alone(raw, raw as usize % F::ENTRIES);
        prop_assert!(alone == raw || super::is_grouped::<F>(raw, 0));
        prop_assert!(
            !super::is_grouped::<F>(alone, 0) || F::decode(alone, 0) == Decoded::Malformed
        );
        let hidden = note(raw >> 20);
        prop_assert_eq!(F::decode(hidden, level), Decoded::Absent);
        prop_assert_eq!(noted(hidden), raw >> 20);
    }
    Ok(())
}

/// A page of a group is one for hardware only, until it is alone.
fn group_round<F: Known>(entry: u64, page: u64) -> Result<(), TestCaseError> {
    // As the index of any table.
    let index = page as usize % F::ENTRIES;
    prop_assert!(!super::is_grouped::<F>(entry, 0));
    prop_assert_eq!(F::alone(entry, index), entry);
    if F::GROUP.is_some() && F::is_valid(entry) {
        let grouped = F::grouped(entry);
        prop_assert!(super::is_grouped::<F>(grouped, 0) && F::is_valid(grouped));
        prop_assert_eq!(F::decode(grouped, 0), Decoded::Malformed);
        prop_assert_eq!(F::alone(grouped, index), entry);
    }
    Ok(())
}

fn table_round<F: Known>(frame: Frame, raw: u64) -> Result<(), TestCaseError> {
    match F::table(frame) {
        Ok(entry) => {
            for level in 1..F::LEVELS {
                prop_assert_eq!(F::decode(entry, level), Decoded::Table(frame));
                short_answers::<F>(entry, level)?;
                short_answers::<F>(entry ^ 1 << (raw & 63), level)?;
            }
        }
        Err(error) if frame.is_aligned(F::PAGE) => {
            prop_assert_eq!(error, FormatError::Beyond(frame));
        }
        Err(error) => {
            prop_assert!(matches!(error, FormatError::Beyond(_) | FormatError::Misaligned(..)))
        }
    }
    Ok(())
}

/// The shortcuts for walks answer as `decode` does.
fn short_answers<F: Format>(entry: u64, level: u8) -> Result<(), TestCaseError> {
    let found = F::decode(entry, level);
    let table = match found {
        Decoded::Table(frame) => Some(frame),
        _ => None,
    };
    prop_assert_eq!(F::next(entry, level), table);
    for write in [false, true] {
        let page = match found {
            Decoded::Page(frame, Attrs { flags, .. })
                if flags.contains(Flags::READ | Flags::USER)
                    && (!write || flags.contains(Flags::WRITE)) =>
            {
                Some(frame)
            }
            _ => None,
        };
        prop_assert_eq!(F::usable(entry, level, write), page);
    }
    Ok(())
}

fn canonical<F: Format>(at: u64) {
    let bits = F::VIRTUAL_BITS;
    let top = at >> (bits - 1);
    let expected = match F::SECOND_STAGE {
        true => at >> bits == 0,
        false => top == 0 || top == (1 << (65 - bits)) - 1,
    };
    assert_eq!(F::is_canonical(VirtAddr::new(at)), expected, "{at:#x} of {bits} bits");
    // The indices and the offset give the address again.
    let (page, width) = (F::PAGE.shift(), F::PAGE.shift() - 3);
    let low = (0..F::LEVELS).fold(at & (F::PAGE.bytes() - 1), |sum, level| {
        sum | (F::index(VirtAddr::new(at), level) as u64) << (page + width * u32::from(level))
    });
    assert_eq!(low, at & ((1 << (page + width * u32::from(F::LEVELS))) - 1));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 8 } else { 1024 },
        ..ProptestConfig::default()
    })]
    #[test]
    fn entries_decode_to_what_was_encoded(wide in 0u64..1 << 45, cut in 0u32..40, attrs in attrs(), raw: u64) {
        let number = wide >> cut;
        round::<X86_64L4>(number, attrs, raw)?;
        round::<X86_64L5>(number, attrs, raw)?;
        round::<Encrypted<X86_64L4, 51, true>>(number, attrs, raw)?;
        round::<Encrypted<X86_64L5, 47, false>>(number, attrs, raw)?;
        round::<Encrypted<Aarch64, 47, false>>(number, attrs, raw)?;
        round::<Encrypted<Aarch64Lpa2, 51, false>>(number, attrs, raw)?;
        round::<Encrypted<Sv48Napot, 51, true>>(number, attrs, raw)?;
        round::<Sv39>(number, attrs, raw)?;
        round::<Sv39Napot>(number, attrs, raw)?;
        round::<Sv48>(number, attrs, raw)?;
        round::<Sv57>(number, attrs, raw)?;
        // Rights that a guest's page can have come more often.
        let user = Attrs { flags: (attrs.flags - Flags::GLOBAL) | Flags::USER, ..attrs };
        for attrs in [attrs, user] {
            round::<Ept4>(number, attrs, raw)?;
            round::<Ept5>(number, attrs, raw)?;
            round::<Npt4>(number, attrs, raw)?;
            round::<Npt5>(number, attrs, raw)?;
            round::<Aarch64Stage2>(number, attrs, raw)?;
            round::<Aarch64>(number, attrs, raw)?;
            round::<Aarch64Lpa2>(number, attrs, raw)?;
            round::<Aarch64G16L3>(number, attrs, raw)?;
            round::<Aarch64G16>(number, attrs, raw)?;
            round::<Aarch64G16Lpa2>(number, attrs, raw)?;
            round::<Aarch64G64>(number, attrs, raw)?;
            round::<Aarch64G64Lpa>(number, attrs, raw)?;
        }
    }

    #[test]
    fn addresses(at: u64, sign in 0u32..40) {
        for at in [at, ((at as i64) >> sign) as u64, at >> sign] {
            canonical::<X86_64L4>(at);
            canonical::<X86_64L5>(at);
            canonical::<Sv39>(at);
            canonical::<Sv48>(at);
            canonical::<Sv57>(at);
            canonical::<Aarch64>(at);
            canonical::<Aarch64Lpa2>(at);
            canonical::<Aarch64G16L3>(at);
            canonical::<Aarch64G16>(at);
            canonical::<Aarch64G16Lpa2>(at);
            canonical::<Aarch64G64>(at);
            canonical::<Aarch64G64Lpa>(at);
            canonical::<Aarch64Stage2>(at);
            canonical::<Ept4>(at);
            canonical::<Npt5>(at);
        }
    }
}
