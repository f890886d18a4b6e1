//! Call stacks in a build without the feature `stacks`: there are none.
//!
//! `Options::check` refuses to record call stacks, so `Stacks` has no value here.

use super::sys::Tid;
use crate::{
    observer::Observer,
    record::{MmId, StackId},
};

pub(super) enum Stacks {}

impl Stacks {
    pub(super) fn new(_depth: usize) -> Option<Stacks> {
        None
    }

    pub(super) fn forked(&mut self, _mm: MmId, _child: MmId) {
        match *self {}
    }

    pub(super) fn ended(&mut self, _mm: MmId) {
        match *self {}
    }

    pub(super) fn capture(&mut self, _: MmId, _: Tid, _: &mut dyn Observer) -> StackId {
        match *self {}
    }

    pub(super) fn tell_names(&mut self, _observer: &mut dyn Observer) {
        match *self {}
    }

    pub(super) fn tell_symbols(&mut self, _observer: &mut dyn Observer) {
        match *self {}
    }
}
