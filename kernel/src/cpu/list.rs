//! The CPUs that the loader's data names, before there is a heap.

use super::area::HardwareId;
use machine::MAX_CPUS;

/// The CPUs, in the order of their numbers. The first is the calling CPU.
pub(crate) struct CpuList {
    ids: [HardwareId; MAX_CPUS],
    count: usize,
}

impl CpuList {
    pub(crate) const fn new() -> Self {
        CpuList { ids: [0; MAX_CPUS], count: 0 }
    }

    pub(crate) fn ids(&self) -> &[HardwareId] {
        &self.ids[..self.count]
    }

    /// Adds a CPU, if it is not there yet. Returns false if there is no room.
    pub(crate) fn add(&mut self, id: HardwareId) -> bool {
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
