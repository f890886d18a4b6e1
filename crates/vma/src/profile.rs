//! The rules that differ between kernel versions and settings, in one place.

/// The behaviour of one kernel where kernels differ. [`Profile::LINUX_6_18`] was checked against
/// recorded programs. Other profiles are marked as unchecked, so that a mirror can warn.
///
/// ```
/// use vma::Profile;
/// let (profile, checked) = Profile::for_release("6.1.0-amd64");
/// assert!(!checked && !profile.moves_many);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Bytes kept free below a VMA that grows downwards.
    pub stack_guard_gap: usize,
    /// The lowest address of a map without a fixed address.
    pub min_address: usize,
    /// The first byte above the user half.
    pub task_size: usize,
    /// The limit of VMAs in one address space.
    pub max_map_count: usize,
    /// Whether anonymous maps with a multiple of 2 MiB as length are aligned to 2 MiB.
    pub huge_aligned_anon: bool,
    /// Whether MAP_NORESERVE has an effect (overcommit is not 2).
    pub honours_noreserve: bool,
    /// If set, MADV_GUARD_INSTALL sets [`VmFlags::MAYBE_GUARD`](crate::VmFlags::MAYBE_GUARD) on a
    /// VMA, and gives an anon_vma only to an anonymous one (6.19, and late releases of 6.18). If
    /// not set, every VMA with guard pages gets an anon_vma and no flag.
    pub guard_flag: bool,
    /// Whether the processor and the kernel have protection keys. If so, execute-only memory gets
    /// one ([`Writer::pkey_alloc`](crate::Writer::pkey_alloc)).
    pub protection_keys: bool,
    /// Whether mremap to a fixed address moves several VMAs in one call (since 6.17).
    pub moves_many: bool,
}

impl Profile {
    /// Linux 6.18 on x86-64 with 4-level page tables, overcommit 0 or 1, transparent huge pages
    /// compiled in.
    pub const LINUX_6_18: Profile = Profile {
        stack_guard_gap: 256 * crate::PAGE_SIZE,
        min_address: 0x1_0000,
        task_size: 0x7fff_ffff_f000,
        max_map_count: 65530,
        huge_aligned_anon: true,
        honours_noreserve: true,
        guard_flag: false,
        protection_keys: false,
        moves_many: true,
    };

    /// The profile nearest to a release such as `6.12.5-amd64`, and whether its rules were checked.
    /// A release that cannot be parsed gets the newest profile, unchecked.
    pub fn for_release(release: &str) -> (Profile, bool) {
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().ok());
        let version = (numbers.next().flatten(), numbers.next().flatten());
        let newest = Profile::LINUX_6_18;
        match version {
            (Some(6), Some(18)) => (newest, true),
            (Some(major), Some(minor)) => (
                Profile {
                    moves_many: (major, minor) >= (6, 17),
                    huge_aligned_anon: (major, minor) >= (6, 7),
                    ..newest
                },
                false,
            ),
            _ => (newest, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_checked_releases_are_called_checked() {
        assert_eq!(Profile::for_release("6.18.44-fc"), (Profile::LINUX_6_18, true));
        let (old, checked) = Profile::for_release("6.1.0-amd64");
        assert!(!checked && !old.moves_many && !old.huge_aligned_anon);
        assert!(!Profile::for_release("unknown").1);
    }
}
