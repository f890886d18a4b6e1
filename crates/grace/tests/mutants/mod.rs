//! Helpers of the loom models.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;

/// Asserts that the mutant fails, and fails by the model's own check, not by an error in the model.
pub(crate) fn caught(run: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the mutant lives");
    let report = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
    let seen = report.contains("Causality violation") || report.contains("left == right");
    assert!(seen, "stopped by something else: {report}");
}
