//! The driver that runs nodes on real sockets, devices and clocks.
