//! IP packets as a link sees them.

use lunette_link::{Class, Packet};

/// The port that iSCSI targets listen on (RFC 7143, 14).
const ISCSI_PORT: u16 = 3260;

const TCP: u8 = 6;

/// Where TCP begins in an IPv6 packet without extension headers, which TCP segments do not have here.
const IPV6_HEADER_LENGTH: usize = 40;

/// An IP packet, as a network device gives it.
#[derive(Debug, Clone)]
pub(crate) struct IpPacket(pub(crate) Vec<u8>);

impl Packet for IpPacket {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn class(&self) -> Class {
        match ports(&self.0) {
            Some(ports) if ports.contains(&ISCSI_PORT) => Class::Iscsi,
            _ => Class::Other,
        }
    }

    fn flip(&mut self, bit: u64) {
        if let Some(byte) = self.0.get_mut((bit / 8) as usize) {
            *byte ^= 0x80 >> (bit % 8);
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
        IpPacket(bytes)
    }

    #[test]
    fn iscsi_is_known_by_its_port_in_both_directions() {
        assert_eq!(ipv4(TCP, 0, [3260, 50_000]).class(), Class::Iscsi);
        assert_eq!(ipv4(TCP, 0x2000, [50_000, 3260]).class(), Class::Iscsi);
        assert_eq!(ipv4(TCP, 0, [3261, 50_000]).class(), Class::Other);
        assert_eq!(ipv4(17, 0, [3260, 50_000]).class(), Class::Other, "not TCP");
        assert_eq!(
            ipv4(TCP, 100, [3260, 50_000]).class(),
            Class::Other,
            "data of a later fragment is no header"
        );
        let mut ipv6 = vec![0x60; 1];
        ipv6.resize(44, 0);
        ipv6[6] = TCP;
        ipv6[42..44].copy_from_slice(&3260u16.to_be_bytes());
        assert_eq!(IpPacket(ipv6.clone()).class(), Class::Iscsi);
        for length in 0..44 {
            assert_eq!(IpPacket(ipv6[..length].to_vec()).class(), Class::Other);
        }
        for length in 0..28 {
            assert_eq!(IpPacket(ipv4(TCP, 0, [3260, 1]).0[..length].to_vec()).class(), Class::Other);
        }
    }

    #[test]
    fn a_bit_is_turned() {
        let mut packet = IpPacket(vec![0, 0]);
        packet.flip(9);
        packet.flip(16);
        assert_eq!(packet.0, [0, 0x40]);
    }
}
