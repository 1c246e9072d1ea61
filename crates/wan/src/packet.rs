//! IP packets as a link sees them.

use lunette_link::Packet;
use tun_rs::VIRTIO_NET_HDR_LEN;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The flag of TCP.
const PUSH: u8 = 8;

/// Where TCP begins in an IPv6 packet without extension headers, which TCP segments do not have here.
const IPV6_HEADER_LENGTH: usize = 40;
const IPV4_HEADER_LENGTH: usize = 20;

/// An IP packet, as a network device gives it, behind room for what the device wants to know.
#[derive(Debug, Clone)]
pub(crate) struct IpPacket {
    room_and_packet: Vec<u8>,
    is_damaged: bool,
}

impl IpPacket {
    pub(crate) fn new(packet: &[u8]) -> Self {
        let mut room_and_packet = Vec::with_capacity(VIRTIO_NET_HDR_LEN + packet.len());
        room_and_packet.resize(VIRTIO_NET_HDR_LEN, 0);
        room_and_packet.extend_from_slice(packet);
        Self { room_and_packet, is_damaged: false }
    }

    /// A bit of it was turned.
    pub(crate) const fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// The packet behind `VIRTIO_NET_HDR_LEN` bytes of room.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.room_and_packet
    }

    fn bytes(&self) -> &[u8] {
        &self.room_and_packet[VIRTIO_NET_HDR_LEN..]
    }
}

impl Packet for IpPacket {
    fn length(&self) -> usize {
        self.bytes().len()
    }

    fn tcp_ports(&self) -> Option<[u16; 2]> {
        tcp_segment(self.bytes()).map(|segment| segment.ports)
    }

    fn flip(&mut self, bit: u64) {
        if let Some(byte) = self.room_and_packet.get_mut(VIRTIO_NET_HDR_LEN + (bit / 8) as usize) {
            *byte ^= 0x80 >> (bit % 8);
            self.is_damaged = true;
        }
    }
}

/// What others want to know of a segment of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpSegment {
    /// That it comes from and goes to.
    pub(crate) ports: [u16; 2],
    /// It has the flag PSH: the last of what was written together.
    pub(crate) is_pushed: bool,
}

/// A TCP segment, or the first fragment of one.
pub(crate) fn tcp_segment(packet: &[u8]) -> Option<TcpSegment> {
    let tcp = match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&TCP) && u16_at(packet, 6)? & 0x1fff == 0 => {
            usize::from(packet[0] & 0xf) * 4
        }
        6 if packet.get(6) == Some(&TCP) => IPV6_HEADER_LENGTH,
        _ => return None,
    };
    let is_pushed = packet.get(tcp + 13).is_some_and(|flags| flags & PUSH != 0);
    Some(TcpSegment { ports: [u16_at(packet, tcp)?, u16_at(packet, tcp + 2)?], is_pushed })
}

/// A sum of zero is sent as its other form (RFC 768), since zero is that of a datagram without one, which IPv6 throws away and IPv4 does
/// not look at, damaged or not. `tun-rs` leaves it zero where it makes the sum.
pub(crate) fn keep_udp_checksum(packet: &mut [u8]) {
    let Some(header) = udp_at(packet) else { return };
    let sum = header + 6;
    // Whoever sends datagrams without a sum has one of zero, too, and is right to.
    if u16_at(packet, sum) == Some(0) && udp_sum(packet, header) == 0xffff {
        packet[sum..sum + 2].fill(0xff);
    }
}

/// Where the header of UDP begins, in a packet that is a whole datagram.
fn udp_at(packet: &[u8]) -> Option<usize> {
    let (header, protocol) = match packet.first()? >> 4 {
        // Neither with an offset nor with more fragments behind it.
        4 if u16_at(packet, 6)? & 0x3fff == 0 => (usize::from(packet[0] & 0xf) * 4, packet.get(9)?),
        6 => (IPV6_HEADER_LENGTH, packet.get(6)?),
        _ => return None,
    };
    (*protocol == UDP && header >= IPV4_HEADER_LENGTH && packet.len() >= header + 8).then_some(header)
}

/// The one's complement sum of a datagram and of what RFC 768 and RFC 8200, 8.1 have in front of it.
fn udp_sum(packet: &[u8], header: usize) -> u16 {
    let addresses = if packet[0] >> 4 == 4 { 12..20 } else { 8..IPV6_HEADER_LENGTH };
    let datagram = &packet[header..];
    let words = |bytes: &[u8]| -> u64 {
        bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0))).sum()
    };
    let mut sum = words(&packet[addresses]) + datagram.len() as u64 + u64::from(UDP) + words(datagram);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(protocol: u8, fragment: u16, ports: [u16; 2]) -> IpPacket {
        let mut bytes = vec![0x46; 1];
        bytes.resize(28, 0);
        bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
        bytes[9] = protocol;
        bytes[24..26].copy_from_slice(&ports[0].to_be_bytes());
        bytes[26..28].copy_from_slice(&ports[1].to_be_bytes());
        IpPacket::new(&bytes)
    }

    #[test]
    fn ports_are_those_of_tcp_alone() {
        let none = |packet: IpPacket| assert_eq!(packet.tcp_ports(), None, "{packet:?}");
        assert_eq!(ipv4(TCP, 0, [3260, 50_000]).tcp_ports(), Some([3260, 50_000]));
        assert_eq!(ipv4(TCP, 0x2000, [50_000, 3260]).tcp_ports(), Some([50_000, 3260]), "a first fragment");
        none(ipv4(17, 0, [3260, 50_000]));
        // Data of a later fragment is no header.
        none(ipv4(TCP, 100, [3260, 50_000]));
        let mut ipv6 = vec![0x60; 1];
        ipv6.resize(44, 0);
        ipv6[6] = TCP;
        ipv6[42..44].copy_from_slice(&3260u16.to_be_bytes());
        assert_eq!(IpPacket::new(&ipv6).tcp_ports(), Some([0, 3260]));
        for length in 0..44 {
            none(IpPacket::new(&ipv6[..length]));
        }
        for length in 0..28 {
            none(IpPacket::new(&ipv4(TCP, 0, [3260, 1]).bytes()[..length]));
        }
    }

    #[test]
    fn a_checksum_of_zero_is_sent_in_its_other_form() {
        // From and to ::, ports 1 and 2, ten bytes: with 17 and 10 and 10 for protocol and lengths that leaves 0xffd7 for the data.
        let mut datagram = vec![0; 50];
        (datagram[0], datagram[6]) = (0x60, UDP);
        (datagram[41], datagram[43], datagram[45]) = (1, 2, 10);
        datagram[48..].copy_from_slice(&[0xff, 0xd7]);
        let kept = |packet: &[u8]| {
            let mut kept = packet.to_vec();
            keep_udp_checksum(&mut kept);
            (kept[46..48].to_vec(), kept[..46] == packet[..46] && kept[48..] == packet[48..])
        };
        assert_eq!(kept(&datagram), (vec![0xff; 2], true));
        let mut without = datagram.clone();
        without[49] = 0xd6;
        assert_eq!(kept(&without), (vec![0; 2], true), "its sender made none");
        // The same with an IPv4 header from and to 0.0.0.0, whole and as a fragment.
        let mut ipv4 = vec![0; 30];
        (ipv4[0], ipv4[9]) = (0x45, UDP);
        ipv4[20..].copy_from_slice(&datagram[40..]);
        for (fragment, sum) in [([0x40, 0], [0xff; 2]), ([0x20, 0], [0; 2]), ([0, 1], [0; 2])] {
            ipv4[6..8].copy_from_slice(&fragment);
            let mut kept = ipv4.clone();
            keep_udp_checksum(&mut kept);
            assert_eq!(kept[26..28], sum, "{fragment:?}");
        }
        let mut tcp = datagram.clone();
        tcp[6] = TCP;
        assert_eq!(kept(&tcp), (vec![0; 2], true));
        for length in 0..48 {
            keep_udp_checksum(&mut datagram[..length]);
        }
    }

    #[test]
    fn a_bit_is_turned() {
        let mut packet = IpPacket::new(&[0, 0]);
        packet.flip(16);
        assert!(!packet.is_damaged(), "there is no such bit");
        packet.flip(9);
        assert!(packet.is_damaged());
        assert_eq!(packet.bytes(), [0, 0x40]);
    }
}
