//! Tests of owners, by the records of calls.

use std::{fs::File, io::BufReader, path::Path};

use crate::{
    mirror::Mirror,
    record::{Call, MmId, Op, Record, Stack, StackEnd, StackId},
    text::Parser,
};

const KIB: usize = 1024;
const BASE: usize = 0x7000_0000_0000;

fn stack(id: StackId) -> Record {
    Record::Stack(Stack { id, frames: Vec::new(), end: StackEnd::Root })
}

/// A program with a heap and one VMA of 16 KiB, in a process of number 7.
struct Run(Mirror);

impl Run {
    fn new() -> Run {
        let mut run = Run(Mirror::new(vma::Profile::LINUX_6_18));
        run.exec(1, 7);
        (1..=9).for_each(|id| run.apply(stack(id)));
        run
    }

    fn exec(&mut self, mm: MmId, tid: u32) {
        let flags = "rd,wr,mr,mw,me".parse().unwrap();
        self.0.open_program(mm, tid, &[(0x40_0000..0x40_4000, flags)]);
    }

    fn apply(&mut self, record: Record) {
        self.0.apply(&record, || None).unwrap();
        // After each record, the bytes with an owner are the mapped ones.
        for (mm, mirrored) in &mut self.0.spaces {
            let mapped = mirrored.size().1;
            if let Some(owners) = &mut mirrored.owners {
                assert_eq!(owners.owned(), mapped, "address space {mm} after {record:?}");
            }
        }
    }

    fn call(&mut self, mm: MmId, stack: StackId, op: Op, args: &[usize], result: isize) {
        self.apply(Record::Call(Call { stack, ..Call::new(mm, 7, op, args, result) }));
    }

    /// Maps anonymous memory at an address of the caller's choice.
    fn map(&mut self, mm: MmId, stack: StackId, addr: usize, len: usize) {
        self.call(mm, stack, Op::Mmap, &[addr, len, 3, 0x32, usize::MAX, 0], addr as isize);
    }

    /// Ends the run. Returns the KiB that each stack has mapped in all and at the end, those of
    /// execve at the end, and the bytes of an unknown owner.
    fn end(self) -> (Vec<(StackId, usize, usize)>, usize, usize) {
        let stacks = self.0.finish().stacks;
        let [execve, unknown] = stacks.others().map(|other| other.at_end);
        let each = stacks
            .counts()
            .map(|(id, _, count)| (id, count.mapped as usize / KIB, count.at_end as usize / KIB));
        (each.collect(), execve as usize / KIB, unknown as usize)
    }
}

#[test]
fn the_last_call_that_mapped_a_byte_owns_it() {
    let mut run = Run::new();
    run.map(1, 1, BASE, 64 * KIB);
    run.map(1, 2, BASE + 16 * KIB, 16 * KIB);
    run.call(1, 3, Op::Munmap, &[BASE + 24 * KIB, 16 * KIB], 0);
    // Over the program's own memory.
    run.map(1, 4, 0x40_0000, 4 * KIB);
    run.call(1, 5, Op::Mprotect, &[BASE, 8 * KIB, 1], 0);
    assert_eq!(run.end(), (vec![(1, 64, 40), (2, 16, 8), (3, 0, 0), (4, 4, 4), (5, 0, 0)], 12, 0));
}

#[test]
fn a_heap_grows_and_shrinks() {
    let mut run = Run::new();
    run.call(1, 1, Op::Brk, &[0], 0x50_0000);
    run.call(1, 2, Op::Brk, &[0x50_8000], 0x50_8000);
    run.call(1, 3, Op::Brk, &[0x51_0800], 0x51_0800);
    run.call(1, 4, Op::Brk, &[0x50_9000], 0x50_9000);
    assert_eq!(run.end(), (vec![(1, 0, 0), (2, 32, 32), (3, 36, 4), (4, 0, 0)], 16, 0));
}

#[test]
fn a_moved_map_belongs_to_the_call_that_moved_it() {
    const MAYMOVE: usize = 1;
    const FIXED: usize = 2;
    const DONTUNMAP: usize = 4;
    let mut run = Run::new();
    run.map(1, 1, BASE, 32 * KIB);
    // It grows in its place, and then shrinks.
    run.call(1, 2, Op::Mremap, &[BASE, 32 * KIB, 64 * KIB, 0, 0], BASE as isize);
    run.call(1, 3, Op::Mremap, &[BASE, 64 * KIB, 48 * KIB, 0, 0], BASE as isize);
    // Half of it moves over another one.
    let to = BASE + 256 * KIB;
    run.map(1, 4, to, 8 * KIB);
    let args = [BASE, 16 * KIB, 20 * KIB, MAYMOVE | FIXED, to];
    run.call(1, 5, Op::Mremap, &args, to as isize);
    // A move that keeps the old range.
    let there = BASE + 512 * KIB;
    let args = [to, 20 * KIB, 20 * KIB, MAYMOVE | FIXED | DONTUNMAP, there];
    run.call(1, 6, Op::Mremap, &args, there as isize);
    let expected = vec![(1, 32, 16), (2, 32, 16), (3, 0, 0), (4, 8, 0), (5, 20, 20), (6, 20, 20)];
    assert_eq!(run.end(), (expected, 16, 0));
}

#[test]
fn a_wrong_address_is_counted_once() {
    let mut run = Run::new();
    // Our rules choose the place right below the base.
    run.call(1, 1, Op::Mmap, &[0, 8 * KIB, 3, 0x22, usize::MAX, 0], 0x6000_0000_0000);
    assert_eq!(run.end(), (vec![(1, 8, 8)], 16, 0));
}

#[test]
fn a_child_has_what_its_parent_had_until_it_ends() {
    let fork = |run: &mut Run, child| {
        run.apply(Record::Fork { mm: 1, child, tid: 7, child_tid: 100 + child });
    };
    let mut run = Run::new();
    run.map(1, 1, BASE, 32 * KIB);
    fork(&mut run, 2);
    run.map(2, 2, BASE + 256 * KIB, 16 * KIB);
    run.call(2, 3, Op::Munmap, &[BASE, 16 * KIB], 0);
    fork(&mut run, 3);
    run.map(3, 4, BASE + 256 * KIB, 64 * KIB);
    // One child ends before its parent, the other one lives on.
    run.apply(Record::ExitMmap { mm: 3 });
    run.apply(Record::ExitMmap { mm: 1 });
    run.map(2, 5, BASE + 512 * KIB, 8 * KIB);
    run.apply(Record::ExitMmap { mm: 2 });
    // The end is that of process 7: a later call counts, and its bytes do not.
    let expected = vec![(1, 32, 48), (2, 16, 16), (3, 0, 0), (4, 64, 0), (5, 8, 0)];
    assert_eq!(run.end(), (expected, 32, 0));
}

#[test]
fn another_program_has_nothing_of_the_former() {
    // Whether or not the end of the last program is recorded.
    for ends in [true, false] {
        let mut run = Run::new();
        run.map(1, 1, BASE, 32 * KIB);
        run.apply(Record::ExitMmap { mm: 1 });
        run.exec(2, 7);
        run.map(2, 2, BASE, 8 * KIB);
        if ends {
            run.apply(Record::ExitMmap { mm: 2 });
        }
        assert_eq!(run.end(), (vec![(1, 32, 0), (2, 8, 8)], 16, 0), "{ends}");
    }
}

#[test]
fn a_stack_grows_for_its_owner() {
    const GROWSDOWN: usize = 0x100;
    let mut run = Run::new();
    let args = [BASE, 8 * KIB, 3, 0x32 | GROWSDOWN, usize::MAX, 0];
    run.call(1, 1, Op::Mmap, &args, BASE as isize);
    run.apply(Record::Fault { mm: 1, addr: BASE });
    run.apply(Record::Grow { mm: 1, end: BASE + 8 * KIB, start: BASE - 8 * KIB });
    run.call(1, 2, Op::Munmap, &[BASE - 8 * KIB, 4 * KIB], 0);
    assert_eq!(run.end(), (vec![(1, 8, 12), (2, 0, 0)], 16, 0));
}

#[test]
fn a_call_without_a_stack_owns_what_it_maps() {
    let mut run = Run::new();
    run.map(1, 1, BASE, 8 * KIB);
    run.map(1, 0, BASE + 64 * KIB, 4 * KIB);
    assert_eq!(run.end(), (vec![(0, 4, 4), (1, 8, 8)], 16, 0));
}

/// Real programs make all kinds of calls: the bytes with an owner are the mapped ones after each.
#[test]
fn owners_agree_with_the_vmas_of_recorded_programs() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut calls = 0;
    for entry in std::fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        let reader = BufReader::new(File::open(&path).unwrap());
        let mut parser = Parser::new(reader, path.display().to_string()).unwrap();
        let mut mirror = Mirror::new(crate::replay::profile(parser.header()));
        mirror.apply(&stack(1), || None).unwrap();
        while let Some(mut record) = parser.next_record().unwrap() {
            if let Record::Call(call) = &mut record {
                call.stack = 1;
                calls += 1;
            }
            mirror.apply(&record, || None).unwrap();
            let Some(mm) = record.changes() else { continue };
            let Some(mirrored) = mirror.spaces.get_mut(&mm) else { continue };
            let mapped = mirrored.size().1;
            if let Some(owners) = &mut mirrored.owners {
                let place = format!("{}:{}", path.display(), parser.line());
                assert_eq!(owners.owned(), mapped, "{place}: {record:?}");
                assert!(!owners.incomplete);
            }
        }
        let stacks = mirror.finish().stacks;
        assert_eq!(stacks.others()[1].at_end, 0, "{}", path.display());
    }
    assert!(calls > 1000, "{calls}");
}
