//! Which device holds which group: an explicit, balanced table.
