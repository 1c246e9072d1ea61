//! Commands that overtake each other between the connections of a session (RFC 7143, 4.2.2.1): those that come with what was
//! missing before them, and those before which something is missing for longer.

use std::collections::BTreeMap;

use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, read, write};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, TargetPdu};

use super::Session;
use crate::{A_WHILE, DISK, SESSION_DROP, event, expect_on_disk, pattern};

const CONNECTIONS: usize = 4;

/// Numbers these commands over all connections in turn, and sends what each connection has at once, the last connection's first. The
/// answer has the tags of each connection in their order.
fn send_in_wrong_order(
    session: &mut Session,
    commands: &[(ScsiCommand, &[u8])],
) -> [Vec<InitiatorTaskTag>; CONNECTIONS] {
    let mut bytes = [const { Vec::new() }; CONNECTIONS];
    let mut tags = [const { Vec::new() }; CONNECTIONS];
    for (place, (command, data)) in commands.iter().enumerate() {
        let cid = place % CONNECTIONS;
        let link = session.on(cid);
        let command = link.number(command);
        bytes[cid].extend(link.connection().encode(&InitiatorPdu::ScsiCommand(command), data));
        tags[cid].push(command.initiator_task_tag);
    }
    for (cid, bytes) in bytes.iter().enumerate().rev() {
        session.links[cid].connection().send_bytes(bytes).expect("sent");
    }
    tags
}

/// What answers commands of one PDU each, which may end in any order.
fn answers(link: &mut Raw, count: usize) -> BTreeMap<u32, Vec<u8>> {
    let answers = (0..count).map(|_| match link.receive().expect("an answer") {
        (TargetPdu::ScsiResponse(pdu), data) if pdu.status == 0 => (pdu.initiator_task_tag.0, data),
        (TargetPdu::ScsiDataIn(pdu), data) if pdu.status == Some(0) => (pdu.initiator_task_tag.0, data),
        (other, _) => panic!("{other:?}"),
    });
    answers.collect()
}

/// With digests on all but the leading connection, and without.
#[test]
fn what_comes_in_turn_on_all_connections_is_carried_out_and_answered_where_it_came() {
    let target = InProcess::start(&[DISK]);
    for (port, wanted) in [(1, false), (2, true)] {
        let mut session = Session::open(&target, port, 1);
        session.options.digests = Digests { header: wanted, data: wanted };
        for cid in 1..CONNECTIONS {
            let link = session.join(&target, cid as u16).expect("a login that joins");
            session.links.push(link);
        }
        for round in 0..30 {
            let count = 1 + round * 4 % 60;
            let mut data = pattern(count * BLOCK_BYTES);
            data.iter_mut().for_each(|byte| *byte ^= round as u8);
            let blocks = data.chunks(BLOCK_BYTES).enumerate();
            let writes: Vec<_> =
                blocks.map(|(lba, block)| (write(0, lba as u64, block.len()), block)).collect();
            for (cid, tags) in send_in_wrong_order(&mut session, &writes).into_iter().enumerate() {
                let answers = answers(&mut session.links[cid], tags.len());
                assert!(tags.iter().all(|tag| answers.contains_key(&tag.0)), "{tags:?}: {answers:?}");
            }
            let reads: Vec<_> = (0..count as u64).map(|lba| (read(0, lba, 1), &[][..])).collect();
            for (cid, tags) in send_in_wrong_order(&mut session, &reads).into_iter().enumerate() {
                let answers = answers(&mut session.links[cid], tags.len());
                for (place, tag) in tags.into_iter().enumerate() {
                    let (found, lba) = (answers.get(&tag.0).expect("its answer"), place * CONNECTIONS + cid);
                    assert!(*found == data[lba * BLOCK_BYTES..][..BLOCK_BYTES], "block {lba} has other data");
                }
            }
        }
        session.all_alive();
        session.expect_open_window();
    }
}

/// What is no command, or needs no number, does not wait for long behind a command that does.
#[test]
fn a_number_that_is_missing_keeps_back_nothing_but_commands() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    let missing = session.cmd_sn();
    let link = &mut session.links[1];
    link.cmd_sn = missing.next();
    let mut early = Vec::new();
    for lba in 1..4 {
        early.push(link.write(0, lba, &[lba as u8; BLOCK_BYTES]).expect("sent"));
        let ping = link.ping(b"alive").expect("sent");
        link.pinged(ping, b"alive").expect("the ping alone");
    }
    link.waits(A_WHILE).expect("an earlier number is missing");
    let next = link.cmd_sn;
    session.links[0].cmd_sn = missing;
    let first = session.links[0].write(0, 0, &[0; BLOCK_BYTES]).expect("sent");
    session.links[0].good(first).expect("a write");
    early.into_iter().for_each(|tag| session.links[1].good(tag).expect("a write"));
    assert_eq!(session.cmd_sn(), next);
    let written = (0..4).flat_map(|lba| [lba; BLOCK_BYTES]).collect::<Vec<u8>>();
    expect_on_disk(session.on(0), 0, &written);
    session.expect_open_window();
}

/// 7.14: at ErrorRecoveryLevel 0 the session ends with it, and nothing of what was early is carried out.
#[test]
fn a_connection_may_close_behind_commands_that_are_early() {
    let target = InProcess::start(&[DISK]);
    for _ in 0..10 {
        let mut session = Session::open(&target, 1, 3);
        let missing = session.cmd_sn();
        for cid in [2, 1] {
            let link = &mut session.links[cid];
            link.cmd_sn = missing.plus(cid as u32);
            link.write(0, 0, &[0xee; BLOCK_BYTES]).expect("sent");
        }
        session.links.truncate(2);
        for link in &mut session.links {
            assert_eq!(event(link), SESSION_DROP);
            link.ends().expect("closed");
        }
    }
    let mut session = Session::open(&target, 1, 2);
    expect_on_disk(session.on(1), 0, &[0; BLOCK_BYTES]);
    session.expect_open_window();
}
