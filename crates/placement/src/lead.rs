//! Swaps preferred primaries of groups, so that every device leads half of its groups.

use crate::balance::TOLERANCE;
use alloc::vec;
use alloc::vec::Vec;

/// Returns the groups, as indices in `pairs`, whose replicas swap their order. `pairs` hold device
/// indices, preferred primary first; groups with an index of `n` or above are ignored.
pub(crate) fn swaps(n: usize, pairs: &[(usize, usize)], weights: &[u64]) -> Vec<usize> {
    let (mut surplus, mut load) = (vec![0i128; n], vec![0i128; n]);
    let counts = |(a, b): (usize, usize)| a < n && b < n;
    for ((a, b), weight) in pairs.iter().zip(weights).filter(|(pair, _)| counts(**pair)) {
        for (device, sign) in [(*a, 1), (*b, -1)] {
            surplus[device] += sign * i128::from(*weight);
            load[device] += i128::from(*weight);
        }
    }
    let uneven =
        |surplus: &[i128], d: usize| surplus[d].unsigned_abs() as f64 > TOLERANCE * load[d] as f64;
    let mut swapped = vec![false; pairs.len()];
    // Each swap reduces the sum of squares, so this ends.
    loop {
        let before = swapped.clone();
        for (group, (a, b)) in pairs.iter().enumerate().filter(|(_, pair)| counts(**pair)) {
            let (a, b) = if swapped[group] { (*b, *a) } else { (*a, *b) };
            let weight = i128::from(weights[group]);
            let uneven = uneven(&surplus, a) || uneven(&surplus, b);
            if uneven && surplus[a] - surplus[b] > 2 * weight {
                surplus[a] -= 2 * weight;
                surplus[b] += 2 * weight;
                swapped[group] = !swapped[group];
            }
        }
        if swapped == before {
            return (0..pairs.len()).filter(|g| swapped[*g]).collect();
        }
    }
}
