//! A frame source for models: single frames on a stack, behind a lock that loom knows.
//!
//! The states of the frames are those of the real source, with the real counts. Only the lists of
//! free frames differ: their locks are of another crate, so loom would not see what they order.

use crate::{Frame, FrameError, FrameInfo, FrameRange, NodeId};
use alloc::vec::Vec;
use loom::sync::Mutex;

/// A frame source for models. A frame that was freed last is allocated first.
#[derive(Debug)]
pub struct ModelFrames {
    span: FrameRange,
    infos: Vec<FrameInfo>,
    free: Mutex<Vec<Frame>>,
}

impl ModelFrames {
    /// All frames of the range are free. Called within an execution of a model.
    pub fn new(span: FrameRange) -> Self {
        let frames = span.start().number()..span.start().number() + span.len();
        let infos: Vec<_> = frames.clone().map(|_| FrameInfo::new()).collect();
        infos.iter().for_each(|info| info.set_node(NodeId(0)));
        let free = Mutex::new(frames.rev().filter_map(Frame::new).collect());
        ModelFrames { span, infos, free }
    }

    /// As [`FrameSource::alloc`](crate::FrameSource::alloc), for single frames. `forget` is called
    /// with the frame before another CPU can know it.
    ///
    /// # Errors
    /// [`FrameError::OutOfFrames`].
    pub fn alloc(&self, order: u8, forget: impl FnOnce(Frame)) -> Result<Frame, FrameError> {
        let none = FrameError::OutOfFrames { order };
        if order != 0 {
            return Err(none);
        }
        let frame = self.stack().pop().ok_or(none)?;
        forget(frame);
        let info = self.info(frame).ok_or(FrameError::NotOurs(frame))?;
        // SAFETY: it was free, and has left the stack.
        unsafe { info.allocate(0) };
        Ok(frame)
    }

    /// As [`FrameSource::recycle`](crate::FrameSource::recycle).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
        // SAFETY: passed on.
        unsafe { info.recycle() };
        self.stack().push(frame);
    }

    /// The state of a frame.
    pub fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        let index = frame.number().checked_sub(self.span.start().number())?;
        self.infos.get(usize::try_from(index).ok()?)
    }

    /// The number of free frames.
    pub fn free_frames(&self) -> usize {
        self.stack().len()
    }

    fn stack(&self) -> loom::sync::MutexGuard<'_, Vec<Frame>> {
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
