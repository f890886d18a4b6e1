//! Random calls, compared with plain models.

#[path = "../common/mod.rs"]
mod common;

mod huge_model;
mod object_model;
