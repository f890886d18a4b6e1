//! The effects of each call, on the machine in software. One program, because building takes longer
//! than running.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod errors;
mod every_failure;
mod failure;
mod found;
mod idle;
mod interrupts;
mod refused;
mod requests;
mod shortage;
mod space;
