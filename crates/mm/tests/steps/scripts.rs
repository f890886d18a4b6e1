//! The scripts that are run: all ordered pairs of calls concurrently with an access, and triples.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{
    host::{ASKS, ASYNC, TELLS},
    ops::*,
    run::{LENGTH, Script, Thread},
    world::{OPS, WorldKind},
};
use mm::{Advice, UserFaultModes};

const R: u32 = 1;
const RW: u32 = 3;

/// The operations that pairs are made of.
pub(crate) fn all() -> Vec<Op> {
    use Op::*;
    let mut all = vec![
        Load(0),
        Store(0),
        Store(2),
        Store(3),
        StoreTail(5),
        LoadTail(3),
        Map(What::Anon, 1, 2, RW, How::Plain),
        Map(What::Anon, 0, 1, R, How::Plain),
        Map(What::Anon, 2, 2, RW, How::Populate),
        Map(What::Anon, 3, 1, RW, How::Locked),
        Map(What::Anon, 6, 1, RW, How::NoReplace),
        Map(What::Zeros, 0, 2, RW, How::Plain),
        Map(What::Stack, 6, 1, RW, How::Plain),
        Map(What::Memfd, 0, 2, RW, How::Plain),
        Map(What::Memfd, 0, 2, R, How::Plain),
        Map(What::MemfdRo, 1, 2, R, How::Plain),
        Map(What::MemfdOff, 1, 1, RW, How::Plain),
        Map(What::MemfdPrivate, 0, 2, RW, How::Populate),
        Map(What::File, 0, 2, RW, How::Plain),
        Map(What::FilePrivate, 1, 2, RW, How::Populate),
        Map(What::Device, 1, 1, RW, How::Plain),
        Unmap(0, 2),
        Unmap(1, 1),
        Unmap(0, 6),
        Protect(0, 2, R),
        Protect(0, 1, 0),
        Protect(3, 5, R),
        Protect(1, 4, RW),
        Pkey(0, 2, 1),
        Grow(5, 1),
        Shrink(0, 4),
        Move(0, 2, FAR),
        Move(2, 1, 6),
        DontUnmap(0, 2, FAR),
        Duplicate(0, 2, FAR),
        Brk(2),
        Brk(1),
        Lock(0, 2),
        LockOnFault(2, 2),
        Unlock(0, 2),
        LockAll(true, true),
        LockAll(false, true),
        UnlockAll,
        Mincore(0, 4),
        Msync(0, 2),
        MsyncInvalidate(0, 2),
        Fork,
        Exec,
        Mseal(1, 1),
        Mbind(1, 2),
        Settle(0, 2),
        Attach(2),
        Detach(2),
        SetSize(Which::Memfd, 3),
        SetSize(Which::Memfd, 12),
        SetSize(Which::Memfd, 10),
        SetSize(Which::File, 3),
        SetSize(Which::File, 8),
        Punch(Which::Memfd, 0),
        ReadObject(Which::Memfd, 0),
        ReadObject(Which::File, 0),
        WriteObject(Which::Memfd, 2),
        WriteObject(Which::File, 1),
        Seal(8),
        Seal(2),
        Seal(4),
        Seal(16),
        Seal(1),
        Sync(0, 2),
        Evict(0),
        Unregister(0, 2),
        Close(ASKS),
        Close(TELLS),
        Copy(3, 1, false),
        Copy(2, 2, true),
        ZeroPage(3, 1),
        Continue(1, 1, false),
        Poison(3, 1),
        MovePages(3, 0, 1, false),
        WriteProtect(0, 2, true),
        WriteProtect(0, 1, true),
        WriteProtect(1, 1, false),
        WriteProtect(2, 2, true),
        ClearSoftDirty,
        ClearReferenced,
        SoftDirty(0, 2),
        Scan(0, 4, false),
        Scan(0, 2, true),
        Reclaim(2),
        Pin(0),
        PinRead(2),
        PinLong(1),
        PinnedStore,
        PinnedLoad,
        Unpin,
        Read(0, 2),
        Read(4, 2),
        Lock(4, 2),
        Advise(4, 2, Advice::PopulateWrite),
        Write(4, 2),
        Write(0, 2),
        Write(2, 2),
        CopyIn(1),
        CopyOut(2),
        Peek(3),
        Poke(1),
        ReadOther(1),
        WriteOther(0),
        Listing,
    ];
    for (uffd, modes) in [
        (ASKS, UserFaultModes::MISSING),
        (ASKS, UserFaultModes::WP),
        (ASYNC, UserFaultModes::WP),
        (ASKS, UserFaultModes::MINOR),
        (TELLS, UserFaultModes::MISSING),
    ] {
        all.push(Register(0, 4, modes, uffd));
    }
    for advice in [
        Advice::Normal,
        Advice::WillNeed,
        Advice::DontNeed,
        Advice::Free,
        Advice::Remove,
        Advice::DontFork,
        Advice::DoFork,
        Advice::WipeOnFork,
        Advice::DontDump,
        Advice::Cold,
        Advice::PageOut,
        Advice::PopulateRead,
        Advice::PopulateWrite,
        Advice::DontNeedLocked,
        Advice::GuardInstall,
        Advice::GuardRemove,
    ] {
        all.push(Advise(0, 2, advice));
    }
    all.push(Advise(3, 2, Advice::GuardRemove));
    all.push(Advise(0, 5, Advice::Collapse));
    all.push(Advise(5, 3, Advice::Collapse));
    all.push(Advise(0, 5, Advice::NoHugePage));
    all
}

/// The accesses during the calls.
const ACCESSES: [Op; 8] = [
    Op::Store(0),
    Op::Load(1),
    Op::Store(2),
    Op::Store(1),
    Op::Load(0),
    Op::Store(3),
    Op::Load(2),
    Op::Load(3),
];

/// A number that is the same in each run.
fn hash(of: impl Hash) -> usize {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish() as usize
}

/// The processes of the threads: in worlds with two, the second thread is the other one's.
pub(crate) fn script(kind: WorldKind, threads: Vec<Vec<Op>>) -> Script {
    let most = if threads.len() == 1 { OPS } else { LENGTH };
    let threads = threads.into_iter().enumerate().map(|(number, ops)| {
        assert!(ops.len() <= most);
        Thread { process: number % kind.processes(), ops }
    });
    Script { kind, threads: threads.collect() }
}

/// Whether an operation fits few worlds.
fn is_rare(op: Op) -> bool {
    WorldKind::ALL.into_iter().filter(|kind| fits(op, *kind)).count() <= 3
}

/// All ordered pairs of operations concurrently with an access: the first with an access after it,
/// the second concurrently with them, and one more access. Each pair in `worlds` of the worlds that
/// both fit.
pub(crate) fn pairs(worlds: usize, round: usize) -> Vec<Script> {
    let all = all();
    let mut scripts = Vec::new();
    for (a, &first) in all.iter().enumerate() {
        for (b, &second) in all.iter().enumerate() {
            let fit = |kind: &WorldKind| fits(first, *kind) && fits(second, *kind);
            let kinds: Vec<_> = WorldKind::ALL.into_iter().filter(fit).collect();
            let turn = hash((a, b, round));
            // All worlds try operations that few worlds have.
            let are_rare = is_rare(first) && is_rare(second);
            for number in 0..if are_rare { kinds.len() } else { worlds.min(kinds.len()) } {
                let kind = kinds[(turn + number) % kinds.len()];
                let access = |salt: usize| {
                    let from = hash((turn, salt, number));
                    let fit = |op: &Op| fits(*op, kind);
                    (0..8).map(|next| ACCESSES[(from + next) % 8]).find(fit)
                };
                let mut threads = vec![vec![first], vec![second]];
                // Two shapes: the first alone and a concurrent access; or the first before an
                // access.
                threads[0].extend(access(0));
                if turn.is_multiple_of(2) {
                    threads.push(access(1).into_iter().collect());
                } else {
                    threads[1].extend(access(1));
                }
                threads.retain(|ops| !ops.is_empty());
                scripts.push(script(kind, threads));
            }
        }
    }
    scripts
}

/// A random script of three operations, with an access or two.
pub(crate) fn triple(seed: u64) -> Script {
    let all = all();
    let kind = WorldKind::ALL[hash((seed, 0)) % WorldKind::ALL.len()];
    let fit: Vec<_> = all.into_iter().filter(|op| fits(*op, kind)).collect();
    let op = |salt: usize| fit[hash((seed, salt)) % fit.len()];
    let accesses: Vec<_> = ACCESSES.into_iter().filter(|op| fits(*op, kind)).collect();
    let access = |salt: usize| match accesses.len() {
        0 => vec![],
        count => vec![accesses[hash((seed, salt)) % count]],
    };
    let threads = match hash((seed, 9)) % 5 {
        0 => vec![vec![op(1), op(2)], vec![op(3)]],
        1 => vec![[vec![op(1), op(2)], access(5)].concat(), [vec![op(3)], access(6)].concat()],
        2 => vec![vec![op(1)], vec![op(2)], vec![op(3)]],
        3 => vec![[vec![op(1)], access(5)].concat(), vec![op(2), op(3)], access(6)],
        _ => vec![vec![op(1), op(2), op(3)], [access(5), access(6)].concat()],
    };
    script(kind, threads.into_iter().filter(|ops| !ops.is_empty()).collect())
}

/// Families of operations, by their names, whose rules need several of them in a row.
const THEMES: [(&[WorldKind], &[&str]); 5] = [
    (
        &[WorldKind::File],
        &["Pin", "PinnedStore", "Unpin", "Sync", "Evict", "Unmap", "Msync", "Load", "Store"],
    ),
    (
        &[WorldKind::File],
        &["StoreTail", "SetSizeFile", "Sync", "Evict", "WriteObjectFile", "Load", "MapFile"],
    ),
    (
        &[WorldKind::Memfd, WorldKind::Unmapped, WorldKind::MemfdWatched],
        &["StoreTail", "SetSizeMemfd", "PunchMemfd", "WriteObjectMemfd", "Remove", "MapMemfd"],
    ),
    (
        &[WorldKind::Memfd, WorldKind::Unmapped, WorldKind::MemfdWatched],
        &["Seal", "MapMemfd", "MapMemfdRo", "Unmap", "Copy", "Store", "Protect", "PunchMemfd"],
    ),
    (
        &[WorldKind::Memfd, WorldKind::File, WorldKind::Unmapped],
        &["Settle", "MapMemfd", "MapMemfdOff", "MapFile", "Protect", "Unmap", "Move", "DontUnmap"],
    ),
];

/// A random script of one thread: many operations of one family, or of a few others.
pub(crate) fn chain(seed: u64) -> Script {
    let pick = |salt: usize, of: usize| hash((seed, salt)) % of;
    let theme = pick(0, THEMES.len() + 1);
    let (kinds, names) = THEMES.get(theme).unwrap_or(&(&WorldKind::ALL, &[]));
    let kind = kinds[pick(1, kinds.len())];
    let mut fit = all();
    fit.retain(|op| fits(*op, kind));
    if names.is_empty() {
        // Few, so that they come to the same pages again and again.
        fit = (0..6).map(|salt| fit[pick(2 + salt, fit.len())]).collect();
    } else {
        fit.retain(|op| names.contains(&&*op.name()));
    }
    script(kind, vec![(0..OPS).map(|salt| fit[pick(10 + salt, fit.len())]).collect()])
}

/// These only set flags of VMAs, as NORMAL does.
const ONLY_FLAGS: [Advice; 8] = [
    Advice::Random,
    Advice::Sequential,
    Advice::Mergeable,
    Advice::Unmergeable,
    Advice::HugePage,
    Advice::DoDump,
    Advice::KeepOnFork,
    Advice::NoHugePage,
];

#[test]
fn each_advice_is_an_operation() {
    let all = all();
    for advice in Advice::ALL {
        let is = |op: &Op| matches!(op, Op::Advise(_, _, found) if found == advice);
        assert!(all.iter().any(is) || ONLY_FLAGS.contains(advice), "{advice:?} is in no script");
    }
}
