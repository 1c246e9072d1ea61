//! The device server as a host sees it, with a disk in memory in the driver's place.

mod allegiance;
mod attach;
mod client;
mod copy_fencing;
mod copying;
mod erasure;
mod field_pointers;
mod healing;
mod host;
mod housekeeping;
mod late_data;
mod marks;
mod media;
mod mode;
mod port_groups;
mod priority;
mod properties;
mod protected;
mod provisioning;
mod read_modify_write;
mod reservations;
mod saving;
mod tokens;
mod transfer;
mod views;
mod write_atomic;
