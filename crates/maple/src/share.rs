//! Trees that share nodes: [`duplicate`](fn@duplicate) makes one, and the first write to a shared
//! node copies it ([`unshare`]).

mod duplicate;
mod unshare;

pub(crate) use duplicate::duplicate;
pub(crate) use unshare::Copies;
