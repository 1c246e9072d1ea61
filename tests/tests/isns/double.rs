//! A server that says what a test wants, written to RFC 4171 apart from our client's code: notifications and inquiries at every
//! port and over the client's own connection, what is no use, and who is no server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use lunette_target::config::{IsnsConfig, IsnsNotifications};
use lunette_tests::in_process::{InProcess, LIMIT, wait_until};
use lunette_tests::tgtd::free_portal;

use crate::target_with;

pub(crate) const REGISTER: u16 = 0x0001;
pub(crate) const QUERY: u16 = 0x0002;
const REGISTER_NOTIFICATION: u16 = 0x0005;
const NOTIFICATION: u16 = 0x0008;
const INQUIRY: u16 = 0x000d;
const RESPONSE: u16 = 0x8000;

pub(crate) const DELIMITER: u32 = 0;
const ENTITY: u32 = 1;
const TIMESTAMP: u32 = 4;
const PORTAL_ADDRESS: u32 = 16;
const PORTAL_PORT: u32 = 17;
const INQUIRY_PORT: u32 = 20;
const NOTIFICATION_PORT: u32 = 23;
const NAME: u32 = 32;
const BITMAP: u32 = 35;

const REMOVED: u32 = 0x10;
const ADDED: u32 = 0x08;

/// One attribute.
pub(crate) type Value = (u32, Vec<u8>);

pub(crate) fn text(tag: u32, text: &str) -> Value {
    let mut value = text.as_bytes().to_vec();
    value.resize((value.len() + 4) / 4 * 4, 0);
    (tag, value)
}

pub(crate) fn number(tag: u32, number: u32) -> Value {
    (tag, number.to_be_bytes().to_vec())
}

/// One PDU that is a whole message of a server's.
pub(crate) fn pdu(function: u16, transaction: u16, payload: &[u8]) -> Vec<u8> {
    let fields = [1, function, u16::try_from(payload.len()).expect("short"), 0x4c00, transaction, 0];
    let header = fields.iter().flat_map(|field| field.to_be_bytes());
    header.chain(payload.iter().copied()).collect()
}

pub(crate) fn payload(values: &[Value]) -> Vec<u8> {
    let bytes = |(tag, value): &Value| {
        let length = u32::try_from(value.len()).expect("short");
        [&tag.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
    };
    values.iter().flat_map(bytes).collect()
}

pub(crate) fn values(mut bytes: &[u8]) -> Vec<Value> {
    let word = |at: &[u8]| u32::from_be_bytes(at[..4].try_into().expect("four bytes"));
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let end = 8 + word(&bytes[4..]) as usize;
        values.push((word(bytes), bytes[8..end].to_vec()));
        bytes = &bytes[end..];
    }
    values
}

/// A message of the target's: function, transaction, payload.
fn parse(bytes: &[u8]) -> (u16, u16, Vec<u8>) {
    let field = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    assert_eq!(
        (field(0), field(4) as usize, field(10)),
        (1, bytes.len() - 12, 0),
        "version, length, sequence"
    );
    assert_eq!(field(6) & 0xec00, 0x8c00, "from a client, first and last");
    (field(2), field(8), bytes[12..].to_vec())
}

pub(crate) fn receive(stream: &mut TcpStream) -> (u16, u16, Vec<u8>) {
    let mut bytes = vec![0; 12];
    stream.read_exact(&mut bytes).expect("a header");
    bytes.resize(12 + usize::from(u16::from_be_bytes([bytes[4], bytes[5]])), 0);
    stream.read_exact(&mut bytes[12..]).expect("a payload");
    parse(&bytes)
}

/// The server, at an address of its own, and the target that has registered with it.
struct Double {
    address: SocketAddr,
    connection: TcpStream,
    /// The attributes of the registration.
    registered: Vec<Value>,
    /// Behind the connection: without one, its end does not wait for the server.
    target: InProcess,
}

impl Double {
    fn start(isns: IsnsConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.3:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let target = target_with(address, isns);
        let (connection, _) = listener.accept().expect("the target connects");
        connection.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut double = Self { address, connection, registered: Vec::new(), target };
        double.take_registration();
        double
    }

    /// Takes all that belongs to a registration.
    fn take_registration(&mut self) {
        let (function, transaction, payload) = receive(&mut self.connection);
        assert_eq!(function, REGISTER);
        self.registered = values(&payload);
        self.respond(function, transaction, 0, &[]);
        if self.ports(NOTIFICATION_PORT).is_empty() {
            return;
        }
        let (function, transaction, payload) = receive(&mut self.connection);
        assert_eq!(function, REGISTER_NOTIFICATION);
        let name = text(NAME, self.target.name());
        assert_eq!(values(&payload), [name.clone(), name, (DELIMITER, vec![]), number(BITMAP, 0x9c)]);
        self.respond(function, transaction, 0, &[]);
        self.take_question(true);
    }

    /// Takes a node's question for itself.
    fn take_question(&mut self, is_known: bool) {
        let (function, transaction, payload) = receive(&mut self.connection);
        let name = text(NAME, self.target.name());
        assert_eq!((function, &values(&payload)[0]), (QUERY, &name));
        let answer = [name.clone(), (DELIMITER, vec![]), name];
        self.respond(function, transaction, 0, if is_known { &answer } else { &answer[..2] });
    }

    fn respond(&mut self, function: u16, transaction: u16, status: u32, told: &[Value]) {
        let payload = [&status.to_be_bytes()[..], &payload(told)].concat();
        self.connection.write_all(&pdu(function | RESPONSE, transaction, &payload)).expect("sent");
    }

    /// The values of a port that each portal was registered with.
    fn ports(&self, tag: u32) -> Vec<u32> {
        let ports = self.registered.iter().filter(|(found, _)| *found == tag);
        ports.map(|(_, value)| u32::from_be_bytes(value[..].try_into().expect("a number"))).collect()
    }

    /// Where the target listens at its first portal.
    fn listening(&self, portal: usize) -> SocketAddr {
        let port = u16::try_from(self.ports(NOTIFICATION_PORT)[portal] & 0xffff).expect("a port");
        SocketAddr::new(self.target.portals()[portal].ip(), port)
    }

    fn call(&self) -> TcpStream {
        let stream = TcpStream::connect(self.listening(0)).expect("the target listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        stream
    }

    fn inquiry(&self) -> Vec<Value> {
        let of_portal = |tag: u32| self.registered.iter().find(|(found, _)| *found == tag).cloned();
        let portal = [PORTAL_ADDRESS, PORTAL_PORT].map(|tag| of_portal(tag).expect("a portal"));
        let [address, port] = portal;
        vec![(TIMESTAMP, vec![0; 8]), text(ENTITY, "lunette-tests"), address, port]
    }

    fn notification(&self, bitmap: u32, node: &str) -> Vec<Value> {
        vec![
            text(NAME, self.target.name()),
            (TIMESTAMP, vec![0; 8]),
            number(BITMAP, bitmap),
            text(NAME, node),
        ]
    }

    /// Sends something and checks the answer.
    fn ask(&self, stream: &mut TcpStream, function: u16, asked: &[Value], status: u32, told: &[Value]) {
        stream.write_all(&pdu(function, 77, &payload(asked))).expect("sent");
        let (answer, transaction, bytes) = receive(stream);
        assert_eq!((answer, transaction), (function | RESPONSE, 77));
        assert_eq!((&bytes[..4], values(&bytes[4..])), (&status.to_be_bytes()[..], told.to_vec()));
    }

    fn has_logged(&self, text: &str) -> bool {
        self.target.log_with(&format!("server={} ", self.address)).iter().any(|line| line.contains(text))
    }
}

/// RFC 4171: 2.9.1 TCP, 5.1.5 transaction, 5.4 status.
#[test]
fn inquiries_are_answered_with_what_they_asked() {
    let double = Double::start(IsnsConfig::default());
    let mut stream = double.call();
    let inquiry = double.inquiry();
    for _ in 0..3 {
        double.ask(&mut stream, INQUIRY, &inquiry, 0, &inquiry);
    }
    assert!(double.has_logged("inquiries of the iSNS server arrive"));
    let mut other = inquiry.clone();
    other[1] = text(ENTITY, "another");
    double.ask(&mut stream, INQUIRY, &other, 9, &[]);
    double.ask(&mut stream, INQUIRY, &inquiry[..3], 2, &[]);
    double.ask(&mut stream, 0x0009, &inquiry, 15, &[]);
}

/// RFC 4171: 5.6.5.8 SCN, 6.3.7 SCN port.
#[test]
fn a_target_that_was_removed_registers_again_and_one_that_is_there_does_not() {
    let mut double = Double::start(IsnsConfig::default());
    let destination = [text(NAME, double.target.name())];
    let own = double.notification(REMOVED, double.target.name());
    let mut stream = double.call();
    double.ask(&mut stream, NOTIFICATION, &own, 0, &destination);
    double.take_question(true);
    double.ask(&mut stream, NOTIFICATION, &own, 0, &destination);
    double.take_question(false);
    double.take_registration();
    assert!(double.has_logged("has forgotten the targets"));
}

/// RFC 4171: 2.9.1 one connection, 5.7.5.8 SCNRsp.
#[test]
fn notifications_may_come_over_the_connection_of_the_registration() {
    let double = Double::start(IsnsConfig::default());
    let initiator = format!("iqn.2026-11.io.lunette:initiator-{}", double.address.port());
    let mut stream = double.connection.try_clone().expect("a handle");
    let destination = [text(NAME, double.target.name())];
    for (bitmap, what) in [(ADDED, "was added"), (REMOVED, "was removed")] {
        double.ask(&mut stream, NOTIFICATION, &double.notification(bitmap, &initiator), 0, &destination);
        assert!(double.has_logged(&format!("an initiator {what}")));
    }
    let inquiry = double.inquiry();
    double.ask(&mut stream, INQUIRY, &inquiry, 0, &inquiry);
}

/// RFC 4171: 7 security.
#[test]
fn strangers_are_not_heard() {
    let double = Double::start(IsnsConfig::default());
    // From 127.0.0.1, which is neither the server's address nor the one that is called.
    let mut stranger = TcpStream::connect(double.listening(1)).expect("the target listens");
    stranger.set_read_timeout(Some(LIMIT)).expect("a limit");
    let _ = stranger.write_all(&pdu(INQUIRY, 1, &payload(&double.inquiry())));
    let answer = stranger.read(&mut [0; 64]);
    assert!(matches!(&answer, Ok(0) | Err(_)), "{answer:?}");
    wait_until("it is told of", || double.has_logged("not the server"));
}

/// RFC 4171: 7 security.
#[test]
fn what_is_no_message_ends_its_connection_and_no_other() {
    let double = Double::start(IsnsConfig::default());
    let mut good = double.call();
    let mut bad = double.call();
    bad.write_all(&[0xff; 64]).expect("sent");
    let end = bad.read(&mut [0; 64]);
    assert!(matches!(&end, Ok(0) | Err(_)), "{end:?}");
    let inquiry = double.inquiry();
    double.ask(&mut good, INQUIRY, &inquiry, 0, &inquiry);
    // An answer that nobody waits for.
    good.write_all(&pdu(INQUIRY | RESPONSE, 1, &[0; 4])).expect("sent");
    double.ask(&mut good, INQUIRY, &inquiry, 0, &inquiry);
}

/// RFC 4171: 2.9.2 UDP.
#[test]
fn datagrams_of_the_server_are_answered_and_no_others() {
    let double = Double::start(IsnsConfig { notifications: IsnsNotifications::Udp, ..IsnsConfig::default() });
    assert!(double.ports(INQUIRY_PORT).iter().all(|port| port >> 16 == 1), "UDP ports");
    let socket = |address: &str| {
        let socket = UdpSocket::bind((address, 0)).expect("a port");
        socket.set_read_timeout(Some(LIMIT)).expect("a limit");
        socket.connect(double.listening(0)).expect("connected");
        socket
    };
    let (server, stranger) = (socket("127.0.0.3"), socket("127.0.0.9"));
    let inquiry = pdu(INQUIRY, 5, &payload(&double.inquiry()));
    stranger.send(&inquiry).expect("sent");
    for bad in [&[][..], &[0; 12], &inquiry[..20], &[&inquiry[..], &[0; 4]].concat()] {
        server.send(bad).expect("sent");
    }
    server.send(&inquiry).expect("sent");
    let mut bytes = [0; 1024];
    let length = server.recv(&mut bytes).expect("an answer");
    let (function, transaction, payload) = parse(&bytes[..length]);
    assert_eq!((function, transaction, &payload[4..]), (INQUIRY | RESPONSE, 5, &inquiry[12..]));
    // What came before was looked at before.
    for socket in [&server, &stranger] {
        socket.set_nonblocking(true).expect("set");
        assert!(socket.recv(&mut bytes).is_err());
    }
}

/// RFC 4171: 6.3.4, 6.3.5 ESI port.
#[test]
fn nothing_listens_unless_wanted_and_where_it_is_wanted() {
    let none = IsnsConfig { notifications: IsnsNotifications::None, ..IsnsConfig::default() };
    let double = Double::start(none);
    assert_eq!((double.ports(INQUIRY_PORT), double.ports(NOTIFICATION_PORT)), (vec![], vec![]));
    // Somebody else may be given a port that was free a moment ago.
    let is_used = |_| {
        let port = free_portal().expect("a free port").port();
        let double = Double::start(IsnsConfig { notification_port: port, ..IsnsConfig::default() });
        [INQUIRY_PORT, NOTIFICATION_PORT].iter().all(|tag| double.ports(*tag) == [u32::from(port); 2])
    };
    assert!((0..10).any(is_used));
}

#[test]
fn a_drain_does_not_wait_for_a_silent_server() {
    let double = Double::start(IsnsConfig::default());
    let _caller = double.call();
    let Double { target, mut connection, .. } = double;
    target.drain();
    let (function, ..) = receive(&mut connection);
    assert_eq!(function, 0x0004);
    target.end().expect("an end in time").expect("a clean end");
    assert_eq!(connection.read(&mut [0; 1]).expect("an end"), 0);
}
