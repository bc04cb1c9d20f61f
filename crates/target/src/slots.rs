//! A table of values with handles of 32 bits.
//!
//! Invariants: each value has one handle. The low 16 bits are the index of the value, and the high
//! 16 bits count the values that had this index before, so a handle is not reused soon. The table
//! grows to the largest number of values that it held at once, and does not shrink.
//!
//! This is not a [`base::Slab`], because its keys have 64 bits, and the tags of requests and R2Ts
//! have room for 32.

use alloc::vec::Vec;

/// The table.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<(u16, Option<T>)>,
    free: Vec<u16>,
}

fn handle(generation: u16, index: usize) -> u32 {
    u32::from(generation) << 16 | index as u32
}

impl<T> Slots<T> {
    /// Creates an empty table.
    pub(crate) fn new() -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new() }
    }

    /// Adds a value, and returns its handle. The caller limits their number, to 65,536 at most. The
    /// value is made in its place, because values are large.
    #[inline]
    pub(crate) fn insert(&mut self, make: impl FnOnce() -> T) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            assert!(self.slots.len() <= usize::from(u16::MAX), "a handle has no room for more");
            self.slots.push((0, None));
            (self.slots.len() - 1) as u16
        });
        let slot = &mut self.slots[usize::from(index)];
        slot.1 = Some(make());
        handle(slot.0, index.into())
    }

    /// Returns the value with this handle.
    #[inline]
    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        let slot = self.slots.get(usize::from(handle as u16))?;
        if slot.0 == (handle >> 16) as u16 { slot.1.as_ref() } else { None }
    }

    /// Returns the value with this handle.
    #[inline]
    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(usize::from(handle as u16))?;
        if slot.0 == (handle >> 16) as u16 { slot.1.as_mut() } else { None }
    }

    /// Drops the value with this handle. Returns false if there is none.
    #[inline]
    pub(crate) fn remove(&mut self, handle: u32) -> bool {
        let slot = self.slots.get_mut(usize::from(handle as u16));
        let Some((generation, value)) = slot.filter(|slot| slot.0 == (handle >> 16) as u16) else {
            return false;
        };
        if value.is_none() {
            return false;
        }
        *value = None;
        *generation = generation.wrapping_add(1);
        self.free.push(handle as u16);
        true
    }

    /// Returns the handle of the value at this index.
    #[inline]
    pub(crate) fn handle_at(&self, index: usize) -> Option<u32> {
        let (generation, value) = self.slots.get(index)?;
        value.is_some().then(|| handle(*generation, index))
    }

    /// Returns all values with their handles, in the order of the table.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, (generation, value))| {
            Some((handle(*generation, index), value.as_ref()?))
        })
    }

    /// Returns all values with their handles, in the order of the table.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, (generation, value))| {
            Some((handle(*generation, index), value.as_mut()?))
        })
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_removed_values_find_nothing() {
        let mut slots = Slots::new();
        let a = slots.insert(|| 'a');
        let b = slots.insert(|| 'b');
        assert_eq!(slots.get_mut(b).copied(), Some('b'));
        assert!(slots.remove(b) && !slots.remove(b));
        assert_eq!((slots.get(a), slots.get(b)), (Some(&'a'), None));
        assert_eq!((slots.handle_at(0), slots.handle_at(1), slots.len()), (Some(a), None, 1));
        let c = slots.insert(|| 'c');
        assert!(b != c && b as u16 == c as u16, "the same index");
        assert!(slots.get(b).is_none() && slots.get_mut(b).is_none() && !slots.remove(b));
        assert_eq!((slots.get(c), slots.len()), (Some(&'c'), 2));
        assert_eq!((slots.handle_at(1), slots.handle_at(2), slots.get(2)), (Some(c), None, None));
    }

    #[test]
    fn values_are_listed_in_the_order_of_the_table() {
        let mut slots = Slots::new();
        let handles = [0, 1, 2, 3].map(|value| slots.insert(|| value));
        slots.remove(handles[1]);
        slots.remove(handles[2]);
        let last = slots.insert(|| 9);
        slots.iter_mut().for_each(|(handle, value)| *value += handle >> 16);
        let listed: Vec<_> = slots.iter().map(|(handle, value)| (handle, *value)).collect();
        assert_eq!(listed, [(handles[0], 0), (last, 10), (handles[3], 3)]);
        assert!(listed.iter().all(|(handle, value)| slots.get(*handle) == Some(value)));
    }

    #[test]
    fn a_handle_comes_back_after_65536_values() {
        let mut slots = Slots::new();
        let first = slots.insert(|| ());
        slots.remove(first);
        for _ in 1..=u16::MAX {
            let handle = slots.insert(|| ());
            assert!(handle != first && slots.get(first).is_none());
            slots.remove(handle);
        }
        assert_eq!(slots.insert(|| ()), first);
    }
}
