//! System registers.

/// Reads a system register that has no effect when it is read.
macro_rules! read_register {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: reading the register has no effect.
        unsafe {
            core::arch::asm!(concat!("mrs {}, ", $register), out(reg) value, options(nomem, nostack, preserves_flags));
        }
        value
    }};
}

/// Writes a system register. To the compiler it may read and write all memory. Unsafe: the effect
/// depends on the register.
macro_rules! set_register {
    ($register:literal, $value:expr) => {
        core::arch::asm!(concat!("msr ", $register, ", {}"), in(reg) $value, options(nostack, preserves_flags))
    };
}
