//! Tests the text format with recorded traces, complete and damaged.

use std::{fs, path::PathBuf};

use trace::{
    record::{
        Call, Doubt, FileDesc, FileKind, Frame, Image, InitialVma, Op, Record, Stack, StackEnd,
        Symbol,
    },
    text::{Header, Parser, Printer},
};

fn samples() -> Vec<(String, Vec<u8>)> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests");
    let folder = tests.join("data");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // One with call stacks.
    files.push(tests.join("stacks/dash.vmtrace"));
    files.sort();
    assert!(files.len() >= 6, "the recorded traces are missing");
    files
        .iter()
        .map(|path| (path.file_name().unwrap().to_str().unwrap().into(), fs::read(path).unwrap()))
        .collect()
}

fn reprint(text: &[u8]) -> Result<Vec<u8>, trace::text::Error> {
    let mut parser = Parser::new(text, "t")?;
    let mut printer = Printer::new(Vec::new(), parser.header()).unwrap();
    while let Some(record) = parser.next_record()? {
        printer.record(&record).unwrap();
    }
    Ok(printer.into_inner())
}

fn error(text: &[u8]) -> String {
    reprint(text).expect_err("a malformed trace was accepted").to_string()
}

#[test]
fn recorded_traces_come_back_byte_for_byte() {
    for (name, text) in samples() {
        let again = reprint(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(again == text, "{name} differs after parsing and printing");
    }
}

#[test]
fn every_cut_is_noticed() {
    for (name, text) in samples() {
        let ends: Vec<usize> =
            text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1).collect();
        // Truncates after some complete lines, and in the middle of the next line.
        for end in ends[..ends.len() - 1].iter().step_by(ends.len() / 20).skip(1) {
            if reprint(&text[..*end]).is_ok() {
                // The rest is complete only if every address space in it has ended. Then only names
                // of functions follow.
                let last = text[..*end].split(|b| *b == b'\n').rev().nth(1).unwrap();
                assert!(last.starts_with(b"Q") || last.starts_with(b"#n "), "{name} at {end}");
            }
            let message = error(&text[..*end + 1]);
            assert!(message.contains("a newline"), "{name} at {end}: {message}");
        }
        assert!(reprint(&text[..text.len() - 1]).is_err(), "{name} without its last byte");
    }
}

#[test]
fn damage_gives_an_error_or_a_trace_that_prints() {
    for (name, text) in samples() {
        let text = &text[..text.len().min(20_000)];
        for at in (1..text.len()).step_by(text.len() / 75) {
            for bit in [0, 1, 4, 7] {
                let mut damaged = text.to_vec();
                damaged[at] ^= 1 << bit;
                if let Ok(again) = reprint(&damaged) {
                    assert!(
                        reprint(&again).is_ok_and(|third| third == again),
                        "{name} at {at} bit {bit}"
                    );
                }
            }
        }
    }
}

const SPACE: &str = "# vmtrace 1\n\
    X 2 7 vmas=1 brk=0 start_brk=0 start_stack=0 mmap_base=7000000 exe=/bin/x y\n\
    D 1 fe:0 12 exec ro /bin/x y\nV 1000 3000 rd,mr 0 1 -\n";

#[test]
fn errors_say_where_and_what() {
    for (rest, expected) in [
        ("", "t:5: expected \"Q 2\": address space 2 has not ended, found the end of the file"),
        (
            "Z 2 7 exit 3\n= a\nQ 2\n",
            "t:7: expected 2 more lines \"= ...\" of the listing, found \"Q 2\"",
        ),
        ("Z 2 7 exit 18446744073709551615\n= a\n", "t:7: expected 18446744073709551614 more lines"),
        ("Z 2 7 exit 99999999999999999999\n", "t:5: expected the number of lines"),
        ("Z 2 7 exit 1\n= a\nQ 2\n", "t:7: expected 1 more lines \"f START VMFLAGS\""),
        ("V 5000 6000 rd 0 0 -\n", "t:5: expected no further V line"),
        ("M 2 7 mmap 0 1000 3 22 f0 = 5000\n", "t:5: expected 6 arguments of mmap"),
        (
            "M 2 7 mmap 0 1000 3 22 0 0 = 5000\n",
            "t:5: expected f and the number of the mapped file",
        ),
        ("M 2 7 mmap 0 1000 3 2 3 0 f9 = 5000\n", "t:5: expected a file that a D line describes"),
        ("M 2 7 open 0 = 3\n", "t:5: expected the name of a system call that changes VMAs"),
        ("M 2 7 brk +1 = 3\n", "t:5: expected 1 arguments of brk"),
        ("M 2 7 brk 1 = -4096\n", "t:5: expected the result"),
        ("M 2 7 brk 1 = 2 \n", "t:5: expected the end of the line"),
        ("M 2 7 brk 1  = 2\n", "t:5: expected = and the result"),
        ("M 2 7 munmap 1000 10000000000000000 = 2\n", "t:5: expected 2 arguments of munmap"),
        ("M 3 7 brk 1 = 2\n", "t:5: expected an address space that an X or K line made"),
        ("K 2 2 7 8\n", "t:5: expected the number of an address space that is not in use"),
        ("C 2 x 0\n", "t:5: expected the number of lines"),
        ("A 2 3000 3000 rd 0 0\n", "t:5: expected a VMA whose start is below its end"),
        ("D 2 fe:0 12 pipe ro /x\n", "t:5: expected the kind of file"),
        ("D 2 fe:0 12 reg wo /x\n", "t:5: expected ro or rw"),
        ("L 2 rd,zz\n", "t:5: expected VmFlags"),
        ("= a\n", "t:5: expected a Z line"),
        ("\n", "t:5: expected a record"),
        ("W 1\n", "t:5: expected a record: one of"),
        ("N 1 \n", "t:5: expected the new path"),
        ("U 2 perhaps\n", "t:5: expected touch, overlap, files, attached or ring"),
        ("#i 0 8:1 4 /x\n", "t:5: expected the number of a file with code, from 1"),
        ("#i 1 8 4 /x\n", "t:5: expected the device, major:minor"),
        ("#s 1 end 12\n", "t:5: expected root, cut or lost"),
        ("#s 0 root 12\n", "t:5: expected the number of a stack, from 1"),
        ("#s 1 root 1+12\n", "t:5: expected a file with code that a #i line describes"),
        ("#s 1 root 0+12\n", "t:5: expected a frame"),
        ("#s 1 root  12\n", "t:5: expected a frame"),
        ("#s 1 root x\n", "t:5: expected a frame"),
        ("#n 0 12 \n", "t:5: expected the name of a function"),
        ("#n 0 12 f\t3\n", "t:5: expected the name of a function"),
        ("#n 0 12 f\tx\t/a\n", "t:5: expected the name of a function"),
        ("#n 7 12 f\n", "t:5: expected a file with code"),
        ("#^ 1\nM 2 7 brk 1 = 2\n", "t:6: expected a stack that a #s line describes"),
        ("#^ 0\nM 2 7 brk 1 = 2\n", "t:5: expected #^ and the number of a stack"),
        ("#^ 1\nQ 2\n", "t:6: expected the M line"),
        ("#s 1 root\n#^ 1\n#^ 1\nM 2 7 brk 1 = 2\n", "t:7: expected the M line"),
    ] {
        let message = error(format!("{SPACE}{rest}").as_bytes());
        assert!(message.starts_with(expected), "{rest:?} gave: {message}");
    }
    assert_eq!(
        error(b""),
        "t:1: expected the header \"# vmtrace 1 ...\" of a recording, found the end of the file"
    );
    let missing = &SPACE.replace("vmas=1", "vmas=13")[..];
    assert!(error(missing.as_bytes()).starts_with("t:5: expected 12 more V lines"));
    assert!(
        error(format!("{missing}C 2 1 0\n").as_bytes())
            .starts_with("t:5: expected 12 more V lines")
    );
    let garbage = "t:2: expected text in UTF-8, found \"\u{fffd}\"";
    assert_eq!(error(b"# vmtrace 1\n\xff\n"), garbage);
    // Files of other kinds are no recordings.
    for other in [&b"\x7fELF\x02\xff\n"[..], b"\xff\xfe", b"\0", b"PK", &[b'\n'; 9], &[7; 99999]] {
        let message = error(other);
        assert!(message.starts_with("t:1: expected the header \"# vmtrace 1 ...\""), "{message}");
        assert!(!message.contains("the end of the file") || other[0] == b'\n', "{message}");
    }
    let long = [b"# vmtrace 1\n# ".to_vec(), vec![b'a'; 1 << 20]].concat();
    assert!(error(&long).starts_with("t:2: expected a line of less than 65536 bytes"));
}

#[test]
fn comments_are_skipped_and_counted() {
    let text = format!("{SPACE}# a comment\n#\nL 2 -\nQ 2\n");
    // Words of a person are no lines of stacks.
    let text = text + "#stack\n#n\n#\u{e9}\n#i\n#^\n";
    let mut parser = Parser::new(text.as_bytes(), "t").unwrap();
    let mut lines = Vec::new();
    while parser.next_record().unwrap().is_some() {
        lines.push(parser.line());
    }
    assert_eq!(lines, [2, 3, 4, 7, 8]);
}

#[test]
fn a_time_belongs_to_the_call_after_it() {
    let call = "M 2 7 brk 0 = 4000\n";
    let parsed = |lines: &str| {
        let text = format!("{SPACE}{lines}Q 2\n");
        let records = Parser::new(text.as_bytes(), "t").unwrap().collect::<Result<Vec<_>, _>>();
        records.map(|records| {
            let times = records.iter().filter_map(|record| match record {
                Record::Call(call) => Some(call.at),
                _ => None,
            });
            times.collect::<Vec<_>>()
        })
    };
    let timed = parsed(&format!("{call}#@ 18446744073709551615\n# so\n{call}#@ 0\n{call}{call}"));
    assert_eq!(timed.unwrap(), [None, Some(u64::MAX), Some(0), None]);
    for (lines, expected) in [
        ("#@ 12\n", "the M line"),
        ("#@ 12\nL 2 -\n", "the M line"),
        ("#@ 1\n#@ 2\nM 2 7 brk 0 = 4000\n", "the M line"),
        ("#@ -1\n", "the nanoseconds"),
        ("#@ 18446744073709551616\n", "the nanoseconds"),
    ] {
        let message = parsed(lines).unwrap_err().to_string();
        assert!(message.contains(expected), "{lines}: {message}");
    }
    let cut = format!("{SPACE}Q 2\n#@ 12\n");
    assert!(error(cut.as_bytes()).contains("the M line"));
}

#[test]
fn every_kind_of_record_reads_back() {
    let mut records = vec![Record::Exec {
        mm: 2,
        tid: 7,
        vmas: 1,
        brk: 0x5000,
        start_brk: 0x4000,
        start_stack: 0x7ff0,
        mmap_base: usize::MAX - 0xfff,
        exe: "/a b".into(),
    }];
    for (id, kind) in (1..).zip(FileKind::ALL) {
        let path = "/dir/with spaces/\u{e9} (deleted)".into();
        let dev = (0xfe, 0x10);
        records.push(Record::File(FileDesc {
            id,
            dev,
            inode: 99,
            kind,
            writable: id % 2 == 0,
            noexec: id > 4,
            path,
        }));
    }
    let flags = "rd,wr,mr,mw,me".parse().unwrap();
    let vma = InitialVma { start: 0x1000, end: 0x3000, flags, pgoff: 0xa, file: 1, name: None };
    records.push(Record::Vma(InitialVma { name: Some("[anon:a b]".into()), ..vma.clone() }));
    let path = "/lib/a b.so (deleted)".into();
    records.push(Record::Image(Image { id: 4, dev: (8, 0x11), inode: 12, path }));
    let place = Frame { image: 4, address: 0x1139 };
    for (id, end) in (1..).zip(StackEnd::ALL) {
        let frames = [place, Frame { image: 0, address: u64::MAX }];
        let frames = frames[..id as usize % 3].to_vec();
        records.push(Record::Stack(Stack { id, frames, end }));
    }
    records.push(Record::Vsyscall("ffffffffff600000 x  [vsyscall]".into()));
    for (i, &op) in Op::ALL.iter().enumerate() {
        let mut args = [0; 6];
        args[..op.arity()].fill(usize::MAX);
        let file = if op == Op::Mmap { 3 } else { 0 };
        let memory = matches!(op, Op::Mbind | Op::Ioctl).then_some([1, 0xff, 0]);
        let result = if i % 2 == 0 { -12 } else { 0x7fff_0000 };
        let at = (i % 3 != 0).then_some(i as u64 * 1_000_000_007);
        let stack = i as u32 % 4;
        records.push(Record::Call(Call {
            at,
            stack,
            mm: 2,
            tid: 7,
            op,
            args,
            file,
            memory,
            result,
        }));
    }
    records.push(Record::DriverFlags { mm: 2, flags });
    records.push(Record::Adopt { mm: 2, vma });
    records.push(Record::Fault { mm: 2, addr: 0x1000 });
    records.push(Record::Grow { mm: 2, end: 0x9000, start: 0x7000 });
    for flags in [None, Some(vma::VmFlags::READ), Some(vma::VmFlags::empty())] {
        records.push(Record::Settled { mm: 2, start: 0x7000, end: 0x9000, flags });
    }
    records.push(Record::Rename { file: 1, path: "/n m (deleted)".into() });
    records.push(Record::Fork { mm: 2, child: 3, tid: 7, child_tid: 8 });
    records.push(Record::Share { mm: 2, tid: 7, child_tid: 9, vfork: true });
    records.push(Record::Share { mm: 2, tid: 7, child_tid: 9, vfork: false });
    records.push(Record::Check { mm: 3, lines: 12, hash: 0x0bc });
    records.push(Record::Listing(trace::record::Listing {
        mm: 3,
        tid: 8,
        exec: true,
        lines: vec!["00001000-00003000 rw-p ".into(), "f [vsyscall]".into()],
        flags: vec![(0x1000, flags)],
    }));
    records.extend(Doubt::ALL.map(|cause| Record::Doubt { mm: 3, cause }));
    records.push(Record::ExitMmap { mm: 3 });
    records.push(Record::ExitMmap { mm: 2 });
    for line in [None, Some(("/src/a b.c".to_string(), 12))] {
        let name = "f(int, char const*)".into();
        records.push(Record::Symbol(Symbol { frame: place, name, line }));
    }

    let mut printer = Printer::new(Vec::new(), &Header::new().with("kernel", "6.18")).unwrap();
    for record in &records {
        printer.record(record).unwrap();
    }
    let text = printer.into_inner();
    let parser = Parser::new(&text[..], "t").unwrap();
    assert_eq!(parser.header().get("kernel"), Some("6.18"));
    let again: Vec<Record> = parser.collect::<Result<_, _>>().unwrap();
    assert_eq!(again, records);
}

#[test]
fn a_line_end_in_a_path_is_escaped() {
    let record = Record::Rename { file: 1, path: "/a\nQ 2".into() };
    let mut printer = Printer::new(Vec::new(), &Header::new()).unwrap();
    printer.record(&record).unwrap();
    assert_eq!(printer.into_inner(), b"# vmtrace 1\nN 1 /a\\012Q 2\n");
}
