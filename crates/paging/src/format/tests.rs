//! Each format inverts itself for all that it can express, and matches the manuals.

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

/// What the tests know of a format, by the manuals.
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

/// Encoded by hand from the manuals.
#[test]
fn bits_of_the_manuals() {
    let frame = |number| Frame::new(number).unwrap();
    let x86 = X86_64L4::page;
    let plain = Attrs::new(Flags::READ | Flags::EXECUTE);
    assert_eq!(x86(PageSize::Size4K, frame(5), plain), Ok(0x5001));
    assert_eq!(x86(PageSize::Size4K, frame(5), Attrs::USER_RW), Ok(1 << 63 | 0x5007));
    assert_eq!(x86(PageSize::Size2M, frame(512), Attrs::KERNEL_RW), Ok(1 << 63 | 0x20_0183));
    let combining = Attrs { cache: Cache::WriteCombining, key: 9, ..plain };
    assert_eq!(x86(PageSize::Size4K, frame(5), combining), Ok(9 << 59 | 0x5081));
    assert_eq!(x86(PageSize::Size2M, frame(0), combining), Ok(9 << 59 | 0x1081));
    assert_eq!(X86_64L5::table(frame(7)), Ok(0x7027));
    assert_eq!(X86_64L5::shared_table(frame(7)), Ok(0x7025));
    // The C bit of SEV, and the shared bit of TDX.
    type Sev = Encrypted<X86_64L4, 51, true>;
    type Tdx = Encrypted<X86_64L4, 47, false>;
    let shared = Attrs { flags: plain.flags | Flags::DECRYPTED, ..plain };
    assert_eq!(Sev::table(frame(7)), Ok(1 << 51 | 0x7027));
    assert_eq!(Sev::page(PageSize::Size4K, frame(5), plain), Ok(1 << 51 | 0x5001));
    assert_eq!(Sev::page(PageSize::Size4K, frame(5), shared), Ok(0x5001));
    assert_eq!(Tdx::table(frame(7)), Ok(0x7027));
    assert_eq!(Tdx::page(PageSize::Size4K, frame(5), plain), Ok(0x5001));
    assert_eq!(Tdx::page(PageSize::Size4K, frame(5), shared), Ok(1 << 47 | 0x5001));
    // Hardware forbids all writes below a table that a fork shares, as without the bit.
    type Realm = Encrypted<Aarch64, 47, false>;
    assert_eq!(Realm::shared_table(frame(7)), Aarch64::shared_table(frame(7)));
    assert_eq!(Sev::shared_table(frame(7)), Ok(1 << 51 | 0x7025));
    let beyond = frame(1 << 36);
    assert_eq!(Tdx::page(PageSize::Size4K, beyond, plain), Err(FormatError::Beyond(beyond)));
    // A large page at a level without any, and one with a misaligned address.
    assert_eq!(X86_64L5::decode(0x83, 3), Decoded::Malformed);
    assert_eq!(X86_64L4::decode(0x2083, 1), Decoded::Malformed);

    let riscv = Sv39::page;
    assert_eq!(riscv(PageSize::Size4K, frame(5), plain), Ok(5 << 10 | 0b1011));
    assert_eq!(riscv(PageSize::Size1G, frame(1 << 18), Attrs::USER_RW), Ok(1 << 28 | 0b10111));
    let device = Attrs { cache: Cache::Uncached, ..plain };
    assert_eq!(riscv(PageSize::Size4K, frame(5), device), Ok(2 << 61 | 5 << 10 | 0b1011));
    let combining = Attrs { cache: Cache::WriteCombining, ..Attrs::USER_RW };
    let entry = Sv57::page(PageSize::Size2M, frame(512), combining).unwrap();
    assert_eq!(entry, 1 << 61 | 512 << 10 | 0b10111);
    // The fourth memory type is reserved, and a table has none.
    assert_eq!(Sv57::decode(entry | 2 << 61, 1), Decoded::Malformed);
    assert_eq!(Sv57::decode(1 << 61 | 7 << 10 | 0x101, 1), Decoded::Malformed);
    assert_eq!(Sv48::table(frame(7)), Ok(7 << 10 | 0x101));
    // Svnapot: bit 63, and 8 in the lowest bits of the frame. Other numbers are reserved.
    let group = 1 << 63 | 0x78 << 10 | 0xd7;
    assert_eq!(Sv48Napot::grouped(0x75 << 10 | 0xd7), group);
    assert_eq!(Sv48Napot::alone(group, 0x135), 0x75 << 10 | 0xd7);
    assert_eq!(Sv48Napot::alone(group | 1 << 10, 0x135), group | 1 << 10);
    assert_eq!((Sv48::alone(group, 0x135), Sv48::decode(group, 0)), (group, Decoded::Malformed));
    assert_eq!((Sv48::GROUP, Sv48Napot::GROUP), (None, Some(PageSize::Size64K)));
    assert_eq!(Sv48::shared_table(frame(7)), Ok(7 << 10 | 1));
    // Malformed: writable but not readable; a table at the lowest level; a page of 512 GiB;
    // reserved high bits.
    assert_eq!(Sv48::decode(0b101, 0), Decoded::Malformed);
    assert_eq!(Sv48::decode(0b001, 0), Decoded::Malformed);
    assert_eq!(Sv48::decode(0b011, 3), Decoded::Malformed);
    assert_eq!(Sv48::decode(1 << 54 | 0b011, 0), Decoded::Malformed);
}

/// Encoded by hand from the manuals of second stages.
#[test]
fn second_stages() {
    let frame = |number| Frame::new(number).unwrap();
    let (small, large) = (PageSize::Size4K, PageSize::Size2M);
    // Write-back is 6 in bits 5:3.
    assert_eq!(Ept4::page(small, frame(5), Attrs::USER_RW), Ok(0x5033));
    assert_eq!(Ept4::page(large, frame(512), Attrs::USER_RO), Ok(0x20_00b1));
    let code = Attrs::new(Flags::READ | Flags::EXECUTE | Flags::USER | Flags::ACCESSED);
    assert_eq!(Ept4::page(small, frame(5), code), Ok(0x5535));
    let device = Attrs { cache: Cache::Uncached, ..Attrs::USER_RW };
    assert_eq!(Ept5::page(small, frame(5), device), Ok(0x5003));
    assert_eq!(Ept5::table(frame(7)), Ok(0x7507));
    assert_eq!(Ept5::shared_table(frame(7)), Ok(0x7505));
    // Misconfigurations: written or executed but not read; the memory types 2, 3 and 7; an address
    // that is not aligned.
    for wrong in [0x5032, 0x5034, 0x5036] {
        assert!(!matches!(Ept4::decode(wrong, 0), Decoded::Page(..) | Decoded::Table(_)));
        assert_eq!(Ept4::usable(wrong, 0, false), None);
    }
    for number in [2, 3, 7] {
        assert_eq!(Ept4::decode(0x5003 | number << 3, 0), Decoded::Malformed);
    }
    assert_eq!(Ept4::decode(0x1083, 1), Decoded::Malformed);
    let unsaid = [Flags::WRITE, Flags::EXECUTE, Flags::READ | Flags::WRITE];
    for flags in unsaid {
        assert_eq!(Ept4::page(small, frame(5), Attrs::new(flags)), Err(FormatError::Rights(flags)));
    }
    // Nested pages are those of user mode.
    assert_eq!(Npt4::page(small, frame(5), Attrs::USER_RW), Ok(1 << 63 | 0x5007));
    let kernel = Flags::READ | Flags::WRITE;
    let refused = Npt4::page(small, frame(5), Attrs::new(kernel));
    assert_eq!(refused, Err(FormatError::Rights(kernel)));
    assert_eq!(Npt4::decode(0x5003, 0), Decoded::Malformed);
}

/// Encoded by hand from the manual of AArch64.
#[test]
fn descriptors() {
    let frame = |number| Frame::new(number).unwrap();
    let (small, large) = (PageSize::Size4K, PageSize::Size2M);
    let page = Aarch64::page;
    // UXN, PXN, DBM; nG, inner shareable, read-only (clean), EL0, page.
    let never = 3 << 53;
    assert_eq!(page(small, frame(5), Attrs::USER_RW), Ok(never | 1 << 51 | 0x5bc3));
    let used = Attrs::new(Attrs::USER_RW.flags | Flags::ACCESSED | Flags::DIRTY);
    assert_eq!(page(small, frame(5), used), Ok(never | 1 << 51 | 0x5f43));
    // A block, global, not for EL0.
    assert_eq!(page(large, frame(512), Attrs::KERNEL_RW), Ok(never | 1 << 51 | 0x20_0381));
    let code = Attrs::new(Flags::READ | Flags::EXECUTE | Flags::USER);
    assert_eq!(page(small, frame(5), code), Ok(1 << 53 | 0x5bc3));
    let device = Attrs { cache: Cache::Uncached, ..Attrs::USER_RO };
    assert_eq!(page(small, frame(5), device), Ok(never | 0x5bc7));
    // Read-only and dirty: in a software bit.
    let was = Attrs::new(Attrs::USER_RO.flags | Flags::DIRTY);
    assert_eq!(page(small, frame(5), was), Ok(never | 1 << 55 | 0x5bc3));
    assert_eq!(Aarch64::table(frame(7)), Ok(1 << 55 | 0x7403));
    // APTable forbids writes.
    assert_eq!(Aarch64::shared_table(frame(7)), Ok(1 << 62 | 0x7403));
    // Reserved: a block at the lowest level.
    assert_eq!(Aarch64::decode(0x5bc1, 0), Decoded::Malformed);
    // The contiguous hint.
    assert_eq!(Aarch64::grouped(0x5bc3), 1 << 52 | 0x5bc3);
    assert_eq!(Aarch64::alone(1 << 52 | 0x5bc3, 5), 0x5bc3);
    let sizes = [Aarch64::GROUP, Aarch64Lpa2::GROUP, Aarch64G16::GROUP, Aarch64G64::GROUP];
    let (small_group, group) = (Some(PageSize::Size64K), Some(PageSize::Size2M));
    assert_eq!(sizes, [small_group, small_group, group, group]);
    // LPA2: bits 50 and 51 of the address are in bits 8 and 9.
    let high = Aarch64Lpa2::page(small, frame(3 << 38 | 5), Attrs::USER_RO);
    assert_eq!(high, Ok(never | 0x5bc3));
    assert_eq!(Aarch64Lpa2::index(VirtAddr::new(7 << 48), 4), 7);
    assert_eq!(Aarch64Lpa2::index(Aarch64Lpa2::upper_half(), 4), 504);
    // Stage 2: MemAttr 15, S2AP; clean is read-only with DBM.
    let guest = Aarch64Stage2::page;
    assert_eq!(guest(small, frame(5), Attrs::USER_RW), Ok(1 << 54 | 1 << 51 | 0x537f));
    assert_eq!(guest(small, frame(5), used), Ok(1 << 54 | 1 << 51 | 0x57ff));
    assert_eq!(guest(small, frame(5), code), Ok(0x537f));
    assert_eq!(Aarch64Stage2::shared_table(frame(7)), Ok(0x7403));
    // Written and not read.
    assert_eq!(Aarch64Stage2::decode(0x53bf, 0), Decoded::Malformed);
    assert_eq!(MAIR.to_le_bytes(), [0xff, 0x04, 0x44, 0xbb, 0, 0, 0, 0]);
}

/// Encoded by hand from the manual of AArch64, for larger granules.
#[test]
fn granules() {
    let frame = |number| Frame::new(number).unwrap();
    let never = 3 << 53;
    let (small, large) = (PageSize::Size16K, PageSize::Size32M);
    let page = Aarch64G16::page;
    assert_eq!(page(small, frame(8), Attrs::USER_RW), Ok(never | 1 << 51 | 0x8bc3));
    assert_eq!(page(large, frame(1 << 13), Attrs::KERNEL_RW), Ok(never | 1 << 51 | 0x200_0381));
    assert_eq!(
        page(small, frame(9), Attrs::USER_RW),
        Err(FormatError::Misaligned(frame(9), small))
    );
    for size in [PageSize::Size4K, PageSize::Size64K, PageSize::Size2M, PageSize::Size1G] {
        assert_eq!(page(size, frame(0), Attrs::USER_RW), Err(FormatError::Size(size)));
    }
    assert_eq!(Aarch64G16::table(frame(8)), Ok(1 << 55 | 0x8403));
    assert_eq!(Aarch64G16::table(frame(9)), Err(FormatError::Misaligned(frame(9), small)));
    assert_eq!(Aarch64G16::decode(0x9403, 1), Decoded::Malformed);
    assert_eq!(Aarch64G16::decode(0x9bc3, 0), Decoded::Malformed);
    // A block at level 2, which FEAT_LPA2 has: left out.
    assert_eq!(Aarch64G16Lpa2::decode(0x8bc1, 2), Decoded::Malformed);
    // Bits 50 and 51 of the address in bits 8 and 9, in the place of SH.
    let high = Aarch64G16Lpa2::page(small, frame(3 << 38 | 8), Attrs::USER_RO);
    assert_eq!(high, Ok(never | 0x8bc3));
    // Bits 48 to 51 in bits 12 to 15.
    let (small, large) = (PageSize::Size64K, PageSize::Size512M);
    let high = Aarch64G64Lpa::page(small, frame(5 << 36 | 16), Attrs::USER_RO);
    assert_eq!(high, Ok(never | 0x1_5bc3));
    assert_eq!(Aarch64G64Lpa::table(frame(5 << 36 | 16)), Ok(1 << 55 | 0x1_5403));
    let block = Aarch64G64Lpa::page(large, frame(9 << 36 | 1 << 17), Attrs::USER_RO);
    assert_eq!(block, Ok(never | 0x2000_9bc1));
    assert_eq!(Aarch64G64::page(small, frame(16), Attrs::USER_RO), Ok(never | 0x1_0bc3));
    assert_eq!(Aarch64G64::decode(0x1_5bc3, 0), Decoded::Malformed);
    assert_eq!(Aarch64G64::table(frame(5 << 36)), Err(FormatError::Beyond(frame(5 << 36))));
}

/// Hardware finds the upper half by the entry that `TTBR1_EL1` has: its index there is the bits of
/// the address below those that `T1SZ` leaves out. And that entry is aligned as hardware demands:
/// to the size of the part of the table that it uses, and to 64 bytes where addresses have 52 bits.
#[test]
fn one_table_serves_both_base_registers() {
    fn each<F: Format>(size: u32, entry: usize) {
        let (top, half) = (F::LEVELS - 1, 64 - size);
        let used = half - (F::PAGE.shift() + F::INDEX_BITS * u32::from(top));
        assert!((1..=F::INDEX_BITS).contains(&used), "hardware begins at another level");
        assert_eq!(F::index(F::upper_half(), top), entry);
        assert_eq!(F::ENTRIES - entry, 1 << used);
        assert_eq!(F::LOWER_BITS, half);
        let least = if F::PHYSICAL_BITS == 52 { 64 } else { 8 };
        assert_eq!(entry * 8 % (8 << used).max(least), 0, "the address for TTBR1_EL1");
    }
    each::<Aarch64>(17, 256);
    each::<Aarch64Lpa2>(13, 504);
    each::<Aarch64G16L3>(18, 1024);
    each::<Aarch64G16>(16, 2046);
    each::<Aarch64G16Lpa2>(13, 2032);
    each::<Aarch64G64>(17, 8160);
    each::<Aarch64G64Lpa>(13, 7680);
}

/// The bytes of the PAT are the memory types in the order of their numbers in entries.
#[test]
fn the_pat_matches_the_entries() {
    let codes = PAT.to_le_bytes();
    assert_eq!(codes, [6, 4, 7, 0, 1, 5, 7, 0]);
}
