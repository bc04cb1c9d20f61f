//! A table addressed by small indices, for things that the kernel knows by a number.
//!
//! Unlike `base::Slab`, an entry is looked up by index alone. An entry stays until the kernel is
//! done with it, so a late completion never finds another entry in its place. The generation is for
//! users that keep an index longer than its entry lives.

pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Table<T> {
        Table { slots: Vec::new(), free: Vec::new() }
    }

    /// Returns the index that the next insert will use, and its generation.
    pub(crate) fn next(&self) -> (u32, u32) {
        match self.free.last() {
            Some(i) => (*i, self.slots[*i as usize].generation),
            None => (self.slots.len() as u32, 0),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(i) => {
                self.slots[i as usize].value = Some(value);
                i
            }
            None => {
                self.slots.push(Slot { generation: 0, value: Some(value) });
                (self.slots.len() - 1) as u32
            }
        }
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// Returns the entry at `index`, if it still has this generation.
    pub(crate) fn get_mut_of(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation == generation { slot.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Returns all indices that may be in use.
    pub(crate) fn indices(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    /// Returns all entries with their indices.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(i, s)| Some((i, s.value.as_ref()?)))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|s| s.value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_reused_and_generations_are_not() {
        let mut t = Table::new();
        assert_eq!((t.next(), t.insert('a'), t.insert('b')), ((0, 0), 0, 1));
        assert_eq!(t.remove(0), Some('a'));
        assert_eq!((t.next(), t.insert('c')), ((0, 1), 0));
        assert_eq!(t.get_mut_of(0, 0), None);
        assert_eq!(t.get_mut_of(0, 1), Some(&mut 'c'));
        assert_eq!((t.indices(), t.is_empty(), t.values().count()), (0..2, false, 2));
    }
}
