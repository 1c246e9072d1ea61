//! The network as a whole: two ends and what is between them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunette_link::{Counts, Link, Pipe, Shape};
use rustix::pipe::{PipeFlags, pipe_with};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::carrier::{Carried, Carrier};
use crate::error::WanError;
use crate::namespace::Namespace;

/// The addresses of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Its name, and that of its device.
    pub name: &'static str,
    /// From the block for measurements of networks (RFC 2544, C.2.2).
    pub ipv4: Ipv4Addr,
    /// From the same block of IPv6 (RFC 5180, 8).
    pub ipv6: Ipv6Addr,
}

/// The near end.
pub const NEAR: End = End {
    name: "near",
    ipv4: Ipv4Addr::new(198, 18, 0, 1),
    ipv6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1),
};

/// The far end.
pub const FAR: End =
    End { name: "far", ipv4: Ipv4Addr::new(198, 18, 0, 2), ipv6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2) };

/// Bits of an end's addresses that both ends have: the other end is then a neighbour.
const PREFIX_IPV4: u8 = 30;
const PREFIX_IPV6: u8 = 126;

/// Packets that the kernel keeps for this process while it is busy. More than a late turn brings; the queue of the link is
/// not here.
const DEVICE_QUEUE_PACKETS: u32 = 2000;

/// The seed of the other direction, so that the two do not lose packets together.
const DOWN_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// What one direction has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// What became of the packets.
    pub counts: Counts,
    /// How long after its time a packet went out: the median.
    pub lateness_median: Duration,
    /// That of 99 in 100.
    pub lateness_p99: Duration,
    /// The longest.
    pub lateness_max: Duration,
    /// Packets that the kernel dropped before they came to the link, because this process was busy: they say nothing about the
    /// link, and much about this machine.
    pub overrun: u64,
}

/// A running network. Dropping it ends it.
#[derive(Debug)]
pub struct Emulator {
    near: Namespace,
    far: Namespace,
    carried: [Arc<Mutex<Carried>>; 2],
    /// Closing these ends the threads.
    stops: Vec<OwnedFd>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Emulator {
    /// Makes two namespaces with a link between them. All that the link leaves to chance comes from the seed.
    ///
    /// # Errors
    /// The process may not make namespaces or devices ([`crate::acquire_privileges`]), or the kernel has none.
    pub fn start(link: &Link, seed: u64) -> Result<Self, WanError> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let (near_device, far_device) = (device(&near, NEAR, link.mtu)?, device(&far, FAR, link.mtu)?);
        let carried = || {
            let carried = Carried::new().map_err(io::Error::other).map_err(WanError::of("a histogram"))?;
            Ok(Arc::new(Mutex::new(carried)))
        };
        let mut emulator =
            Self { near, far, carried: [carried()?, carried()?], stops: Vec::new(), threads: Vec::new() };
        let began = Instant::now();
        let directions = [
            ("wan-up", &near_device, &far_device, &link.up, seed),
            ("wan-down", &far_device, &near_device, &link.down, seed ^ DOWN_SEED),
        ];
        for (index, (name, from, to, shape, seed)) in directions.into_iter().enumerate() {
            let (stop, closer) = pipe_with(PipeFlags::CLOEXEC).map_err(WanError::of("a pipe"))?;
            let carrier = Carrier {
                from: Arc::clone(from),
                to: Arc::clone(to),
                pipe: Pipe::new(Shape::clone(shape), seed),
                carried: Arc::clone(&emulator.carried[index]),
                stop,
                packet_bytes_max: link.mtu.into(),
                began,
            };
            emulator.stops.push(closer);
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || carrier.run());
            emulator.threads.push(thread.map_err(WanError::of("a thread"))?);
        }
        Ok(emulator)
    }

    /// The near end, whose address is [`NEAR`].
    #[must_use]
    pub const fn near(&self) -> &Namespace {
        &self.near
    }

    /// The far end, whose address is [`FAR`].
    #[must_use]
    pub const fn far(&self) -> &Namespace {
        &self.far
    }

    /// What was carried so far, from the near end to the far one and back.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn statistics(&self) -> io::Result<[Statistics; 2]> {
        let overruns = [overrun(&self.near, NEAR)?, overrun(&self.far, FAR)?];
        let mut overruns = overruns.into_iter();
        Ok(self.carried.each_ref().map(|carried| {
            let carried = carried.lock().unwrap_or_else(PoisonError::into_inner);
            let quantile = |share| Duration::from_micros(carried.lateness_us.value_at_quantile(share));
            Statistics {
                counts: carried.counts,
                lateness_median: quantile(0.5),
                lateness_p99: quantile(0.99),
                lateness_max: Duration::from_micros(carried.lateness_us.max()),
                overrun: overruns.next().unwrap_or_default(),
            }
        }))
    }

    /// Ends the network.
    ///
    /// # Errors
    /// A direction had stopped carrying, because a device failed.
    pub fn end(mut self) -> io::Result<()> {
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        self.stops.clear();
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a carrier panicked")));
            result = result.and(ended);
        }
        result
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Whoever wants to know calls `end`.
        let _ = self.join();
    }
}

/// What an end's device dropped on its way out.
fn overrun(namespace: &Namespace, end: End) -> io::Result<u64> {
    let table = namespace.within(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?;
    let row = table.lines().find_map(|line| line.trim_start().strip_prefix(end.name)?.strip_prefix(':'));
    // Eight columns for what came, then bytes, packets, errors and drops of what went (proc(5)).
    let dropped = row.and_then(|row| row.split_ascii_whitespace().nth(11)?.parse().ok());
    dropped.ok_or_else(|| io::Error::other("/proc/net/dev does not say what a device dropped"))
}

fn device(namespace: &Namespace, end: End, mtu: u16) -> Result<Arc<SyncDevice>, WanError> {
    let build = || {
        let device = DeviceBuilder::new()
            .name(end.name)
            .mtu(mtu)
            .ipv4(end.ipv4, PREFIX_IPV4, None)
            .ipv6(end.ipv6, PREFIX_IPV6)
            .build_sync()?;
        device.set_nonblocking(true)?;
        // In a user namespace the kernel refuses this: then it keeps 500.
        let _ = device.set_tx_queue_len(DEVICE_QUEUE_PACKETS);
        Ok(device)
    };
    namespace.within(build).map(Arc::new).map_err(WanError::of("a network device (/dev/net/tun)"))
}
