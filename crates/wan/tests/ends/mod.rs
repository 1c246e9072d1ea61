//! What tests of real packets have in common: a network, and sockets at its ends.

use std::net::UdpSocket;
use std::time::Duration;

use lunette_wan::{Emulator, FAR, NEAR};

/// Long enough for anything that is sent; a loss would otherwise wait for ever.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A network, or a skip where this user may not make one.
pub(crate) fn network(link: &str) -> Option<Emulator> {
    match Emulator::start(&link.parse().expect("a link"), 1) {
        Ok(emulator) => Some(emulator),
        Err(error) => {
            lunette_skip::record_lacking(&format!("no emulated network for this user: {error}"));
            None
        }
    }
}

/// A UDP socket at each end.
pub(crate) fn sockets(emulator: &Emulator) -> (UdpSocket, UdpSocket) {
    let near = emulator.near().within(|| UdpSocket::bind((NEAR.ipv4, 0))).expect("a socket");
    let far = emulator.far().within(|| UdpSocket::bind((FAR.ipv4, 0))).expect("a socket");
    near.connect(far.local_addr().expect("a socket")).expect("a socket");
    far.connect(near.local_addr().expect("a socket")).expect("a socket");
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(LIMIT)).expect("a socket");
    }
    (near, far)
}
