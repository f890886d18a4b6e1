//! Tests C programs that are hard to follow: threads, sudden ends, job control, unusual files.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    c_programs::{compile, scratch},
    needs,
    recorder::Recorder,
};
use trace::{
    live::{self, Exit, Options},
    record::{Call, FileId, FileKind, Op, Record},
    report::Summary,
    session::Session,
};

/// The end of a program that lacks a privilege or a feature of the kernel.
const SKIPPED: Exit = Exit::Code(77);

fn run(program: &str, args: &[&str]) -> (Recorder, Exit) {
    let path = compile(program, &["-pthread"]).expect("it compiles");
    let mut command = vec![path.to_str().unwrap()];
    command.extend(args);
    let result = Recorder::run(&command);
    std::fs::remove_file(&path).unwrap();
    result
}

fn threads(seen: &Recorder) -> usize {
    seen.count(|r| matches!(r, Record::Share { vfork: false, .. }))
}

fn spaces(seen: &Recorder) -> (usize, usize, usize) {
    (
        seen.count(|r| matches!(r, Record::Exec { .. })),
        seen.count(|r| matches!(r, Record::Fork { .. })),
        seen.count(|r| matches!(r, Record::Listing(_))),
    )
}

/// The kernel reports the youngest threads first. If they have events without end, the others must
/// have their turn, too.
#[test]
fn a_parent_forks_while_its_children_are_busy() {
    let path = compile("crowd", &[]).expect("it compiles");
    let mut seen = Recorder::default();
    seen.pause = Duration::from_millis(1);
    let exit = live::run(Options::default(), &[path.to_str().unwrap()], &mut seen).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(exit, Exit::Code(0));
    assert_eq!(spaces(&seen), (1, 21, 22));
    // The children call until the last of them is made, or 300 times each.
    assert!(seen.ops(Op::Mprotect) < 3000, "the parent waited for its children");
}

#[test]
fn threads_take_turns() {
    let (seen, exit) = run("threads", &["join"]);
    assert_eq!(exit, Exit::Code(0));
    assert_eq!((threads(&seen), spaces(&seen)), (8, (1, 0, 1)));
    // There is a listing after every call, so no two calls were in flight at once.
    assert_eq!(seen.listings, seen.calls().count() + 1);
    let work = seen.calls().filter(|c| c.args[1] == 16384 && c.op == Op::Munmap).count();
    assert_eq!(work, 8 * 50);
    assert!(seen.calls().all(|c| c.op == Op::Brk || c.result >= 0 || c.result == -2));
    assert_eq!(seen.told("blocked"), 0, "{:?}", seen.notices);
}

#[test]
fn a_process_ends_while_its_threads_wait() {
    for (end, exit) in
        [("exit", Exit::Code(3)), ("kill", Exit::Signal(9)), ("leader", Exit::Code(0))]
    {
        let mut listed = 0;
        for _ in 0..5 {
            let (seen, got) = run("threads", &[end]);
            assert_eq!(got, exit, "{end}");
            assert_eq!(threads(&seen), 8);
            assert_eq!(seen.count(|r| matches!(r, Record::ExitMmap { .. })), 1);
            // Before exit_group, all threads still run.
            if end == "exit" {
                assert_eq!(spaces(&seen), (1, 0, 1), "{:?}", seen.notices);
            }
            if end != "kill" {
                let whole = spaces(&seen) == (1, 0, 1);
                // On a busy machine the last thread may end before the tracer reads its memory.
                // Then a notice says so.
                let told = seen.told("without a last listing");
                assert!(
                    whole || (told > 0 && spaces(&seen) == (1, 0, 0)),
                    "{end} {:?}",
                    seen.notices
                );
                listed += usize::from(whole);
            }
        }
        assert!(listed > 0 || end == "kill", "{end}: never a last listing");
    }
}

#[test]
fn a_thread_that_runs_another_program_ends_its_siblings() {
    for _ in 0..5 {
        let (seen, exit) = run("threads", &["exec"]);
        assert_eq!(exit, Exit::Code(0));
        assert_eq!((threads(&seen), spaces(&seen)), (9, (2, 0, 2)));
        assert_eq!(seen.count(|r| matches!(r, Record::Listing(l) if l.exec)), 1);
    }
}

#[test]
fn job_control_reaches_threads_that_wait() {
    let (seen, exit) = run("threads", &["stop"]);
    assert_eq!(exit, Exit::Signal(15));
    assert_eq!(spaces(&seen).1, 1);
}

#[test]
fn sharing_and_copying_are_reported() {
    let (seen, exit) = run("family", &[]);
    assert_eq!(exit, Exit::Code(0));
    assert_eq!(seen.count(|r| matches!(r, Record::Share { vfork: true, .. })), 1);
    // The clone that shares memory, and the thread.
    assert_eq!((threads(&seen), spaces(&seen)), (2, (2, 1, 3)));
    assert!(seen.told("uses ptrace itself") > 0);
    // The vforked child's calls before execve are the parent's.
    let Some(Record::Exec { mm, .. }) = seen.records.first() else {
        panic!("expected an image first")
    };
    let sharer = seen.calls().find(|c| c.mm == *mm && c.op == Op::Mmap && c.args[1] == 4096);
    assert!(sharer.is_some());
}

#[test]
fn a_call_that_waits_for_another_thread_lets_it_go() {
    let (seen, exit) = run("blocked", &[]);
    if !needs::permits("userfaultfd", exit != SKIPPED, "run a kernel with CONFIG_USERFAULTFD") {
        return;
    }
    assert_eq!(exit, Exit::Code(0));
    assert!(seen.told("blocked") > 0, "{:?}", seen.notices);
    let order: Vec<Op> = seen.calls().map(|c| c.op).collect();
    let lock = order.iter().position(|&op| op == Op::Mlock).unwrap();
    assert!(order[..lock].contains(&Op::Ioctl));
}

#[test]
fn programs_that_cannot_be_followed_continue() {
    // Needs a compiler and a kernel with the 32-bit ABI.
    let bare = ["-m32", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-fno-stack-protector"];
    for (name, flags, code, what) in
        [("i386", &bare[..], 5, "not an x86-64 one"), ("mixed", &[][..], 0, "another ABI")]
    {
        let path = compile(name, flags);
        let runs = |path: &PathBuf| {
            Command::new(path).status().is_ok_and(|status| status.code() == Some(code))
        };
        let cure = Some("install gcc-multilib, on a kernel with CONFIG_IA32_EMULATION");
        if !needs::has("i386", path.as_ref().is_some_and(runs), cure) {
            continue;
        }
        let path = path.expect("it ran");
        let (seen, exit) = Recorder::run(&["sh", "-c", "\"$0\"; exit $?", path.to_str().unwrap()]);
        assert_eq!(exit, Exit::Code(code));
        assert!(seen.told(what) > 0, "{:?}", seen.notices);
        // The shell and its child were followed, and the program as far as possible.
        let followed = if name == "i386" { 1 } else { 2 };
        let (execs, forks, _) = spaces(&seen);
        assert_eq!(execs, followed);
        let ended = seen.count(|r| matches!(r, Record::ExitMmap { .. }));
        assert_eq!(ended, execs + forks);
        std::fs::remove_file(&path).unwrap();
    }
}

/// The records of the program `kinds`, with the queries of its test.
struct Kinds(Recorder);

impl Kinds {
    fn file(&self, id: FileId) -> &trace::record::FileDesc {
        let found = self.0.files().into_iter().find(|file| file.id == id);
        found.expect("each file has a D record")
    }

    fn maps(&self, wanted: impl Fn(&Call) -> bool) -> Vec<&Call> {
        self.0.calls().filter(|c| c.op == Op::Mmap && wanted(c)).collect()
    }
}

#[test]
fn files_and_odd_calls_are_described() {
    let path = scratch("file");
    let name = path.to_str().unwrap().to_owned();
    let (seen, exit) = run("kinds", &[&name]);
    assert_eq!(exit, Exit::Code(0));
    let seen = Kinds(seen);
    // Identity: `a` and its dup are one file, the second open is another one.
    let mine: Vec<FileId> =
        seen.0.files().into_iter().filter(|f| f.path == name).map(|f| f.id).collect();
    assert_eq!(mine.len(), 2);
    let of_mine = seen.maps(|c| mine.contains(&c.file));
    let files: Vec<FileId> = of_mine.iter().map(|c| c.file).collect();
    assert_eq!(files, [mine[0], mine[1], mine[0], mine[1]]);
    assert_eq!(of_mine[3].result, -(libc::EACCES as isize));
    assert!(seen.file(mine[0]).writable && !seen.file(mine[1]).writable);
    // Names: renamed, then unlinked, for both descriptions each time.
    let names = seen.0.all(|r| match r {
        Record::Rename { file, path } => Some((*file, path.as_str())),
        _ => None,
    });
    let (new, gone) = (format!("{name}.new"), format!("{name}.new (deleted)"));
    let expected: Vec<(FileId, &str)> = [&new, &gone]
        .iter()
        .flat_map(|path| mine.iter().map(move |&id| (id, path.as_str())))
        .collect();
    assert_eq!(names, expected);
    // Anonymous files.
    let kinds: Vec<FileKind> = seen
        .maps(|c| c.file > mine[1] && c.result > 0)
        .iter()
        .map(|c| seen.file(c.file).kind)
        .collect();
    use FileKind::{Device, ShmAnon, Shmem};
    assert_eq!(kinds, [ShmAnon, Shmem, ShmAnon, Device]);
    assert_eq!(seen.0.count(|r| matches!(r, Record::DriverFlags { .. })), 1);
    // VMAs that the arguments of their calls do not describe.
    let adopted = seen.0.records.windows(3).filter(|w| {
        matches!(w, [Record::Call(c), Record::File(f), Record::Adopt { vma, .. }]
            if matches!(c.op, Op::Shmat | Op::IoSetup) && f.kind == FileKind::Adopted && vma.file == f.id)
    });
    assert_eq!(adopted.count(), 2);
    // The stack grew before the next call.
    let grown = seen.0.all(|r| match r {
        Record::Grow { end, start, .. } => Some(end - start),
        _ => None,
    });
    assert!(grown.iter().any(|&size| size > 500 << 10), "{grown:x?}");
    // Arguments in memory.
    let bind = seen.0.calls().find(|c| c.op == Op::Mbind).unwrap();
    assert_eq!(bind.memory, Some([1, 0, 0]));
    let cold: Vec<usize> = seen
        .0
        .calls()
        .filter(|c| c.op == Op::Madvise && c.args[2] == 20)
        .map(|c| c.args[1])
        .collect();
    assert_eq!(cold, [4096, 8192]);
    let registers = |c: &&Call| c.op == Op::Ioctl && c.args[1] == 0xc020_aa00;
    if let Some(watch) = seen.0.calls().find(registers) {
        let [start, length, mode] = watch.memory.unwrap();
        assert_eq!((length, mode), (8192, 1));
        // Its close is recorded before the next call of that address space.
        let after: Vec<Op> = seen.0.calls().skip_while(|c| !registers(c)).map(|c| c.op).collect();
        assert_eq!(after, [Op::Ioctl, Op::Close, Op::Munmap]);
        assert_ne!(start, 0);
    }
}

/// Runs a program with the mirror. Returns the summary and the program's end.
fn mirrored(command: &[&str]) -> (Summary, Exit) {
    let mut session = Session::<Vec<u8>>::new(live::profile(), None).unwrap();
    let exit = live::run(Options::default(), command, &mut session).unwrap();
    (session.finish().unwrap(), exit)
}

#[test]
fn touches_of_threads_and_calls_of_others_have_one_order() {
    let path = compile("races", &["-pthread"]).expect("it compiles");
    // If the tracer did not stop other threads during a call, half of all runs would have a
    // mismatch.
    for _ in 0..6 {
        let (seen, exit) = mirrored(&[path.to_str().unwrap()]);
        assert_eq!(exit, Exit::Code(0));
        assert!(seen.total.calls() > 1600 && seen.total.listings > 1600);
        assert_eq!(seen.total.mismatches, 0, "{:?}", seen.first_mismatch);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn maps_of_each_file_system_go_where_its_files_go() {
    let path = compile("aligned", &[]).expect("it compiles");
    let program = path.to_str().unwrap();
    let here = scratch("aligned-file");
    let script = |text: &str, place: &Path| {
        ["sh", "-c", text, program, place.to_str().unwrap()].map(str::to_owned)
    };
    let mut commands = vec![script("\"$0\" \"$1\"", &here), script("\"$0\"", &here)];
    for huge in ["never", "advise", "within_size", "always"] {
        let place = scratch("mount");
        std::fs::create_dir(&place).unwrap();
        let inner = "mount -t tmpfs -o huge=HUGE t \"$1\" || exit 77; exec \"$0\" \"$1/file\"";
        let text = format!(
            "unshare -m true || exit 77; exec unshare -m sh -c '{}' \"$0\" \"$1\"",
            inner.replace("HUGE", huge)
        );
        commands.push(script(&text, &place));
    }
    for command in commands {
        let (seen, exit) = mirrored(&command.each_ref().map(String::as_str));
        let cure = "run a kernel with CONFIG_TRANSPARENT_HUGEPAGE, with all capabilities";
        if !needs::permits("tmpfs", exit != SKIPPED, cure) {
            continue;
        }
        assert_eq!(exit, Exit::Code(0), "{command:?}");
        let first = seen.first_mismatch;
        assert_eq!(seen.total.mismatches, 0, "{command:?}: {first:?}");
        assert_eq!(seen.total.predicted, seen.total.predictable, "{command:?}");
        assert!(seen.total.predictable > 120, "{command:?}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_thread_that_serves_faults_is_not_held() {
    let (seen, exit) = run("served", &[]);
    if !needs::permits("userfaultfd", exit != SKIPPED, "run a kernel with CONFIG_USERFAULTFD") {
        return;
    }
    assert_eq!(exit, Exit::Code(0));
    // Each of the forty faults is reported at most once. Three calls serve a fault, and none of
    // them waits.
    let waits = seen.told("blocked");
    assert!((1..=40).contains(&waits), "{waits}");
    assert!(seen.ops(Op::Munmap) >= 40 && seen.ops(Op::Madvise) >= 40);
}

#[test]
fn programs_that_confine_themselves_run_as_they_do_alone() {
    let path = compile("confined", &[]).expect("it compiles");
    let program = path.to_str().unwrap();
    for (what, said) in
        [("strict", "strict mode"), ("trace", "SECCOMP_RET_TRACE"), ("untraced", "CLONE_UNTRACED")]
    {
        let (seen, exit) = mirrored(&[program, what]);
        assert_eq!(exit, Exit::Code(0), "{what}");
        assert!(seen.notices.iter().any(|n| n.text.contains(said)), "{what} {:?}", seen.notices);
        assert_eq!((seen.total.mismatches, seen.unfollowed), (0, 0), "{:?}", seen.first_mismatch);
        // Only the clone that copies has an address space.
        assert_eq!(seen.address_spaces, if what == "untraced" { 2 } else { 1 });
    }
    std::fs::remove_file(&path).unwrap();
}
