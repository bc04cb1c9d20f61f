//! The wire format: one fixed header, its bodies, and their golden bytes.
