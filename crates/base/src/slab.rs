//! A table of things in flight with a fixed capacity. A key carries a generation, so a late
//! completion for a removed entry finds nothing rather than another entry.

use alloc::vec::Vec;

/// A bounded table. Keys of different generations never match.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> Slab<T> {
    /// Creates an empty table that never holds more than `capacity` entries (at most 2^32 - 1).
    pub fn new(capacity: usize) -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new(), capacity: capacity.min(u32::MAX as usize) }
    }

    /// Inserts a value and returns its key; returns the value if the table is full.
    pub fn insert(&mut self, value: T) -> Result<u64, T> {
        if self.is_full() {
            return Err(value);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.1 = Some(value);
        Ok(u64::from(entry.0) << 32 | u64::from(index))
    }

    fn entry(&self, key: u64) -> Option<&(u32, Option<T>)> {
        self.entries.get(key as u32 as usize).filter(|e| e.0 == (key >> 32) as u32)
    }

    /// Returns the value under this key.
    pub fn get(&self, key: u64) -> Option<&T> {
        self.entry(key).and_then(|e| e.1.as_ref())
    }

    /// Returns the value under this key.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let entry = self.entries.get_mut(key as u32 as usize)?;
        if entry.0 == (key >> 32) as u32 { entry.1.as_mut() } else { None }
    }

    /// Removes the value. Its key is invalid from now on.
    pub fn remove(&mut self, key: u64) -> Option<T> {
        let entry = self.entries.get_mut(key as u32 as usize)?;
        if entry.0 != (key >> 32) as u32 || entry.1.is_none() {
            return None;
        }
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(key as u32);
        entry.1.take()
    }

    /// Drops the value in place, which is cheaper than moving it out. Its key is invalid from now
    /// on.
    #[inline]
    pub fn discard(&mut self, key: u64) {
        let Some(entry) = self.entries.get_mut(key as u32 as usize) else { return };
        if entry.0 == (key >> 32) as u32 && entry.1.is_some() {
            *entry = (entry.0.wrapping_add(1), None);
            self.free.push(key as u32);
        }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the next insert would be refused.
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Iterates over the values in index order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|(_, v)| v.as_mut())
    }

    /// Iterates over keys and values in index order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().enumerate().filter_map(|(i, (generation, v))| {
            v.as_ref().map(|v| (u64::from(*generation) << 32 | i as u64, v))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_keys_find_nothing_and_capacity_holds() {
        let mut s = Slab::new(2);
        let a = s.insert('a').unwrap();
        assert!(s.insert('b').is_ok());
        assert_eq!(s.insert('c'), Err('c'));
        assert_eq!(s.remove(a), Some('a'));
        let c = s.insert('c').unwrap();
        assert_ne!(a, c);
        assert_eq!((s.get(a), s.get(c)), (None, Some(&'c')));
        assert_eq!(s.remove(a), None);
        assert_eq!((s.len(), s.is_full()), (2, true));
        s.discard(a);
        assert_eq!(s.len(), 2);
        s.discard(c);
        s.discard(c);
        assert_eq!((s.get(c), s.len()), (None, 1));
        assert_ne!(s.insert('d'), Ok(c));
    }
}
