//! Whether files of tmpfs may use huge pages, which decides the addresses of their maps.
//!
//! For a mount, its option `huge=` decides. The kernel's internal mount is in no list of mounts
//! (memfd, SysV segments, shared anonymous memory); for it, the setting `shmem_enabled` decides,
//! which can also override all mounts. The mount is searched in the program's mount namespace.

use std::fs;

use super::{image, sys::Tid};

/// The chosen value, which is in brackets.
fn chosen(setting: &str) -> Option<&str> {
    Some(setting.split_once('[')?.1.split_once(']')?.0)
}

fn setting() -> String {
    let all = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    all.ok().as_deref().and_then(chosen).unwrap_or("deny").to_owned()
}

/// Whether files of the kernel's internal mount may use huge pages.
pub(super) fn in_memory() -> bool {
    !matches!(setting().as_str(), "never" | "deny")
}

/// Whether files on the tmpfs with this device number, mapped by `tid`, may use huge pages.
pub(super) fn in_tmpfs(tid: Tid, device: u64) -> bool {
    let mounts = image::proc_text(tid, "mountinfo").unwrap_or_default();
    decide(&setting(), &mounts, (libc::major(device), libc::minor(device)))
}

fn decide(setting: &str, mounts: &str, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major}:{minor}");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device));
    match (setting, mount) {
        ("force", _) => true,
        ("deny", _) => false,
        (setting, None) => setting != "never",
        // The options of the file system are the last field.
        (_, Some(mount)) => mount.rsplit(' ').next().is_some_and(|options| {
            let huge = options.split(',').find_map(|option| option.strip_prefix("huge="));
            huge.is_some_and(|huge| huge != "never")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_goes_by_its_option_and_memory_by_the_setting() {
        let mounts = "29 22 0:25 / /dev/shm rw - tmpfs tmpfs rw,size=64k\n\
            30 22 0:26 / /a\\040b rw,nosuid shared:1 - tmpfs x rw,huge=within_size,inode64\n";
        let at = |setting, minor| decide(setting, mounts, (0, minor));
        assert_eq!([25, 26, 27].map(|minor| at("never", minor)), [false, true, false]);
        assert_eq!([25, 26, 27].map(|minor| at("advise", minor)), [false, true, true]);
        assert_eq!([25, 26, 27].map(|minor| at("force", minor)), [true; 3]);
        assert_eq!([25, 26, 27].map(|minor| at("deny", minor)), [false; 3]);
        assert_eq!(chosen("always within_size advise [never] deny force"), Some("never"));
    }
}
