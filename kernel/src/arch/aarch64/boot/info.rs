//! The loader's data: a flattened device tree at the start of memory.

use crate::arch::place::{LOADER, MEMORY};
use crate::layout::direct;
use core::ptr::with_exposed_provenance;
use hermit_dtb::Dtb;
use machine::{MAX_CPUS, PhysAddr, PhysRange};

/// The device tree.
pub(crate) struct Tree(Dtb<'static>);

/// The device tree, where QEMU puts it for a kernel that is an ELF file. The kernel gives that
/// memory to nothing else ([`BootInfo::archive`]), and its tables map it.
pub(crate) fn tree() -> Option<Tree> {
    let at = with_exposed_provenance(direct(PhysAddr::new(MEMORY)).get() as usize);
    // SAFETY: the memory is mapped and never written. It is a tree if it begins with the magic
    // number.
    unsafe { Dtb::from_raw(at) }.map(Tree)
}

impl Tree {
    /// A property of a node.
    // Inlined several times into one function, it takes the compiler hours.
    #[inline(never)]
    fn property(&self, node: &str, name: &str) -> Option<&'static [u8]> {
        self.0.get_property(node, name)
    }

    /// The range of this number in the property `reg` of a node. Addresses and sizes have 64 bits.
    pub(crate) fn registers(&self, node: &str, number: usize) -> Option<PhysRange> {
        let (pairs, _) = self.property(node, "reg")?.as_chunks::<16>();
        let (start, len) = pairs.get(number)?.split_at(8);
        let [start, len] = [start, len].map(|bytes| bytes.try_into().map(u64::from_be_bytes));
        PhysRange::new(PhysAddr::new(start.ok()?), len.ok()?)
    }

    /// Whether PSCI wants `smc`, and not `hvc`.
    pub(super) fn starts_cpus_by_smc(&self) -> bool {
        self.property("/psci", "method").is_some_and(|method| method.starts_with(b"smc"))
    }

    /// Calls `found` with the affinity of each CPU, which is in the name of its node.
    #[inline(never)]
    fn affinities(&self, found: &mut dyn FnMut(u64)) {
        let names = self.0.enum_subnodes("/cpus").filter_map(|name| name.strip_prefix("cpu@"));
        names.filter_map(|number| u64::from_str_radix(number, 16).ok()).for_each(found);
    }
}

/// The loader's data.
pub(crate) struct BootInfo(Tree);

impl BootInfo {
    /// Reads the device tree.
    ///
    /// # Safety
    /// The direct map exists, and no code writes to the loader's data.
    pub(crate) unsafe fn read(_: u32) -> Result<BootInfo, &'static str> {
        tree().map(BootInfo).ok_or("no device tree at the start of memory: start QEMU with -kernel")
    }

    /// The command line; empty if there is none.
    pub(crate) fn command_line(&self) -> &[u8] {
        let line = self.0.property("/chosen", "bootargs").unwrap_or_default();
        line.strip_suffix(&[0]).unwrap_or(line)
    }

    /// What the loader has put into memory, and stays there: the device tree.
    pub(crate) fn archive(&self) -> Option<PhysRange> {
        PhysRange::new(PhysAddr::new(MEMORY), LOADER)
    }

    /// The usable memory, including the kernel's own and the loader's.
    pub(crate) fn memory(&self) -> impl Iterator<Item = PhysRange> + '_ {
        (0..).map_while(|number| self.0.registers("/memory", number))
    }

    /// The CPUs, and a complaint if some are missing.
    ///
    /// # Safety
    /// None.
    pub(crate) unsafe fn cpus(&self) -> (CpuList, Option<&'static str>) {
        // Without flags: bits 0 to 23 and 32 to 39.
        let here = read_register!("mpidr_el1") & 0xff_00ff_ffff;
        let mut list = CpuList { ids: [0; MAX_CPUS], count: 0 };
        list.add(here);
        let mut all = true;
        self.0.affinities(&mut |id| all &= list.add(id));
        (list, (!all).then_some("some CPUs are left out: they are too many"))
    }
}

/// The CPUs, by their affinities. The first is the calling CPU.
pub(crate) struct CpuList {
    ids: [u64; MAX_CPUS],
    count: usize,
}

impl CpuList {
    /// The affinities, in the order of the CPU numbers.
    pub(crate) fn ids(&self) -> &[u64] {
        &self.ids[..self.count]
    }

    /// Adds a CPU. Returns false if there is no room.
    fn add(&mut self, id: u64) -> bool {
        if self.ids().contains(&id) {
            return true;
        }
        let room = self.count < MAX_CPUS;
        if room {
            self.ids[self.count] = id;
            self.count += 1;
        }
        room
    }
}
