//! A table of things in flight with a fixed capacity. A key carries a generation, so that a late
//! completion of something that is gone finds nothing instead of a stranger.

use alloc::vec::Vec;

/// A bounded table; keys are never confused between generations.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> Slab<T> {
    /// An empty table that never holds more than `capacity` entries (at most 2^32 - 1).
    pub fn new(capacity: usize) -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new(), capacity: capacity.min(u32::MAX as usize) }
    }

    /// Puts a value in and tells its key; gives the value back when the table is full.
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

    /// The value under this key.
    pub fn get(&self, key: u64) -> Option<&T> {
        self.entry(key).and_then(|e| e.1.as_ref())
    }

    /// The value under this key.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let entry = self.entries.get_mut(key as u32 as usize)?;
        if entry.0 == (key >> 32) as u32 { entry.1.as_mut() } else { None }
    }

    /// Takes the value out; its key is dead from now on.
    pub fn remove(&mut self, key: u64) -> Option<T> {
        let entry = self.entries.get_mut(key as u32 as usize)?;
        if entry.0 != (key >> 32) as u32 || entry.1.is_none() {
            return None;
        }
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(key as u32);
        entry.1.take()
    }

    /// How many values are in.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True when nothing is in.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True when the next insert would be refused.
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// The values, by place in the table.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|(_, v)| v.as_mut())
    }

    /// Keys and values, by place in the table.
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
    }
}
