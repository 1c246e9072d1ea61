//! Third-party copies through the whole stack: EXTENDED COPY between volumes (SPC-4), and how it ends when its task is
//! aborted, its unit reset or its connection lost.

use std::time::Duration;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Errno, Rule, When};
use lunette_target::config::{AccessRule, Grant, LunFlag, PortalConfig, TargetConfig};
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::raw::{Raw, lun_field, plain};
use lunette_wire::InitiatorTaskTag;
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction as Function};

const MIB: usize = 1 << 20;
const FUNCTION_COMPLETE: u8 = 0;
/// Much longer than an answer takes that nothing holds up.
const A_WHILE: Duration = Duration::from_millis(100);

/// Two memory units and a file unit; all of the same vendor and product, as ESXi wants it.
fn start() -> (InProcess, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("2=file:{},size=64M", directory.path().join("disk.img").display());
    (InProcess::start(&["0=mem:64M", "1=mem:64M", &file]), directory)
}

fn login(target: &InProcess) -> Initiator {
    let mut initiator = Initiator::login(target.portal(), &target.options(1)).expect("a login");
    (0..3).for_each(|lun| initiator.make_ready(lun).expect("a ready unit"));
    initiator
}

/// The NAA designation descriptor of a unit, from its Device Identification page, as a CSCD descriptor.
fn cscd(initiator: &mut Initiator, lun: u8) -> Vec<u8> {
    let inquiry =
        Command { cdb: cdb_of(&[0x12, 1, 0x83, 0, 255]), data_in_bytes: 255, lun, ..Command::default() };
    let page = initiator.execute_good(inquiry).expect("the page");
    let mut descriptor = vec![0; 32];
    descriptor[0] = 0xe4;
    descriptor[4..16].copy_from_slice(&page[4..16]);
    assert_eq!(descriptor[5] & 0x0f, 3, "the first designator is the NAA one");
    descriptor
}

fn cdb_of(head: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..head.len()].copy_from_slice(head);
    cdb
}

/// An EXTENDED COPY (LID1) of `blocks` from the first of two units to the second, and its list.
fn extended_copy(cscds: [&[u8]; 2], blocks: u16, from: u64, to: u64) -> ([u8; 16], Vec<u8>) {
    let mut list = vec![7, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    list.extend(cscds.concat());
    list.extend([2, 0, 0, 0x18, 0, 0, 0, 1, 0, 0]);
    list.extend(blocks.to_be_bytes());
    list.extend(from.to_be_bytes());
    list.extend(to.to_be_bytes());
    let mut cdb = cdb_of(&[0x83]);
    cdb[13] = list.len() as u8;
    (cdb, list)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 512) as u8 ^ (at / 131_072) as u8 ^ at as u8).collect()
}

fn write(initiator: &mut Initiator, lun: u8, lba: u64, data: &[u8]) {
    for (index, piece) in data.chunks(MIB).enumerate() {
        let cdb = cdb::write(lba + (index * MIB / 512) as u64, (piece.len() / 512) as u32);
        initiator
            .execute_good(Command { cdb, lun, data_out: piece.to_vec(), ..Command::default() })
            .expect("a write");
    }
}

fn read(initiator: &mut Initiator, lun: u8, lba: u64, length: usize) -> Vec<u8> {
    let read = |at: usize| Command {
        cdb: cdb::read(lba + (at / 512) as u64, (MIB.min(length - at) / 512) as u32),
        lun,
        data_in_bytes: MIB.min(length - at) as u32,
        ..Command::default()
    };
    (0..length).step_by(MIB).flat_map(|at| initiator.execute_good(read(at)).expect("a read")).collect()
}

/// As ESXi clones a disk: aligned segments of some MiB, between units of one product, in both directions.
#[test]
fn data_goes_from_volume_to_volume_without_passing_the_network() {
    let (target, _directory) = start();
    let mut initiator = login(&target);
    let data = pattern(9 * MIB);
    write(&mut initiator, 0, 2048, &data);
    let cscds = [0, 1, 2].map(|lun| cscd(&mut initiator, lun));
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let (cdb, list) = extended_copy([&cscds[from], &cscds[to]], (9 * MIB / 512) as u16, 2048, 2048);
        let copy = Command { cdb, lun: to as u8, data_out: list, ..Command::default() };
        initiator.execute_good(copy).expect("a copy");
        assert!(read(&mut initiator, to as u8, 2048, data.len()) == data, "from {from} to {to}");
    }
    let status = Command {
        cdb: cdb_of(&[0x84, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12]),
        data_in_bytes: 12,
        lun: 0,
        ..Command::default()
    };
    let status = initiator.execute_good(status).expect("the status of the last copy");
    assert_eq!(status, [0, 0, 0, 8, 1, 0, 1, 0, 0, 0x90, 0, 0]);
}

/// A second target in the process, with one memory unit.
fn start_two(second: &str) -> InProcess {
    start_two_with(&["0=mem:16M"], second, "0=mem:16M")
}

fn start_two_with(units: &[&str], second: &str, unit: &str) -> InProcess {
    InProcess::start_with(units, |config| {
        let flags = vec![unit.parse().expect("a good flag")];
        let units = LunFlag::number_all(flags).expect("free numbers");
        config.targets.push(TargetConfig { name: second.to_owned(), units, ..config.targets[0].clone() });
    })
}

/// A copy reaches a unit of another target while its initiator has a session with that target, and only then.
#[test]
fn units_of_another_target_are_reached_by_those_who_are_logged_in_there() {
    const SECOND: &str = "iqn.2026-11.io.lunette:copies-second";
    let target = start_two(SECOND);
    let login = |options: &LoginOptions| {
        let mut initiator = Initiator::login(target.portal(), options).expect("a login");
        initiator.make_ready(0).expect("a ready unit");
        initiator
    };
    let mut near = login(&target.options(1));
    let far_options = LoginOptions { target_name: Some(SECOND.to_owned()), ..target.options(1) };
    let mut far = login(&far_options);
    let data = pattern(MIB);
    write(&mut near, 0, 0, &data);
    let cscds = [cscd(&mut near, 0), cscd(&mut far, 0)];
    let (cdb, list) = extended_copy([&cscds[0], &cscds[1]], 2048, 0, 64);
    let copy = || Command { cdb, data_out: list.clone(), ..Command::default() };
    near.execute_good(copy()).expect("a copy");
    assert!(read(&mut far, 0, 64, MIB) == data);
    far.logout().expect("a logout");
    let ending = near.execute(copy()).expect("an answer");
    assert_eq!((ending.status, ending.sense[2], &ending.sense[12..14]), (2, 0xa, &[0x0d, 0x02][..]));
}

/// Access rules may look at the way that an initiator has come: a session through another portal does not lend its units to a
/// copy, be it another address or another group at the same one.
#[test]
fn what_a_portal_hides_is_not_reached_by_copies_through_it() {
    let target = InProcess::start_with(&["0=mem:1M", "1=mem:1M"], |config| {
        let portal = |address: &str, group| PortalConfig { address: address.parse().expect("one"), group };
        config.portals = vec![portal("127.0.0.1:0", 1), portal("127.0.0.2:0", 1), portal("127.0.0.1:0", 2)];
        config.targets[0].groups = vec![1, 2];
        let everything = AccessRule {
            portals: vec!["127.0.0.1".parse().expect("an address")],
            groups: vec![1],
            ..AccessRule::default()
        };
        let first = Grant::Units(vec!["0".parse().expect("a unit")]);
        config.targets[0].access = vec![everything, AccessRule { grant: first, ..AccessRule::default() }];
    });
    let mut all = Initiator::login(target.portals()[0], &target.options(1)).expect("a login");
    (0..2).for_each(|lun| all.make_ready(lun).expect("a ready unit"));
    let cscds = [0, 1].map(|lun| cscd(&mut all, lun));
    let (cdb, list) = extended_copy([&cscds[1], &cscds[0]], 64, 0, 0);
    let copy = || Command { cdb, data_out: list.clone(), ..Command::default() };
    for (portal, port) in [(1, 2), (2, 3)] {
        let mut narrow =
            Initiator::login(target.portals()[portal], &target.options(port)).expect("another login");
        narrow.make_ready(0).expect("a ready unit");
        assert!(narrow.make_ready(1).is_err(), "it is hidden here");
        let ending = narrow.execute(copy()).expect("an answer");
        let codes = (ending.status, ending.sense.get(2), ending.sense.get(12..14));
        assert_eq!(codes, (2, Some(&0xa), Some(&[0x0d, 0x02][..])), "through portal {portal}");
    }
    all.execute_good(copy()).expect("a copy where both are seen");
}

/// POPULATE TOKEN or WRITE USING TOKEN, by its service action, with list identifier 9.
fn token_command(action: u8, lun: u8, list: Vec<u8>) -> Command {
    let mut cdb = cdb_of(&[0x83, action, 0, 0, 0, 0, 0, 0, 0, 9]);
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    Command { cdb, lun, data_out: list, ..Command::default() }
}

/// RECEIVE ROD TOKEN INFORMATION for list identifier 9.
fn token_information(lun: u8) -> Command {
    let mut cdb = cdb_of(&[0x84, 0x07, 0, 0, 0, 9]);
    cdb[12] = 4;
    Command { cdb, lun, data_in_bytes: 1024, ..Command::default() }
}

/// One range descriptor.
fn range(lba: u64, blocks: u32) -> Vec<u8> {
    [&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat()
}

/// As Windows copies a file (offloaded data transfer): one host makes the token, another one may use it, until the source
/// changes (SBC-3).
#[test]
fn a_token_is_taken_to_another_session_and_volume() {
    let (target, _directory) = start();
    let mut reader = login(&target);
    let mut writer = Initiator::login(target.portal(), &target.options(2)).expect("a login");
    (0..3).for_each(|lun| writer.make_ready(lun).expect("a ready unit"));
    let data = pattern(5 * MIB);
    write(&mut reader, 2, 64, &data);
    let blocks = (data.len() / 512) as u32;

    let mut list = vec![0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16];
    list.extend(range(64, blocks));
    reader.execute_good(token_command(0x10, 2, list)).expect("a token");
    let told = reader.execute_good(token_information(2)).expect("the token");
    let token = &told[38..550];

    let mut list = vec![0; 536];
    list[..2].copy_from_slice(&550u16.to_be_bytes());
    list[16..528].copy_from_slice(token);
    list[535] = 16;
    list.extend(range(1000, blocks));
    writer.execute_good(token_command(0x11, 1, list.clone())).expect("a copy");
    assert!(read(&mut writer, 1, 1000, data.len()) == data);
    let told = writer.execute_good(token_information(1)).expect("how it went");
    assert_eq!((told[5], &told[16..24]), (1, &u64::from(blocks).to_be_bytes()[..]));

    write(&mut reader, 2, 64 + 7, &[0; 512]);
    let ending = writer.execute(token_command(0x11, 1, list)).expect("an answer");
    assert_eq!((ending.status, &ending.sense[12..14]), (2, &[0x23, 0x06][..]), "TOKEN REVOKED");
    assert!(read(&mut writer, 1, 1000, data.len()) == data, "nothing of the changed data is there");
}

/// Sends a copy of 8 MiB from unit 0 to unit 1 whose first read is held in its store.
fn held_copy(target: &InProcess, session: &mut Raw) -> InitiatorTaskTag {
    let mut initiator = Initiator::login(target.portal(), &target.options(9)).expect("a login");
    (0..2).for_each(|lun| initiator.make_ready(lun).expect("a ready unit"));
    let cscds = [0, 1].map(|lun| cscd(&mut initiator, lun));
    initiator.logout().expect("a logout");
    let (cdb, list) = extended_copy([&cscds[0], &cscds[1]], (8 * MIB / 512) as u16, 0, 0);
    target.hold(0, OperationKind::Read);
    let command =
        ScsiCommand { cdb, write: true, expected_data_transfer_length: list.len() as u32, ..plain() };
    let tag = session.command(&command, &list).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    tag
}

#[test]
fn an_aborted_copy_writes_nothing_more() {
    let (target, _directory) = start();
    let mut session = target.session(1);
    let cmd_sn = session.cmd_sn;
    let tag = held_copy(&target, &mut session);
    let abort = session.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
    session.silent().expect("a piece is in the store");
    target.faults(0).clear();
    assert_eq!(session.managed(abort).expect("an answer"), FUNCTION_COMPLETE);
    assert_eq!(target.faults(1).calls(OperationKind::Write), 0);
}

#[test]
fn a_reset_waits_for_the_piece_that_is_in_its_store() {
    let (target, _directory) = start();
    let mut session = target.session(1);
    let mut other = target.session(2);
    held_copy(&target, &mut session);
    let reset = other.manage(Function::LogicalUnitReset, 0).expect("sent");
    other.waits(A_WHILE).expect("a piece is in the store");
    session.silent().expect("its reactor knows");
    target.faults(0).clear();
    assert_eq!(other.managed(reset).expect("an answer"), FUNCTION_COMPLETE);
    assert_eq!(target.faults(1).calls(OperationKind::Write), 0);
}

/// Sends the same copy; its first write is held in the store of unit 1.
fn copy_held_at_its_destination(target: &InProcess, session: &mut Raw) -> InitiatorTaskTag {
    target.hold(1, OperationKind::Write);
    let tag = held_copy(target, session);
    target.faults(0).clear();
    target.wait_for_calls(1, OperationKind::Write, 1);
    tag
}

/// Who has reset a unit or cleared its task set may rely on nothing old being written to it (SAM-5, 6.3.3, 7.5): the copy's
/// commands there are aborted, by which the copy fails (SPC-4, EXTENDED COPY: THIRD PARTY DEVICE FAILURE).
#[test]
fn a_reset_of_the_destination_ends_the_copy_before_it_is_answered() {
    for function in [Function::LogicalUnitReset, Function::ClearTaskSet] {
        let (target, _directory) = start();
        let mut session = target.session(1);
        let mut other = target.session(2);
        let copy = copy_held_at_its_destination(&target, &mut session);
        let ends = other.manage(function, 1).expect("sent");
        other.waits(A_WHILE).expect("a piece is in the store");
        session.silent().expect("its reactor knows");
        target.faults(1).clear();
        assert_eq!(other.managed(ends).expect("an answer"), FUNCTION_COMPLETE, "{function:?}");
        assert_eq!(session.ending(copy).expect("an answer").codes(), (0xa, 0x0d, 0x01), "{function:?}");
        assert_eq!(target.faults(1).calls(OperationKind::Write), 1, "the held one");
    }
}

/// The same where the copy is a command to another target, which the reset does not reach: a reset of that target, and of the
/// initiator's own nexus there, through which the copy writes.
/// SAM-5: 7.6 I_T NEXUS RESET.
#[test]
fn resets_at_another_target_end_the_copies_that_write_there() {
    const SECOND: &str = "iqn.2026-11.io.lunette:copies-reset";
    for (function, by_stranger) in [
        (Function::LogicalUnitReset, true),
        (Function::ClearTaskSet, true),
        (Function::TargetWarmReset, true),
        (Function::ItNexusReset, false),
    ] {
        let target = start_two_with(&["0=mem:64M", "1=mem:1M"], SECOND, "1=mem:64M");
        let level = [("iSCSIProtocolLevel", "2")];
        let far_options =
            |port| LoginOptions { target_name: Some(SECOND.to_owned()), ..target.options_with(port, &level) };
        let ready = |options: &LoginOptions, lun| {
            let mut initiator = Initiator::login(target.portal(), options).expect("a login");
            initiator.make_ready(lun).expect("a ready unit");
            initiator
        };
        // Of the nexuses of an initiator the oldest is taken.
        let mut own = Raw::ready(target.portal(), &far_options(1), 1).expect("a session");
        let mut near = ready(&target.options(9), 0);
        let mut far = ready(&far_options(9), 1);
        let cscds = [cscd(&mut near, 0), cscd(&mut far, 1)];
        let mut session = target.session(1);
        let mut stranger = Raw::ready(target.portal(), &far_options(2), 1).expect("a session");
        let (cdb, list) = extended_copy([&cscds[0], &cscds[1]], (8 * MIB / 512) as u16, 0, 0);
        target.hold(1, OperationKind::Write);
        let length = list.len() as u32;
        let command = ScsiCommand { cdb, write: true, expected_data_transfer_length: length, ..plain() };
        let copy = session.command(&command, &list).expect("sent");
        target.wait_for_calls(1, OperationKind::Write, 1);
        let by = if by_stranger { &mut stranger } else { &mut own };
        let reset = by.manage(function, 1).expect("sent");
        by.waits(A_WHILE).expect("a piece is in the store");
        session.silent().expect("its reactor knows");
        target.faults(1).clear();
        assert_eq!(by.managed(reset).expect("an answer"), FUNCTION_COMPLETE, "{function:?}");
        assert_eq!(session.ending(copy).expect("an answer").codes(), (0xa, 0x0d, 0x01), "{function:?}");
        assert_eq!(target.faults(1).calls(OperationKind::Write), 1, "the held one");
    }
}

fn reserve_out(session: &mut Raw, action: u8, [key, other]: [u64; 2]) -> InitiatorTaskTag {
    let list = [&key.to_be_bytes()[..], &other.to_be_bytes(), &[0; 8]].concat();
    let command = ScsiCommand {
        write: true,
        lun: lun_field(1),
        expected_data_transfer_length: list.len() as u32,
        cdb: cdb_of(&[0x5f, action, 5, 0, 0, 0, 0, 0, 24]),
        ..plain()
    };
    session.command(&command, &list).expect("sent")
}

/// What an aborted copy has written can be read at its destination, which has no write cache: no other flush comes.
#[test]
fn what_an_aborted_copy_has_written_is_made_stable_at_its_destination() {
    for (policy, flushes) in [("", 1), (",write=back", 0)] {
        let directory = tempfile::tempdir().expect("a directory");
        let file = format!("1=file:{},size=64M{policy}", directory.path().join("disk.img").display());
        let target = InProcess::start(&["0=mem:64M", &file]);
        let mut session = target.session(1);
        let before = target.faults(1).calls(OperationKind::Flush);
        let cmd_sn = session.cmd_sn;
        let tag = copy_held_at_its_destination(&target, &mut session);
        let abort = session.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
        session.silent().expect("a piece is in the store");
        target.faults(1).clear();
        assert_eq!(session.managed(abort).expect("an answer"), FUNCTION_COMPLETE);
        target.wait_for_calls(1, OperationKind::Flush, before + flushes);
        assert_eq!(target.faults(1).calls(OperationKind::Flush), before + flushes);
    }
}

/// Nothing of a nexus that was preempted reaches the medium after PREEMPT AND ABORT is answered (SPC-4), whether a reservation would
/// keep it from there or not.
#[test]
fn a_preempted_copy_writes_nothing_after_the_answer() {
    for is_reserved in [true, false] {
        preempt_a_copy(is_reserved);
    }
}

fn preempt_a_copy(is_reserved: bool) {
    const RESERVE: u8 = 1;
    const PREEMPT_AND_ABORT: u8 = 5;
    const REGISTER_AND_IGNORE: u8 = 6;
    let (target, _directory) = start();
    let [mut victim, mut holder] = [1, 2].map(|port| target.session(port));
    for (session, key) in [(&mut victim, 0xa1), (&mut holder, 0xb1)] {
        session.make_ready(1).expect("a ready unit");
        let tag = reserve_out(session, REGISTER_AND_IGNORE, [0, key]);
        session.good(tag).expect("registered");
    }
    if is_reserved {
        let tag = reserve_out(&mut holder, RESERVE, [0xb1, 0]);
        holder.good(tag).expect("write exclusive, registrants only");
    }
    let copy = copy_held_at_its_destination(&target, &mut victim);
    let tag = reserve_out(&mut holder, PREEMPT_AND_ABORT, [0xb1, 0xa1]);
    holder.waits(A_WHILE).expect("a piece is in the store");
    victim.silent().expect("its reactor knows");
    target.faults(1).clear();
    holder.good(tag).expect("preempted");
    assert_eq!(victim.ending(copy).expect("an answer").codes(), (0xa, 0x0d, 0x01));
    assert_eq!(target.faults(1).calls(OperationKind::Write), 1, "the held one");
}

/// What is to be begun anew must have done nothing. A copy may have written to what it would read then: it says how far it came.
#[test]
fn a_copy_that_is_short_of_memory_is_begun_anew_only_if_it_has_written_nothing() {
    for (read, expected) in [(1, (8, None)), (2, (2, Some((0xa, 0x0d, 0x01))))] {
        let (target, _directory) = start();
        let mut initiator = login(&target);
        let unit = cscd(&mut initiator, 0);
        // The range moves up by half of its length, its end first.
        let (cdb, list) = extended_copy([&unit, &unit], (8 * MIB / 512) as u16, 0, (4 * MIB / 512) as u64);
        target.faults(0).add(Rule::new(OperationKind::Read, When::Nth(read), Effect::Fail(Errno::NOMEM)));
        let ending =
            initiator.execute(Command { cdb, data_out: list, ..Command::default() }).expect("an answer");
        let sense = ending.sense.get(2..14).map(|sense| (sense[0] & 0xf, sense[10], sense[11]));
        assert_eq!((ending.status, sense), expected, "read {read}");
    }
}

#[test]
fn a_copy_whose_connection_is_lost_ends_at_its_next_piece() {
    let (target, _directory) = start();
    let mut session = target.session(1);
    held_copy(&target, &mut session);
    let peer = session.connection().local_address().expect("an address");
    drop(session);
    assert!(!target.log_about(peer, "closed by the initiator").is_empty());
    // The session ends once the store has given its task back; only then does a new login get its name.
    target.faults(0).clear();
    let _again = target.session(1);
    assert_eq!(target.faults(1).calls(OperationKind::Write), 0);
}

#[test]
fn a_copy_does_not_outlive_a_drain() {
    let (target, _directory) = start();
    let mut session = target.session(1);
    held_copy(&target, &mut session);
    target.drain();
    target.faults(0).clear();
    drop(session);
    target.end().expect("an end").expect("a clean one");
}
