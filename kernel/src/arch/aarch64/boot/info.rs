//! The loader's data: a flattened device tree at the start of memory.

use crate::arch::place::{LOADER, MEMORY};
use crate::cpu::list::CpuList;
use crate::layout::direct;
use core::ptr::with_exposed_provenance;
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property, ToCellInt};
use machine::{PhysAddr, PhysRange};

/// The device tree.
#[derive(Clone, Copy)]
pub(crate) struct Tree(Fdt<'static>);

/// The device tree, where QEMU puts it for a kernel that is an ELF file. The kernel gives that
/// memory to nothing else ([`BootInfo::archive`]), and its tables map it.
pub(crate) fn tree() -> Option<Tree> {
    let at = with_exposed_provenance(direct(PhysAddr::new(MEMORY)).get() as usize);
    // SAFETY: the memory is mapped and never written. QEMU has put a tree there.
    unsafe { Fdt::from_raw(at) }.ok().map(Tree)
}

impl Tree {
    /// The range of this number in the property `reg` of a node.
    pub(crate) fn registers(&self, node: &str, number: usize) -> Option<PhysRange> {
        let range = self.0.find_node(node)?.reg().ok()??.nth(number)?;
        PhysRange::new(PhysAddr::new(range.address().ok()?), range.size().ok()?)
    }

    /// The range from the first to the last register of all nodes with this name.
    pub(crate) fn all_registers(&self, name: &str) -> Option<PhysRange> {
        let root = self.0.root();
        let nodes = root.children().filter(|node| node.name_without_address() == name);
        let ranges = nodes.filter_map(|node| {
            let range = node.reg().ok()??.next()?;
            PhysRange::new(PhysAddr::new(range.address().ok()?), range.size().ok()?)
        });
        let both = ranges.map(|range| (range.start(), range.last()));
        let (first, last) = both.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))?;
        PhysRange::new(first, last?.get() - first.get() + 1)
    }

    /// Whether PSCI wants `smc`, and not `hvc`.
    pub(super) fn starts_cpus_by_smc(&self) -> bool {
        let node = self.0.find_node("/psci");
        let method = node.as_ref().and_then(|node| node.property("method"));
        method.is_some_and(|method| method.value().starts_with(b"smc"))
    }

    /// Calls `found` with the affinity of each CPU.
    fn affinities(&self, found: &mut dyn FnMut(u64)) {
        let Ok(cpus) = self.0.cpus() else { return };
        let ids = cpus.cpus().filter_map(|cpu| cpu.ids().ok()?.next());
        ids.filter_map(|id| id.to_int().ok()).for_each(found);
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
        let node = self.0.0.find_node("/chosen");
        let line = node.as_ref().and_then(|node| node.property("bootargs"));
        let line = line.and_then(|line| line.value_as::<&'static str>().ok());
        line.unwrap_or_default().as_bytes()
    }

    /// The memory with the loader's device tree, which stays there.
    pub(crate) fn archive(&self) -> Option<PhysRange> {
        PhysRange::new(PhysAddr::new(MEMORY), LOADER)
    }

    /// The usable memory, including the kernel's own and the loader's.
    pub(crate) fn memory(&self) -> impl Iterator<Item = PhysRange> + '_ {
        (0..).map_while(|number| self.0.registers("/memory", number))
    }

    /// The CPUs, by their affinities, and a complaint if some are missing.
    ///
    /// # Safety
    /// The device tree is unmodified.
    pub(crate) unsafe fn cpus(&self) -> (CpuList, Option<&'static str>) {
        // Without flags: bits 0 to 23 and 32 to 39.
        let here = read_register!("mpidr_el1") & 0xff_00ff_ffff;
        let mut list = CpuList::new();
        list.add(here);
        let mut all = true;
        self.0.affinities(&mut |id| all &= list.add(id));
        (list, (!all).then_some("some CPUs are left out: they are too many"))
    }
}
