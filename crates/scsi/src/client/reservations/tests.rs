//! Answers and lists of PERSISTENT RESERVE, byte by byte.

use super::*;

const PORT: &str = "iqn.2026-11.io.example:host,i,0x80000000000a";

#[test]
fn keys_and_reservation() {
    let data = [&[0, 0, 0, 7, 0, 0, 0, 16][..], &5u64.to_be_bytes(), &6u64.to_be_bytes()].concat();
    assert_eq!(read_keys().decode(&data), Ok(Keys { generation: 7, keys: vec![5, 6] }));
    assert_eq!(read_keys().decode(&data[..16]).unwrap_err().needed_bytes(), Some(24));
    let none = read_reservation().decode(&[0, 0, 0, 7, 0, 0, 0, 0]);
    assert_eq!(none, Ok(Reserved { generation: 7, held: None }));
    let mut data = [&[0, 0, 0, 7, 0, 0, 0, 16][..], &5u64.to_be_bytes(), &[0; 8]].concat();
    data[8 + 13] = 0x05;
    let kind = Some(ReservationType::WriteExclusiveRegistrantsOnly);
    let reserved = read_reservation().decode(&data).unwrap();
    assert_eq!(reserved.held, Some(Held { key: 5, scope: 0, kind }));
    data[8 + 13] = 0x1f;
    let held = read_reservation().decode(&data).unwrap().held.unwrap();
    assert_eq!((held.scope, held.kind), (1, None));
}

#[test]
fn capabilities() {
    let told = report_capabilities().decode(&[0, 8, 0x9d, 0x91, 0xea, 0x01, 0, 0]).unwrap();
    assert!(told.compatible_reservations && told.specify_initiator_ports && told.all_target_ports);
    assert!(told.persist_through_power_loss && told.persists_now && told.replace_lost);
    assert_eq!(told.types, Some(ReservationType::ALL.to_vec()));
    let plain = report_capabilities().decode(&[0, 8, 0, 0, 0xff, 0xff, 0, 0]).unwrap();
    assert_eq!(plain.types, None);
    assert!(report_capabilities().decode(&[0, 8, 0]).is_err());
}

#[test]
fn registrants() {
    let id = transport_id::compose(PORT);
    let mut one = vec![0; 24];
    one[7] = 9;
    one[12] = 1;
    one[13] = 3;
    one[19] = 2;
    one[23] = id.len() as u8;
    one.extend(&id);
    let mut two = vec![0; 24];
    two[12] = 2;
    two[23] = 3;
    two.extend([6, 1, 2]);
    let body = [one, two].concat();
    let data = [&[0; 7][..], &[body.len() as u8], &body].concat();
    let all = read_full_status().decode(&data).unwrap().registrants;
    assert_eq!((all[0].key, all[0].target_port), (9, Some(2)));
    assert_eq!(all[0].held.and_then(|held| held.kind), Some(ReservationType::ExclusiveAccess));
    assert_eq!(all[0].initiator.to_string(), PORT);
    assert_eq!((all[1].held, all[1].target_port), (None, None));
    assert_eq!(all[1].initiator.to_string(), "TransportID 060102");
    assert!(read_full_status().decode(&data[..data.len() - 1]).is_err());
    let mut endless = data.clone();
    endless[8 + 20..8 + 24].fill(0xff);
    assert!(read_full_status().decode(&endless).is_err());
}

#[test]
fn lists() {
    let reserve = ReserveOut::Reserve { key: 5, kind: ReservationType::WriteExclusive };
    let command = reserve_out(&reserve).unwrap();
    assert_eq!(command.cdb(), [0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0]);
    let options =
        RegisterOptions { persist: true, all_target_ports: true, initiator_ports: vec![PORT.to_owned()] };
    let register = ReserveOut::Register { key: 1, new_key: 2, options: options.clone() };
    let command = reserve_out(&register).unwrap();
    let Transfer::List(list) = command.transfer() else { panic!("no list") };
    assert_eq!((list.len(), list[7], list[15], list[20]), (28 + 52, 1, 2, 0x0d));
    assert_eq!(list[24..32], [0, 0, 0, 52, 0x45, 0, 0, 48]);
    let ignore = ReserveOut::RegisterAndIgnore { new_key: 2, options };
    assert_eq!(reserve_out(&ignore), Err(DoesNotFit { field: "SPEC_I_PT" }));
    let mut go = ReserveOut::Move {
        key: 1,
        new_key: 2,
        unregister: true,
        persist: false,
        target_port: 3,
        initiator_port: PORT.to_owned(),
    };
    let command = reserve_out(&go).unwrap();
    let Transfer::List(list) = command.transfer() else { panic!("no list") };
    assert_eq!(list[16..28], [0, 2, 0, 3, 0, 0, 0, 52, 0x45, 0, 0, 48]);
    if let ReserveOut::Move { initiator_port, .. } = &mut go {
        *initiator_port = "iqn.x".to_owned();
    }
    assert_eq!(reserve_out(&go), Err(DoesNotFit { field: "TRANSPORTID" }));
}
