//! The virtio-serial device, among the places that the device tree names.

use super::boot::info::tree;
use crate::channel::device::Registers;
use crate::channel::mmio;

/// Looks for the device.
pub(crate) fn find() -> Option<Registers> {
    mmio::find(tree()?.all_registers("virtio_mmio")?)
}
