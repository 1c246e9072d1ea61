//! A network device in a namespace, whose packets come to this process. Not here: when they go on.
//!
//! Where the kernel has segmentation offload, it hands over several segments of a TCP connection at once and takes several
//! at once; on the link each is a packet of its own all the same.

use std::fmt;
use std::io;
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd};

use tun_rs::{DeviceBuilder, GROTable, IDEAL_BATCH_SIZE, SyncDevice, VIRTIO_NET_HDR_LEN};

use crate::emulator::End;
use crate::error::WanError;
use crate::namespace::Namespace;
use crate::packet::IpPacket;

/// Bits of an end's addresses that both ends have: the other end is then a neighbour.
const PREFIX_IPV4: u8 = 30;
const PREFIX_IPV6: u8 = 126;

/// Packets that the kernel keeps for this process while it is busy. More than a late turn brings; the queue of the link is
/// not here.
const DEVICE_QUEUE_PACKETS: u32 = 2000;

/// The longest packet of IP.
const PACKET_BYTES_MAX: usize = 65_535;

/// The device of an end.
pub(crate) struct Device {
    tun: SyncDevice,
    name: &'static str,
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}

impl Device {
    /// Makes it.
    ///
    /// # Errors
    /// The process may not, or the kernel has no such devices.
    pub(crate) fn new(namespace: &Namespace, end: End, mtu: u16) -> Result<Self, WanError> {
        let build = |offload| {
            DeviceBuilder::new()
                .name(end.name)
                .mtu(mtu)
                .ipv4(end.ipv4, PREFIX_IPV4, None)
                .ipv6(end.ipv6, PREFIX_IPV6)
                .with(|builder| {
                    builder.offload(offload);
                })
                .build_sync()
        };
        let make = || {
            let tun = build(true).or_else(|_| build(false))?;
            tun.set_nonblocking(true)?;
            // In a user namespace the kernel refuses this: then it keeps 500.
            let _ = tun.set_tx_queue_len(DEVICE_QUEUE_PACKETS);
            Ok(Self { tun, name: end.name })
        };
        namespace.within(make).map_err(WanError::of("a network device (/dev/net/tun)"))
    }

    /// Whether the kernel hands over several segments at once.
    pub(crate) fn offloads(&self) -> bool {
        self.tun.tcp_gso()
    }

    /// Changes the longest packet that the kernel sends.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn set_mtu(&self, namespace: &Namespace, mtu: u16) -> io::Result<()> {
        namespace.within(|| self.tun.set_mtu(mtu))
    }

    /// Takes what the kernel has next, packet by packet; 0 when there is nothing.
    ///
    /// # Errors
    /// The device fails.
    pub(crate) fn receive(&self, intake: &mut Intake, mut take: impl FnMut(IpPacket)) -> io::Result<usize> {
        let Intake { whole, parts, sizes } = intake;
        match self.tun.recv_multiple(whole, parts, sizes, VIRTIO_NET_HDR_LEN) {
            Ok(count) => {
                for (part, size) in parts.iter().zip(sizes.iter()).take(count) {
                    take(IpPacket::new(&part[VIRTIO_NET_HDR_LEN..VIRTIO_NET_HDR_LEN + size]));
                }
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Gives packets to the kernel, in their order, and says which it has not taken. Segments are joined where that is allowed:
    /// joining takes them for what the sender sent, and puts them in order.
    ///
    /// # Errors
    /// The device fails.
    pub(crate) fn send(
        &self,
        outlet: &mut Outlet,
        packets: impl Iterator<Item = IpPacket>,
        may_join: bool,
    ) -> io::Result<Refused> {
        let mut refused = Refused::default();
        for packet in packets {
            let is_damaged = packet.is_damaged();
            let stays_alone = is_damaged || !may_join;
            if stays_alone {
                refused += self.flush(outlet, false)?;
            }
            outlet.waiting.push(packet.into_bytes());
            if stays_alone {
                refused += self.flush(outlet, is_damaged)?;
            }
        }
        refused += self.flush(outlet, false)?;
        Ok(refused)
    }

    fn flush(&self, outlet: &mut Outlet, is_damaged: bool) -> io::Result<Refused> {
        let bytes = outlet.waiting.iter().map(|packet| packet.len() - VIRTIO_NET_HDR_LEN).sum::<usize>();
        let offered = Refused { packets: outlet.waiting.len() as u64, bytes: bytes as u64 };
        let sent = self.tun.send_multiple(&mut outlet.joined, &mut outlet.waiting, VIRTIO_NET_HDR_LEN);
        outlet.waiting.clear();
        refused_of(sent, offered, is_damaged)
    }
}

/// Packets that a device has not taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) packets: u64,
    /// Their lengths.
    pub(crate) bytes: u64,
}

impl AddAssign for Refused {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// What of the packets that were offered at once the kernel has refused. How many of them it does not say, so they all count.
///
/// # Errors
/// The device fails.
fn refused_of(sent: io::Result<usize>, offered: Refused, is_damaged: bool) -> io::Result<Refused> {
    match sent {
        Ok(_) => Ok(Refused::default()),
        // A full receive queue drops, as that of any network card.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(offered),
        // What the kernel cannot take for a packet. After a bit of its header was turned that is what the link did.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok(if is_damaged { Refused::default() } else { offered })
        }
        Err(error) => Err(error),
    }
}

/// Room for what the kernel hands over at once.
pub(crate) struct Intake {
    whole: Vec<u8>,
    parts: Vec<Vec<u8>>,
    sizes: Vec<usize>,
}

impl Intake {
    pub(crate) fn new() -> Self {
        Self {
            whole: vec![0; VIRTIO_NET_HDR_LEN + PACKET_BYTES_MAX],
            parts: (0..IDEAL_BATCH_SIZE).map(|_| vec![0; VIRTIO_NET_HDR_LEN + PACKET_BYTES_MAX]).collect(),
            sizes: vec![0; IDEAL_BATCH_SIZE],
        }
    }
}

/// What goes to the kernel at once.
#[derive(Default)]
pub(crate) struct Outlet {
    waiting: Vec<Vec<u8>>,
    joined: GROTable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_does_not_take_is_counted_unless_the_link_has_made_it_so() {
        let offered = Refused { packets: 3, bytes: 4000 };
        let of = |errno, is_damaged| {
            refused_of(Err(io::Error::from_raw_os_error(errno)), offered, is_damaged).map_err(|_| ())
        };
        assert_eq!(refused_of(Ok(4000), offered, false).map_err(|_| ()), Ok(Refused::default()));
        assert_eq!((of(libc::EAGAIN, false), of(libc::EAGAIN, true)), (Ok(offered), Ok(offered)));
        assert_eq!((of(libc::EINVAL, false), of(libc::EINVAL, true)), (Ok(offered), Ok(Refused::default())));
        assert_eq!(of(libc::EIO, false), Err(()), "the device has failed");
        let mut sum = offered;
        sum += Refused { packets: 1, bytes: 60 };
        assert_eq!(sum, Refused { packets: 4, bytes: 4060 });
    }
}
