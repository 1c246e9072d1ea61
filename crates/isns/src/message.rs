//! iSNSP messages: the header, and attributes as tag, length and value (RFC 4171, 5.1, 5.3, 6.1).

use std::net::{IpAddr, SocketAddr};

/// Bytes of the header of a PDU (5.1).
const HEADER_LENGTH: usize = 12;
/// The only version of the protocol (5.1.1).
const VERSION: u16 = 1;
/// The bit that tells a response from the request (5.1.2).
const RESPONSE: u16 = 0x8000;
/// The longest payload of one PDU: what 16 bits can say, in whole words (5.1.3).
pub(crate) const PAYLOAD_MAX: usize = 0xfffc;
/// The most bytes that a response may have over all its PDUs; what is asked for takes some hundred.
const RESPONSE_MAX: usize = 256 << 10;

/// Flags (5.1.4): who speaks, whether older attributes are replaced, and where a PDU is in its message.
mod flag {
    pub(super) const CLIENT: u16 = 0x8000;
    pub(super) const REPLACE: u16 = 0x1000;
    pub(super) const LAST: u16 = 0x0800;
    pub(super) const FIRST: u16 = 0x0400;
}

/// What a request asks for (4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Function {
    Register = 0x0001,
    Query = 0x0002,
    Deregister = 0x0004,
}

/// Attribute tags (6.1).
pub(crate) mod tag {
    pub(crate) const DELIMITER: u32 = 0;
    pub(crate) const ENTITY_IDENTIFIER: u32 = 1;
    pub(crate) const ENTITY_PROTOCOL: u32 = 2;
    pub(crate) const REGISTRATION_PERIOD: u32 = 6;
    pub(crate) const PORTAL_ADDRESS: u32 = 16;
    pub(crate) const PORTAL_PORT: u32 = 17;
    pub(crate) const ISCSI_NAME: u32 = 32;
    pub(crate) const ISCSI_NODE_TYPE: u32 = 33;
    pub(crate) const ISCSI_ALIAS: u32 = 34;
    pub(crate) const GROUP_ISCSI_NAME: u32 = 48;
    pub(crate) const GROUP_ADDRESS: u32 = 49;
    pub(crate) const GROUP_PORT: u32 = 50;
    pub(crate) const GROUP_TAG: u32 = 51;
}

/// Attributes, one behind the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
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
        self.bytes(address_tag, &ip.octets()).number(port_tag, at.port().into())
    }

    pub(crate) fn and(mut self, other: &Attributes) -> Self {
        self.0.extend(&other.0);
        self
    }
}

/// A request, ready to be numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub(crate) function: Function,
    /// What the server knows of the entity is to be replaced.
    pub(crate) replaces: bool,
    pub(crate) attributes: Attributes,
}

impl Request {
    /// The request as one PDU. `transaction` comes back in the answer.
    pub(crate) fn encode(&self, transaction: u16) -> Vec<u8> {
        let replace = if self.replaces { flag::REPLACE } else { 0 };
        let flags = flag::CLIENT | flag::FIRST | flag::LAST | replace;
        debug_assert!(self.attributes.len() <= PAYLOAD_MAX);
        let fields = [VERSION, self.function as u16, self.attributes.len() as u16, flags, transaction, 0];
        let header = fields.iter().flat_map(|field| field.to_be_bytes());
        header.chain(self.attributes.0.iter().copied()).collect()
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub(crate) function: u16,
    pub(crate) transaction: u16,
    /// Zero is success (5.4).
    pub(crate) status: u32,
    payload: Vec<u8>,
}

impl Response {
    /// The value of the first attribute with this tag, if it has four bytes.
    pub(crate) fn number(&self, tag: u32) -> Option<u32> {
        let mut rest = &self.payload[..];
        while let Some((head, behind)) = rest.split_at_checked(8) {
            let length = word(head, 4) as usize;
            let value = behind.get(..length)?;
            if word(head, 0) == tag {
                return value.try_into().ok().map(u32::from_be_bytes);
            }
            rest = &behind[length..];
        }
        None
    }
}

/// Why what a server says cannot be read; the connection is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another version, or not iSNS at all.
    #[error("the server does not speak iSNS version 1")]
    Version,
    /// A length that is no number of whole words, or a status that is missing.
    #[error("the server sent a message of an impossible length")]
    Length,
    /// More than anything that was asked for.
    #[error("the server sent an answer longer than {RESPONSE_MAX} bytes")]
    TooLong,
}

/// Takes a stream of bytes apart into answers.
#[derive(Debug, Default)]
pub struct Reader {
    received: Vec<u8>,
    /// The payload of an answer whose last PDU has not come.
    payload: Vec<u8>,
}

impl Reader {
    /// Takes what came.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.received.extend(bytes);
    }

    /// The next answer, if it is complete. Requests of the server's, which nobody has asked for, are passed over.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn response(&mut self) -> Result<Option<Response>, Fault> {
        loop {
            let Some(header) = self.received.get(..HEADER_LENGTH) else { return Ok(None) };
            let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
            let [version, function, length, flags, transaction] = [0, 2, 4, 6, 8].map(field);
            let length = usize::from(length);
            if version != VERSION {
                return Err(Fault::Version);
            }
            if !length.is_multiple_of(4) {
                return Err(Fault::Length);
            }
            if self.payload.len() + length > RESPONSE_MAX {
                return Err(Fault::TooLong);
            }
            let Some(payload) = self.received.get(HEADER_LENGTH..HEADER_LENGTH + length) else {
                return Ok(None);
            };
            self.payload.extend(payload);
            self.received.drain(..HEADER_LENGTH + length);
            if flags & flag::LAST == 0 {
                continue;
            }
            let mut payload = std::mem::take(&mut self.payload);
            if function & RESPONSE == 0 {
                continue;
            }
            if payload.len() < 4 {
                return Err(Fault::Length);
            }
            let status = word(&payload, 0);
            payload.drain(..4);
            return Ok(Some(Response { function: function & !RESPONSE, transaction, status, payload }));
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    /// An answer as a server sends it.
    pub(crate) fn answer(function: u16, transaction: u16, status: u32, attributes: &[u8]) -> Vec<u8> {
        pdu(function | RESPONSE, 0x4c00, transaction, &[&status.to_be_bytes(), attributes].concat())
    }

    fn pdu(function: u16, flags: u16, transaction: u16, payload: &[u8]) -> Vec<u8> {
        let fields = [VERSION, function, payload.len() as u16, flags, transaction, 0];
        let header: Vec<u8> = fields.iter().flat_map(|field| field.to_be_bytes()).collect();
        [&header, payload].concat()
    }

    fn read(bytes: &[u8]) -> Result<Option<Response>, Fault> {
        let mut reader = Reader::default();
        reader.extend(bytes);
        reader.response()
    }

    #[test]
    fn a_request_has_header_and_padded_attributes() {
        let attributes = Attributes::default().text(1, "abcd").empty(0).number(2, 2);
        let request = Request { function: Function::Register, replaces: true, attributes };
        let wanted = [
            &[0, 1, 0, 1, 0, 36, 0x9c, 0, 0x12, 0x34, 0, 0][..],
            &[0, 0, 0, 1, 0, 0, 0, 8, b'a', b'b', b'c', b'd', 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2],
        ];
        assert_eq!(request.encode(0x1234), wanted.concat());
    }

    #[test]
    fn an_ipv4_address_is_mapped() {
        let attributes = Attributes::default().address((16, 17), "192.0.2.1:3260".parse().unwrap());
        let wanted = [
            &[0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1][..],
            &[0, 0, 0, 17, 0, 0, 0, 4, 0, 0, 0x0c, 0xbc],
        ];
        assert_eq!(attributes.0, wanted.concat());
    }

    #[test]
    fn an_answer_is_read_in_whatever_pieces_it_comes() {
        let bytes = answer(1, 7, 0, &[0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 0, 120]);
        let mut reader = Reader::default();
        for byte in &bytes[..bytes.len() - 1] {
            reader.extend(&[*byte]);
            assert_eq!(reader.response(), Ok(None));
        }
        reader.extend(&bytes[bytes.len() - 1..]);
        let response = reader.response().unwrap().unwrap();
        assert_eq!((response.function, response.transaction, response.status), (1, 7, 0));
        assert_eq!((response.number(6), response.number(7)), (Some(120), None));
        assert_eq!(reader.response(), Ok(None));
    }

    #[test]
    fn an_answer_may_have_several_pdus_and_a_request_is_passed_over() {
        let first = pdu(0x8002, 0x4400, 9, &[0, 0, 0, 0, 0, 0, 0, 6, 0, 0]);
        let whole = [
            pdu(0x000d, 0x4c00, 1, &[1, 2, 3, 4]),
            pdu(0x8002, 0x4400, 9, &[0, 0, 0, 0, 0, 0, 0, 6]),
            pdu(0x8002, 0x4800, 9, &[0, 0, 0, 4, 0, 0, 0, 9]),
        ];
        assert_eq!(read(&whole.concat()).unwrap().unwrap().number(6), Some(9));
        assert_eq!(read(&first), Err(Fault::Length));
    }

    #[test]
    fn nonsense_has_a_name_and_an_end() {
        assert_eq!(read(&[0; 12]), Err(Fault::Version));
        assert_eq!(read(&pdu(0x8001, 0x4c00, 1, &[])), Err(Fault::Length));
        let endless = pdu(0x8001, 0x4400, 1, &[0; PAYLOAD_MAX]);
        let mut reader = Reader::default();
        let fault = (0..8).find_map(|_| {
            reader.extend(&endless);
            reader.response().err()
        });
        assert_eq!(fault, Some(Fault::TooLong));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), valid: bool) {
            let bytes = if valid { answer(1, 1, 0, &bytes[..bytes.len() / 4 * 4]) } else { bytes };
            let read = read(&bytes);
            if valid {
                let response = read.unwrap().unwrap();
                let _ = response.number(tag::REGISTRATION_PERIOD);
            }
        }
    }
}
