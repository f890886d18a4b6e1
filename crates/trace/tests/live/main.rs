//! Tests real programs under the tracer, with an observer that only keeps the records.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../common/programs.rs"]
mod c_programs;
#[path = "../common/needs.rs"]
mod needs;
#[path = "../common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;
mod programs;
mod recorder;
mod signals;

use recorder::Recorder;
use trace::{
    live::{self, Exit, Options},
    record::{FileKind, Op, Record},
};

#[test]
fn a_small_program_from_exec_to_exit() {
    let (seen, exit) = Recorder::run(&["true"]);
    assert_eq!(exit, Exit::Code(0));
    let Record::Exec { mm: 1, vmas, brk, start_brk, start_stack, mmap_base, exe, .. } =
        &seen.records[0]
    else {
        panic!("expected the image first, not {:?}", seen.records[0]);
    };
    assert!(exe.ends_with("true"), "{exe}");
    assert_eq!(brk, start_brk);
    assert!(mmap_base < start_stack);
    assert_eq!(seen.count(|r| matches!(r, Record::Vma(_))), *vmas);
    let stack = seen.records.iter().any(
        |r| matches!(r, Record::Vma(vma) if (vma.start..vma.end).contains(start_stack) && vma.file == 0),
    );
    assert!(stack);
    // ld.so maps the C library. execve itself wrote the stack.
    assert!(seen.calls().any(|call| call.op == Op::Mmap && call.file > 0));
    assert!(seen.count(|r| matches!(r, Record::Fault { .. })) > 3);
    assert!(seen.ops(Op::Mprotect) > 2);
    // One listing after execve, one after each call, one at the end.
    assert_eq!(seen.listings, seen.calls().count() + 1);
    assert!(matches!(
        seen.records[seen.records.len() - 2..],
        [Record::Listing(_), Record::ExitMmap { mm: 1 }]
    ));
    assert!(seen.timed > seen.calls().count() / 2);
}

#[test]
fn exit_codes_and_signals_are_the_programs() {
    assert_eq!(Recorder::run(&["sh", "-c", "exit 7"]).1, Exit::Code(7));
    assert_eq!(Recorder::run(&["sh", "-c", "kill -TERM $$"]).1, Exit::Signal(15));
    assert_eq!(Recorder::run(&["sh", "-c", "kill -KILL $$"]).1, Exit::Signal(9));
    // A real-time signal; then a program that is stopped and continued.
    let script = "trap 'exit 3' RTMIN+1; kill -RTMIN+1 $$; exit 9";
    assert_eq!(Recorder::run(&["bash", "-c", script]).1, Exit::Code(3));
    let script = "(sleep 0.1; kill -CONT $$) & kill -STOP $$; wait; exit 4";
    assert_eq!(Recorder::run(&["sh", "-c", script]).1, Exit::Code(4));
}

#[test]
fn a_program_that_cannot_run_is_an_error_with_its_cause() {
    let mut seen = Recorder::default();
    let error = live::run(Options::default(), &["/no/such/program"], &mut seen).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot run /no/such/program: No such file or directory (os error 2)"
    );
    assert_eq!(seen.records, []);
    let error = live::run::<&str>(Options::default(), &[], &mut seen).unwrap_err();
    assert!(matches!(error, live::Error::NoCommand));
}

#[test]
fn pipelines_fork_and_exec() {
    let script = "for i in 1 2 3 4 5; do echo $i | cat | tr 1 2 | (read x; exit 0); done";
    let (seen, exit) = Recorder::run(&["bash", "-c", script]);
    assert_eq!(exit, Exit::Code(0));
    let forks = seen.count(|r| matches!(r, Record::Fork { .. }));
    let execs = seen.count(|r| matches!(r, Record::Exec { .. }));
    let ends = seen.count(|r| matches!(r, Record::Listing(_)));
    assert_eq!((forks, execs), (20, 11));
    assert_eq!(ends, forks + execs);
    assert_eq!(seen.count(|r| matches!(r, Record::Listing(l) if l.exec)), 10);
}

#[test]
fn comparing_seldom_changes_no_record() {
    let run = |every| {
        let mut seen = Recorder::default();
        let options = Options { every, ..Options::default() };
        live::run(options, &["true"], &mut seen).unwrap();
        seen
    };
    let (never, seldom) = (run(0), run(7));
    assert_eq!(never.listings, 1);
    assert_eq!(seldom.listings, 1 + seldom.calls().count() / 7);
    let ops = |seen: &Recorder| seen.calls().map(|call| call.op).collect::<Vec<_>>();
    assert_eq!(ops(&never), ops(&seldom));
}

#[test]
fn the_kinds_of_files_are_told() {
    let (seen, _) = Recorder::run(&["true"]);
    let files = seen.files();
    assert!(files.len() > 2);
    let regular = [FileKind::Regular, FileKind::RegularThp];
    assert!(files.iter().all(|file| regular.contains(&file.kind)), "{files:?}");
}
