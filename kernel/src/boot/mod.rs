//! Boot: the entry, the loader's data, and ACPI's list of CPUs.

pub(crate) mod acpi;
pub(crate) mod entry;
pub(crate) mod info;
