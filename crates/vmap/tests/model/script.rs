//! The operations of the model test, valid and invalid, as data, so that a failing script can be
//! shrunk.

use proptest::prelude::*;
use vmap::Guard;

/// The address that a call gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    /// A valid one that a call has returned.
    Live(usize),
    /// So many bytes after a valid one.
    Inside(usize, u64),
    /// One that was once valid.
    Freed(usize),
    /// So many bytes after the start of the space.
    Raw(u64),
}

/// The call that unmaps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// The counterpart of the call that mapped.
    Right,
    Vunmap,
    Vfree,
    VfreeAtomic,
    Iounmap,
    Unreserve,
    /// With so many pages.
    Ram(usize),
}

/// Demands on the addresses of an area.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demands {
    pub(crate) at: Option<Which>,
    pub(crate) align: u64,
    pub(crate) guard: Option<Guard>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Frames of the pool, from one on, a stride apart.
    Vmap {
        first: usize,
        stride: usize,
        pages: usize,
        write: bool,
        demands: Demands,
    },
    Ram {
        first: usize,
        pages: usize,
        write: bool,
    },
    Malloc {
        bytes: u64,
        zero: bool,
        huge: bool,
        node: bool,
        demands: Demands,
    },
    Ioremap {
        at: u64,
        len: u64,
        demands: Demands,
    },
    Reserve {
        bytes: u64,
        demands: Demands,
    },
    /// Pages with write but without read permission, which the format cannot represent; frames of
    /// the pool or, without `first`, of memory.
    Refused {
        first: Option<usize>,
        pages: usize,
        ram: bool,
    },
    Unmap {
        call: Call,
        which: Which,
    },
    Realloc {
        which: Which,
        bytes: u64,
    },
    /// A word, through the mapping.
    Store {
        pick: usize,
        page: usize,
        value: u64,
    },
    /// Bytes, by `vread` or `vwrite`, from so many bytes before an area's end.
    Bytes {
        pick: usize,
        before: u64,
        len: usize,
        write: Option<u8>,
    },
    Poll,
    Idle,
    Purge,
    Aliases,
    Tick,
    /// This CPU stops for a moment.
    Nap,
    /// Continues on another CPU; this one stops, or is only left.
    Cpu {
        cpu: usize,
        stop: bool,
    },
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        6 => any::<usize>().prop_map(Which::Live),
        1 => (any::<usize>(), 0u64..5 * 4096).prop_map(|(pick, offset)| Which::Inside(pick, offset)),
        1 => (any::<usize>(), 0u64..5).prop_map(|(pick, page)| Which::Inside(pick, page * 4096)),
        2 => any::<usize>().prop_map(Which::Freed),
        1 => (0u64..1 << 14).prop_map(|page| Which::Raw(page * 4096)),
        1 => any::<u64>().prop_map(Which::Raw),
    ]
}

fn pages() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 12 => 1usize..9, 6 => 1usize..80, 2 => 60usize..70, 1 => 80usize..600]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => pages().prop_flat_map(|pages| (0u64..4096).prop_map(move |less| (pages as u64 * 4096).saturating_sub(less))),
        2 => pages().prop_map(|pages| pages as u64 * 4096),
        2 => (1u64..3, 0u64..3).prop_map(|(large, more)| (large << 21) + more * 4096),
        1 => (1u64 << 21)..(6 << 20),
        1 => any::<u64>(),
    ]
}

pub(crate) fn guard() -> impl Strategy<Value = Guard> {
    prop::sample::select(vec![Guard::None, Guard::Above, Guard::Below, Guard::Both])
}

fn demands() -> impl Strategy<Value = Demands> {
    let align = prop_oneof![
        8 => Just(4096u64),
        3 => (0u32..23).prop_map(|bits| 1 << bits),
        1 => any::<u64>(),
        1 => (0u32..64).prop_map(|bits| 1 << bits),
    ];
    let demands = (prop::option::weighted(0.3, which()), align, prop::option::of(guard()));
    let none = Demands { at: None, align: 4096, guard: None };
    prop_oneof![
        1 => Just(none),
        2 => demands.prop_map(|(at, align, guard)| Demands { at, align, guard }),
    ]
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let call = prop_oneof![
        12 => Just(Call::Right),
        1 => Just(Call::Vunmap),
        1 => Just(Call::Vfree),
        2 => Just(Call::VfreeAtomic),
        1 => Just(Call::Iounmap),
        1 => Just(Call::Unreserve),
        1 => pages().prop_map(Call::Ram),
    ];
    let pick = any::<usize>;
    let device = prop_oneof![
        4 => (0u64..3 << 30, 0u64..100_000),
        2 => (0u64..1000).prop_map(|large| (large << 21, 3 << 21)),
        1 => any::<(u64, u64)>(),
    ];
    prop_oneof![
        4 => (pick(), 0usize..3, pages(), any::<bool>(), demands())
            .prop_map(|(first, stride, pages, write, demands)| Op::Vmap { first, stride, pages, write, demands }),
        12 => (pick(), pages(), any::<bool>()).prop_map(|(first, pages, write)| Op::Ram { first, pages, write }),
        9 => (bytes(), any::<(bool, bool, bool)>(), demands())
            .prop_map(|(bytes, (zero, huge, node), demands)| Op::Malloc { bytes, zero, huge, node, demands }),
        2 => (device, demands()).prop_map(|((at, len), demands)| Op::Ioremap { at, len, demands }),
        3 => (bytes(), demands()).prop_map(|(bytes, demands)| Op::Reserve { bytes, demands }),
        1 => (any::<Option<usize>>(), pages(), any::<bool>())
            .prop_map(|(first, pages, ram)| Op::Refused { first, pages, ram }),
        18 => (call, which()).prop_map(|(call, which)| Op::Unmap { call, which }),
        4 => (which(), bytes()).prop_map(|(which, bytes)| Op::Realloc { which, bytes }),
        6 => (pick(), pick(), any::<u64>()).prop_map(|(pick, page, value)| Op::Store { pick, page, value }),
        5 => (pick(), 0u64..20_000, 0usize..20_000, any::<Option<u8>>())
            .prop_map(|(pick, before, len, write)| Op::Bytes { pick, before, len, write }),
        2 => Just(Op::Poll),
        1 => Just(Op::Idle),
        1 => Just(Op::Purge),
        1 => Just(Op::Aliases),
        3 => Just(Op::Tick),
        1 => Just(Op::Nap),
        4 => (0usize..3, any::<bool>()).prop_map(|(cpu, stop)| Op::Cpu { cpu, stop }),
    ]
}
