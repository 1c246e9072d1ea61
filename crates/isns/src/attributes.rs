//! Attributes: a tag, a length and a value each, one behind the other (RFC 4171, 5.3, 6.1).
//!
//! Not here: which of them a message has, and in what order (`registration`, `notification`).

use std::net::{IpAddr, SocketAddr};

/// The longest text value, in bytes, without its null (6.1).
const TEXT_LENGTH_MAX: usize = 255;
/// What tells a UDP port from a TCP port (6.3.2, 6.3.5, 6.3.7: bit 15, counted from the most significant one).
const UDP_PORT: u32 = 1 << 16;

/// Attribute tags (6.1).
pub(crate) mod tag {
    pub(crate) const DELIMITER: u32 = 0;
    pub(crate) const ENTITY_IDENTIFIER: u32 = 1;
    pub(crate) const ENTITY_PROTOCOL: u32 = 2;
    pub(crate) const TIMESTAMP: u32 = 4;
    pub(crate) const REGISTRATION_PERIOD: u32 = 6;
    pub(crate) const PORTAL_ADDRESS: u32 = 16;
    pub(crate) const PORTAL_PORT: u32 = 17;
    pub(crate) const INQUIRY_INTERVAL: u32 = 19;
    pub(crate) const INQUIRY_PORT: u32 = 20;
    pub(crate) const NOTIFICATION_PORT: u32 = 23;
    pub(crate) const ISCSI_NAME: u32 = 32;
    pub(crate) const ISCSI_NODE_TYPE: u32 = 33;
    pub(crate) const ISCSI_ALIAS: u32 = 34;
    pub(crate) const ISCSI_SCN_BITMAP: u32 = 35;
    pub(crate) const GROUP_ISCSI_NAME: u32 = 48;
    pub(crate) const GROUP_ADDRESS: u32 = 49;
    pub(crate) const GROUP_PORT: u32 = 50;
    pub(crate) const GROUP_TAG: u32 = 51;
}

/// How a server brings what nobody has asked it for (2.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Over connections that the server makes.
    Tcp,
    /// One PDU in each datagram.
    Udp,
}

/// Attributes to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn bytes(mut self, tag: u32, value: &[u8]) -> Self {
        let length = value.len().next_multiple_of(4);
        self.0.extend(tag.to_be_bytes());
        self.0.extend((length as u32).to_be_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len() + length - value.len(), 0);
        self
    }

    /// Text ends with a null (6.1).
    pub(crate) fn text(self, tag: u32, text: &str) -> Self {
        self.bytes(tag, &[text.as_bytes(), &[0]].concat())
    }

    pub(crate) fn number(self, tag: u32, number: u32) -> Self {
        self.bytes(tag, &number.to_be_bytes())
    }

    /// Without a value: in a query what is asked for, else that there is none.
    pub(crate) fn empty(self, tag: u32) -> Self {
        self.bytes(tag, &[])
    }

    /// An address and a TCP port (6.3.1, 6.3.2); an IPv4 address is mapped into IPv6.
    pub(crate) fn address(self, (address_tag, port_tag): (u32, u32), at: SocketAddr) -> Self {
        let ip = match at.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.bytes(address_tag, &ip.octets()).port(port_tag, at.port(), Transport::Tcp)
    }

    /// A port with its kind.
    pub(crate) fn port(self, tag: u32, port: u16, transport: Transport) -> Self {
        let kind = if transport == Transport::Udp { UDP_PORT } else { 0 };
        self.number(tag, u32::from(port) | kind)
    }

    pub(crate) fn and(mut self, other: &Attributes) -> Self {
        self.0.extend(&other.0);
        self
    }
}

/// A length that reaches behind the end, or is no number of whole words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The attributes in what came, as tag and value. Nothing follows a malformed one.
#[derive(Debug, Clone)]
pub(crate) struct Values<'a>(&'a [u8]);

impl<'a> Values<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self) -> Result<(u32, &'a [u8]), Malformed> {
        let (head, behind) = std::mem::take(&mut self.0).split_first_chunk::<8>().ok_or(Malformed)?;
        let length = word(head, 4) as usize;
        let value = behind.get(..length).filter(|_| length.is_multiple_of(4)).ok_or(Malformed)?;
        self.0 = &behind[length..];
        Ok((word(head, 0), value))
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = Result<(u32, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() { None } else { Some(self.take()) }
    }
}

/// A value of four bytes.
pub(crate) fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

/// A text without its nulls. What could spoil a log is no text.
pub(crate) fn text(value: &[u8]) -> Option<&str> {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    let text = str::from_utf8(&value[..end]).ok()?;
    let is_good = (1..=TEXT_LENGTH_MAX).contains(&end) && !text.chars().any(char::is_control);
    is_good.then_some(text)
}

/// The four bytes at `at`, which must be there.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_mapped_and_a_udp_port_has_its_bit() {
        let attributes = Attributes::default().address((16, 17), "192.0.2.1:3260".parse().unwrap());
        let wanted = [
            &[0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1][..],
            &[0, 0, 0, 17, 0, 0, 0, 4, 0, 0, 0x0c, 0xbc],
            &[0, 0, 0, 20, 0, 0, 0, 4, 0, 1, 0x0c, 0xbc],
        ];
        assert_eq!(attributes.port(20, 3260, Transport::Udp).0, wanted.concat());
    }

    #[test]
    fn what_was_written_is_read_and_what_is_cut_off_is_malformed() {
        let attributes = Attributes::default().text(32, "iqn.a:1").number(35, 8).empty(0);
        let read: Vec<_> = Values::new(&attributes.0).map(Result::unwrap).collect();
        let wanted: [(u32, &[u8]); 3] = [(32, b"iqn.a:1\0"), (35, &[0, 0, 0, 8]), (0, &[])];
        assert_eq!(read, wanted);
        for length in 1..attributes.len() {
            let has_end = [16, 28].contains(&length);
            let is_malformed = Values::new(&attributes.0[..length]).any(|value| value.is_err());
            assert_eq!(is_malformed, !has_end, "{length}");
        }
        assert_eq!(Values::new(&[0, 0, 0, 1, 0, 0, 0, 2, 0, 0]).next(), Some(Err(Malformed)));
    }

    #[test]
    fn text_is_short_and_clean() {
        assert_eq!((text(b"abc\0"), text(b"abcd")), (Some("abc"), Some("abcd")));
        assert_eq!(text("\u{e4}b\0".as_bytes()), Some("\u{e4}b"));
        for bad in [&b"\0\0\0\0"[..], b"", b"a\nb\0", &[0xff, 0xfe, 0, 0], &[b'a'; 256]] {
            assert_eq!(text(bad), None, "{bad:?}");
        }
    }
}
