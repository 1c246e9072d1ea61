//! Units that become others while a session goes on: their targets say that something has changed, and they are asked who they are.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lunette_tests::attach::Attached;
use lunette_tests::commands::command;
use lunette_wire::InitiatorPdu;

use super::hostile::{INQUIRY_DATA_CHANGED, NAME, NOT_SUPPORTED, REPORTED_LUNS_CHANGED, Script, Sign};
use super::opening::answer;

const INQUIRY: u8 = 0x12;
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;

/// A target with a disk of 64 blocks that answers the first read or write with this, and has another disk there from then on if
/// `is_other`. Counts the reads and writes that it carries out.
fn serve(sign: Sign, is_other: bool) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address: SocketAddr = listener.local_addr().expect("an address");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        let mut target = Script::log_in(listener.accept().expect("a connection").0);
        let mut has_told = false;
        while let Some(InitiatorPdu::ScsiCommand(command)) = target.try_receive() {
            let is_of_medium = matches!(command.cdb[0], READ_10 | WRITE_10);
            if is_of_medium && !has_told {
                has_told = true;
                target.fail(&command, sign);
                continue;
            }
            counted.fetch_add(is_of_medium.into(), Ordering::SeqCst);
            let mut data = answer(&command.cdb, u8::MAX).unwrap_or_default();
            if command.cdb[0] == INQUIRY && data.len() == 36 && has_told && is_other {
                data[16..21].copy_from_slice(b"OTHER");
            }
            if command.cdb[0] == READ_10 {
                data = vec![0; command.expected_data_transfer_length as usize];
            }
            target.succeed(&command, data);
        }
    });
    (format!("iscsi://{address}/{NAME}/0"), count)
}

#[test]
fn a_command_goes_on_only_with_the_disk_that_it_has_begun_with() {
    for sign in [INQUIRY_DATA_CHANGED, REPORTED_LUNS_CHANGED] {
        for is_other in [false, true] {
            let (url, count) = serve(sign, is_other);
            let said = command(&["write", &url, "--pattern", "address", "--length", "512"]);
            let written = count.load(Ordering::SeqCst);
            if is_other {
                assert_eq!((said.status, written), (Some(5), 0), "{said:?}");
                assert!(said.err.contains("the disk is not the one that it was"), "{said:?}");
            } else {
                assert_eq!((said.status, written), (Some(0), 1), "{said:?}");
            }
        }
    }
}

#[test]
fn an_attached_disk_is_given_up_once_it_is_another() {
    for sign in [INQUIRY_DATA_CHANGED, REPORTED_LUNS_CHANGED, NOT_SUPPORTED] {
        let (url, _) = serve(sign, true);
        let attached = Attached::start(&url, &["--no-read-ahead"]).expect("attached");
        // It may be answered before the disk is asked.
        let _ = attached.client().expect("a client").read(0, 512);
        let error = attached.end().expect_err("it is no clean end");
        assert!(error.to_string().contains("another disk is in its place"), "{sign:?}: {error:#}");
    }
}
