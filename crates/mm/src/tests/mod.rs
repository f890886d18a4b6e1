//! Tests of whole address spaces.

mod model;
