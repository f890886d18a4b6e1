//! Why a range of frames could not be added.

use crate::storage::NoMemory;
use core::fmt;

use crate::{CpuId, Frame, FrameRange};
use crate::{MAX_NODES, NodeId};

/// The reason why a range of frames could not be added. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FramesError {
    /// A part of the range lies outside the span that the source was created for.
    BeyondSpan(FrameRange),
    /// The frame was added before.
    Twice(Frame),
    /// The node's number is too large: it must be less than [`MAX_NODES`].
    NoSuchNode(NodeId),
    /// The CPU does not exist.
    NoSuchCpu(CpuId),
    /// The heap has too little memory.
    OutOfMemory,
}

impl fmt::Display for FramesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FramesError::BeyondSpan(range) => {
                write!(
                    f,
                    "frames {range:?} lie outside the span of this source: create it with a \
                     larger span"
                )
            }
            FramesError::Twice(frame) => {
                write!(f, "frame {frame} was added before: add each range once")
            }
            FramesError::NoSuchNode(NodeId(node)) => {
                write!(f, "node {node} is too large: use a number below {MAX_NODES}")
            }
            FramesError::NoSuchCpu(cpu) => {
                write!(f, "there is no {cpu}: create the source for more CPUs")
            }
            FramesError::OutOfMemory => {
                f.write_str("out of memory: no room for the states of the frames")
            }
        }
    }
}

impl core::error::Error for FramesError {}

impl From<NoMemory> for FramesError {
    fn from(_: NoMemory) -> Self {
        FramesError::OutOfMemory
    }
}
