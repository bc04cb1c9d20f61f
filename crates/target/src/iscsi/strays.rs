//! Tags of commands that ended early or were dropped. Their data may still arrive, and is
//! discarded.
//!
//! Invariants: data for any other unknown command is an error of the initiator. A tag is forgotten
//! when a newer command uses it, because the initiator has then ended the older one. The oldest tag
//! is forgotten when there are more tags than commands that may be outstanding at once.

use alloc::collections::VecDeque;

/// The tags, oldest first.
#[derive(Debug)]
pub(crate) struct Strays {
    tags: VecDeque<u32>,
    most: usize,
}

impl Strays {
    /// Creates an empty list of at most `most` tags.
    pub(crate) fn new(most: usize) -> Strays {
        Strays { tags: VecDeque::new(), most }
    }

    /// Adds the tag of a command whose data may still arrive.
    pub(crate) fn add(&mut self, itt: u32) {
        self.forget(itt);
        if self.tags.len() == self.most {
            self.tags.pop_front();
        }
        self.tags.push_back(itt);
    }

    /// Removes a tag.
    pub(crate) fn forget(&mut self, itt: u32) {
        self.tags.retain(|tag| *tag != itt);
    }

    /// Returns true if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// Returns the number of tags.
    pub(crate) fn len(&self) -> usize {
        self.tags.len()
    }

    /// Returns true if data of a command with this tag may still arrive.
    pub(crate) fn has(&self, itt: u32) -> bool {
        self.tags.contains(&itt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_tag_is_forgotten_first() {
        let mut strays = Strays::new(2);
        for itt in [1, 2, 1, 3] {
            strays.add(itt);
        }
        assert_eq!([1, 2, 3].map(|itt| strays.has(itt)), [true, false, true]);
        strays.forget(1);
        assert!(!strays.has(1));
    }
}
