//! Sessions under load: every way of transferring data, with our target, tgtd and istgt.

use std::fs::File;
use std::time::Duration;

use lunette_initiator::{
    Command, CommandError, DigestWish, Engine, EngineEvent, Function, Notice, Options, TargetUrl, Wishes,
};
use lunette_target::config::{AccessState, Config};
use lunette_tests::engine::{
    execute, exercise, lun, make_ready, options, pattern, read, wait_for, wait_for_all, ways, write,
};
use lunette_tests::in_process::InProcess;
use lunette_tests::istgt::Istgt;
use lunette_tests::need_programs;
use lunette_tests::tgtd::Tgtd;

fn connect(options: Options) -> Engine {
    Engine::connect(options).unwrap_or_else(|error| panic!("{error}"))
}

/// Digests on and off, immediate and solicited.
fn exercise_every_way(url: &str, block_bytes: u32) {
    let url: TargetUrl = url.parse().expect("a good URL");
    for (seed, wishes) in ways().into_iter().enumerate() {
        let mut engine = connect(Options { wishes, ..url.options() });
        exercise(&mut engine, url.lun.number(), block_bytes, seed as u64);
        engine.close().expect("a logout");
    }
}

#[test]
fn every_way_of_transferring_data_works_with_our_target() {
    for (lun_flag, block_bytes) in [("mem:64M", 512), ("mem:64M,block=4096", 4096)] {
        let target = InProcess::start(&[lun_flag]);
        for (seed, wishes) in ways().into_iter().enumerate() {
            let mut engine = connect(Options { wishes, ..options(target.name(), target.portal()) });
            exercise(&mut engine, 0, block_bytes, seed as u64);
            engine.close().expect("a logout");
        }
    }
}

#[test]
fn recovery_levels_and_many_outstanding_r2ts_work_with_our_target() {
    let target = InProcess::start_with(&["mem:64M"], |config: &mut Config| {
        config.limits.error_recovery_level = 2;
    });
    for (level, in_order) in [(1, true), (2, true), (2, false)] {
        let wishes = Wishes {
            error_recovery_level: level,
            data_sequence_in_order: in_order,
            data_pdu_in_order: in_order,
            initial_r2t: true,
            max_burst_length: 8192,
            first_burst_length: 8192,
            data_digest: DigestWish::Preferred,
            header_digest: DigestWish::Preferred,
            ..Wishes::default()
        };
        let mut engine = connect(Options { wishes, ..options(target.name(), target.portal()) });
        assert_eq!(engine.parameters().error_recovery_level, level);
        exercise(&mut engine, 0, 512, level.into());
        engine.close().expect("a logout");
    }
}

#[test]
fn several_connections_carry_one_session() {
    let target = InProcess::start(&["mem:64M"]);
    let mut engine = connect(Options { connections: 4, ..options(target.name(), target.portal()) });
    assert_eq!(engine.connections().len(), 4);
    exercise(&mut engine, 0, 512, 7);
    engine.ping();
    make_ready(&mut engine, 0);
    assert!(engine.connections().iter().any(|connection| connection.round_trip.is_some()));
    engine.close().expect("a logout");
}

/// The data of a short read comes with its answer, and has still to be taken from the system.
#[test]
fn a_read_is_complete_when_its_data_has_been_read() {
    let target = InProcess::start(&["mem:16M"]);
    let mut engine = connect(options(target.name(), target.portal()));
    make_ready(&mut engine, 0);
    for blocks in [1, 8, 128] {
        let ended = execute(&mut engine, read(0, 0, blocks, 512));
        let (first_byte, done) = (ended.times.first_byte, ended.times.done);
        assert!(ended.is_good() && first_byte.is_some_and(|first| first < done), "{:?}", ended.times);
        assert!(done <= engine.elapsed());
    }
    engine.close().expect("a logout");
}

#[test]
fn statuses_and_sense_come_back_and_the_session_goes_on() {
    let target = InProcess::start(&["mem:16M"]);
    let mut engine = connect(options(target.name(), target.portal()));
    make_ready(&mut engine, 0);
    let beyond = execute(&mut engine, read(0, 1 << 40, 1, 512));
    let status = beyond.result.expect("an answer");
    assert!(status.is_check_condition() && status.sense[2] & 15 == 5, "{status:?}");
    // Less than what the buffer has room for.
    let mut inquiry = [0; 6];
    (inquiry[0], inquiry[4]) = (0x12, 255);
    let short = execute(&mut engine, Command::new(lun(0), inquiry).reading(vec![0xee; 255]));
    assert!(short.is_good() && (36..255).contains(&short.received), "{short:?}");
    assert!(short.buffer[short.received as usize..].iter().all(|&byte| byte == 0xee));
    // No such unit, and a CDB that cannot be.
    let nowhere = execute(&mut engine, Command::new(lun(9), [0; 6]));
    assert!(nowhere.result.expect("an answer").is_check_condition());
    let empty = execute(&mut engine, Command::new(lun(0), &[][..]));
    assert!(matches!(empty.result, Err(CommandError::Invalid(_))), "{:?}", empty.result);
    make_ready(&mut engine, 0);
    engine.close().expect("a logout");
}

#[test]
fn commands_are_aborted_and_units_reset() {
    let target = InProcess::start_held(&["mem:16M"], lunette_block::OperationKind::Read);
    let mut engine = connect(options(target.name(), target.portal()));
    make_ready(&mut engine, 0);
    let held = engine.submit(read(0, 0, 8, 512));
    let mut done = Vec::new();
    let other = engine.submit(Command::new(lun(0), [0; 6]));
    assert!(wait_for(&mut engine, other).is_good());
    target.wait_for_calls(0, lunette_block::OperationKind::Read, 1);
    engine.abort(held);
    target.faults(0).clear();
    let aborted = wait_for(&mut engine, held);
    assert!(
        matches!(aborted.result, Err(CommandError::Aborted)) || aborted.is_good(),
        "{:?}",
        aborted.result
    );
    // One that has ended cannot be aborted, nor can another that has its place.
    let next = engine.submit(Command::new(lun(0), [0; 6]));
    engine.abort(other);
    engine.abort(held);
    let next = wait_for(&mut engine, next);
    assert!(next.result.is_ok() && next.attempts == 1, "{:?}", next.result);
    let request = engine.manage(Function::LogicalUnitReset(lun(0).field())).expect("a session");
    loop {
        engine.poll(None, &mut done).expect("the system lets us");
        match engine.event() {
            Some(lunette_initiator::EngineEvent::Managed { request: answered, response }) => {
                assert_eq!((answered, response), (request, 0));
                break;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    make_ready(&mut engine, 0);
    engine.close().expect("a logout");
}

#[test]
fn more_commands_than_any_window_has_room_for_are_all_carried_out() {
    let target = InProcess::start(&["mem:16M"]);
    let mut engine = connect(options(target.name(), target.portal()));
    make_ready(&mut engine, 0);
    for lba in 0..6000u64 {
        let command = if lba % 3 == 0 {
            write(0, lba % 500, 1, pattern(lba % 500, 512))
        } else {
            read(0, 1000 + lba % 500, 1, 512)
        };
        engine.submit(command);
    }
    let done = wait_for_all(&mut engine);
    assert_eq!(done.len(), 6000);
    assert!(done.values().all(lunette_initiator::Completion::is_good));
    engine.close().expect("a logout");
}

#[test]
fn every_way_of_transferring_data_works_with_tgtd() {
    need_programs!("tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    File::create(&image).expect("a file").set_len(64 << 20).expect("room");
    let mut tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    tgtd.allow_digests().expect("digests");
    for block_bytes in [512, 4096] {
        let url = tgtd.add_file_of(&image, block_bytes).expect("a unit");
        exercise_every_way(&url, block_bytes);
    }
}

#[test]
fn every_way_of_transferring_data_works_with_istgt() {
    need_programs!("istgt");
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    File::create(&image).expect("a file").set_len(64 << 20).expect("room");
    for block_bytes in [512, 4096] {
        let istgt = Istgt::start_with(directory.path(), &image, block_bytes, 1).expect("istgt");
        exercise_every_way(&istgt.url(), block_bytes);
    }
}

/// RFC 7143, 11.9.1: what a target says unasked is told, and a negotiation that it asks for is done (6.4, 13.12).
#[test]
fn events_are_told_and_negotiations_answered() {
    let mut target = InProcess::start_with(&["mem:64M"], |config: &mut Config| {
        config.targets[0].scsi_events = true;
    });
    let mut engine = connect(Options { connections: 2, ..options(target.name(), target.portal()) });
    make_ready(&mut engine, 0);
    let notices = |engine: &mut Engine, is_last: &dyn Fn(&Notice) -> bool| loop {
        engine.poll(Some(Duration::from_secs(1)), &mut Vec::new()).expect("the system lets us");
        while let Some(event) = engine.event() {
            match event {
                EngineEvent::Notice(notice) if is_last(&notice) => return,
                EngineEvent::Notice(_) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    target.set_access_state(1, AccessState::ActiveNonOptimized);
    notices(&mut engine, &|notice| match notice {
        Notice::ScsiEvent { lun, sense } => {
            assert_eq!((lun.0, sense[2], sense[12], sense[13]), ([0; 8], 6, 0x2a, 6));
            true
        }
        _ => false,
    });
    make_ready(&mut engine, 0);
    for bytes in [8192, 1 << 20, 512] {
        let change =
            target.reload(|config: &mut Config| config.limits.max_recv_data_segment_length_bytes = bytes);
        change.expect("a good configuration");
        let is_declared = |notice: &Notice| *notice == Notice::SegmentLength { bytes };
        (0..2).for_each(|_| notices(&mut engine, &is_declared));
        for connection in engine.connections() {
            assert_eq!(connection.parameters.max_send_data_segment_length, bytes);
        }
        exercise(&mut engine, 0, 512, bytes.into());
    }
    engine.close().expect("a logout");
}
