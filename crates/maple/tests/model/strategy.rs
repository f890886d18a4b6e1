//! The proptest strategies for scripts.

use crate::concurrent::Walker;
use crate::script::{Area, CELLS, Cells, Event, Hold, Move, Op, Scale, Session};
use proptest::collection::vec;
use proptest::prelude::*;

fn cell() -> impl Strategy<Value = u16> {
    // The ends, and the cells next to the huge gap, are chosen more often than others.
    prop_oneof![
        8 => 0..CELLS,
        1 => prop_oneof![Just(0), Just(1), Just(CELLS - 2), Just(CELLS - 1)],
        1 => CELLS / 2 - 2..CELLS / 2 + 2,
    ]
}

fn cells() -> impl Strategy<Value = Cells> {
    // Mostly short, sometimes more than half of all cells.
    let more = prop_oneof![6 => 0..4u16, 3 => 0..40u16, 1 => 0..CELLS];
    (cell(), more, any::<(bool, bool)>()).prop_map(|(from, more, trim)| Cells { from, more, trim })
}

fn area() -> impl Strategy<Value = Area> {
    let size = prop_oneof![6 => 0..6u16, 3 => 0..600u16, 1 => 0xff00..=0xffffu16];
    let align = prop_oneof![3 => Just(0), 3 => 0..5u8, 1 => 0..24u8];
    let bounds = prop_oneof![
        1 => Just(Cells { from: 0, more: CELLS, trim: (false, false) }),
        2 => (0..CELLS, 0..CELLS, any::<(bool, bool)>())
            .prop_map(|(from, more, trim)| Cells { from, more, trim }),
        1 => cells(),
    ];
    (bounds, size, align, any::<bool>()).prop_map(|(bounds, size, align, high)| Area {
        bounds,
        size,
        align,
        high,
    })
}

fn step() -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => Just(Move::Walk),
        1 => cell().prop_map(Move::Set),
        1 => Just(Move::Reset),
        1 => Just(Move::Pause),
        3 => cell().prop_map(Move::Next),
        3 => cell().prop_map(Move::Prev),
        2 => cell().prop_map(Move::Find),
        2 => cell().prop_map(Move::FindRev),
        3 => cell().prop_map(Move::NextRange),
        3 => cell().prop_map(Move::PrevRange),
        1 => area().prop_map(Move::Area),
        2 => cells().prop_map(Move::Store),
        2 => Just(Move::Erase),
        1 => cells().prop_map(Move::Preallocate),
        1 => any::<u8>().prop_map(Move::Budget),
    ]
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    vec(step(), 0..12)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => cells().prop_map(Op::Store),
        2 => cells().prop_map(Op::Insert),
        3 => cell().prop_map(Op::Erase),
        2 => (cell(), 0..CELLS, proptest::option::of(0..8u8))
            .prop_map(|(c, more, n)| Op::SetEnd(c, c.saturating_add(more), n)),
        1 => (cell(), cell()).prop_map(|(c, end)| Op::SetEnd(c, end, None)),
        2 => cells().prop_map(Op::EraseRange),
        2 => (cells(), any::<u8>(), any::<bool>()).prop_map(|(c, n, d)| Op::InsertHole(c, n, d)),
        2 => (cell(), 0..CELLS, any::<u8>(), any::<bool>()).prop_map(|(from, more, n, d)| {
            Op::InsertHole(Cells { from, more, trim: (true, true) }, n, d)
        }),
        1 => (cells(), any::<bool>()).prop_map(|(c, d)| Op::Drain(c, d)),
        1 => Just(Op::Clear),
        2 => area().prop_map(Op::Alloc),
        1 => cells().prop_map(Op::Cyclic),
        1 => cells().prop_map(Op::Preallocate),
        2 => (cells(), any::<bool>()).prop_map(|(c, hole)| Op::Prepared(c, hole)),
        1 => cell().prop_map(Op::PreparedErase),
        3 => (0..8u8, cells(), any::<bool>()).prop_map(|(n, c, hole)| Op::Failing(n, c, hole)),
        1 => (proptest::option::of(any::<u8>()), cells()).prop_map(|(n, c)| Op::Duplicate(n, c)),
        1 => cell().prop_map(Op::Look),
        2 => (cells(), any::<u64>()).prop_map(|(c, bits)| Op::Iterate(c, bits)),
        3 => area().prop_map(Op::Gap),
        3 => (cell(), moves()).prop_map(|(c, m)| Op::Cursor(c, m)),
    ]
}

fn session() -> impl Strategy<Value = Session> {
    let hold = prop_oneof![1 => Just(Hold::Alone), 3 => Just(Hold::Shared)];
    (hold, vec(op(), 0..16), (proptest::option::of(cell()), moves()))
        .prop_map(|(hold, ops, reader)| Session { hold, ops, reader })
}

/// Several sessions.
pub(crate) fn sessions() -> impl Strategy<Value = Vec<Session>> {
    vec(session(), 1..6)
}

/// Operations.
pub(crate) fn ops(n: usize) -> impl Strategy<Value = Vec<Op>> {
    vec(op(), 0..n)
}

/// Operations, each followed by some steps of a walker.
pub(crate) fn interrupted() -> impl Strategy<Value = Vec<(Op, u8)>> {
    vec((op(), 0..12u8), 0..24)
}

/// A walker.
pub(crate) fn walker() -> impl Strategy<Value = Walker> {
    (0..3u8, any::<bool>()).prop_map(|(kind, back)| match kind {
        0 => Walker::Entries(back),
        1 => Walker::Ranges(back),
        _ => Walker::Iter(back),
    })
}

/// Events, each with the number of the tree that it happens to.
pub(crate) fn events() -> impl Strategy<Value = Vec<(u8, Event)>> {
    let event = prop_oneof![
        4 => session().prop_map(Event::Session),
        2 => Just(Event::Duplicate),
        1 => Just(Event::End),
    ];
    vec((any::<u8>(), event), 1..20)
}

/// The size of a cell: one index, a few, a page, more than 32 bits, or all kinds in one tree.
pub(crate) fn scale() -> impl Strategy<Value = Scale> {
    prop_oneof![4 => Just(0u32), 2 => 1..8u32, 2 => Just(12), 2 => 20..56u32, 1 => Just(56)]
        .prop_map(Scale)
}
