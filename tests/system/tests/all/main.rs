//! What a user can see, tested from outside: one file per theme.

mod bad_input;
mod bench;
mod clients;
mod demo;
mod deploy;
mod devices;
mod durable;
mod failover;
mod fio;
mod full;
mod grow;
mod heal;
mod hosts;
mod library;
mod lifecycle;
mod lost;
mod mdm_cluster;
mod mdm_parted;
mod mdm_restart;
mod outage;
mod scale;
mod storm;
mod top;
mod torture;
mod volumes;
mod wrong_devices;
