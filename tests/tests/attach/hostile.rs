//! Clients that break the rules: they are disconnected, others are served, and the disk stays as it is.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use lunette_tests::attach::{Attached, Client, command};
use lunette_tests::in_process::wait_until;
use lunette_tests::lunette::Lunette;
use lunette_tests::random::Random;

use super::pattern;

#[test]
fn hostile_clients_harm_nobody() {
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let content = pattern(1, 1 << 20);
    let mut good = attached.client().expect("a client");
    assert_eq!(good.write(0, &content).expect("an answer"), 0);

    let mut random = Random::new(7);
    for _ in 0..100 {
        // Noise in place of a handshake, and of an option after one that has begun well.
        let mut stream = TcpStream::connect(attached.address()).expect("connected");
        let mut noise: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
        if random.below(2) == 0 {
            noise.splice(0..0, *b"\0\0\0\x03IHAVEOPT\0\0\0\x07");
        }
        // The server may have closed it already.
        let _ = stream.write_all(&noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let headers = [
        vec![0xff; 28],
        Client::header((command::WRITE, 0), 1, 0, u32::MAX),
        Client::header((command::WRITE, 0), 1, 0, 40 << 20),
    ];
    for header in headers {
        let mut client = attached.client().expect("a client");
        client.send(&header).expect("sent");
        assert!(client.is_closed(), "{header:?}");
    }
    // A read that nobody could keep in memory has an error, and the client may go on.
    let mut client = attached.client().expect("a client");
    assert_eq!(client.request((command::READ, 0), 0, u32::MAX).expect("an answer"), 22);
    // Half a request, and half a payload, and then nothing more.
    client.send(&Client::header((command::WRITE, 0), 1, 0, 512)).expect("sent");
    client.send(&[0xff; 100]).expect("sent");
    drop(client);
    let mut client = attached.client().expect("a client");
    client.send(&[0x25, 0x60]).expect("sent");
    drop(client);

    assert!(good.read(0, 1 << 20).expect("data") == content, "nothing of it was written");
    drop(good);
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

/// One that says nothing any more is asked by the system whether it is still there (proc(5), /proc/net/tcp: the timer of a connection).
#[test]
fn silent_clients_are_asked_whether_they_are_there() {
    const ESTABLISHED: &str = "01";
    /// Neither retransmission nor TIME_WAIT nor a window's probe.
    const KEEPALIVE_TIMER: &str = "02:";
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    assert_eq!(client.flush().expect("an answer"), 0);
    let port = format!(":{:04X}", attached.address().port());
    wait_until("the connection has a timer", || {
        let table = fs::read_to_string("/proc/net/tcp").expect("the connections");
        let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        let mut rows = rows.filter(|row| row.len() > 5 && row[1].ends_with(&port) && row[3] == ESTABLISHED);
        rows.any(|row| row[5].starts_with(KEEPALIVE_TIMER))
    });
    drop(client);
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

#[test]
fn too_many_clients_are_refused_until_others_go() {
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut clients: Vec<Client> = (0..16).map(|_| attached.client().expect("a client")).collect();
    assert!(attached.client().is_err(), "there are sixteen");
    let mut last = clients.pop().expect("a client");
    last.send(&Client::header((command::DISCONNECT, 0), 0, 0, 0)).expect("sent");
    assert!(last.is_closed());
    // The place is free a moment after the connection is closed.
    let mut next = attached.client();
    while next.is_err() {
        next = attached.client();
    }
    assert_eq!(next.and_then(|mut client| client.flush()).expect("an answer"), 0);
    // One that reads no answers is no reason not to end.
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}
