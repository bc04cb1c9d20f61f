//! Tests of the replication protocol without a network: of the replicas, and of the client.

mod client;
mod pair;
