//! Which field is wrong (SPC-4, field pointer): every reserved bit of every CDB, and fields of parameter lists.

use crate::host::*;

/// What REPORT SUPPORTED OPERATION CODES tells of every command that the unit has: whether it has a service action, and its
/// usage data.
fn commands(host: &mut Host) -> Vec<(bool, Vec<u8>)> {
    let all = host.good(&padded(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff]), &[]);
    let one = |entry: &[u8]| {
        let cdb = [0xa3, 0x0c, 3, entry[0], entry[2], entry[3], 0, 0, 0, 255];
        (entry[5] & 1 != 0, host.good(&padded(&cdb), &[])[4..].to_vec())
    };
    all[4..].chunks_exact(8).map(one).collect()
}

/// SPC-4: a bit that no field has is told to the bit, and nothing is done.
#[test]
fn every_reserved_bit_of_every_cdb_is_pointed_at() {
    const ACTION: u8 = 0x1f;
    let mut host = Host::new(config());
    let commands = commands(&mut host);
    assert!(commands.len() > 80);
    let mut looked_at = 0;
    for (has_action, usage) in &commands {
        let mut cdb = padded(&usage[..1]);
        let action_bits = if *has_action { ACTION } else { 0 };
        cdb[1] = usage[1] & action_bits;
        for (byte, &used) in usage.iter().enumerate().skip(1) {
            let used = if byte == 1 { used | action_bits } else { used };
            for bit in (0..8u8).filter(|bit| used & 1 << bit == 0) {
                let mut wrong = cdb;
                wrong[byte] |= 1 << bit;
                let reply = host.run(&wrong, &[]);
                let expected = (INVALID_FIELD, Some((byte as u16, Some(bit))), 0);
                assert_eq!((reply.code(), reply.field(), reply.asked_bytes), expected, "{wrong:02x?}");
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 3000, "{looked_at}");
    assert_eq!(host.log(), [], "nothing reaches the medium");
}

/// A parameter list with one field that cannot be.
struct Wrong {
    what: &'static str,
    cdb: &'static [u8],
    list: Vec<u8>,
    byte: u16,
    bit: Option<u8>,
}

fn wrong(what: &'static str, cdb: &'static [u8], list: Vec<u8>, byte: u16, bit: Option<u8>) -> Wrong {
    Wrong { what, cdb, list, byte, bit }
}

/// A list of `length` zeros with these bytes set.
fn list(length: usize, bytes: &[(usize, u8)]) -> Vec<u8> {
    let mut list = vec![0; length];
    bytes.iter().for_each(|&(at, value)| list[at] = value);
    list
}

const MODE_SELECT: &[u8] = &[0x15, 0x10, 0, 0, 16];
const RESERVE_OUT: &[u8] = &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24];
const SANITIZE_OVERWRITE: &[u8] = &[0x48, 0x01, 0, 0, 0, 0, 0, 0, 8];

/// The first field that is wrong is the one that is told, counted from the beginning of the list.
/// SPC-4: 4.5.2.4.2 field pointer, 0Ah Control: QERR, 0Ah Control: TST.
#[test]
fn fields_of_parameter_lists_are_pointed_at() {
    let mut host = Host::new(config());
    let control = |bytes: &[(usize, u8)]| {
        let mut list = list(16, &[(4, 0x0a), (5, 0x0a), (7, 0x10)]);
        bytes.iter().for_each(|&(at, value)| list[at] = value);
        list
    };
    let cases = [
        wrong("MODE SELECT: no such page", MODE_SELECT, control(&[(4, 0x0b)]), 4, None),
        wrong("page length", MODE_SELECT, control(&[(5, 0x09)]), 5, None),
        wrong("TST", MODE_SELECT, control(&[(6, 0x20)]), 6, Some(5)),
        wrong("QERR 10b", MODE_SELECT, control(&[(7, 0x14)]), 7, Some(2)),
        wrong("queue algorithm modifier 3h", MODE_SELECT, control(&[(7, 0x30)]), 7, Some(5)),
        wrong("UA_INTLCK_CTRL 01b", MODE_SELECT, control(&[(8, 0x10)]), 8, Some(5)),
        wrong("RAC", MODE_SELECT, control(&[(8, 0x40)]), 8, Some(6)),
        wrong("BUSY TIMEOUT PERIOD", MODE_SELECT, control(&[(13, 1)]), 13, Some(0)),
        wrong("PERSISTENT RESERVE OUT: APTPL", RESERVE_OUT, list(24, &[(20, 1)]), 20, Some(0)),
        wrong("SANITIZE: pattern length 0", SANITIZE_OVERWRITE, list(8, &[(0, 1)]), 2, None),
    ];
    for Wrong { what, cdb, list, byte, bit } in cases {
        let reply = host.run(cdb, &list);
        assert_eq!((reply.code(), reply.field()), (INVALID_PARAMETER, Some((byte, bit))), "{what}");
    }
    assert_eq!(host.log(), []);
}
