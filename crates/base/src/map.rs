//! A hash map with the same order and the same hashes in every run.

/// A hash map with a fixed seed. Use a `BTreeMap` if anything iterates over it.
pub type Map<K, V> = hashbrown::HashMap<K, V, foldhash::fast::FixedState>;
