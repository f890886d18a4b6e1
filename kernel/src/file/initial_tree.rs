//! The tree at the start: the folders that programs expect, the devices, `/sys`, and the archive.

use super::device::Device;
use super::inode::refused;
use super::inode::{Inode, InodeKind};
use super::{budget, proc, sysfs, tree};
use crate::errno::Errno;
use crate::machine::Kernel;
use crate::path::Start;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use linux_raw_sys::errno::{EEXIST, EINVAL, ENOENT, ENOSPC};
use linux_raw_sys::general::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use machine::{Cpus, FrameSource};

/// Folders, with their permissions.
const FOLDERS: [(&str, u32); 9] = [
    ("/dev", 0o755),
    ("/dev/shm", 0o1777),
    ("/dev/pts", 0o755),
    ("/tmp", 0o1777),
    ("/sys", 0o555),
    ("/root", 0o700),
    ("/etc", 0o755),
    ("/var", 0o755),
    ("/var/tmp", 0o1777),
];

const DEVICES: [(&str, Device); 9] = [
    ("/dev/null", Device::Null),
    ("/dev/zero", Device::Zero),
    ("/dev/full", Device::Full),
    ("/dev/random", Device::Random),
    ("/dev/urandom", Device::Random),
    ("/dev/tty", Device::Console),
    ("/dev/console", Device::Console),
    ("/dev/stderr", Device::Errors),
    ("/dev/userfaultfd", Device::Monitors),
];

const LINKS: [(&str, &str); 3] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
];

/// Makes the tree. Call it once, before the first program.
///
/// # Errors
/// ENOSPC: no memory.
pub(crate) fn start() -> Result<(), Errno> {
    budget::start();
    tree::start()?;
    for (path, mode) in FOLDERS {
        add(path.as_bytes(), S_IFDIR | mode, b"")?;
    }
    for (path, device) in DEVICES {
        let node = Inode::new(InodeKind::Device(device), 0o666)?;
        put(path.as_bytes(), &node)?;
    }
    for (path, target) in LINKS {
        add(path.as_bytes(), S_IFLNK | 0o777, target.as_bytes())?;
    }
    put(b"/proc", &proc::ProcEntry::Root.node())?;
    cpus()?;
    huge_pages()
}

/// `/sys/devices/system`, as libc and hwloc read it: CPUs, and one node with all memory.
fn cpus() -> Result<(), Errno> {
    const SYSTEM: &str = "/sys/devices/system";
    let count = Kernel.count();
    let all = if count == 1 { "0\n".into() } else { format!("0-{}\n", count - 1) };
    let write = |path: String, text: &str| {
        add(format!("{SYSTEM}/{path}").as_bytes(), S_IFREG | 0o444, text.as_bytes())
    };
    for name in ["online", "possible", "present"] {
        write(format!("cpu/{name}"), &all)?;
        write(format!("node/{name}"), "0\n")?;
    }
    write("cpu/offline".into(), "\n")?;
    write("cpu/kernel_max".into(), &format!("{}\n", count - 1))?;
    for name in ["has_cpu", "has_memory", "has_normal_memory"] {
        write(format!("node/{name}"), "0\n")?;
    }
    for cpu in 0..count {
        let one = format!("{:08x}\n", 1_u64 << cpu.min(31));
        for (name, text) in [
            ("online", "1\n"),
            ("topology/physical_package_id", "0\n"),
            ("topology/core_id", &format!("{cpu}\n")),
            ("topology/thread_siblings", &one),
            ("topology/thread_siblings_list", &format!("{cpu}\n")),
            ("topology/core_siblings_list", &all),
        ] {
            write(format!("cpu/cpu{cpu}/{name}"), text)?;
        }
    }
    write("node/node0/cpulist".into(), &all)?;
    let kib = Kernel.free_frames() * 4;
    write("node/node0/meminfo".into(), &format!("Node 0 MemTotal: {kib:>14} kB\n"))?;
    write("node/node0/distance".into(), "10\n")
}

/// `/sys/kernel/mm/transparent_hugepage`: settings of faults, and numbers. There is no khugepaged,
/// so it scans nothing. The numbers are plain files: a program that writes one changes nothing.
fn huge_pages() -> Result<(), Errno> {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
    for (name, text) in [
        ("use_zero_page", "1\n"),
        ("hpage_pmd_size", "2097152\n"),
        ("khugepaged/defrag", "0\n"),
        ("khugepaged/alloc_sleep_millisecs", "60000\n"),
        ("khugepaged/scan_sleep_millisecs", "10000\n"),
        ("khugepaged/max_ptes_none", "511\n"),
        ("khugepaged/max_ptes_swap", "64\n"),
        ("khugepaged/max_ptes_shared", "256\n"),
        ("khugepaged/pages_to_scan", "0\n"),
    ] {
        add(format!("{FOLDER}/{name}").as_bytes(), S_IFREG | 0o444, text.as_bytes())?;
    }
    sysfs::all().try_for_each(|setting| {
        let node = Inode::new(InodeKind::Setting(setting), 0o644)?;
        put(format!("{FOLDER}/{}", setting.path).as_bytes(), &node)
    })
}

/// Adds an entry of the archive, or one like it, with the folders that lead to it. A regular file
/// replaces one that is there; a folder that is there stays.
///
/// # Errors
/// ENOSPC: no memory. EINVAL: neither file, folder nor link. Those of a walk.
pub(crate) fn add(path: &[u8], mode: u32, data: &[u8]) -> Result<(), Errno> {
    let node = match mode & S_IFMT {
        S_IFDIR => Inode::folder(tree::root(), mode)?,
        S_IFLNK => Inode::new(InodeKind::Link(data.to_vec()), mode)?,
        S_IFREG => {
            let node = Inode::file(path, mode)?;
            if let InodeKind::File(memory) = &node.kind
                && memory.write(0, data).map_err(refused)? < data.len()
            {
                return Err(Errno(ENOSPC));
            }
            node
        }
        _ => return Err(Errno(EINVAL)),
    };
    put(path, &node)
}

/// Puts an inode into the tree.
fn put(path: &[u8], node: &Arc<Inode>) -> Result<(), Errno> {
    let start = Start { folder: Arc::clone(tree::root()), pid: 0 };
    // The folders that lead to it.
    let ends = path.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/');
    for (end, _) in ends {
        let found = start.walk(&path[..end], true)?;
        if found.node.is_none() {
            let folder = Inode::folder(&found.parent, 0o755)?;
            tree::insert(&found.parent, &found.name, &folder)?;
        }
    }
    let found = start.walk(path, false)?;
    if let InodeKind::Folder(folder) = &node.kind {
        crate::lock::lock(folder).parent = Arc::downgrade(&found.parent);
    }
    match &found.node {
        Some(old) if old.is_folder() && node.is_folder() => {
            return old.set_mode(node.mode());
        }
        Some(old) if old.is_folder() => return Err(Errno(EEXIST)),
        Some(_) => tree::remove(&found, false)?,
        None if !found.is_entry() => return Err(Errno(ENOENT)),
        None => {}
    }
    tree::insert(&found.parent, &found.name, node)
}
