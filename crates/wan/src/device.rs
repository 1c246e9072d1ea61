//! A network device in a namespace, whose packets come to this process. Not here: when they go on.
//!
//! Where the kernel has segmentation offload, it hands over several segments of a TCP connection at once and takes several
//! at once; on the link each is a packet of its own all the same.

use std::fmt;
use std::io;
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use tun_rs::{DeviceBuilder, GROTable, SyncDevice, VIRTIO_NET_HDR_LEN};

use crate::emulator::End;
use crate::error::WanError;
use crate::namespace::Namespace;
use crate::packet::{IpPacket, keep_udp_checksum, tcp_segment};

/// Bits of an end's addresses that both ends have: the other end is then a neighbour.
const PREFIX_IPV4: u8 = 30;
const PREFIX_IPV6: u8 = 126;

/// Packets that the kernel keeps for this process while it is busy. More than a late turn brings; the queue of the link is
/// not here.
const DEVICE_QUEUE_PACKETS: u32 = 2000;

/// The longest packet of IP.
const PACKET_BYTES_MAX: usize = 65_535;

/// What IPv6 needs of a link (RFC 8200, 5). Where packets are shorter a device has no IPv6, and loses its addresses.
const MTU_IPV6_MIN: u16 = 1280;

/// Room for segments that are handed over at once: at first, which does for 256 bytes of data each, and at most, for TCP's
/// shortest: 48 bytes (`net.ipv4.tcp_min_snd_mss`), of which 12 are a time stamp.
const SEGMENTS: usize = 256;
const SEGMENTS_MAX: usize = PACKET_BYTES_MAX / 36 + 1;

/// The headers of a segment at most: of IP and TCP, both with options.
const SEGMENT_HEADERS_MAX: usize = 60 + 60;

/// Whether an address of IPv6 was refused because the system has none: its kernel was built without it or told at its start to have
/// none, or namespaces are told so when they are made (`net.ipv6.conf.default.disable_ipv6`).
fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::OPNOTSUPP | Errno::ACCESS))
}

/// The device of an end.
pub(crate) struct Device {
    tun: SyncDevice,
    end: End,
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Device").field("name", &self.end.name).finish_non_exhaustive()
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
            let device = Self { tun, end };
            device.give_ipv6(mtu)?;
            Ok(device)
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
        namespace.within(|| {
            self.tun.set_mtu(mtu)?;
            // It may have lost it to a shorter one.
            self.give_ipv6(mtu)
        })
    }

    /// Gives the end its address of IPv6, where packets are long enough for that and the system has IPv6.
    fn give_ipv6(&self, mtu: u16) -> io::Result<()> {
        if mtu < MTU_IPV6_MIN {
            return Ok(());
        }
        match self.tun.add_address_v6(self.end.ipv6, PREFIX_IPV6) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists || is_without_ipv6(&error) => Ok(()),
            added => added,
        }
    }

    /// Takes what the kernel has next, packet by packet.
    ///
    /// # Errors
    /// The device fails.
    pub(crate) fn receive(
        &self,
        intake: &mut Intake,
        mut take: impl FnMut(IpPacket),
    ) -> io::Result<Received> {
        let Intake { whole, parts, sizes, .. } = intake;
        match self.tun.recv_multiple(whole, parts, sizes, VIRTIO_NET_HDR_LEN) {
            Ok(count) => {
                for (part, size) in parts.iter_mut().zip(sizes.iter()).take(count) {
                    let packet = &mut part[VIRTIO_NET_HDR_LEN..VIRTIO_NET_HDR_LEN + size];
                    keep_udp_checksum(packet);
                    take(IpPacket::new(packet));
                }
                Ok(Received::Packets(count))
            }
            Err(error) => {
                let received = received_of(error)?;
                if received == Received::Unreadable {
                    intake.widen();
                }
                Ok(received)
            }
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
        outlet.make_room_to_join();
        let sent = self.tun.send_multiple(&mut outlet.joined, &mut outlet.waiting, VIRTIO_NET_HDR_LEN);
        outlet.waiting.clear();
        refused_of(sent, offered, is_damaged)
    }
}

/// What there was to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Nothing,
    /// So many packets.
    Packets(usize),
    /// Something that is no packet, or has more segments than there was room for; it is gone.
    Unreadable,
}

/// What a failed look for packets means.
///
/// # Errors
/// The device fails.
fn received_of(error: io::Error) -> io::Result<Received> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Received::Nothing),
        // Not the system says so but who takes apart what it has handed over. Programs send what they like.
        _ if error.raw_os_error().is_none() => Ok(Received::Unreadable),
        _ => Err(error),
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
        // A full receive queue drops, as that of any network card; so do a device that somebody has set down, and who has no memory.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(offered),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::ENOBUFS | libc::ENOMEM)) => {
            Ok(offered)
        }
        // What the kernel cannot take for a packet. After a bit of its header was turned that is what the link did.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok(if is_damaged { Refused::default() } else { offered })
        }
        // It did not come to the kernel: it could not be put together.
        Err(error) if error.raw_os_error().is_none() => Ok(offered),
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
        let mut intake = Self {
            whole: vec![0; VIRTIO_NET_HDR_LEN + PACKET_BYTES_MAX],
            parts: Vec::new(),
            sizes: Vec::new(),
        };
        intake.make_room(SEGMENTS);
        intake
    }

    /// Room for so many segments. Of a longest packet's equal parts, where there are so many, each is as short as the last one's place.
    fn make_room(&mut self, segments: usize) {
        let length = |number: usize| match number {
            0 => PACKET_BYTES_MAX,
            number => (PACKET_BYTES_MAX / number + 1 + SEGMENT_HEADERS_MAX).min(PACKET_BYTES_MAX),
        };
        let further = self.parts.len()..segments;
        self.parts.extend(further.map(|number| vec![0; VIRTIO_NET_HDR_LEN + length(number)]));
        self.sizes.resize(segments, 0);
    }

    /// Makes room for the shortest segments, where somebody has such. It costs time with each packet, so that nobody else has it.
    fn widen(&mut self) {
        self.make_room(SEGMENTS_MAX);
    }
}

/// What goes to the kernel at once.
#[derive(Default)]
pub(crate) struct Outlet {
    waiting: Vec<Vec<u8>>,
    joined: GROTable,
}

impl Outlet {
    /// A segment takes those that follow it only where its buffer has room for them and, for `tun-rs`, twice that of the device.
    fn make_room_to_join(&mut self) {
        let mut at = 0;
        while at < self.waiting.len() {
            let (count, bytes) = self.followers(at);
            if count > 0 {
                // No more: what is joined must not become longer than a packet may be.
                self.waiting[at].reserve_exact(VIRTIO_NET_HDR_LEN + bytes);
            }
            at += 1 + count;
        }
    }

    /// The segments that the one at this place can take, and their bytes: those of its connection, up to one that is pushed or shorter.
    fn followers(&self, at: usize) -> (usize, usize) {
        let segment = |at: usize| {
            let packet = &self.waiting.get(at)?[VIRTIO_NET_HDR_LEN..];
            Some((tcp_segment(packet)?, packet.len()))
        };
        let (mut count, mut bytes) = (0, 0);
        let Some((first, length)) = segment(at) else { return (count, bytes) };
        let mut is_last = first.is_pushed;
        while let Some((next, next_length)) = segment(at + 1 + count) {
            if is_last || next.ports != first.ports || bytes + length + next_length > PACKET_BYTES_MAX {
                break;
            }
            is_last = next.is_pushed || next_length < length;
            (count, bytes) = (count + 1, bytes + next_length);
        }
        (count, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_follow_one_of_their_connection_have_room_behind_it() {
        let packet = |protocol: u8, port: u8, is_pushed: bool, length: usize| {
            let mut bytes = vec![0; length];
            (bytes[0], bytes[9], bytes[21], bytes[33]) = (0x45, protocol, port, u8::from(is_pushed) * 8);
            IpPacket::new(&bytes).into_bytes()
        };
        let tcp = |port, is_pushed, length| packet(6, port, is_pushed, length);
        let udp = || packet(17, 3, false, 1000);
        let waiting = vec![
            tcp(1, false, 1000),
            tcp(1, false, 1000),
            tcp(1, true, 1000),
            tcp(1, false, 1000),
            tcp(1, false, 400),
            tcp(1, true, 1000),
            tcp(1, false, 1000),
            tcp(2, false, 1000),
            udp(),
            udp(),
            tcp(1, false, 40_000),
            tcp(1, false, 40_000),
        ];
        let mut outlet = Outlet { waiting, ..Outlet::default() };
        outlet.make_room_to_join();
        let room = |at: usize| outlet.waiting[at].capacity() - outlet.waiting[at].len();
        assert!(room(0) >= 2000 + VIRTIO_NET_HDR_LEN && room(3) >= 400 + VIRTIO_NET_HDR_LEN);
        assert_eq!([1, 2, 4, 5, 6, 7, 8, 9, 10, 11].map(room), [0; 10]);
    }

    #[test]
    fn what_the_kernel_does_not_take_is_counted_unless_the_link_has_made_it_so() {
        let offered = Refused { packets: 3, bytes: 4000 };
        let of = |errno, is_damaged| {
            refused_of(Err(io::Error::from_raw_os_error(errno)), offered, is_damaged).map_err(|_| ())
        };
        assert_eq!(refused_of(Ok(4000), offered, false).map_err(|_| ()), Ok(Refused::default()));
        assert_eq!((of(libc::EAGAIN, false), of(libc::EAGAIN, true)), (Ok(offered), Ok(offered)));
        assert_eq!((of(libc::EINVAL, false), of(libc::EINVAL, true)), (Ok(offered), Ok(Refused::default())));
        assert_eq!([libc::EIO, libc::ENOBUFS, libc::ENOMEM].map(|errno| of(errno, true)), [Ok(offered); 3]);
        assert_eq!(of(libc::EBADFD, false), Err(()), "the device has failed");
        let unfit = io::Error::new(io::ErrorKind::InvalidInput, "no packet");
        assert_eq!(refused_of(Err(unfit), offered, false).map_err(|_| ()), Ok(offered));
        let received = |error: io::Error| received_of(error).map_err(|_| ());
        assert_eq!(received(io::ErrorKind::WouldBlock.into()), Ok(Received::Nothing));
        assert_eq!(received(io::Error::from_raw_os_error(libc::EAGAIN)), Ok(Received::Nothing));
        assert_eq!(received(io::Error::other("too many GSO segments")), Ok(Received::Unreadable));
        assert_eq!(received(io::Error::from_raw_os_error(libc::EBADFD)), Err(()), "the device has failed");
        let mut sum = offered;
        sum += Refused { packets: 1, bytes: 60 };
        assert_eq!(sum, Refused { packets: 4, bytes: 4060 });
    }
}
