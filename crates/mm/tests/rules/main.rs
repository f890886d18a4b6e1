//! The effects of each call, on the machine in software. One program, because building takes longer
//! than running.

#[path = "../common/mod.rs"]
mod common;

mod absent_marks;
mod access;
mod blocks;
mod failure;
mod failure_kinds;
mod faults;
mod files;
mod forks;
mod groups;
mod guards;
mod huge;
mod huge_rules;
mod long_term;
mod monitor_rules;
mod object_marks;
mod objects;
mod promises;
mod shortage;
mod special;
mod untouched;
mod usage;
mod userfault_events;
mod userfaults;
