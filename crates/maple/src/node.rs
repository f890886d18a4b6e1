//! Nodes, and all loops over the contents of one node.
//!
//! Each module uses only modules above it in this table.
//!
//! | module | has |
//! |---|---|
//! | `copy_words`, `prefetch`, `word`, `refs`, `link` | copies of a few words, prefetches, words of leaves, reference counts, tagged pointers |
//! | `leaf`, `holes`, `inner` | the two kinds of nodes |
//! | `follow` | from a link to its node |
//! | `pack`, `reform` | the forms of leaves |
//! | `change`, `edit` | changes of a leaf |
//! | `search`, `starts` | scalar searches, and bounds as whole words |
//! | `job` | `Search`, the trait of all implementations |
//! | `simd` (`change`, `splice`: of a leaf, of an inner node), `neon` or `no_simd` | the other implementations, and the choice |
//! | `load` | lookups, and the choice of a search |
//!
//! Paths (`descent`) use nodes. Nodes know no paths.

mod change;
mod copy_words;
mod edit;
mod follow;
mod holes;
mod inner;
mod job;
mod leaf;
mod link;
mod load;
mod pack;
mod prefetch;
mod reform;
mod refs;
mod search;
// SIMD where it may be used: not in kernels, and not under checkers that do not support it.
#[cfg_attr(
    all(
        target_arch = "aarch64",
        target_feature = "neon",
        not(any(miri, loom, fuzzing, samara_small_nodes, feature = "small"))
    ),
    path = "node/neon.rs"
)]
#[cfg_attr(
    not(all(
        not(any(miri, loom, fuzzing, samara_small_nodes, feature = "small")),
        any(
            all(target_arch = "x86_64", any(feature = "std", target_feature = "avx2")),
            all(target_arch = "aarch64", target_feature = "neon"),
        ),
    )),
    path = "node/no_simd.rs"
)]
mod simd;
mod starts;
pub(crate) mod word;

pub(crate) use change::{Bound, Change, Run, words};
#[cfg(not(loom))]
pub(crate) use copy_words::copy_up;
pub(crate) use edit::{Edit, Fit};
pub(crate) use follow::free_node;
pub(crate) use inner::{Inner, Item, Splice};
pub(crate) use job::{Job, Search};
pub(crate) use leaf::{Body, Cell, Leaf, LeafSlot};
pub(crate) use link::{AtomicLink, Link};
pub(crate) use load::{load, run};
pub(crate) use pack::{Slots, cut, is_roomy, pack};
pub(crate) use search::inner_scalar as child_of;
pub(crate) use starts::{LANES, Starts};
