//! Medians and ratios.

/// The median; of an even number of values the mean of the middle two, of none 0.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// `a / b`, or 0 where there is nothing to compare with.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// Largest value divided by the smallest; infinite if the smallest is 0 and the largest is not.
pub fn spread(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut least, mut most) = (f64::INFINITY, 0.0f64);
    for value in values {
        least = least.min(value);
        most = most.max(value);
    }
    if most == 0.0 { 1.0 } else { most / least }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
        assert_eq!(ratio(1.0, 0.0), 0.0);
        assert_eq!(spread([2.0, 3.0, 6.0]), 3.0);
        assert_eq!(spread([0.0, 1.0]), f64::INFINITY);
        assert_eq!(spread([0.0, 0.0]), 1.0);
    }
}
