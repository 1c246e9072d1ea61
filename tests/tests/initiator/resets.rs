//! Units that are reset while flushes wait or are under way: each flush that may have been too late says so.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use lunette_initiator::{Command, CommandError, Engine, Options, Timing};
use lunette_iscsi::parameters::TargetLimits;
use lunette_wire::StatSn;
use lunette_wire::TargetPdu;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::ScsiResponse;

use super::hostile::{NAME, Script};
use lunette_tests::engine::{execute, lun, options, pattern, read, wait_for_all, write};

/// Answers each read that begins at this block with the unit attention of a reset.
const RESET_LBA: u64 = 7;

/// The same with a deferred error: a write that was answered has failed since.
const DEFERRED_LBA: u64 = 8;

/// MEDIUM ERROR, WRITE ERROR, of an earlier command (SPC-4, 4.5.7).
const DEFERRED: [u8; 20] = [0, 18, 0x71, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 0];

/// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED in fixed format, behind its length (RFC 7143, 11.4.7.2).
const RESET: [u8; 20] = [0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0];

/// A target that answers everything with GOOD, and tells of a reset when it is asked to.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut target = Script::log_in(listener.accept().expect("a connection").0);
        loop {
            let command = target.command();
            answer(&mut target, &command);
        }
    });
    address
}

fn answer(target: &mut Script, command: &ScsiCommand) {
    let mut response = target.response(command);
    response.exp_data_sn.0 = 0;
    let reads = |lba: u64| command.read && command.cdb[2..10] == lba.to_be_bytes();
    let sense = match (reads(RESET_LBA), reads(DEFERRED_LBA)) {
        (true, _) => &RESET[..],
        (_, true) => &DEFERRED,
        _ => &[],
    };
    if !sense.is_empty() {
        response = ScsiResponse { status: 2, ..response };
    } else if command.read {
        response.exp_data_sn.0 = 1;
        target.say(&TargetPdu::ScsiDataIn(target.data_in(command)), &[7; 512]);
    }
    target.say(&TargetPdu::ScsiResponse(response), sense);
    target.stat_sn = StatSn(target.stat_sn.0.wrapping_add(1));
}

/// An engine whose unit has something in its cache.
fn dirty() -> Engine {
    let timing = Timing { nop_interval: None, recovery: Duration::ZERO, ..Timing::default() };
    let mut engine = Engine::connect(Options { timing, ..options(NAME, serve()) }).expect("a session");
    assert!(execute(&mut engine, write(0, 0, 1, pattern(1, 512))).is_good());
    engine
}

fn flush() -> Command {
    Command::new(lun(0), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

fn hears_of_a_reset() -> Command {
    read(0, RESET_LBA, 1, 512)
}

/// The session holds 4096 commands; the flush has not left when the reset comes to light.
#[test]
fn a_flush_that_waits_for_room_hears_of_a_reset_before_it() {
    let mut engine = dirty();
    let hearing = engine.submit(hears_of_a_reset());
    for _ in 1..4096 {
        engine.submit(read(0, 0, 1, 512));
    }
    let waiting = engine.submit(flush());
    let all = wait_for_all(&mut engine);
    assert!(all[&hearing].result.as_ref().is_ok_and(|status| status.is_check_condition()));
    assert_eq!(all[&waiting].result, Err(CommandError::ResetSinceFlush));
    assert!(execute(&mut engine, flush()).is_good(), "once");
}

#[test]
fn each_flush_beside_a_reset_fails_and_what_is_answered_later_is_of_another_session() {
    let mut engine = dirty();
    let before = engine.submit(read(0, 0, 1, 512));
    let hearing = engine.submit(hears_of_a_reset());
    let flushes = [(); 3].map(|()| engine.submit(flush()));
    let beside = engine.submit(write(0, 1, 1, pattern(1, 512)));
    let after = engine.submit(read(0, 0, 1, 512));
    let all = wait_for_all(&mut engine);
    for flush in flushes {
        assert_eq!(all[&flush].result, Err(CommandError::ResetSinceFlush));
    }
    assert!([before, beside, after].into_iter().all(|id| all[&id].is_good()));
    let sessions = [before, hearing, flushes[2], after].map(|id| all[&id].session);
    assert_eq!(sessions, [0, 1, 1, 1]);
    assert_eq!(all[&beside].session, 0, "it may have been carried out before the reset");
    assert_eq!(execute(&mut engine, write(0, 1, 1, pattern(1, 512))).session, 1);
    let next = execute(&mut engine, flush());
    assert!(next.is_good() && next.session == 1, "{:?}", next.result);
}

/// The unit tells it once, whichever command comes next, and its next flush ends well.
#[test]
fn a_write_that_has_failed_after_its_answer_fails_the_next_flush_and_counts_as_of_another_session() {
    let mut engine = dirty();
    let heard = execute(&mut engine, read(0, DEFERRED_LBA, 1, 512));
    let told = heard.result.as_ref().map(|status| status.sense.first().copied());
    assert_eq!((told, heard.session), (Ok(Some(0x71)), 1), "its caller hears of it");
    assert_eq!(execute(&mut engine, write(0, 0, 1, pattern(1, 512))).session, 1);
    assert_eq!(execute(&mut engine, flush()).result, Err(CommandError::ResetSinceFlush));
    assert!(execute(&mut engine, flush()).is_good(), "once");
}

/// Over two connections the answers come as they come: a flush that was sent behind a read is answered before the read, which tells of the
/// reset that came before both.
#[test]
fn a_flush_whose_answer_overtakes_that_of_a_command_before_it_waits_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let limits = TargetLimits { max_connections: 2, ..TargetLimits::default() };
        let log_in = || Script::log_in_within(listener.accept().expect("a connection").0, limits);
        let [mut first, mut second] = [log_in(), log_in()];
        let write = first.command();
        answer(&mut first, &write);
        let (read, flush) = (first.command(), second.command());
        answer(&mut second, &flush);
        // An engine that does not wait has told of it by then.
        std::thread::sleep(Duration::from_millis(100));
        answer(&mut first, &read);
        second.command();
    });
    let timing = Timing { nop_interval: None, recovery: Duration::ZERO, ..Timing::default() };
    let options = Options { timing, connections: 2, ..options(NAME, address) };
    let mut engine = Engine::connect(options).expect("a session");
    assert!(execute(&mut engine, write(0, 0, 1, pattern(1, 512))).is_good());
    let (read, flushed) = (engine.submit(hears_of_a_reset()), engine.submit(flush()));
    let all = wait_for_all(&mut engine);
    assert!(all[&read].result.as_ref().is_ok_and(|status| status.is_check_condition()));
    assert_eq!(all[&flushed].result, Err(CommandError::ResetSinceFlush));
}
