//! Who of a pair leads: each device as often first as second.
//!
//! A group is an edge from its preferred primary to the other replica. First each edge is turned the
//! way that looks best, then paths from devices that lead too often to devices that lead too rarely
//! are turned around. Without older groups the surplus of every device ends at -1, 0 or 1.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Turns edges (first, second) so that `surplus` (times first minus times second, so far) comes as
/// near to zero as possible everywhere.
pub(crate) fn orient(edges: &mut [(usize, usize)], mut surplus: Vec<i64>) {
    let n = surplus.len();
    let mut ahead = vec![0i32; n * n];
    for edge in edges.iter_mut() {
        let (a, b) = *edge;
        // The less burdened one leads; among equals the one that led less in this very pair.
        if (surplus[b], ahead[b * n + a]) < (surplus[a], ahead[a * n + b]) {
            *edge = (b, a);
        }
        ahead[edge.0 * n + edge.1] += 1;
        surplus[edge.0] += 1;
        surplus[edge.1] -= 1;
    }
    for from in 0..n {
        while surplus[from] > 1 {
            let Some(path) = way_down(edges, &surplus, from) else { break };
            let end = edges[*path.last().expect("a way has an edge")].1;
            path.into_iter().for_each(|e| edges[e] = (edges[e].1, edges[e].0));
            surplus[from] -= 2;
            surplus[end] += 2;
        }
    }
    for to in 0..n {
        // The mirror image: what leads too rarely although nobody leads too often.
        while surplus[to] < -1 {
            let Some(from) = (0..n).find(|d| {
                surplus[*d] > 0
                    && way_down(edges, &surplus, *d).is_some_and(|w| edges[w[w.len() - 1]].1 == to)
            }) else {
                break;
            };
            let path = way_down(edges, &surplus, from).expect("found just now");
            path.into_iter().for_each(|e| edges[e] = (edges[e].1, edges[e].0));
            surplus[from] -= 2;
            surplus[to] += 2;
        }
    }
}

/// A shortest way along edges from `from` to a device that leads too rarely.
fn way_down(edges: &[(usize, usize)], surplus: &[i64], from: usize) -> Option<Vec<usize>> {
    let mut out = vec![Vec::new(); surplus.len()];
    edges.iter().enumerate().for_each(|(i, (a, _))| out[*a].push(i));
    let mut came = vec![None; surplus.len()];
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        for edge in &out[at] {
            let to = edges[*edge].1;
            if to == from || came[to].is_some() {
                continue;
            }
            came[to] = Some(*edge);
            if surplus[to] < 0 {
                return Some(trace(edges, &came, from, to));
            }
            queue.push_back(to);
        }
    }
    None
}

fn trace(edges: &[(usize, usize)], came: &[Option<usize>], from: usize, to: usize) -> Vec<usize> {
    let (mut path, mut at) = (Vec::new(), to);
    while at != from {
        let edge = came[at].expect("each step was recorded");
        path.push(edge);
        at = edges[edge].0;
    }
    path.reverse();
    path
}
