//! An emulated network: two namespaces of this machine, the near end and the far end, and a [`Link`](lunette_link::Link) between them.
//!
//! Each end has one network device. What the kernel sends through it comes to this process, which lets a
//! [`Pipe`](lunette_link::Pipe) say what becomes of each packet and hands it to the other end's device when its time has
//! come. Linux only; it needs CAP_NET_ADMIN, in a user namespace of its own if need be ([`acquire_privileges`]).
//!
//! The namespaces have no names, and the devices go with the process that made them. Processes at the ends are ended by a warden
//! ([`Emulator::set_warden`]) where there is one, and found by the mark that they have where not even that could do it ([`leftovers`]).

mod accuracy;
mod bulk;
mod carrier;
mod connections;
mod device;
mod direction;
mod doubt;
mod emulator;
mod error;
mod inhabitants;
mod leftover;
mod loopback;
mod mounts;
mod namespace;
mod pace;
mod packet;
mod privilege;
mod proxy;
mod sink;
mod waking;
mod warden;
mod watcher;

pub use accuracy::{Ceiling, Figure, Means, Verdict, ceiling, measure};
pub use bulk::Bulk;
pub use connections::{TcpConnection, tcp_connections};
pub use direction::Statistics;
pub use doubt::{Doubt, OUTPACED_SHARE};
pub use emulator::{Emulator, End, FAR, NEAR};
pub use error::WanError;
pub use inhabitants::inhabitants;
pub use leftover::{Leftover, end_leftovers, leftovers, mark};
pub use mounts::isolate_mounts;
pub use namespace::{Entrance, Namespace, spawn_apart, spawn_here};
pub use privilege::acquire_privileges;
pub use proxy::Proxy;
pub use warden::{WARD, keep_watch};
pub use watcher::{Keeping, Mark, Outpaced, Watcher};
