//! A hash table for ids that are assigned in ascending order, for lookups on every I/O. Such an id
//! serves as its own hash and rarely collides. Removing an entry is slow.

use crate::ids::Id;
use alloc::vec::Vec;

/// Values by id. Iterates in insertion order.
#[derive(Clone, Debug)]
pub struct IdMap<K, V> {
    entries: Vec<(K, V)>,
    /// Open addressing by the id's lowest bits: the entry's index plus 1, or 0 if free. At least
    /// half are free.
    places: Vec<u32>,
}

impl<K, V> Default for IdMap<K, V> {
    fn default() -> IdMap<K, V> {
        IdMap { entries: Vec::new(), places: alloc::vec![0; 8] }
    }
}

impl<K: Id, V> IdMap<K, V> {
    /// Returns the entry's index, or the free place for this id.
    #[inline]
    fn find(&self, id: K) -> Result<usize, usize> {
        let mask = self.places.len() - 1;
        let mut place = id.number() as usize & mask;
        loop {
            match self.places[place] {
                0 => return Err(place),
                n if self.entries[n as usize - 1].0 == id => return Ok(n as usize - 1),
                _ => place = (place + 1) & mask,
            }
        }
    }

    /// Returns the value of this id.
    #[inline]
    pub fn get(&self, id: K) -> Option<&V> {
        self.find(id).ok().map(|i| &self.entries[i].1)
    }

    /// Returns the value of this id.
    #[inline]
    pub fn get_mut(&mut self, id: K) -> Option<&mut V> {
        self.find(id).ok().map(|i| &mut self.entries[i].1)
    }

    /// Returns the value of this id, and creates it first if there is none.
    #[inline]
    pub fn get_or_insert_with(&mut self, id: K, make: impl FnOnce() -> V) -> &mut V {
        let index = self.find(id).unwrap_or_else(|place| self.push(place, id, make()));
        &mut self.entries[index].1
    }

    /// Inserts a value; replaces the previous one of this id.
    pub fn insert(&mut self, id: K, value: V) {
        match self.find(id) {
            Ok(index) => self.entries[index].1 = value,
            Err(place) => drop(self.push(place, id, value)),
        }
    }

    /// Removes an entry. Takes time in proportion to the number of entries.
    #[cold]
    pub fn remove(&mut self, id: K) -> Option<V> {
        let index = self.find(id).ok()?;
        let (_, value) = self.entries.remove(index);
        self.fill_places(self.places.len());
        Some(value)
    }

    fn push(&mut self, place: usize, id: K, value: V) -> usize {
        self.entries.push((id, value));
        self.places[place] = self.entries.len() as u32;
        if self.entries.len() * 2 >= self.places.len() {
            self.fill_places(self.places.len() * 2);
        }
        self.entries.len() - 1
    }

    fn fill_places(&mut self, size: usize) {
        self.places = alloc::vec![0; size];
        for index in 0..self.entries.len() {
            let place = self.find(self.entries[index].0).expect_err("each id is in once");
            self.places[place] = index as u32 + 1;
        }
    }

    /// Iterates over the ids.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.entries.iter().map(|(id, _)| *id)
    }

    /// Iterates over the values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// Iterates over the values.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// Iterates over ids and values.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().map(|(id, value)| (*id, value))
    }

    /// Iterates over ids and values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.entries.iter_mut().map(|(id, value)| (*id, value))
    }
}

impl<K, V> IntoIterator for IdMap<K, V> {
    type Item = (K, V);
    type IntoIter = alloc::vec::IntoIter<(K, V)>;
    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<K: Id, V> FromIterator<(K, V)> for IdMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> IdMap<K, V> {
        let mut map = IdMap::default();
        all.into_iter().for_each(|(id, value)| map.insert(id, value));
        map
    }
}

impl<K: Id, V> core::ops::Index<K> for IdMap<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, id: K) -> &V {
        self.get(id).expect("the id is in")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupId, Prng};
    use alloc::collections::BTreeMap;

    #[test]
    fn finds_what_a_tree_finds_also_where_ids_collide() {
        let mut prng = Prng::new(1);
        let (mut map, mut tree) = (IdMap::default(), BTreeMap::new());
        for round in 0..4000 {
            let low = prng.below(64) as u32;
            let id = GroupId(if prng.chance(0.5) { low } else { low << 20 });
            match round % 4 {
                0 => {
                    map.insert(id, round);
                    tree.insert(id, round);
                }
                1 => assert_eq!(
                    map.get_or_insert_with(id, || round),
                    tree.entry(id).or_insert(round)
                ),
                2 if prng.chance(0.5) => assert_eq!(map.remove(id), tree.remove(&id)),
                _ => assert_eq!(map.get(id), tree.get(&id)),
            }
        }
        let mut all: Vec<_> = map.into_iter().collect();
        all.sort_unstable();
        assert_eq!(all, tree.into_iter().collect::<Vec<_>>());
    }
}
