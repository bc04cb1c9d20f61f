//! Sans-I/O sessions of the standard block protocols.
