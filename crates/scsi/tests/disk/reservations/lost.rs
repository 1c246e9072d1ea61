//! Reservations that were to be kept and cannot be read (SPC-4, 5.13.5.3), and REPLACE LOST RESERVATION (5.13.11.3).

use lunette_scsi::{ConfigError, Io, IoError, LogicalUnit, Saved, SavedFault, Status};

use super::full_status;
use super::hosts::{HOSTS, Hosts, LOST, list, out_cdb, transport_id};
use crate::host::*;

const APTPL: u8 = 1;
const REPLACE_LOST: u8 = 8;
const EXCLUSIVE_ACCESS: u8 = 3;
/// INVALID RELEASE OF PERSISTENT RESERVATION.
const INVALID_RELEASE: (u8, u8, u8) = (5, 0x26, 0x04);

/// A unit whose reservations were kept, and are lost.
fn lost() -> Hosts {
    let mut hosts = Hosts::new(Saved::Nothing);
    assert_eq!(hosts.out(0, 0, 0, &list(0, 0xa, APTPL)).status, Status::Good);
    hosts.start_after_loss();
    assert!(hosts.unit().has_lost_reservations());
    hosts
}

fn replace(hosts: &mut Hosts, who: usize, aptpl: u8) -> Reply {
    hosts.out(who, REPLACE_LOST, EXCLUSIVE_ACCESS, &list(0, 0xc, aptpl))
}

/// SPC-4, 5.13.5.2 and 5.13.5.3.2: every command that the unit has, with a CDB that it takes.
#[test]
fn nearly_every_command_is_refused() {
    let mut sound = Hosts::new(Saved::Nothing);
    let all = sound.all[0].good(&padded(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff]), &[]);
    let mut hosts = lost();
    let mut allowed = Vec::new();
    for entry in all[4..].chunks_exact(8) {
        let mut cdb = padded(&entry[..1]);
        if entry[5] & 1 != 0 {
            let action = u16::from_be_bytes([entry[2], entry[3]]);
            match entry[0] {
                0x7f => cdb[8..10].copy_from_slice(&action.to_be_bytes()),
                _ => cdb[1] = action as u8,
            }
        }
        if hosts.all[1].run(&cdb, &[]).code() != LOST {
            allowed.push((cdb[0], cdb[1]));
        }
    }
    let expected = [
        (0x03, 0),
        (0x12, 0),
        (0x3b, 0),
        (0x3c, 0),
        (0x4d, 0),
        (0x5f, REPLACE_LOST),
        (0xa0, 0),
        (0xa3, 0x0a),
    ];
    assert_eq!(allowed, expected);
    assert_eq!(hosts.all[1].code(&[0x1b, 0, 0, 0, 0x01]), GOOD, "START STOP UNIT that starts");
    assert_eq!(hosts.all[1].code(&[0x1b, 0, 0, 0, 0x11]), LOST, "a power condition");
}

/// SPC-4: 5.13.5.3 loss of persistent reservation information.
#[test]
fn resets_restarts_and_the_loss_of_nexuses_do_not_end_it() {
    let mut hosts = lost();
    assert!(hosts.all[0].nexus.logical_unit_reset(hosts.all[0].lun));
    hosts.lose(1);
    assert_eq!(hosts.all[1].code(&[0]), LOST);
    let state = hosts.unit().state();
    let mut restarted = Hosts::new(state.saved());
    assert_eq!(restarted.all[3].code(&cdb10(0x2a, 0, 0, 1)), LOST);
}

/// Who replaces them is registered alone and holds the reservation; nobody else is told anything.
/// SPC-4: PERSISTENT RESERVE OUT, REPLACE LOST RESERVATION.
#[test]
fn a_replacement_ends_it() {
    let mut hosts = lost();
    assert_eq!(replace(&mut hosts, 2, APTPL).status, Status::Good);
    assert_eq!(hosts.all[2].log(), [Io::SaveState], "stable before it is answered");
    for who in 0..4 {
        assert_eq!(hosts.attentions(who), []);
    }
    let expect = |hosts: &mut Hosts| {
        let full = hosts.report(1, 3);
        assert_eq!(full[..4], [0; 4], "PRGENERATION is set to zero (SPC-4, 5.13.11.3)");
        let [holder] = full_status(&full)[..] else { panic!("{full:02x?}") };
        assert_eq!((holder[7], holder[12], holder[13], holder[19]), (0xc, 1, EXCLUSIVE_ACCESS, 1));
        assert_eq!(holder[24..], transport_id(HOSTS[1]));
        assert_eq!(hosts.report(1, 2)[3], 0x91, "PTPL_A");
        let write = |hosts: &mut Hosts, who: usize| hosts.all[who].run(&cdb10(0x2a, 0, 0, 1), &[1; BLOCK]);
        assert_eq!(write(hosts, 2).status, Status::Good);
        assert_eq!(write(hosts, 3).status, Status::ReservationConflict);
    };
    expect(&mut hosts);
    let state = hosts.unit().state();
    expect(&mut Hosts::new(state.saved()));
}

/// Without APTPL the new reservation goes with the next restart, and the loss of the old one is not there again.
#[test]
fn a_replacement_that_is_not_kept_ends_it_for_good() {
    let mut hosts = lost();
    assert_eq!(replace(&mut hosts, 0, 0).status, Status::Good);
    assert_eq!(hosts.all[0].log(), [Io::SaveState]);
    let state = hosts.unit().state();
    let mut restarted = Hosts::new(state.saved());
    assert_eq!(restarted.report(0, 0)[4..8], [0; 4]);
}

/// It is in effect although it could not be stored: its holder may have acted on it, and a crash brings the safe side back.
#[test]
fn a_replacement_that_cannot_be_stored_is_told() {
    let mut hosts = lost();
    hosts.all[0].disk.fail = Some((|io| *io == Io::SaveState, IoError::Hardware));
    assert_eq!(replace(&mut hosts, 0, APTPL).code(), (4, 0x44, 0));
    assert_eq!(hosts.all[0].code(&[0]), GOOD);
    assert_eq!(hosts.unit().next_work(), Some(Io::SaveState), "the unit tries again");
}

/// SPC-4: PERSISTENT RESERVE OUT, REPLACE LOST RESERVATION.
#[test]
fn a_wrong_replacement_changes_nothing() {
    let mut hosts = lost();
    let field = |hosts: &mut Hosts, kind: u8, list: &[u8]| {
        let reply = hosts.out(0, REPLACE_LOST, kind, list);
        (reply.code(), reply.field())
    };
    let at = |byte, bit| (INVALID_PARAMETER, Some((byte, bit)));
    assert_eq!(field(&mut hosts, 3, &list(0xa, 0xc, 0)), at(0, None), "a key, where nobody is registered");
    assert_eq!(field(&mut hosts, 3, &list(0, 0, 0)), at(8, None), "no key");
    assert_eq!(field(&mut hosts, 3, &list(0, 0xc, 0x08)), at(20, Some(3)), "SPEC_I_PT");
    assert_eq!(field(&mut hosts, 3, &list(0, 0xc, 0x04)), at(20, Some(2)), "ALL_TG_PT");
    assert_eq!(field(&mut hosts, 2, &list(0, 0xc, 0)), (INVALID_FIELD, Some((2, Some(3)))), "type");
    assert_eq!(field(&mut hosts, 0x13, &list(0, 0xc, 0)), (INVALID_FIELD, Some((2, Some(7)))), "scope");
    let long = hosts.all[0].run(&out_cdb(REPLACE_LOST, 3, 28), &[0; 28]);
    assert_eq!(long.code(), LENGTH_ERROR);
    assert_eq!(hosts.all[0].code(&[0]), LOST);
}

/// SPC-4, 5.13.11.3: nothing is lost, so there is nothing to replace; also for who comes second.
#[test]
fn a_replacement_of_nothing_is_refused() {
    let mut hosts = Hosts::new(Saved::Nothing);
    assert_eq!(replace(&mut hosts, 0, 0).code(), INVALID_RELEASE);
    assert_eq!(replace(&mut Hosts::new(Saved::Nowhere), 0, 0).code(), INVALID_RELEASE);
    let mut hosts = lost();
    assert_eq!(replace(&mut hosts, 0, 0).status, Status::Good);
    assert_eq!(replace(&mut hosts, 2, 0).code(), INVALID_RELEASE);
}

/// What contradicts itself is lost too; what a later version wrote is not lost, but not for us to read.
#[test]
fn what_cannot_be_is_lost() {
    let mut hosts = Hosts::new(Saved::Nothing);
    assert_eq!(hosts.out(0, 0, 0, &list(0, 1, APTPL)).status, Status::Good);
    let mut state = hosts.unit().state();
    let key = state.reservations.windows(8).position(|bytes| bytes == 1u64.to_be_bytes()).unwrap();
    state.reservations[key + 7] = 0;
    let unit = LogicalUnit::new(config(), state.saved()).expect("a unit");
    assert!(unit.has_lost_reservations(), "no key at all cannot be registered");
    state.reservations[0] += 1;
    let error = LogicalUnit::new(config(), state.saved()).unwrap_err();
    assert_eq!(error, ConfigError::SavedState(SavedFault::Version(2)));
}
