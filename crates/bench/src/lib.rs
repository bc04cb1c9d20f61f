//! Measures what the kernel costs, and what Gabion costs on top of it: `gabion bench`.
//!
//! `floor` exchanges bare frames between processes: no product logic, only heads and payloads of
//! the same sizes as Gabion's. `io` loads a cluster from inside an SDC, on the shard's own thread.
//! Both count requests and processor time over the same period, and print processor time per I/O
//! next to the rate: that of the participating processes, and that of the whole machine, because
//! the kernel's network work may be charged to any process. Only the ratio of the two, taken in one
//! run, is meaningful: `ratio` measures it. `rebuild` kills servers and measures the time until all
//! data has two copies again. `disk` compares a durable cluster with `fio` on the same disk;
//! `device` does so without cluster and network.
//!
//! `hosts` loads a volume as hosts do, over NBD, iSCSI and NVMe/TCP; `ratio` compares them.
//!
//! This crate compares only figures of the same machine and the same run. Published figures are in
//! `experiments`. It starts clusters with the binary that calls it.
#![forbid(unsafe_code)]

#[macro_use(println, eprintln)]
extern crate fleet;

pub mod cpu;
pub mod device;
pub mod disk;
pub mod drive;
pub mod figures;
pub mod floor;
pub mod hosts;
pub mod interrupt;
pub mod io;
pub mod load;
mod name;
pub mod pair;
pub mod ratio;
pub mod rebuild;
pub mod tally;
pub mod test_cluster;
pub mod workload;
