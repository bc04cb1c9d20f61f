//! A hash map whose order and hashes are the same in every run.

/// A hash map with a fixed seed. Use a `BTreeMap` where anything iterates over it.
pub type Map<K, V> = hashbrown::HashMap<K, V, foldhash::fast::FixedState>;
