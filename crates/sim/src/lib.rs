//! The driver that runs nodes in virtual time under faults, and judges them.
