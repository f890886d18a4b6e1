//! How the kernel comes to be: entry, what the loader says, how many CPUs ACPI knows.

pub(crate) mod acpi;
pub(crate) mod entry;
pub(crate) mod info;
