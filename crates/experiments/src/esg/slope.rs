//! The slope of a law of growth.

/// Returns the slope of ln y over ln x by least squares; 1 if y grows as x. `None` for fewer than
/// two different x.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let shown = points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0);
    let logs: Vec<(f64, f64)> = shown.map(|p| (p.0.ln(), p.1.ln())).collect();
    let count = logs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let wide: f64 = logs.iter().map(|p| (p.0 - x).powi(2)).sum();
    let both: f64 = logs.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    (wide > 1e-9).then(|| both / wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_of_growth_have_their_slopes() {
        let law = |power: f64| -> Vec<(f64, f64)> {
            [3.0, 32.0, 64.0, 128.0].map(|n: f64| (n, 7.0 * n.powf(power))).to_vec()
        };
        for power in [0.0, 0.88, 1.0, 1.5] {
            assert!((slope(&law(power)).unwrap() - power).abs() < 1e-9, "{power}");
        }
        // One outlier between the ends moves it a little.
        let mut points = law(1.0);
        points[1].1 *= 1.1;
        assert!((slope(&points).unwrap() - 1.0).abs() < 0.02);
    }

    #[test]
    fn one_size_has_no_slope() {
        assert_eq!(slope(&[]), None);
        assert_eq!(slope(&[(3.0, 1.0)]), None);
        assert_eq!(slope(&[(3.0, 1.0), (3.0, 2.0)]), None);
        assert_eq!(slope(&[(3.0, 1.0), (6.0, 0.0)]), None);
    }
}
