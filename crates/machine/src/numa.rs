//! NUMA nodes, and the policy by which a node is chosen for a frame.

/// A NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u8);

/// The node of a frame that is nowhere.
pub(crate) const NO_NODE: NodeId = NodeId(u8::MAX);

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
