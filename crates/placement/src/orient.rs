//! Chooses the preferred primary of each pair, so that each device leads half of its pairs.
//!
//! A group is an edge from its preferred primary to the other replica. First each edge gets the
//! direction that looks best, then paths from devices that lead too often to devices that lead too
//! rarely are reversed. Without older groups the surplus of every device ends at -1, 0 or 1.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Directs edges (first, second) so that `surplus` (times first minus times second, so far) comes
/// as close to zero as possible everywhere.
pub(crate) fn orient(edges: &mut [(usize, usize)], mut surplus: Vec<i64>) {
    let n = surplus.len();
    let mut ahead = vec![0i32; n * n];
    for edge in edges.iter_mut() {
        let (a, b) = *edge;
        // The device with the smaller surplus leads; if equal, the one that led less in this pair.
        if (surplus[b], ahead[b * n + a]) < (surplus[a], ahead[a * n + b]) {
            *edge = (b, a);
        }
        ahead[edge.0 * n + edge.1] += 1;
        surplus[edge.0] += 1;
        surplus[edge.1] -= 1;
    }
    let mut net = Net::new(n, edges);
    for from in 0..n {
        while surplus[from] > 1 {
            let Some(path) = net.way(from, false, |d| surplus[d] < 0) else { break };
            let end = net.edges[path[0]].1;
            path.into_iter().for_each(|e| net.turn(e));
            surplus[from] -= 2;
            surplus[end] += 2;
        }
    }
    for to in 0..n {
        // The mirror image, for devices that lead too rarely although none leads too often.
        while surplus[to] < -1 {
            let Some(path) = net.way(to, true, |d| surplus[d] > 0) else { break };
            let from = net.edges[path[0]].0;
            path.into_iter().for_each(|e| net.turn(e));
            surplus[from] -= 2;
            surplus[to] += 2;
        }
    }
}

/// The edges, and the indices of those that begin and end at each device.
struct Net<'a> {
    edges: &'a mut [(usize, usize)],
    out: Vec<Vec<usize>>,
    into: Vec<Vec<usize>>,
}

impl Net<'_> {
    fn new(n: usize, edges: &mut [(usize, usize)]) -> Net<'_> {
        let (mut out, mut into) = (vec![Vec::new(); n], vec![Vec::new(); n]);
        for (i, (a, b)) in edges.iter().enumerate() {
            out[*a].push(i);
            into[*b].push(i);
        }
        Net { edges, out, into }
    }

    /// Returns the shortest path along edges, or backwards, from one device to another one that
    /// satisfies `ends`: its edges, the last one first.
    fn way(&self, from: usize, back: bool, ends: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let lists = if back { &self.into } else { &self.out };
        let other = |e: usize| if back { self.edges[e].0 } else { self.edges[e].1 };
        let mut came = vec![None; lists.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            for edge in &lists[at] {
                let to = other(*edge);
                if to == from || came[to].is_some() {
                    continue;
                }
                came[to] = Some((*edge, at));
                if ends(to) {
                    return Some(trace(&came, from, to));
                }
                queue.push_back(to);
            }
        }
        None
    }

    fn turn(&mut self, edge: usize) {
        let (a, b) = self.edges[edge];
        self.edges[edge] = (b, a);
        for (list, from, to) in [(&mut self.out, a, b), (&mut self.into, b, a)] {
            list[from].retain(|e| *e != edge);
            list[to].push(edge);
        }
    }
}

fn trace(came: &[Option<(usize, usize)>], from: usize, to: usize) -> Vec<usize> {
    let (mut path, mut at) = (Vec::new(), to);
    while at != from {
        let (edge, before) = came[at].expect("each step was recorded");
        path.push(edge);
        at = before;
    }
    path
}
