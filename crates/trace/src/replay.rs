//! Replays a recording. Needs no privilege and no particular kernel, and checks every recorded
//! answer.

use std::{io::BufRead, time::Instant};

use vma::Profile;

use crate::{
    mirror::{Mirror, NoShadow, Shadow, Verdict},
    report::Summary,
    text::{Error, Header, Parser},
};

/// Replays a whole recording. `file` is its name in messages.
///
/// # Errors
/// If the recording is malformed or truncated: `file:line: expected ..., found ...`.
pub fn replay(reader: impl BufRead, file: &str) -> Result<Summary, Error> {
    replay_with_shadow(reader, file, NoShadow).map(|(summary, NoShadow)| summary)
}

/// Replays a whole recording, followed by `shadow`.
///
/// # Errors
/// As [`replay`].
pub fn replay_with_shadow<B: Shadow>(
    reader: impl BufRead,
    file: &str,
    shadow: B,
) -> Result<(Summary, B), Error> {
    let begun = Instant::now();
    let mut parser = Parser::new(reader, file)?;
    let mut mirror = Mirror::with_shadow(profile(parser.header()), shadow);
    while let Some(record) = parser.next_record()? {
        let line = parser.line();
        mirror.shadow_mut().record(line, &record);
        let place = || Some(format!("{file}:{line}"));
        let verdict = mirror.apply(&record, place).map_err(|expected| parser.error(expected))?;
        if let Some(mm) = record.changes() {
            mirror.compare_shadow(mm);
        }
        if let Verdict::CannotTell(cause) = verdict {
            mirror.summary_mut().notice(cause.explain());
        }
    }
    let (mut summary, shadow) = mirror.finish_shadow();
    summary.elapsed = begun.elapsed();
    if let Some(kernel) = parser.header().get("kernel")
        && !Profile::for_release(kernel).1
    {
        summary.notice(&format!(
            "recorded on Linux {kernel}, but the rules were checked on 6.18: differences may come \
             from the kernel"
        ));
    }
    Ok((summary, shadow))
}

/// The rules of the kernel that a recording was made on. If its header does not name the kernel,
/// those of the newest known one.
pub fn profile(header: &Header) -> Profile {
    let kernel = header.get("kernel");
    let profile = kernel.map_or(Profile::LINUX_6_18, |release| Profile::for_release(release).0);
    Profile {
        guard_flag: header.get("guards") == Some("flagged"),
        protection_keys: header.get("pkeys") == Some("present"),
        honours_noreserve: header.get("overcommit") != Some("2"),
        max_map_count: header
            .get("max_map_count")
            .and_then(|most| most.parse().ok())
            .unwrap_or(profile.max_map_count),
        ..profile
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::BufReader, path::Path};

    use crate::report::stacks::Measure;

    /// Each recording has what no other one has:
    ///
    /// - `fuzz-s21`: random calls with forks; locks, policies, remap_file_pages, System V memory;
    /// - `gcc-O2-hello`: five programs, vfork and execve;
    /// - `malloc-8threads`: threads, and heaps that grow by mprotect;
    /// - `numpy-multiprocessing`: 313 VMAs, libraries that are renamed, a fork;
    /// - `stressng-mremap`: moves of all kinds, and populated memory.
    #[test]
    fn every_recorded_answer_is_reproduced() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let mut replayed = 0;
        for entry in fs::read_dir(data).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            let summary =
                super::replay(BufReader::new(fs::File::open(&path).unwrap()), &name).unwrap();
            assert!(summary.first_mismatch.is_none(), "{name}: {:?}", summary.first_mismatch);
            assert_eq!(summary.total.mismatches, 0, "{name}");
            assert_eq!(summary.total.predicted, summary.total.predictable, "{name}");
            assert!(summary.total.calls() > 0 && summary.total.listings >= summary.total.calls());
            replayed += 1;
        }
        assert!(replayed >= 5, "some recordings are missing in tests/data");
    }

    #[test]
    fn a_recording_of_stacks_tells_what_is_mapped_at_the_end() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stacks/dash.vmtrace");
        let text = fs::read_to_string(data).unwrap();
        let stacks = super::replay(text.as_bytes(), "dash").unwrap().stacks;
        let folded = stacks.folded(Measure::AtEnd);
        let bytes = folded.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>());
        // The kernel's last listing of the program, which ran two others before.
        let (_, last) = text.rsplit_once("\nZ ").unwrap();
        let lines = last.lines().filter_map(|line| line.strip_prefix("= "));
        let mapped = lines.filter(|line| !line.ends_with("[vsyscall]")).map(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
            end - start
        });
        assert_eq!(bytes.map(Result::unwrap).sum::<u64>(), mapped.sum::<u64>(), "{folded}");
        assert!(folded.contains(";_dl_start;") && folded.contains(";[mmap] "), "{folded}");
    }
}
