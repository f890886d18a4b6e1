//! Medians and how far the values lie apart.

/// The value in the middle.
///
/// # Panics
/// If there is none, or one is not a number.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Half the distance between the quartiles, in per cent of the median.
pub(crate) fn spread(values: &[f64]) -> f64 {
    50.0 * (quantile(values, 0.75) - quantile(values, 0.25)) / median(values)
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = part * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}
