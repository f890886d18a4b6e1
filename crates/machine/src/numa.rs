//! NUMA nodes, and the policy by which a node is chosen for a frame.

/// A NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u8);

/// The largest possible number of nodes.
pub const MAX_NODES: usize = 8;

/// The node from which a frame comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum NodePolicy {
    /// This CPU's node, or any other if that has no frame.
    #[default]
    Local,
    /// This node, or any other if it has no frame.
    Prefer(NodeId),
    /// This node only.
    Only(NodeId),
}
