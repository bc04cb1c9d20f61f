//! What a driver promises to a node, and the tests of it.
