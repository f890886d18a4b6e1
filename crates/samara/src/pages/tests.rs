//! Recordings with pages, and damage that must be noticed.

use super::*;
use grace::Reclaim;
use trace::{replay::replay_with_shadow, report::Summary};

const HEAD: &str = "# vmtrace 1 kernel=6.18 page=4096\n\
    X 2 7 vmas=0 brk=10000000 start_brk=10000000 start_stack=0 mmap_base=7f9c46800000 exe=/bin/x\n";

/// Replays lines, the first of which is line 3. `damage` gets the pages before each record.
fn replay_with<F: FnMut(&mut Pages, usize)>(lines: &str, damage: F) -> (Figures, Option<Failure>) {
    struct Damaged<F>(Pages, F);

    impl<F: FnMut(&mut Pages, usize)> Shadow for Damaged<F> {
        fn record(&mut self, line: usize, record: &Record) {
            self.0.record(line, record);
            (self.1)(&mut self.0, line);
        }
        fn exec(&mut self, mm: MmId, profile: Profile, layout: Layout) {
            self.0.exec(mm, profile, layout);
        }
        fn change(
            &mut self,
            mm: MmId,
            step: &SpaceChange<File>,
            result: Result<usize, vma::Error>,
        ) {
            self.0.change(mm, step, result);
        }
        fn fork(&mut self, mm: MmId, child: MmId) {
            self.0.fork(mm, child);
        }
        fn end(&mut self, mm: MmId) {
            self.0.end(mm);
        }
        fn compare(&mut self, mm: MmId, vmas: &mut dyn Iterator<Item = (Range<usize>, VmFlags)>) {
            self.0.compare(mm, vmas);
        }
    }

    let text = format!("{HEAD}{lines}");
    let pages = Damaged(Pages::new("test").unwrap(), damage);
    let (summary, pages): (Summary, _) =
        replay_with_shadow(text.as_bytes(), "test", pages).unwrap();
    assert!(summary.first_mismatch.is_none(), "{:?}", summary.first_mismatch);
    pages.0.finish()
}

fn replay(lines: &str) -> Figures {
    let (figures, failure) = replay_with(lines, |_, _| ());
    assert_eq!(failure, None);
    figures
}

/// The mirror decides the addresses, which the lines state: 7f9c467f0000 is 16 pages below the top.
const MAP: &str = "M 2 7 mmap 0 10000 3 22 ffffffff 0 f0 = 7f9c467f0000\nF 2 7f9c467f0000\n";

#[test]
fn calls_have_pages() {
    let figures = replay(&format!(
        "{MAP}\
         M 2 7 mprotect 7f9c467f0000 4000 1 = 0\n\
         M 2 7 brk 10004000 = 10004000\n\
         F 2 10000000\n\
         M 2 7 mremap 7f9c467f4000 c000 c000 3 7f9c40000000 = 7f9c40000000\n\
         M 2 7 madvise 7f9c40000000 4000 4 = 0\n\
         M 2 7 munmap 7f9c40000000 c000 = 0\n\
         Q 2\n"
    ));
    assert_eq!((figures.calls, figures.spaces, figures.forks), (6, 1, 0));
    assert_eq!((figures.violations, figures.left), (0, (0, 0)));
    assert!(figures.lacking.is_empty(), "{:?}", figures.lacking);
    // The first, the middle and the last page of both maps, the heap and the target.
    assert!(figures.faults["copy"] >= 6 && figures.faults["zero"] >= 6, "{:?}", figures.faults);
    let (compared, refused) = (figures.compared, figures.refused);
    assert!(compared >= 15 && refused >= 9, "{compared} compared, {refused} refused");
    assert!(figures.frames_peak > 6 && figures.tables_peak > 3);
}

#[test]
fn a_fork_shares_and_copies() {
    let figures = replay(&format!(
        "{MAP}\
         K 2 3 7 8\n\
         M 3 8 madvise 7f9c467f0000 1000 4 = 0\n\
         M 2 7 madvise 7f9c467f0000 1000 12 = 0\n\
         K 2 4 7 9\n\
         Q 2\nQ 3\nQ 4\n"
    ));
    assert_eq!((figures.spaces, figures.forks, figures.left), (3, 2, (0, 0)));
    assert!(figures.faults["copy"] >= 6, "{:?}", figures.faults);
}

#[test]
fn files_and_shared_memory_have_objects() {
    let figures = replay(
        "D 1 fe:0 77 reg ro /lib/x\n\
         M 2 7 mmap 0 4000 1 2 3 0 f1 = 7f9c467fc000\n\
         M 2 7 mprotect 7f9c467fc000 1000 3 = 0\n\
         F 2 7f9c467fc000\n\
         D 2 0:1 78 shmanon rw /dev/zero (deleted)\n\
         M 2 7 mmap 0 4000 3 21 ffffffff 0 f2 = 7f9c467f8000\n\
         D 3 fe:0 77 reg rw+noexec /lib/x\n\
         M 2 7 mmap 0 4000 3 1 3 1000 f3 = 7f9c467f4000\n\
         K 2 3 7 8\n\
         M 3 8 madvise 7f9c467f8000 4000 9 = 0\n\
         M 2 7 mprotect 7f9c467f8000 4000 1 = 0\n\
         Q 2\nQ 3\n",
    );
    assert!(figures.faults["file"] >= 3 && figures.faults["shared"] >= 3, "{:?}", figures.faults);
    assert!(figures.lacking.is_empty(), "{:?}", figures.lacking);
}

/// Private maps of /dev/zero join as anonymous memory does, before and after a write.
#[test]
fn zeros_of_a_device_are_anonymous() {
    let figures = replay(
        "D 1 0:6 5 dev rw /dev/zero\n\
         M 2 7 mmap 7f9c40004000 4000 3 12 3 0 f1 = 7f9c40004000\n\
         F 2 7f9c40004000\n\
         M 2 7 mmap 7f9c40008000 4000 3 12 3 0 f1 = 7f9c40008000\n\
         M 2 7 mprotect 7f9c40006000 4000 1 = 0\n\
         Q 2\n",
    );
    assert!(figures.lacking.is_empty(), "{:?}", figures.lacking);
    let figures = replay(
        "D 1 0:6 5 dev rw /dev/other\n\
         M 2 7 mmap 7f9c40004000 4000 3 11 3 0 f1 = 7f9c40004000\n\
         Q 2\n",
    );
    assert_eq!(figures.lacking.len(), 1, "{:?}", figures.lacking);
}

#[test]
fn what_is_not_supported_is_named_and_followed() {
    let figures = replay(
        "D 1 0:1 5 huge rw /anon_hugepage (deleted)\n\
         M 2 7 mmap 0 200000 3 40022 ffffffff 0 f1 = 7f9c46600000\n\
         F 2 7f9c46600000\n\
         M 2 7 munmap 7f9c46600000 200000 = 0\n\
         Q 2\n",
    );
    assert!(figures.lacking.contains_key("MAP_HUGETLB"), "{:?}", figures.lacking);
    assert!(figures.text("x").contains("not supported, 1 times: MAP_HUGETLB"));
    assert_eq!(figures.json()["not_supported"]["MAP_HUGETLB"], 1);
}

#[test]
fn a_userfaultfd_is_resolved() {
    let figures = replay(
        "M 2 7 mmap 0 4000 3 22 ffffffff 0 f0 = 7f9c467fc000\n\
         M 2 7 ioctl 9 c018aa3f 0 xaa,0,0 = 0\n\
         M 2 7 ioctl 9 c020aa00 0 x7f9c467fc000,4000,1 = 0\n\
         M 2 7 madvise 7f9c467fc000 4000 4 = 0\n\
         M 2 7 close 9 = 0\n\
         Q 2\n",
    );
    assert_eq!(figures.faults.get("userfaultfd"), Some(&3), "{:?}", figures.faults);
}

/// Clears or changes the lowest entry of a page behind the back of the address space.
fn change_entry(pages: &mut Pages, at: usize, change: impl Fn(u64) -> u64) {
    use machine::{FrameSource, Memory};
    let sim_machine = &pages.sim_machine;
    let frame = frame_of(pages, at);
    let leads = |word: u64| word & 1 != 0 && word >> 12 & 0xff_ffff_ffff == frame.number();
    let mut found = 0;
    let tables = sim_machine.sim.allocated();
    sim_machine.sim.on_cpu(0, || {
        for table in tables.iter().filter(|held| held.owner == machine::Owner::Table(0)) {
            for index in 0..512 {
                // SAFETY: the frame is a table.
                let entry = unsafe { sim_machine.sim.entry(table.frame, index) }.unwrap();
                if leads(entry.load()) {
                    entry.store(change(entry.load()));
                    found += 1;
                }
            }
        }
        assert_eq!((found, sim_machine.sim.info(frame).unwrap().refs()), (1, 1));
    });
}

fn frame_of(pages: &Pages, at: usize) -> machine::Frame {
    let process = &pages.processes[&2];
    pages.sim_machine.sim.on_cpu(0, || {
        let guard = Grace::pin();
        let page = process.space.walk(&guard).get(machine::VirtAddr::new(at as u64));
        page.unwrap().frame
    })
}

/// As if mprotect had left its flush out: a TLB still allows to write.
#[test]
fn a_flush_that_is_left_out_is_noticed() {
    let touched_again = format!("{MAP}M 2 7 mprotect 7f9c467f0000 1000 3 = 0\nQ 2\n");
    let (figures, failure) = replay_with(&touched_again, |pages, line| {
        if line == 5 {
            change_entry(pages, 0x7f9c_467f_0000, |_| 0);
        }
    });
    let failure = failure.expect("the translation is stale");
    assert_eq!((failure.line, figures.violations), (5, 1), "{failure:?}");
    assert!(failure.text.contains("stale") || failure.text.contains("outdated"), "{failure:?}");
}

#[test]
fn a_frame_that_is_never_given_back_is_noticed() {
    let lines = format!("{MAP}M 2 7 munmap 7f9c467f0000 10000 = 0\nQ 2\n");
    let (figures, failure) = replay_with(&lines, |pages, line| {
        if line == 5 {
            let frame = frame_of(pages, 0x7f9c_467f_0000);
            use machine::FrameSource;
            // One reference too many.
            let info = pages.sim_machine.sim.info(frame).unwrap();
            assert!(info.try_get());
        }
    });
    let failure = failure.expect("a frame is left");
    assert_eq!((failure.line, figures.left.0), (6, 1), "{failure:?}");
    assert!(failure.text.contains("not given back"), "{failure:?}");
}

#[test]
fn a_wrong_word_is_noticed() {
    let lines = format!("{MAP}M 2 7 madvise 7f9c467f0000 1000 0 = 0\nQ 2\n");
    let (_, failure) = replay_with(&lines, |pages, line| {
        if line == 5 {
            let process = &pages.processes[&2];
            let word = 1u64.to_ne_bytes();
            pages
                .sim_machine
                .sim
                .on_cpu(0, || process.space.write(0x7f9c_467f_0000, &word))
                .unwrap();
        }
    });
    let failure = failure.expect("the word is not the model's");
    assert!(failure.line == 5 && failure.text.contains("holds 0x1, and not"), "{failure:?}");
}

#[test]
fn other_vmas_and_other_results_are_noticed() {
    let (_, failure) =
        replay_with(&format!("{MAP}M 2 7 brk 10000000 = 10000000\nQ 2\n"), |pages, line| {
            if line == 5 {
                let process = &pages.processes[&2];
                let lock = || process.space.mlock(0x7f9c_467f_0000, 0x10000, true);
                pages.sim_machine.sim.on_cpu(0, lock).unwrap();
            }
        });
    let failure = failure.expect("a VMA is locked");
    assert!(failure.line == 5 && failure.text.contains("not those of the mirror"), "{failure:?}");
    let more = "M 2 7 mmap 0 1000 3 22 ffffffff 0 f0 = 7f9c467ef000\nQ 2\n";
    let (_, failure) = replay_with(&format!("{MAP}{more}"), |pages, line| {
        if line == 5 {
            let process = &pages.processes[&2];
            let flags = mm::MapFlags::PRIVATE | mm::MapFlags::ANONYMOUS;
            pages.sim_machine.sim.on_cpu(0, || process.space.mmap(0, 0x1000, 3, flags)).unwrap();
        }
    });
    let failure = failure.expect("the place is taken");
    assert!(failure.line == 5 && failure.text.contains("0x7f9c467ee000"), "{failure:?}");
}

/// A recording that ends early leaves nothing behind, and no panic.
#[test]
fn a_recording_that_cannot_be_read_ends_its_machine() {
    let text = format!("{HEAD}{MAP}nonsense\n");
    let pages = Pages::new("test").unwrap();
    let sim = pages.sim_machine.sim.clone();
    assert!(replay_with_shadow(text.as_bytes(), "test", pages).is_err());
    assert!(sim.check_leaks().is_ok());
}

/// Maps of execve have no kind in older recordings. Another map of the same file has one, which
/// decides where it is placed.
#[test]
fn a_program_maps_its_own_file() {
    let figures = replay(
        "D 1 fe:0 5 exec ro /bin/x\n\
         A 2 400000 600000 rd,ex,mr,mw,me 0 1\n\
         D 2 fe:0 5 reg-thp ro /bin/x\n\
         M 2 7 mmap 0 300000 1 2 3 0 f2 = 7f9c46400000\n\
         Q 2\n",
    );
    assert_eq!(figures.calls, 1);
}
