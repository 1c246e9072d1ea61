//! iSNSP messages: the header, and what is sent and received behind it (RFC 4171, 5.1, 5.2, 5.4).

use crate::attributes::{Attributes, Values, number, word};

/// Bytes of the header of a PDU (5.1).
const HEADER_LENGTH: usize = 12;
/// The only version of the protocol (5.1.1).
const VERSION: u16 = 1;
/// The bit that tells a response from the request (5.1.2).
const RESPONSE: u16 = 0x8000;
/// The longest payload of one PDU: what 16 bits can say, in whole words (5.1.3).
pub(crate) const PAYLOAD_MAX: usize = 0xfffc;
/// The most bytes that a message may have over all its PDUs; what is asked for takes some hundred.
const MESSAGE_MAX: usize = 256 << 10;

/// Flags (5.1.4): who speaks, whether older attributes are replaced, and where a PDU is in its message.
mod flag {
    pub(super) const CLIENT: u16 = 0x8000;
    pub(super) const REPLACE: u16 = 0x1000;
    pub(super) const LAST: u16 = 0x0800;
    pub(super) const FIRST: u16 = 0x0400;
}

/// What a request asks for (4.1.3).
pub(crate) mod function {
    pub(crate) const REGISTER: u16 = 0x0001;
    pub(crate) const QUERY: u16 = 0x0002;
    pub(crate) const DEREGISTER: u16 = 0x0004;
    pub(crate) const REGISTER_NOTIFICATION: u16 = 0x0005;
    pub(crate) const NOTIFICATION: u16 = 0x0008;
    pub(crate) const INQUIRY: u16 = 0x000d;
    pub(crate) const HEARTBEAT: u16 = 0x000e;
}

/// Response status codes (5.4).
pub(crate) mod status {
    pub(crate) const SUCCESSFUL: u32 = 0;
    pub(crate) const FORMAT_ERROR: u32 = 2;
    pub(crate) const INVALID_REGISTRATION: u32 = 3;
    pub(crate) const NO_SUCH_ENTRY: u32 = 9;
    pub(crate) const NOT_SUPPORTED: u32 = 15;
    pub(crate) const INQUIRY_NOT_AVAILABLE: u32 = 21;
}

/// One PDU that is a whole message of ours.
fn encode(function: u16, flags: u16, transaction: u16, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert!(length <= PAYLOAD_MAX);
    let flags = flag::CLIENT | flag::FIRST | flag::LAST | flags;
    let fields = [VERSION, function, length as u16, flags, transaction, 0];
    let header = fields.iter().flat_map(|field| field.to_be_bytes());
    header.chain(parts.iter().copied().flatten().copied()).collect()
}

/// A request, ready to be numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) function: u16,
    /// What the server knows of the entity is to be replaced.
    pub(crate) replaces: bool,
    pub(crate) attributes: Attributes,
}

impl Request {
    /// The request as one PDU. `transaction` comes back in the answer.
    pub(crate) fn encode(&self, transaction: u16) -> Vec<u8> {
        let flags = if self.replaces { flag::REPLACE } else { 0 };
        encode(self.function, flags, transaction, &[self.attributes.as_bytes()])
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
    fn values(&self) -> impl Iterator<Item = (u32, &[u8])> {
        Values::new(&self.payload).map_while(Result::ok)
    }

    /// The value of the first attribute with this tag, if it has four bytes.
    pub(crate) fn number(&self, tag: u32) -> Option<u32> {
        self.values().find(|(found, _)| *found == tag).and_then(|(_, value)| number(value))
    }

    /// The operating attributes: those behind the delimiter (5.7.4).
    pub(crate) fn told(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.values().skip_while(|(found, _)| *found != crate::attributes::tag::DELIMITER).skip(1)
    }

    /// Whether an operating attribute has this tag, and a value.
    pub(crate) fn tells(&self, tag: u32) -> bool {
        self.told().any(|(found, value)| found == tag && !value.is_empty())
    }
}

/// What a server asks or tells of its own accord.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRequest {
    pub(crate) function: u16,
    pub(crate) transaction: u16,
    pub(crate) payload: Vec<u8>,
}

impl ServerRequest {
    /// The response as one PDU.
    pub(crate) fn answer(&self, status: u32, attributes: &[u8]) -> Vec<u8> {
        encode(self.function | RESPONSE, 0, self.transaction, &[&status.to_be_bytes(), attributes])
    }
}

/// One message of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// An answer to a request of ours.
    Response(Response),
    /// Something that wants an answer.
    Request(ServerRequest),
}

impl Message {
    fn new(header: Header, mut payload: Vec<u8>) -> Result<Self, Fault> {
        let Header { function, transaction, .. } = header;
        if function & RESPONSE == 0 {
            return Ok(Self::Request(ServerRequest { function, transaction, payload }));
        }
        if payload.len() < 4 {
            return Err(Fault::Length);
        }
        let status = word(&payload, 0);
        payload.drain(..4);
        Ok(Self::Response(Response { function: function & !RESPONSE, transaction, status, payload }))
    }

    /// Reads a datagram, which is one PDU and that a whole message (2.9.2).
    ///
    /// # Errors
    /// [`Fault`].
    pub fn from_datagram(bytes: &[u8]) -> Result<Self, Fault> {
        let (header, payload) = bytes.split_first_chunk().ok_or(Fault::Length)?;
        let header = Header::read(header)?;
        if payload.len() != header.length || !header.is_first || !header.is_last {
            return Err(Fault::Length);
        }
        Self::new(header, payload.to_vec())
    }
}

/// Why what a server says cannot be read; the connection is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Another version, or not iSNS at all.
    #[error("the server does not speak iSNS version 1")]
    Version,
    /// A length that is no number of whole words or not that of a datagram, or a status that is missing.
    #[error("the server sent a message of an impossible length")]
    Length,
    /// More than anything that was asked for.
    #[error("the server sent a message longer than {MESSAGE_MAX} bytes")]
    TooLong,
    /// A PDU of another message before a message was complete (5.2).
    #[error("the server sent PDUs that are not of one message")]
    Mixed,
}

/// The header of a PDU.
#[derive(Debug, Clone, Copy)]
struct Header {
    function: u16,
    length: usize,
    is_first: bool,
    is_last: bool,
    transaction: u16,
}

impl Header {
    fn read(bytes: &[u8; HEADER_LENGTH]) -> Result<Self, Fault> {
        let field = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let [version, function, length, flags, transaction] = [0, 2, 4, 6, 8].map(field);
        if version != VERSION {
            return Err(Fault::Version);
        }
        if !length.is_multiple_of(4) {
            return Err(Fault::Length);
        }
        let [is_first, is_last] = [flag::FIRST, flag::LAST].map(|flag| flags & flag != 0);
        Ok(Self { function, length: length.into(), is_first, is_last, transaction })
    }
}

/// Takes a stream of bytes apart into messages.
#[derive(Debug, Default)]
pub struct Reader {
    received: Vec<u8>,
    /// The function, the transaction and the payload so far of a message whose last PDU has not come.
    begun: Option<(u16, u16, Vec<u8>)>,
}

impl Reader {
    /// Takes what came.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.received.extend(bytes);
    }

    /// The next message, if it is complete.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn message(&mut self) -> Result<Option<Message>, Fault> {
        loop {
            let Some((header, behind)) = self.received.split_first_chunk() else { return Ok(None) };
            let header = Header::read(header)?;
            let (function, transaction, payload) =
                self.begun.get_or_insert_with(|| (header.function, header.transaction, Vec::new()));
            if (*function, *transaction) != (header.function, header.transaction) {
                return Err(Fault::Mixed);
            }
            if payload.len() + header.length > MESSAGE_MAX {
                return Err(Fault::TooLong);
            }
            let Some(part) = behind.get(..header.length) else { return Ok(None) };
            payload.extend(part);
            self.received.drain(..HEADER_LENGTH + header.length);
            if header.is_last
                && let Some((_, _, payload)) = self.begun.take()
            {
                return Message::new(header, payload).map(Some);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::attributes::tag;
    use lunette_cases::cases;
    use proptest::prelude::*;

    /// An answer as a server sends it.
    pub(crate) fn answer(function: u16, transaction: u16, status: u32, attributes: &[u8]) -> Vec<u8> {
        pdu(function | RESPONSE, 0x4c00, transaction, &[&status.to_be_bytes(), attributes].concat())
    }

    /// A PDU of a server.
    pub(crate) fn pdu(function: u16, flags: u16, transaction: u16, payload: &[u8]) -> Vec<u8> {
        let fields = [VERSION, function, payload.len() as u16, flags, transaction, 0];
        let header: Vec<u8> = fields.iter().flat_map(|field| field.to_be_bytes()).collect();
        [&header, payload].concat()
    }

    fn read(bytes: &[u8]) -> Result<Option<Message>, Fault> {
        let mut reader = Reader::default();
        reader.extend(bytes);
        reader.message()
    }

    pub(crate) fn response(bytes: &[u8]) -> Response {
        let Ok(Some(Message::Response(response))) = read(bytes) else { panic!("a response") };
        response
    }

    pub(crate) fn request(bytes: &[u8]) -> ServerRequest {
        let Ok(Some(Message::Request(request))) = read(bytes) else { panic!("a request") };
        request
    }

    #[test]
    fn a_request_has_header_and_padded_attributes() {
        let attributes = Attributes::default().text(1, "abcd").empty(0).number(2, 2);
        let request = Request { function: function::REGISTER, replaces: true, attributes };
        let wanted = [
            &[0, 1, 0, 1, 0, 36, 0x9c, 0, 0x12, 0x34, 0, 0][..],
            &[0, 0, 0, 1, 0, 0, 0, 8, b'a', b'b', b'c', b'd', 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2],
        ];
        assert_eq!(request.encode(0x1234), wanted.concat());
    }

    #[test]
    fn an_answer_is_read_in_whatever_pieces_it_comes() {
        let bytes = answer(1, 7, 0, &[0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 0, 120]);
        let mut reader = Reader::default();
        for byte in &bytes[..bytes.len() - 1] {
            reader.extend(&[*byte]);
            assert_eq!(reader.message(), Ok(None));
        }
        reader.extend(&bytes[bytes.len() - 1..]);
        let Ok(Some(Message::Response(response))) = reader.message() else { panic!("a response") };
        assert_eq!((response.function, response.transaction, response.status), (1, 7, 0));
        assert_eq!((response.number(6), response.number(7)), (Some(120), None));
        assert_eq!(reader.message(), Ok(None));
    }

    #[test]
    fn an_answer_may_have_several_pdus_of_its_own() {
        let parts = [
            pdu(0x8002, 0x4400, 9, &[0, 0, 0, 0, 0, 0, 0, 6]),
            pdu(0x8002, 0x4000, 9, &[0, 0, 0, 4]),
            pdu(0x8002, 0x4800, 9, &[0, 0, 0, 9]),
        ];
        assert_eq!(response(&parts.concat()).number(6), Some(9));
        let other = pdu(0x8002, 0x4800, 8, &[0, 0, 0, 9]);
        assert_eq!(read(&[&parts[0][..], &other].concat()), Err(Fault::Mixed));
    }

    #[test]
    fn operating_attributes_are_behind_the_delimiter() {
        let key = Attributes::default().text(tag::ISCSI_NAME, "iqn.a:1").empty(tag::DELIMITER);
        let told = |attributes: &Attributes| {
            response(&answer(2, 1, 0, attributes.as_bytes())).tells(tag::ISCSI_NAME)
        };
        assert!(!told(&key));
        assert!(!told(&key.clone().empty(tag::ISCSI_NAME)));
        assert!(told(&key.text(tag::ISCSI_NAME, "iqn.a:1")));
    }

    #[test]
    fn a_datagram_is_one_whole_message() {
        let whole = pdu(8, 0x4c00, 3, &[1, 2, 3, 4]);
        let Ok(Message::Request(request)) = Message::from_datagram(&whole) else { panic!("a request") };
        assert_eq!((request.function, request.transaction, request.payload), (8, 3, vec![1, 2, 3, 4]));
        let first = pdu(8, 0x4400, 3, &[]);
        for bad in [&whole[..11], &whole[..15], &[&whole[..], &[0]].concat(), &first] {
            assert_eq!(Message::from_datagram(bad), Err(Fault::Length));
        }
    }

    #[test]
    fn nonsense_has_a_name_and_an_end() {
        assert_eq!(read(&[0; 12]), Err(Fault::Version));
        assert_eq!(read(&pdu(0x8001, 0x4c00, 1, &[])), Err(Fault::Length));
        assert_eq!(read(&[0, 1, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0]), Err(Fault::Length));
        let endless = pdu(0x8001, 0x4400, 1, &[0; PAYLOAD_MAX]);
        let mut reader = Reader::default();
        let fault = (0..8).find_map(|_| {
            reader.extend(&endless);
            reader.message().err()
        });
        assert_eq!(fault, Some(Fault::TooLong));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), valid: bool) {
            let bytes = if valid { answer(1, 1, 0, &bytes[..bytes.len() / 4 * 4]) } else { bytes };
            let whole = read(&bytes);
            if valid {
                let Ok(Some(Message::Response(response))) = whole else { panic!("a response") };
                let _ = (response.number(tag::REGISTRATION_PERIOD), response.tells(tag::ISCSI_NAME));
            }
            // In pieces it says the same.
            let mut reader = Reader::default();
            let pieces = bytes.chunks(7).find_map(|piece| {
                reader.extend(piece);
                reader.message().transpose()
            });
            if let Ok(Some(message)) = read(&bytes) {
                prop_assert_eq!(pieces, Some(Ok(message)));
            }
        }
    }
}
