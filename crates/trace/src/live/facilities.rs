//! Checks once, at the start, which optional facilities the kernel has, and whether the rules were
//! checked on such a kernel.
//!
//! Nothing here ends a run. A weaker substitute replaces a missing facility, and a notice says what
//! the substitute still guarantees.

use std::{
    fs,
    fs::File,
    os::fd::{AsFd, AsRawFd},
};

use super::sys::{self, Tid, pages};

/// The optional facilities that work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facilities {
    /// PAGEMAP_SCAN (Linux 6.7).
    pub(super) scan: bool,
    /// PROCMAP_QUERY (Linux 6.11).
    pub(super) query: bool,
    /// pidfd_getfd and kcmp: the identity of open files.
    pub(super) identity: bool,
    /// kcmp for address spaces.
    pub(super) compare: bool,
}

impl Facilities {
    /// Tries each on this process.
    pub(super) fn probe() -> Self {
        let own = std::process::id() as Tid;
        let query = File::open("/proc/self/maps").is_ok_and(|maps| {
            pages::query(&maps, Self::probe as *const () as usize, false).is_ok()
        });
        let scan = File::open("/proc/self/pagemap")
            .is_ok_and(|pagemap| pages::scan_anonymous(&pagemap, 0..4096).is_ok());
        let identity = || {
            let here = File::open("/proc/self/maps")?;
            let process = sys::pidfd_open(own)?;
            let copy = sys::pidfd_getfd(process.as_fd(), here.as_raw_fd())?;
            sys::same_file(copy.as_fd(), here.as_fd())
        };
        Facilities {
            scan,
            query,
            identity: identity().unwrap_or(false),
            compare: sys::same_space(own, own).unwrap_or(false),
        }
    }

    /// A notice for each missing facility: its effect, and the facts that still hold.
    pub(super) fn notices(&self) -> Vec<&'static str> {
        let all = [
            (
                self.scan,
                "PAGEMAP_SCAN is missing (Linux 6.7 has it): first writes are read from pagemap, \
                 which is slower and cannot tell a page that was only read from a written one; so \
                 merges may be predicted that the kernel does not make",
            ),
            (
                self.query,
                "PROCMAP_QUERY is missing (Linux 6.11 has it): single VMAs are looked up in the \
                 whole listing, which is slower but equally exact",
            ),
            (
                self.identity,
                "pidfd_getfd or kcmp is missing or forbidden: open files are told apart by device \
                 and inode; two opens of one file count as one, so merges may be predicted that \
                 the kernel does not make",
            ),
            (
                self.compare,
                "kcmp is missing or forbidden: the flags of clone decide whether two threads share \
                 an address space, which is exact unless a thread rewrites them during the call",
            ),
        ];
        all.into_iter().filter(|(works, _)| !works).map(|(_, text)| text).collect()
    }
}

/// Whether `/proc` belongs to the PID namespace of this process.
pub(super) fn proc_is_ours() -> bool {
    let own = std::process::id().to_string();
    fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own.as_str())
}

/// The differences between this kernel and those that the rules were checked on.
pub(super) fn unchecked() -> Vec<String> {
    let mut out = Vec::new();
    let mut say = |differs: bool, text: &dyn Fn() -> String| out.extend(differs.then(text));
    let is_known = |release: &str| {
        let rest = release.strip_prefix("6.18");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    };
    let release = sys::kernel_release();
    say(!release.as_ref().is_ok_and(|release| is_known(release)), &|| match &release {
        Ok(release) => format!(
            "the rules were checked on Linux 6.18, and this is {release}: differences may come \
             from the kernel"
        ),
        Err(error) => format!("cannot read the kernel's release: {error}"),
    });
    let thp = setting("/sys/kernel/mm/transparent_hugepage/enabled");
    say(!thp.contains("[madvise]"), &|| {
        let thp = if thp.is_empty() { "absent" } else { &thp };
        format!(
            "the rules were checked with transparent huge pages set to madvise; here it is {thp}"
        )
    });
    let overcommit = setting("/proc/sys/vm/overcommit_memory");
    say(overcommit != "0", &|| {
        format!("the rules were checked with vm.overcommit_memory=0; here it is {overcommit}")
    });
    say(setting("/proc/sys/vm/legacy_va_layout") == "1", &|| {
        "vm.legacy_va_layout is on: addresses are chosen bottom-up and not predicted".into()
    });
    say(has_vm_flag("sd"), &|| {
        "this kernel tracks soft-dirty pages, but the rules were not checked with them".into()
    });
    say(sys::names_anonymous_memory(), &|| {
        "this kernel can name anonymous memory, but the rules were not checked with that".into()
    });
    out
}

/// The text of a setting; empty if it cannot be read.
fn setting(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Whether a VMA of this process has the flag of that name now.
fn has_vm_flag(name: &str) -> bool {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut flags = smaps.lines().filter(|line| line.starts_with("VmFlags:"));
    flags.any(|line| line.split(' ').any(|flag| flag == name))
}

/// The profile of this kernel, from its release and settings.
pub fn profile() -> vma::Profile {
    let (mut profile, _) = vma::Profile::for_release(&sys::kernel_release().unwrap_or_default());
    profile.guard_flag = sys::with_guarded_page(|| has_vm_flag("gu")).unwrap_or(false);
    profile.protection_keys = fs::read_to_string("/proc/self/smaps")
        .is_ok_and(|smaps| smaps.lines().any(|line| line.starts_with("ProtectionKey:")));
    profile.honours_noreserve = setting("/proc/sys/vm/overcommit_memory") != "2";
    let most = setting("/proc/sys/vm/max_map_count");
    profile.max_map_count = most.parse().unwrap_or(profile.max_map_count);
    profile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_facility_is_said() {
        let none = Facilities { scan: false, query: false, identity: false, compare: false };
        assert_eq!(none.notices().len(), 4);
        let all = Facilities { scan: true, query: true, identity: true, compare: true };
        assert!(all.notices().is_empty());
        // Probing must not fail on any machine, and must give the same result twice.
        assert_eq!(Facilities::probe(), Facilities::probe());
    }
}
