//! The virtio-serial device, among the places that the device tree names.

use super::boot::info::tree;
use crate::channel::{Registers, find_mmio};

/// Looks for the device.
pub(crate) fn find() -> Option<Registers> {
    find_mmio(tree()?.all_registers("virtio_mmio")?)
}
