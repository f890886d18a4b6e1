//! Tests of whole address spaces.

mod failure;
mod model;
