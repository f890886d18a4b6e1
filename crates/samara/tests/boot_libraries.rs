//! `samara boot run --with-libraries` and `--add`: the files that the machine gets, and the errors
//! for those that are missing. A shell script is QEMU. The archive is read by the kernel's own
//! reader.

#[path = "../../../kernel/src/cpio.rs"]
#[allow(dead_code, reason = "the kernel uses the rest")]
mod newc;

#[path = "common/fake_qemu.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fake_qemu;

use fake_qemu::{FIND, directory, dynamic, elf, executable, samara};
use newc::Entries;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

const NEEDED: u64 = 1;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

/// The paths in the archive below the directory of the test, and the first argument.
fn run(directory: &Path, arguments: &[&str]) -> (Vec<String>, String, String) {
    let _ = fs::remove_file(directory.join("archive"));
    let (code, _, err) = samara(directory, &[&["run", "--with-libraries"], arguments].concat());
    assert_eq!(code, Some(125), "{err}");
    let archive = fs::read(directory.join("archive")).unwrap_or_else(|_| panic!("{err}"));
    let prefix = format!("{}/", &directory.to_str().unwrap()[1..]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let entries: Vec<_> = Entries::new(&archive).map(Result::unwrap).collect();
    let argv = text(entries[0].data);
    let paths = entries.iter().map(|entry| text(entry.path));
    let below = paths.filter_map(|path| path.strip_prefix(&prefix).map(String::from));
    (below.collect(), argv.split('\0').next().unwrap().into(), err)
}

/// A link to the directory whose path has no blank: the first line of a script cannot name another
/// path. It goes with the folder that is returned.
fn plain(directory: &Path) -> (TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let link = folder.path().join("link");
    symlink(directory, &link).unwrap();
    (folder, move |path| link.join(path).to_str().unwrap().to_string())
}

#[test]
fn libraries_are_found_as_the_dynamic_linker_finds_them() {
    let directory = directory("libraries", &format!("{FIND} cat $archive > archive; exit 37"));
    for folder in ["bin", "lib", "other", "late"] {
        fs::create_dir(directory.join(folder)).unwrap();
    }
    let at = |path: &str| directory.join(path);
    let path = |path: &str| at(path).to_str().unwrap().to_string();
    let (_folder, plain) = plain(&directory);
    let (linker, origin, other) = (path("ld.so"), "$ORIGIN/../lib", path("other"));
    executable(&at("ld.so"), &dynamic(None, &[]));
    let needs = [(NEEDED, "a.so.1"), (NEEDED, "b.so"), (RUNPATH, origin)];
    executable(&at("bin/program"), &dynamic(Some(&linker), &needs));
    // A link, with a library that needs another one by its own path list, and the first one again.
    symlink("a.so.1.2", at("lib/a.so.1")).unwrap();
    let needs = [(NEEDED, "c.so"), (NEEDED, "a.so.1"), (RPATH, &other)];
    fs::write(at("lib/a.so.1.2"), dynamic(None, &needs)).unwrap();
    fs::write(at("lib/b.so"), dynamic(None, &[])).unwrap();
    // The list of a.so.1 holds for what it needs, too.
    fs::write(at("other/c.so"), dynamic(None, &[(NEEDED, "d.so")])).unwrap();
    fs::write(at("other/d.so"), dynamic(None, &[])).unwrap();
    let expected = [
        "bin",
        "bin/program",
        "ld.so",
        "lib",
        "lib/a.so.1",
        "lib/a.so.1.2",
        "lib/b.so",
        "other",
        "other/c.so",
        "other/d.so",
    ];
    let (paths, program, _) = run(&directory, &["bin/program"]);
    assert_eq!((paths, program), (expected.map(String::from).to_vec(), path("bin/program")));

    // LD_LIBRARY_PATH comes before RUNPATH, and a library of another machine is passed over.
    fs::write(at("late/b.so"), dynamic(None, &[])).unwrap();
    fs::write(at("late/a.so.1"), elf(3, 183)).unwrap();
    let list = format!("LD_LIBRARY_PATH={}", path("late"));
    let (paths, ..) = run(&directory, &["--env", &list, "--", "./bin/program"]);
    assert!(paths.contains(&"late/b.so".into()) && !paths.contains(&"lib/b.so".into()));
    assert!(paths.contains(&"lib/a.so.1.2".into()) && !paths.contains(&"late/a.so.1".into()));

    // A script brings its program, and a program that is added its libraries.
    executable(&at("script"), format!("#! {} -x\necho\n", plain("bin/program")).as_bytes());
    let (paths, program, _) = run(&directory, &["script"]);
    assert!(paths.contains(&"other/d.so".into()), "{paths:?}");
    assert_eq!(program, path("script"));
    for added in ["bin", "script"] {
        let (paths, ..) = run(&directory, &["--add", added, "--", "hello"]);
        assert!(paths.contains(&"other/d.so".into()), "{paths:?}");
    }
    fs::write(at("text"), "text").unwrap();
    let (paths, ..) = run(&directory, &["--add", "text", "--", "hello"]);
    assert!(paths.contains(&"text".into()) && paths.contains(&"hello".into()), "{paths:?}");

    // A path may lead through links, and back.
    symlink("bin", at("link")).unwrap();
    let (paths, ..) = run(&directory, &["--add", "link/../lib/b.so", "--", "hello"]);
    assert_eq!(paths, ["bin", "hello", "lib", "lib/b.so", "link"]);

    // The folder of --files comes first.
    fs::create_dir_all(at("root").join(&path("lib")[1..])).unwrap();
    fs::write(at("root").join(&path("lib/b.so")[1..]), dynamic(None, &[(NEEDED, "e.so")])).unwrap();
    let arguments = ["run", "--files", "root", "--with-libraries", "bin/program"];
    let (code, _, err) = samara(&directory, &arguments);
    assert_eq!(code, Some(126), "{err}");
    assert!(err.contains("lib/b.so needs the library e.so, which is missing"), "{err}");
}

#[test]
fn an_interpreter_that_is_no_program_is_not_copied() {
    let directory = directory("secret", &format!("{FIND} cat $archive > archive; exit 37"));
    let at = |path: &str| directory.join(path);
    let path = |path: &str| at(path).to_str().unwrap().to_string();
    fs::write(at("secret"), "secret").unwrap();
    fs::write(at("other"), elf(3, 183)).unwrap();
    executable(&at("line"), b"#!/bin/sh\n");
    fs::create_dir(at("folder")).unwrap();
    for (name, why) in [
        ("secret", "but it is no ELF file"),
        ("other", "but it is for another processor"),
        ("line", "but it is no ELF file"),
    ] {
        executable(&at("program"), &dynamic(Some(&path(name)), &[]));
        let message = format!("/program names the interpreter {}, {why}", path(name));
        let (code, _, err) = samara(&directory, &["run", "--with-libraries", "program"]);
        assert_eq!(code, Some(126), "{err}");
        assert!(err.contains(&message), "{message} in {err}");
        // In a folder of --add it is told, and still not copied.
        fs::rename(at("program"), at("folder/program")).unwrap();
        let (paths, _, err) = run(&directory, &["--add", "folder", "--", "hello"]);
        assert!(!paths.contains(&name.into()), "{paths:?}");
        assert!(err.contains(&format!("{}, {why}", path(name))), "{err}");
    }
    let (_folder, plain) = plain(&directory);
    executable(&at("script"), format!("#!{}\n", plain("secret")).as_bytes());
    let (code, _, err) = samara(&directory, &["run", "--with-libraries", "script"]);
    assert_eq!(code, Some(126), "{err}");
    assert!(err.contains(&format!("/script names the interpreter {}", plain("secret"))), "{err}");
}

#[test]
fn a_missing_library_is_named_with_the_file_that_needs_it() {
    let directory = directory("missing", &format!("{FIND} cat $archive > archive; exit 37"));
    let at = |path: &str| directory.join(path);
    fs::create_dir(at("folder")).unwrap();
    executable(&at("ld.so"), &dynamic(None, &[]));
    let linker = at("ld.so").to_str().unwrap().to_string();
    executable(&at("program"), &dynamic(Some(&linker), &[(NEEDED, "x.so"), (RUNPATH, "$ORIGIN")]));
    executable(&at("path"), &dynamic(Some(&linker), &[(NEEDED, "/nowhere/y.so")]));
    fs::write(at("x.so"), dynamic(None, &[(NEEDED, "libnowhere.so.7")])).unwrap();
    executable(&at("script"), b"#!/nowhere/sh\n");
    let (_folder, plain) = plain(&directory);
    executable(&at("circle"), format!("#!{}\n", plain("circle")).as_bytes());
    symlink("around", at("around")).unwrap();
    for (arguments, code, why) in [
        (
            &["program"][..],
            126,
            "/x.so needs the library libnowhere.so.7, which is missing; looked",
        ),
        (&["path"], 126, "/path needs the library /nowhere/y.so, which is missing"),
        (&["script"], 126, "/script names the interpreter /nowhere/sh, which is missing"),
        (&["circle"], 126, "script of a script"),
        (&["--add", "program", "--", "hello"], 125, "/x.so needs the library libnowhere.so.7"),
        (&["--add", "nowhere", "--", "hello"], 125, "nowhere: No such file"),
        (&["--add", "hello/x", "--", "hello"], 125, "hello is not a folder"),
        (&["--add", "around", "--", "hello"], 125, "too many links"),
        (&["--add", "/", "--", "hello"], 125, "cannot copy all of this host"),
    ] {
        let (found, _, err) =
            samara(&directory, &[&["run", "--with-libraries"], arguments].concat());
        assert_eq!(found, Some(code), "{arguments:?}: {err}");
        assert!(err.contains(why), "{why} in {err}");
    }
    // In a folder it may be a part that the program does without.
    fs::rename(at("program"), at("folder/program")).unwrap();
    let (paths, _, err) = run(&directory, &["--add", "folder", "--", "hello"]);
    assert!(paths.contains(&"folder/program".into()), "{paths:?}");
    assert!(err.contains("without a library: ") && err.contains("/folder/program needs"), "{err}");

    // A dynamic section that contradicts the file.
    let mut damaged = dynamic(Some(&linker), &[(NEEDED, "x.so")]);
    let end = damaged.len();
    for at in 64..end {
        damaged[at] ^= 0xff;
        executable(&directory.join("damaged"), &damaged);
        let (code, _, err) = samara(&directory, &["run", "--with-libraries", "damaged"]);
        assert!(matches!(code, Some(125 | 126)) && !err.contains("panicked"), "{at}: {err}");
        damaged[at] ^= 0xff;
    }
}
