//! What other initiators do to a disk that is attached: their resets, their labels, what they write, and what the unit then tells of it.

use std::fs;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Rule, When};
use lunette_tests::attach::{Attached, Client};
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{Raw, plain};
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction as Function};
use rustix::io::Errno;

use super::keeping::write_through;
use super::{pattern, serve};

/// Long enough for a function that is sent to reach all reactors.
const A_WHILE: Duration = Duration::from_millis(100);
/// "Input/output error", as NBD numbers it.
const EIO: u32 = 5;
const BLOCK: usize = 512;

fn url(target: &InProcess) -> String {
    format!("iscsi://{}/{}/0", target.portal(), target.name())
}

fn send(session: &mut Raw, cdb: [u8; 16], list: &[u8]) {
    let length = u32::try_from(list.len()).expect("a short list");
    let command = ScsiCommand { write: true, expected_data_transfer_length: length, cdb, ..plain() };
    let tag = session.command(&command, list).expect("sent");
    session.good(tag).expect("carried out");
}

fn reset(session: &mut Raw) {
    let request = session.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(session.managed(request).expect("an answer"), 0, "complete");
}

/// With TAS (SPC-4, 7.5.8) the commands that a reset ends are answered as aborted; they are carried out all the same.
#[test]
fn commands_that_another_initiators_reset_has_aborted_are_sent_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = InProcess::start(&[&format!("{},size=16M,write=back", image.display())]);
    let mut other = target.session(9);
    for more in [&[][..], &["--no-write-behind"]] {
        // MODE SELECT (6) of the control page: TAS, until the reset, and queue algorithm modifier 1.
        let list = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0];
        send(&mut other, [0x15, 0x10, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &list);
        let attached = Attached::start(&url(&target), more).expect("attached");
        let mut client = attached.client().expect("a client");
        let data = pattern(1 + more.len() as u64, 64 * BLOCK);
        target.hold(0, OperationKind::Write);
        let held = target.faults(0).calls(OperationKind::Write) + 1;
        client.begin_write(1, 0, &data).expect("sent");
        target.wait_for_calls(0, OperationKind::Write, held);
        let request = other.manage(Function::LogicalUnitReset, 0).expect("sent");
        other.waits(A_WHILE).expect("a write is in the store");
        target.faults(0).clear();
        assert_eq!(other.managed(request).expect("an answer"), 0, "complete");
        other.test_unit_ready(0).expect("it tells of the reset");
        assert_eq!(client.answer().expect("an answer"), (1, 0));
        assert_eq!(client.flush().expect("an answer"), 0);
        assert!(client.read(0, data.len() as u32).expect("data") == data);
        attached.detach().expect("all is stable");
        assert!(fs::read(&image).expect("the image")[..data.len()] == data);
    }
}

/// SET IDENTIFYING INFORMATION has nothing to do with who the unit is.
#[test]
fn a_label_that_another_initiator_gives_changes_nothing() {
    let target = InProcess::start(&["mem:1M"]);
    let attached = Attached::start(&url(&target), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    let data = pattern(1, 8 * BLOCK);
    assert_eq!(client.write(0, &data).expect("an answer"), 0);
    let mut other = target.session(9);
    send(&mut other, [0xa4, 6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0], b"shelf");
    assert!(client.read(0, data.len() as u32).expect("data") == data);
    assert_eq!(client.write(0, &data).expect("an answer"), 0);
    assert_eq!(client.flush().expect("an answer"), 0);
    attached.detach().expect("it is the disk that it was");
}

/// What was written through is stable, so that nobody has a reason to write it again over what another host has put there since.
#[test]
fn what_was_written_through_is_not_written_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    write_through(&mut client, 0, &pattern(1, 8 * BLOCK));
    let theirs = pattern(2, 8 * BLOCK);
    let elsewhere = Attached::start(&target.url(0), &["--no-write-behind"]).expect("attached");
    write_through(&mut elsewhere.client().expect("a client"), 0, &theirs);
    elsewhere.detach().expect("all is stable");
    let portal = target.portal();
    target.kill().expect("killed");
    let target = serve(&image, ",write=back").portal(portal).start().expect("the target again");
    assert!(client.read(0, 8 * BLOCK as u32).expect("data") == theirs);
    assert_eq!(client.flush().expect("an answer"), 0);
    assert!(fs::read(&image).expect("the image")[..8 * BLOCK] == theirs);
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

/// One block that cannot be written again is lost, and no reason to refuse all others.
#[test]
fn what_cannot_be_written_again_is_missed_only_where_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = InProcess::start(&[&format!("{},size=16M,write=back", image.display())]);
    let attached = Attached::start(&url(&target), &["--no-write-behind"]).expect("attached");
    let mut client = attached.client().expect("a client");
    let data = pattern(1, BLOCK);
    let places = [0u64, 100, 200].map(|block| block * BLOCK as u64);
    for place in places {
        assert_eq!(client.write(place, &data).expect("an answer"), 0);
    }
    let bad = places[1]..places[1] + BLOCK as u64;
    target.faults(0).add(Rule::new(OperationKind::Write, When::Every, Effect::Fail(Errno::IO)).within(bad));
    // What was not flushed may be lost from here on.
    reset(&mut target.session(9));
    let read = |client: &mut Client, place| client.read(place, BLOCK as u32);
    for place in [places[0], places[2], 300 * BLOCK as u64] {
        assert!(read(&mut client, place).is_ok(), "at {place}");
    }
    assert!(read(&mut client, places[1]).is_err(), "nobody knows what is there");
    assert_eq!(client.flush().expect("an answer"), EIO, "it is not stable");
    target.faults(0).clear();
    // The next command meets what the fault has left behind, if anything.
    assert!(read(&mut client, places[1]).expect("data") == data);
    assert_eq!(client.flush().expect("an answer"), 0);
    attached.detach().expect("all is stable");
    for place in places {
        assert!(fs::read(&image).expect("the image")[place as usize..][..BLOCK] == data, "at {place}");
    }
}
