//! What a device holds: unit map, valid blocks, free space.
