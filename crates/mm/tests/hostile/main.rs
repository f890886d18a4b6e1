//! Hostile or careless callers: hosts that panic, call back or lie, objects of other machines,
//! numbers at the ends of their types.

#[path = "../common/mod.rs"]
mod common;
mod objects;

use common::*;
use mm::MapFlags;

const AT: usize = 0x4000_0000;
const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);
