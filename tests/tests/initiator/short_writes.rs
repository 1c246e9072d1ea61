//! A write of which the target says that it has not taken all: the commands that write refuse it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::binary;
use lunette_wire::target::{Residual, ScsiResponse};
use lunette_wire::{BHS_LENGTH, Bhs, InitiatorPdu, InitiatorTaskTag, TargetPdu};

/// Carries one connection, and has the answer to the first write tell a residual count. Digests are not agreed on.
fn meddle(target: SocketAddr, residual: Residual) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(target).expect("the target");
            let ends = [near.try_clone(), far.try_clone()].map(|end| end.expect("a descriptor"));
            let writes = Arc::new(Mutex::new(Vec::<InitiatorTaskTag>::new()));
            let seen = Arc::clone(&writes);
            std::thread::spawn(move || {
                carry(near, far, |bhs| {
                    if let Ok(InitiatorPdu::ScsiCommand(command)) = InitiatorPdu::decode(bhs)
                        && command.write
                    {
                        seen.lock().expect("no panic").push(command.initiator_task_tag);
                    }
                });
            });
            let [near, far] = ends;
            std::thread::spawn(move || {
                carry(far, near, |bhs| {
                    if let Ok(TargetPdu::ScsiResponse(response)) = TargetPdu::decode(bhs)
                        && writes.lock().expect("no panic").contains(&response.initiator_task_tag)
                    {
                        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]);
                        *bhs = ScsiResponse { residual, ..response }.encode(length as usize);
                    }
                });
            });
        }
    });
    address
}

/// Passes PDUs on, each header by `change`.
fn carry(mut from: TcpStream, mut to: TcpStream, mut change: impl FnMut(&mut Bhs)) {
    loop {
        let mut bhs = [0; BHS_LENGTH];
        if from.read_exact(&mut bhs).is_err() {
            break;
        }
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        let mut rest = vec![0; usize::from(bhs[4]) * 4 + length.next_multiple_of(4)];
        change(&mut bhs);
        if from.read_exact(&mut rest).is_err() || to.write_all(&[&bhs[..], &rest].concat()).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_write_that_was_not_taken_whole_fails_the_command() {
    let target = InProcess::start(&["mem:16M"]);
    for residual in [Residual::Underflow(512), Residual::Overflow(512)] {
        let portal = meddle(target.portal(), residual);
        let url = format!("iscsi://{portal}/{}/0", target.name());
        let write = ["write", &url, "--pattern", "address", "--length", "1M"];
        let output = Command::new(binary()).args(write).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{residual:?}: {said}");
        assert!(said.contains("did not take a write as it was sent"), "{residual:?}: {said}");
        let read = ["checksum", &url, "--length", "1M"];
        assert!(Command::new(binary()).args(read).status().expect("it runs").success(), "reads go on");
    }
}
