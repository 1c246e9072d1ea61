//! Data in both directions (RFC 7143, 4.2.5.2, 11.7, 11.8, 13.10 to 13.17): every mix of immediate, unsolicited and
//! solicited data, bursts, R2T limits and residuals.

use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use lunette_wire::target::Residual;

use crate::double::initiator::{Wish, cdb};
use crate::double::target::{NO_UNIT, READ_10, UNIT, WRITE_10};
use crate::double::{BLOCK, World};

/// Writes, reads back, and compares with the disk.
fn write_and_read(world: &mut World, block: u32, blocks: u32) {
    let data = world.rng.bytes(blocks * BLOCK);
    let write = world.initiator().write(block, data.clone());
    world.settle();
    assert_eq!(world.initiators[0].good(write).0, Residual::None);
    let start = (block * BLOCK) as usize;
    assert_eq!(world.target.disk()[start..start + data.len()], data);
    let read = world.initiator().read(block, blocks);
    world.settle();
    assert_eq!(world.initiators[0].good(read), (Residual::None, &data[..]));
}

#[test]
fn every_mix_of_initial_r2t_and_immediate_data() {
    for (initial_r2t, immediate_data) in [(false, false), (false, true), (true, false), (true, true)] {
        for (max_burst_length, first_burst_length) in [(512, 512), (4096, 1024), (65536, 65536), (65536, 512)]
        {
            for max_recv_data_segment_length in [512, 1000, 65536] {
                let wish = Wish {
                    initial_r2t,
                    immediate_data,
                    max_burst_length,
                    first_burst_length,
                    max_recv_data_segment_length,
                    max_outstanding_r2t: 3,
                    ..Wish::default()
                };
                let mut world = World::with(7, wish);
                for blocks in [1, 2, 3, 9, 64] {
                    write_and_read(&mut world, 100, blocks);
                }
                world.finish();
            }
        }
    }
}

#[test]
fn both_sides_have_the_same_view_of_the_parameters() {
    let wish =
        Wish { max_burst_length: 8192, first_burst_length: 4096, header_digest: true, ..Wish::default() };
    let mut world = World::with(1, wish);
    let outcome = world.target.outcome(0).unwrap();
    let (session, connection) = (outcome.session, outcome.connection);
    let initiator = world.initiator();
    assert_eq!(initiator.session.max_burst_length, session.max_burst_length);
    assert_eq!(initiator.session.first_burst_length, session.first_burst_length);
    assert_eq!(initiator.session.initial_r2t, session.initial_r2t);
    assert_eq!(initiator.session.immediate_data, session.immediate_data);
    assert_eq!(initiator.session.max_outstanding_r2t, session.max_outstanding_r2t);
    assert_eq!(initiator.links[0].connection.digests, connection.digests);
    assert_eq!(
        initiator.links[0].connection.max_send_data_segment_length,
        connection.max_recv_data_segment_length
    );
    assert_eq!(
        initiator.links[0].connection.max_recv_data_segment_length,
        connection.max_send_data_segment_length
    );
}

#[test]
fn digests_cover_every_pdu() {
    for (header_digest, data_digest) in [(true, false), (false, true), (true, true)] {
        let mut world = World::with(2, Wish { header_digest, data_digest, ..Wish::default() });
        let digests = world.target.connection_parameters(0).digests;
        assert_eq!((digests.header, digests.data), (header_digest, data_digest));
        write_and_read(&mut world, 5, 200);
        // A segment whose length is no multiple of four has padding under the digest.
        world.initiator().ping(true, vec![1, 2, 3, 4, 5]);
        world.finish();
    }
}

#[test]
fn a_write_within_the_first_burst_needs_no_r2t() {
    for (initial_r2t, immediate_data, expected) in
        [(false, true, 0), (false, false, 0), (true, false, 1), (true, true, 0)]
    {
        let wish = Wish { initial_r2t, immediate_data, first_burst_length: 8192, ..Wish::default() };
        let mut world = World::with(3, wish);
        write_and_read(&mut world, 0, 16);
        assert_eq!(world.initiator().r2ts, expected, "{initial_r2t} {immediate_data}");
    }
}

#[test]
fn r2ts_are_as_many_as_agreed_and_no_longer_than_a_burst() {
    for limit in [1, 2, 16] {
        let wish = Wish {
            initial_r2t: true,
            immediate_data: false,
            max_burst_length: 1024,
            max_outstanding_r2t: limit,
            ..Wish::default()
        };
        let mut world = World::with(4, wish);
        // 32 bursts of two blocks.
        let data = world.rng.bytes(64 * BLOCK);
        world.initiator().write(0, data.clone());
        world.exchange();
        world.settle();
        assert_eq!(world.initiator().r2ts, 32);
        assert_eq!(world.initiator().r2ts_open_max, limit);
        assert_eq!(world.target.disk()[..data.len()], data);
        world.finish();
    }
}

#[test]
fn the_target_too_limits_outstanding_r2ts() {
    let limits = TargetLimits { max_outstanding_r2t: 2, ..TargetLimits::default() };
    let mut world = World::new(5, limits, SessionSettings::default());
    let wish = Wish { max_burst_length: 512, initial_r2t: true, max_outstanding_r2t: 9, ..Wish::default() };
    world.connect(wish);
    world.initiator().manners.uses_immediate_data = false;
    write_and_read(&mut world, 0, 20);
    assert_eq!(world.initiator().r2ts_open_max, 2);
    assert_eq!(world.initiator().r2ts, 20);
}

#[test]
fn reads_come_in_bursts_and_segments() {
    let wish = Wish { max_burst_length: 2048, max_recv_data_segment_length: 1536, ..Wish::default() };
    let mut world = World::with(6, wish);
    let read = world.initiator().read(0, 9);
    world.settle();
    assert_eq!(world.initiators[0].good(read).1.len(), 9 * BLOCK as usize);
    // 4608 bytes: bursts of 2048, 2048 and 512, the first two in segments of 1536 and 512.
    assert_eq!((world.initiator().sequences, world.initiator().segments), (3, 5));
    world.finish();
}

#[test]
fn residuals_of_reads() {
    let mut world = World::with(8, Wish::default());
    let short = world.initiator().command(cdb(READ_10, 0, 2), UNIT, 512, None);
    let long = world.initiator().command(cdb(READ_10, 0, 2), UNIT, 4096, None);
    let odd = world.initiator().command(cdb(READ_10, 0, 1), UNIT, 100, None);
    let nothing = world.initiator().command(cdb(READ_10, 0, 1), UNIT, 0, None);
    world.settle();
    let initiator = world.initiator();
    assert_eq!(initiator.good(short), (Residual::Overflow(512), &[0; 512][..]));
    assert_eq!(initiator.good(long), (Residual::Underflow(3072), &[0; 1024][..]));
    assert_eq!(initiator.good(odd), (Residual::Overflow(412), &[0; 100][..]));
    assert_eq!(initiator.good(nothing), (Residual::Overflow(512), &[][..]));
    world.finish();
}

#[test]
fn residuals_of_writes() {
    for (initial_r2t, immediate_data) in [(false, true), (true, false)] {
        let mut world = World::with(9, Wish { initial_r2t, immediate_data, ..Wish::default() });
        let mut write = |blocks: u32, sent: u32| {
            world.initiator().command(cdb(WRITE_10, 0, blocks), UNIT, sent, Some(vec![0xaa; sent as usize]))
        };
        let (more, less, none) = (write(4, 1024), write(1, 2048), write(1, 0));
        world.settle();
        let initiator = world.initiator();
        assert_eq!(initiator.good(more).0, Residual::Overflow(1024));
        assert_eq!(initiator.good(less).0, Residual::Underflow(1536));
        assert_eq!(initiator.good(none).0, Residual::Overflow(512));
        world.finish();
    }
}

#[test]
fn a_command_that_fails_at_once_waits_for_the_data_that_was_announced() {
    let wish = Wish { immediate_data: false, first_burst_length: 8192, ..Wish::default() };
    let mut world = World::with(10, wish);
    let data = vec![1; 16384];
    let failed = world.initiator().command(cdb(WRITE_10, 0, 32), NO_UNIT, 16384, Some(data));
    // The command alone: its unsolicited data is still to come.
    assert!(world.send(0));
    assert!(!world.receive(0), "nothing may be said before the unsolicited data has come");
    world.settle();
    assert_eq!(world.initiator().sense(failed), (5, 0x25, 0));
    assert_eq!(world.initiator().r2ts, 0);
    world.finish();
}

#[test]
fn commands_without_data_are_answered() {
    let mut world = World::with(11, Wish::default());
    let tags: Vec<u32> = (0..20).map(|_| world.initiator().test_unit_ready()).collect();
    world.settle();
    for tag in tags {
        assert_eq!(world.initiators[0].good(tag), (Residual::None, &[][..]));
    }
    world.finish();
}

#[test]
fn a_declared_segment_length_holds_for_later_data() {
    let mut world = World::with(12, Wish::default());
    world.initiator().text(b"MaxRecvDataSegmentLength=512\0");
    world.settle();
    world.initiator().links[0].connection.max_recv_data_segment_length = 512;
    let read = world.initiator().read(0, 4);
    world.settle();
    assert_eq!(world.initiators[0].good(read).1.len(), 2048);
    assert_eq!(world.initiator().segments, 4);
    world.finish();
}
