//! The median of values, and their spread.

/// The median. NaN if there are no values.
///
/// ```
/// assert_eq!(report::median(&[3.0, 1.0, 2.0]), 2.0);
/// assert_eq!(report::median(&[4.0, 1.0]), 2.5);
/// assert!(report::median(&[]).is_nan());
/// ```
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Half the distance between the quartiles, in per cent of the median. NaN if the median is 0.
///
/// ```
/// assert_eq!(report::spread(&[90.0, 100.0, 110.0]), 5.0);
/// assert!(report::spread(&[-1.0, 0.0, 1.0]).is_nan());
/// ```
pub fn spread(values: &[f64]) -> f64 {
    let spread = 50.0 * (quantile(values, 0.75) - quantile(values, 0.25)) / median(values);
    if spread.is_finite() { spread } else { f64::NAN }
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = part * sorted.len().saturating_sub(1) as f64;
    // `floor` is not in `core`. `at` is not negative.
    let low = at as usize;
    let part = at - low as f64;
    match (sorted.get(low), sorted.get(low + 1)) {
        (Some(value), Some(next)) => value + (next - value) * part,
        (Some(value), None) => *value,
        _ => f64::NAN,
    }
}
