//! IP packets as a link sees them.

use lunette_link::Packet;
use tun_rs::VIRTIO_NET_HDR_LEN;

const TCP: u8 = 6;

/// Where TCP begins in an IPv6 packet without extension headers, which TCP segments do not have here.
const IPV6_HEADER_LENGTH: usize = 40;

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
        ports(self.bytes())
    }

    fn flip(&mut self, bit: u64) {
        if let Some(byte) = self.room_and_packet.get_mut(VIRTIO_NET_HDR_LEN + (bit / 8) as usize) {
            *byte ^= 0x80 >> (bit % 8);
            self.is_damaged = true;
        }
    }
}

/// The ports of a TCP segment, of its first fragment if there are several.
fn ports(packet: &[u8]) -> Option<[u16; 2]> {
    let tcp = match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&TCP) && u16_at(packet, 6)? & 0x1fff == 0 => {
            usize::from(packet[0] & 0xf) * 4
        }
        6 if packet.get(6) == Some(&TCP) => IPV6_HEADER_LENGTH,
        _ => return None,
    };
    Some([u16_at(packet, tcp)?, u16_at(packet, tcp + 2)?])
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
    fn a_bit_is_turned() {
        let mut packet = IpPacket::new(&[0, 0]);
        packet.flip(16);
        assert!(!packet.is_damaged(), "there is no such bit");
        packet.flip(9);
        assert!(packet.is_damaged());
        assert_eq!(packet.bytes(), [0, 0x40]);
    }
}
