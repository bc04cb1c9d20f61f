//! The replication protocol: primary, secondary, settle, resync, client sessions.
