//! Boxes and `Arc`s whose allocation can fail (I7). Stable Rust aborts without heap instead, so a
//! probe of the same size comes first: it is allocated and freed. An abort needs another CPU that
//! takes the last memory between the two, while a host makes what it makes once.

use alloc::{boxed::Box, collections::TryReserveError, sync::Arc, vec::Vec};
use core::mem::MaybeUninit;

/// The largest block that `Arc` allocates for a `T`: two counts stand before the value.
#[repr(C)]
struct Counted<T>([usize; 2], MaybeUninit<T>);

fn probe<T>() -> Result<(), TryReserveError> {
    let mut block = Vec::<T>::new();
    block.try_reserve_exact(1)?;
    // The optimizer may remove an allocation without a use.
    core::hint::black_box(&block);
    Ok(())
}

pub(crate) fn try_box<T>(value: T) -> Result<Box<T>, TryReserveError> {
    probe::<MaybeUninit<T>>().map(|()| Box::new(value))
}

pub(crate) fn try_arc<T>(value: T) -> Result<Arc<T>, TryReserveError> {
    probe::<Counted<T>>().map(|()| Arc::new(value))
}
