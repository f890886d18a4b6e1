//! Values of JSON objects.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The parts of an object.
pub(crate) fn parsed<'v, T: Deserialize<'v>>(value: &'v Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| error.to_string())
}

/// A text, or an empty one for `null`.
pub(crate) fn empty_if_null<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(text)?.unwrap_or_default())
}
