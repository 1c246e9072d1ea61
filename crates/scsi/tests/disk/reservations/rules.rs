//! Single rules of SPC-4 that the model leaves out: formats, limits, field pointers, what is kept.

use lunette_scsi::{Event, Io, IoError, Next, Saved, Status, Task};

use super::full_status;
use super::hosts::{HOSTS, Hosts, list, move_list, out_cdb, transport_id};
use crate::host::*;

const APTPL: u8 = 1;
const ALL_TG_PT: u8 = 4;
const SPEC_I_PT: u8 = 8;

fn with_ids(key: u64, new: u64, ids: &[u8]) -> Vec<u8> {
    [&list(key, new, SPEC_I_PT)[..], &(ids.len() as u32).to_be_bytes(), ids].concat()
}

fn good(reply: &Reply) {
    assert_eq!(reply.status, Status::Good, "{:02x?}", reply.sense);
}

/// SPC-4: PERSISTENT RESERVE IN.
#[test]
fn capabilities_are_what_the_unit_can_do() {
    let mut hosts = Hosts::new(Saved::Nothing);
    assert_eq!(hosts.report(0, 2), [0, 8, 0x9d, 0x90, 0xea, 1, 0, 0]);
    good(&hosts.out(0, 0, 0, &list(0, 1, APTPL)));
    assert_eq!(hosts.report(0, 2)[3], 0x91, "PTPL_A");
    let mut volatile = Hosts::new(Saved::Nowhere);
    assert_eq!(volatile.report(0, 2)[2], 0x9c, "no PTPL_C");
}

/// SPC-4, APTPL: what cannot be kept over a power loss is refused.
#[test]
fn a_unit_that_keeps_nothing_refuses_aptpl() {
    let mut hosts = Hosts::new(Saved::Nowhere);
    let reply = hosts.out(0, 0, 0, &list(0, 1, APTPL));
    assert_eq!((reply.code(), reply.field()), (INVALID_PARAMETER, Some((20, Some(0)))));
    assert_eq!(hosts.report(0, 0)[4..8], [0; 4], "and registers nobody");
}

/// SPC-4: PERSISTENT RESERVE OUT.
#[test]
fn what_is_kept_is_stored_before_the_answer_and_comes_back() {
    let mut hosts = Hosts::new(Saved::Nothing);
    good(&hosts.out(0, 0, 0, &list(0, 0xa, 0)));
    assert!(!hosts.all[0].log().contains(&Io::SaveState), "nobody asked");
    good(&hosts.out(2, 0, 0, &list(0, 0xb, APTPL)));
    good(&hosts.out(2, 1, 5, &list(0xb, 0, 0)));
    assert_eq!(hosts.all[2].log(), [Io::SaveState, Io::SaveState]);
    let state = hosts.unit().state();
    let mut restarted = Hosts::new(state.saved());
    assert_eq!(restarted.report(1, 0)[4..], [&[0, 0, 0, 16][..], &list(0xa, 0xb, 0)[..16]].concat());
    let write = |hosts: &mut Hosts, who: usize| hosts.all[who].run(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]).status;
    assert_eq!(write(&mut restarted, 2), Status::Good);
    assert_eq!(write(&mut restarted, 0), Status::Good, "registered");
    assert_eq!(write(&mut restarted, 3), Status::ReservationConflict);
    // Who was not registered, and does not register, says nothing about that.
    for action in [0, 6] {
        let before = restarted.report(1, 0);
        good(&restarted.out(3, action, 0, &list(0, 0, 0)));
        assert_eq!(restarted.report(1, 0), before, "nothing has changed");
    }
    restarted = Hosts::new(restarted.unit().state().saved());
    assert_eq!(restarted.report(1, 0)[4..], [&[0, 0, 0, 16][..], &list(0xa, 0xb, 0)[..16]].concat());
    // The last to register says whether all is kept.
    good(&restarted.out(0, 6, 0, &list(0, 0xc, 0)));
    assert_eq!(restarted.all[0].log().last(), Some(&Io::SaveState), "what was kept must go");
    let mut forgotten = Hosts::new(restarted.unit().state().saved());
    assert_eq!(forgotten.report(0, 0)[4..8], [0; 4]);
}

#[test]
fn a_state_that_cannot_be_stored_is_told() {
    let mut hosts = Hosts::new(Saved::Nothing);
    hosts.all[0].disk.fail = Some((|io| *io == Io::SaveState, IoError::Hardware));
    let reply = hosts.out(0, 0, 0, &list(0, 1, APTPL));
    assert_eq!(reply.code(), (4, 0x44, 0));
}

const SAVES_FAIL: Failure = (|io| *io == Io::SaveState, IoError::Hardware);

/// Who is told that it failed holds nothing, and keeps nobody out.
#[test]
fn a_claim_that_cannot_be_stored_is_taken_back() {
    let mut hosts = Hosts::new(Saved::Nothing);
    good(&hosts.out(0, 0, 0, &list(0, 0xa, APTPL)));
    good(&hosts.out(2, 0, 0, &list(0, 0xb, APTPL)));
    let (registrants, stored) = (hosts.report(0, 0), hosts.unit().state());
    let claims = [(1, 6, list(0, 0xc, APTPL), 6), (0, 0, list(0xa, 0xd, 0), 0), (0, 1, list(0xa, 0, 0), 3)];
    for (who, action, list, kind) in claims {
        let generation = hosts.report(0, 0)[..4].to_vec();
        hosts.all[who].disk.fail = Some(SAVES_FAIL);
        assert_eq!(hosts.out(who, action, kind, &list).code(), (4, 0x44, 0));
        let after = hosts.report(0, 0);
        assert_eq!(after[4..], registrants[4..], "{action}");
        assert_eq!(after[..4] == generation, action == 1, "a reservation is not counted");
        assert_eq!(hosts.report(0, 1)[4..8], [0; 4], "nothing is reserved");
        good(&hosts.all[3].run(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]));
        assert_eq!(hosts.unit().state(), stored, "{action}");
        assert_eq!(hosts.unit().next_work(), Some(Io::SaveState), "it may have been stored all the same");
        hosts.unit().work_done(Ok(()));
        assert_eq!(hosts.unit().next_work(), None);
    }
}

/// Hosts that come together while the file system is full.
#[test]
fn claims_that_fail_together_are_taken_back_from_the_last_to_the_first() {
    let mut hosts = Hosts::new(Saved::Nothing);
    good(&hosts.out(0, 0, 0, &list(0, 0xa, APTPL)));
    let registrants = hosts.report(0, 0);
    let begin = |hosts: &Hosts, who: usize, action: u8, kind: u8, data_out: &[u8]| {
        let host = &hosts.all[who];
        let (mut task, _) = Task::start(&host.nexus, host.lun, &out_cdb(action, kind, data_out.len()));
        assert_eq!(task.resume(&host.nexus, Event::DataOut(data_out)), Next::Io(Io::SaveState));
        task
    };
    let reserve = begin(&hosts, 0, 1, 6, &list(0xa, 0, 0));
    let register = begin(&hosts, 1, 6, 0, &list(0, 0xb, APTPL));
    for (who, mut task) in [(1, register), (0, reserve)] {
        let failed = Event::Io { result: Err(IoError::Hardware), data_out: &[], medium: &[] };
        let next = task.resume(&hosts.all[who].nexus, failed);
        assert!(matches!(next, Next::Done(done) if done.sense.is_some()));
    }
    assert_eq!((&hosts.report(0, 0)[4..], hosts.report(0, 1)[7]), (&registrants[4..], 0));
}

/// Another process keeps the state: nothing is stored here, and nothing fails for it.
#[test]
fn what_is_kept_elsewhere_is_claimed_without_being_stored() {
    let mut keeper = Hosts::new(Saved::Nothing);
    good(&keeper.out(0, 0, 0, &list(0, 0xa, APTPL)));
    let state = keeper.unit().state();
    let elsewhere = Saved::Elsewhere { settings: &state.settings, reservations: Some(&state.reservations) };
    let mut hosts = Hosts::new(elsewhere);
    for (who, action, kind, list) in [(0, 1, 6, list(0xa, 0, 0)), (1, 6, 0, list(0, 0xb, 0))] {
        hosts.all[who].disk.fail = Some(SAVES_FAIL);
        good(&hosts.out(who, action, kind, &list));
    }
    assert_eq!(hosts.unit().next_work(), None);
}

/// What was good since then relies on it: the same command once more, or one of another host. What gives something up has told
/// others.
#[test]
fn what_others_rely_on_is_not_taken_back() {
    let again = (0, 1, list(0xa, 0, 0));
    let other = (2, 6, list(0, 0xb, APTPL));
    for (later, action) in [(Some(again), 1), (Some(other), 1), (None, 2), (None, 3), (None, 0)] {
        let mut hosts = Hosts::new(Saved::Nothing);
        good(&hosts.out(0, 0, 0, &list(0, 0xa, APTPL)));
        if action != 1 {
            good(&hosts.out(0, 1, 6, &list(0xa, 0, 0)));
        }
        let data_out = list(0xa, 0, 0);
        let nexus = &hosts.all[0].nexus;
        let (mut task, _) = Task::start(nexus, hosts.all[0].lun, &out_cdb(action, 6, data_out.len()));
        assert_eq!(task.resume(nexus, Event::DataOut(&data_out)), Next::Io(Io::SaveState));
        if let Some((who, action, list)) = later {
            good(&hosts.out(who, action, 6, &list));
        }
        let changed = hosts.unit().state();
        let failed = Event::Io { result: Err(IoError::Hardware), data_out: &[], medium: &[] };
        let next = task.resume(&hosts.all[0].nexus, failed);
        assert!(matches!(next, Next::Done(done) if done.sense.is_some()));
        assert_eq!(hosts.unit().state(), changed, "{action}");
        assert_eq!(hosts.report(0, 1)[7] > 0, action == 1, "{action}");
        assert_eq!(hosts.unit().next_work(), Some(Io::SaveState));
    }
}

/// SPC-4: PERSISTENT RESERVE OUT.
#[test]
fn transport_ids_register_others() {
    let mut hosts = Hosts::new(Saved::Nowhere);
    let mut device = transport_id("iqn.host-b");
    device[0] = 0x05;
    good(&hosts.out(0, 0, 0, &with_ids(0, 7, &device)));
    let full = hosts.report(0, 3);
    let told: Vec<_> =
        full_status(&full).into_iter().map(|of| (of[18..20].to_vec(), of[24..].to_vec())).collect();
    let at = |port: u8, host: &str| (vec![0, port], transport_id(host));
    assert_eq!(told, [at(1, HOSTS[0]), at(1, HOSTS[1])], "a device is all of its ports that are logged in");

    // However often, and in whichever way, each is named.
    let mut hosts = Hosts::new(Saved::Nowhere);
    let again = [&device[..], &transport_id(HOSTS[1])].concat().repeat(500);
    good(&hosts.out(0, 0, 0, &with_ids(0, 7, &again)));
    assert_eq!(hosts.report(0, 3), full);

    let mut hosts = Hosts::new(Saved::Nowhere);
    let mut everywhere = with_ids(0, 7, &transport_id("iqn.host-z,i,0x800000000009"));
    everywhere[20] |= ALL_TG_PT;
    good(&hosts.out(0, 0, 0, &everywhere));
    assert_eq!(full_status(&hosts.report(0, 3)).len(), 4, "two initiator ports, two target ports");
}

/// SPC-4: 4.5.2.4.2 field pointer.
#[test]
fn wrong_lists_are_pointed_at() {
    let mut hosts = Hosts::new(Saved::Nowhere);
    let field = |hosts: &mut Hosts, action: u8, list: &[u8]| {
        let reply = hosts.out(0, action, 0, list);
        (reply.code(), reply.field())
    };
    let id = transport_id(HOSTS[1]);
    let mut cut = with_ids(0, 7, &id);
    cut.pop();
    assert_eq!(field(&mut hosts, 0, &cut), (INVALID_PARAMETER, Some((24, None))));
    let mut fibre_channel = id.clone();
    fibre_channel[0] = 0;
    let second = with_ids(0, 7, &[&id[..], &fibre_channel].concat());
    let at = 28 + id.len() as u16;
    assert_eq!(field(&mut hosts, 0, &second), (INVALID_PARAMETER, Some((at, None))));
    let mut nobody = transport_id("iqn.nobody");
    nobody[0] = 0x05;
    assert_eq!(field(&mut hosts, 0, &with_ids(0, 7, &nobody)), (INVALID_PARAMETER, Some((28, None))));
    assert_eq!(field(&mut hosts, 6, &list(0, 7, SPEC_I_PT)), (INVALID_PARAMETER, Some((20, Some(3)))));
    assert_eq!(hosts.report(0, 0)[4..8], [0; 4], "nothing was registered");
    for length in [0, 8, 23, 25, 64 << 10] {
        let reply = hosts.out(0, 1, 1, &vec![0; length]);
        assert_eq!((reply.code(), reply.asked_bytes), (LENGTH_ERROR, 0), "{length}");
    }
    let short = hosts.all[0].run(&out_cdb(0, 0, 24), &list(0, 7, 0)[..23]);
    assert_eq!(short.code(), LENGTH_ERROR, "less data than announced");
    let scope = hosts.out(0, 1, 0x11, &list(0, 0, 0));
    assert_eq!((scope.code(), scope.field()), (INVALID_FIELD, Some((2, Some(7)))));
    let kind = hosts.out(0, 1, 0x02, &list(0, 0, 0));
    assert_eq!((kind.code(), kind.field()), (INVALID_FIELD, Some((2, Some(3)))));
    for action in 1..=5 {
        let reply = hosts.out(0, action, 3, &list(0, 0, SPEC_I_PT));
        assert_eq!((reply.code(), reply.field()), (INVALID_PARAMETER, Some((20, Some(3)))), "{action}");
    }
    let action = hosts.out(0, 9, 0, &list(0, 0, 0));
    assert_eq!((action.code(), action.field()), (INVALID_FIELD, Some((1, Some(4)))));
}

/// SPC-4, REGISTER AND MOVE: an existing target port, one initiator port by name and ISID.
#[test]
fn a_move_needs_a_nexus_that_can_be() {
    let mut hosts = Hosts::new(Saved::Nowhere);
    good(&hosts.out(0, 0, 0, &list(0, 1, 0)));
    good(&hosts.out(0, 1, 3, &list(1, 0, 0)));
    let field = |hosts: &mut Hosts, list: &[u8]| {
        let reply = hosts.out(0, 7, 0, list);
        assert_eq!(reply.code(), INVALID_PARAMETER);
        reply.field().map(|(byte, _)| byte)
    };
    assert_eq!(field(&mut hosts, &move_list(1, 2, 0, 9, HOSTS[1])), Some(18));
    let mut device = move_list(1, 2, 0, 1, "iqn.host-b");
    device[24] = 0x05;
    assert_eq!(field(&mut hosts, &device), Some(24), "format 00b");
    let mut length = move_list(1, 2, 0, 1, HOSTS[1]);
    length[23] += 4;
    assert_eq!(field(&mut hosts, &length), Some(20));
    // To a nexus that is not there: it holds the reservation when it comes.
    good(&hosts.out(0, 7, 0, &move_list(1, 2, 2, 2, "iqn.host-z,i,0x800000000009")));
    let full = hosts.report(1, 3);
    let [holder] = full_status(&full)[..] else { panic!("{full:02x?}") };
    assert_eq!((holder[7], holder[12], holder[13], holder[19]), (2, 1, 3, 2));
}

#[test]
fn registrants_are_bounded() {
    let mut hosts = Hosts::new(Saved::Nowhere);
    let mut first = 0;
    let mut register = |who: usize, count: usize| {
        let names = first..first + count;
        first += count;
        let ids: Vec<u8> = names.flat_map(|n| transport_id(&format!("iqn.h,i,0x{n:012x}"))).collect();
        hosts.out(who, 0, 0, &with_ids(0, 7, &ids))
    };
    good(&register(0, 511));
    good(&register(1, 511));
    assert_eq!(register(2, 1).code(), (5, 0x55, 0x04));
    assert_eq!(hosts.report(0, 0)[4..8], (1024 * 8u32).to_be_bytes());
    let cut = hosts.all[0].good(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[]);
    assert_eq!(cut[4..], (1024 * 8u32).to_be_bytes(), "the length tells of all there is");
    good(&hosts.out(0, 3, 0, &list(7, 0, 0)));
}

/// SPC-4, commands that depend on their CDB: to allow removal and to start are never refused.
#[test]
fn some_commands_conflict_by_what_they_ask() {
    let mut hosts = Hosts::new(Saved::Nowhere);
    good(&hosts.out(0, 0, 0, &list(0, 1, 0)));
    good(&hosts.out(0, 1, 3, &list(1, 0, 0)));
    let status = |hosts: &mut Hosts, cdb: &[u8]| hosts.all[3].run(cdb, &[]).status;
    for (cdb, expected) in [
        (&[0x1e, 0, 0, 0, 0][..], Status::Good),
        (&[0x1e, 0, 0, 0, 1], Status::ReservationConflict),
        (&[0x1b, 0, 0, 0, 1], Status::Good),
        (&[0x1b, 0, 0, 0, 0], Status::ReservationConflict),
        (&[0x25], Status::Good),
        (&[0x1a, 0, 0x3f, 0, 255], Status::ReservationConflict),
        (&[0x35], Status::ReservationConflict),
        (&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64], Status::Good),
        (&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 64], Status::Good),
        (&[0xa3, 0x0f, 0, 0, 0, 0, 0, 0, 0, 64], Status::Good),
        (&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0, 64], Status::ReservationConflict),
    ] {
        assert_eq!(status(&mut hosts, cdb), expected, "{cdb:02x?}");
    }
}

/// SPC-4, PREEMPT: what a preempted nexus prevented is allowed again.
#[test]
fn a_preempted_nexus_prevents_nothing() {
    let mut hosts =
        Hosts::with(lunette_scsi::LogicalUnitConfig { removable: true, ..config() }, Saved::Nowhere);
    good(&hosts.out(0, 0, 0, &list(0, 1, 0)));
    good(&hosts.out(2, 0, 0, &list(0, 2, 0)));
    good(&hosts.all[2].run(&[0x1e, 0, 0, 0, 1], &[]));
    assert_eq!(hosts.all[0].run(&[0x1b, 0, 0, 0, 2], &[]).code(), PREVENTED);
    good(&hosts.out(0, 4, 3, &list(1, 2, 0)));
    good(&hosts.all[0].run(&[0x1b, 0, 0, 0, 2], &[]));
}
