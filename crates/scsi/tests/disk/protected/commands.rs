//! What a unit tells of its protection, what READ and VERIFY do for each value of their fields, and what is refused (SBC-3, 4.22).

use lunette_scsi::{LogicalUnitConfig, Status};

use super::*;

/// SBC-3: 4.22 protection information.
#[test]
fn units_tell_their_protection() {
    let plain = Host::new(config());
    for (mut host, capacity, inquiry, extended, control) in [
        (plain, 0x00, 0x38, 0x00, 0x00),
        (type_1(), 0x01, 0x39, 0x05, 0x80),
        (type_3(), 0x05, 0x39, 0x24, 0x80),
    ] {
        let mut read_capacity = padded(&[0x9e, 0x10]);
        read_capacity[13] = 32;
        assert_eq!(host.good(&read_capacity, &[])[12], capacity, "P_TYPE and PROT_EN");
        assert_eq!(host.good(&read_capacity, &[])[13] >> 4, 0, "P_I_EXPONENT");
        assert_eq!(host.good(&[0x12, 0, 0, 0, 96, 0], &[])[5], inquiry, "PROTECT");
        assert_eq!(
            host.good(&[0x12, 1, 0x86, 0, 64, 0], &[])[4],
            extended,
            "SPT, GRD_CHK, REF_CHK; no APP_CHK"
        );
        assert_eq!(
            host.code(&[0x1a, 0x08, 0x0a, 0x02, 255, 0]),
            INVALID_FIELD,
            "no application tags to check"
        );
        let pages = host.good(&[0x1a, 0x08, 0x0a, 0, 255, 0], &[]);
        assert_eq!(pages[4 + 5] & 0x80, control, "ATO");
        assert_eq!(pages[4 + 2] & 0x08, 0, "DPICZ");
        let usage = host.good(&[0xa3, 0x0c, 0x01, 0x28, 0, 0, 0, 0, 0, 64, 0, 0], &[]);
        assert_eq!(usage[5] & 0xe0, if capacity == 0 { 0 } else { 0xe0 }, "RDPROTECT in CDB USAGE DATA");
    }
}

/// ATO and DPICZ are as they are.
#[test]
fn the_control_page_keeps_its_protection_bits() {
    let mut host = type_1();
    let mut list = host.good(&[0x1a, 0x08, 0x0a, 0, 255, 0], &[]);
    list[0] = 0;
    list[4] &= 0x3f;
    let length = list.len() as u8;
    assert_eq!(host.run(&[0x15, 0x10, 0, 0, length, 0], &list).status, Status::Good);
    for (byte, bit) in [(5, 7), (2, 3)] {
        let mut changed = list.clone();
        changed[4 + byte] ^= 1 << bit;
        let reply = host.run(&[0x15, 0x10, 0, 0, length, 0], &changed);
        assert_eq!((reply.code(), reply.field()), (INVALID_PARAMETER, Some((4 + byte as u16, Some(bit)))));
    }
}

/// SBC-3: 4.22 protection information.
#[test]
fn fields_are_refused_where_there_is_no_protection_and_where_they_are_reserved() {
    let cdbs = |flags: u8| {
        [
            cdb10(0x28, flags, 0, 1),
            cdb10(0x2a, flags, 0, 1),
            cdb10(0x2e, flags, 0, 1),
            cdb10(0x2f, flags, 0, 1),
            cdb10(0x41, flags, 0, 1),
            cdb12(0xa8, flags, 0, 1),
            cdb12(0xaa, flags, 0, 1),
            cdb12(0xae, flags, 0, 1),
            cdb12(0xaf, flags, 0, 1),
            cdb16(0x88, flags, 0, 1),
            cdb16(0x8a, flags, 0, 1),
            cdb16(0x8b, flags, 0, 1),
            cdb16(0x8e, flags, 0, 1),
            cdb16(0x8f, flags, 0, 1),
            cdb16(0x93, flags, 0, 1),
            {
                let mut cdb = cdb16(0x89, flags, 0, 0);
                cdb[13] = 1;
                cdb
            },
        ]
    };
    let mut plain = Host::new(config());
    for value in 1..=7u8 {
        for cdb in cdbs(field(value)) {
            let reply = plain.run(&cdb, &[]);
            let bit = 7 - field(value).leading_zeros() as u8;
            assert_eq!((reply.code(), reply.field()), (INVALID_FIELD, Some((1, Some(bit)))), "{cdb:02x?}");
        }
    }
    for mut host in [type_1(), type_3()] {
        for value in 6..=7 {
            for cdb in cdbs(field(value)) {
                let reply = host.run(&cdb, &[]);
                assert_eq!((reply.code(), reply.field()), (INVALID_FIELD, Some((1, Some(7)))), "{cdb:02x?}");
            }
        }
        // Commands of six bytes have reserved bits there.
        assert_eq!(host.code(&[0x08, field(1), 0, 0, 1, 0]), INVALID_FIELD);
        assert!(host.log().is_empty());
    }
}

/// A never written block is not checked, and its information comes as it is.
#[test]
fn blocks_that_were_never_written_are_not_checked() {
    for mut host in [type_1(), type_3()] {
        host.disk.bytes[3 * BLOCK] = 1;
        assert_eq!(host.good(&cdb10(0x28, 0, 3, 2), &[]).len(), 2 * BLOCK);
        let with = host.good(&cdb10(0x28, field(1), 3, 2), &[]);
        assert_eq!((with.len(), with[0], &with[BLOCK..STORED]), (2 * STORED, 1, &[0xff; 8][..]));
    }
}

/// RDPROTECT: what is transferred, and which damage is found.
/// SBC-3: RDPROTECT, VRPROTECT.
#[test]
fn reads_check_what_the_field_says() {
    for opcode in [0x28, 0x88, 0xa8] {
        let cdb = |value| match opcode {
            0x28 => cdb10(opcode, field(value), 20, 4),
            0x88 => cdb16(opcode, field(value), 20, 4),
            _ => cdb12(opcode, field(value), 20, 4),
        };
        let mut host = type_1();
        host.good(&cdb10(0x2a, 0, 20, 4), &[7; 4 * BLOCK]);
        let right = information_of(&host, 22);
        let damages: [(&str, [u8; 8], [bool; 6]); 3] = [
            ("guard", [right[0] ^ 1, right[1], 0, 0, 0, 0, 0, 22], [true, true, false, false, true, true]),
            (
                "reference tag",
                [right[0], right[1], 0, 0, 0, 0, 0, 23],
                [true, true, true, false, false, true],
            ),
            ("application tag", [right[0], right[1], 9, 9, 0, 0, 0, 22], [false; 6]),
        ];
        for (what, bytes, is_found) in damages {
            set_information(&mut host, 22, bytes);
            for value in 0..=5 {
                let reply = host.run(&cdb(value), &[]);
                if is_found[usize::from(value)] {
                    let code = if what == "guard" { GUARD } else { REFERENCE_TAG };
                    assert_eq!((reply.code(), told_lba(&reply)), (code, 22), "{what}, {value}");
                    assert!(reply.data.is_empty());
                } else {
                    let length = if value == 0 { 4 * BLOCK } else { 4 * STORED };
                    assert_eq!((reply.status, reply.data.len()), (Status::Good, length), "{what}, {value}");
                    if value != 0 {
                        assert_eq!(reply.data[2 * STORED + BLOCK..3 * STORED], bytes);
                    }
                }
            }
        }
    }
}

#[test]
fn damaged_data_is_found_by_every_command_that_reads_it() {
    let mut host = type_1();
    host.good(&cdb10(0x2a, 0, 5, 1), &[7; BLOCK]);
    host.disk.bytes[5 * BLOCK + 77] ^= 0x20;
    let compare_and_write = {
        let mut cdb = cdb16(0x89, 0, 5, 0);
        cdb[13] = 1;
        cdb
    };
    for (cdb, data) in [
        (cdb6(0x08, 5, 1), 0),
        (cdb10(0x28, 0, 5, 1), 0),
        (cdb10(0x28, 0x08, 5, 1), 0),
        (cdb10(0x2f, 0, 5, 1), 0),
        (cdb10(0x2f, 0x02, 5, 1), BLOCK),
        (cdb10(0x2f, 0x06, 5, 1), BLOCK),
        (cdb16(0x8b, 0, 5, 1), BLOCK),
        (compare_and_write, 2 * BLOCK),
    ] {
        let reply = host.run(&cdb, &vec![7; data]);
        assert_eq!((reply.code(), told_lba(&reply)), (GUARD, 5), "{cdb:02x?}");
    }
    assert_eq!(host.disk.bytes[5 * BLOCK], 7, "nothing was written");
    // Who writes it anew has it back.
    host.good(&cdb10(0x2a, 0, 5, 1), &[8; BLOCK]);
    assert_eq!(host.good(&cdb10(0x28, 0, 5, 1), &[]), [8; BLOCK]);
}

/// The driver is told of damage that it has stored, and not of what an initiator sends.
#[test]
fn stored_damage_is_told() {
    let mut host = type_1();
    let told = Told::of(&host);
    let mut sent = block(7, 0, 5);
    sent[0] ^= 1;
    for cdb in [cdb10(0x2a, field(1), 5, 1), cdb10(0x2f, field(1) | 0x02, 5, 1), cdb16(0x8b, field(1), 5, 1)]
    {
        assert_eq!(host.run(&cdb, &sent).code(), GUARD, "{cdb:02x?}");
    }
    assert_eq!(told.take(), [], "what was sent is wrong");
    host.good(&cdb10(0x2a, 0, 5, 2), &[7; 2 * BLOCK]);
    host.disk.bytes[6 * BLOCK] ^= 1;
    for (cdb, data) in [
        (cdb10(0x28, 0, 5, 2), 0),
        (cdb10(0x2f, 0, 5, 2), 0),
        (cdb10(0x2f, 0x02, 5, 2), 2 * BLOCK),
        (cdb16(0x8b, 0, 5, 2), 2 * BLOCK),
    ] {
        assert_eq!(host.run(&cdb, &vec![7; data]).code(), GUARD, "{cdb:02x?}");
        assert_eq!(told.take(), [Damage { lba: 6, check: Check::Guard }], "{cdb:02x?}");
    }
    set_information(&mut host, 5, information(&[7; BLOCK], 0, 4));
    assert_eq!(host.run(&cdb10(0x28, 0, 5, 2), &[]).code(), REFERENCE_TAG);
    assert_eq!(told.take(), [Damage { lba: 5, check: Check::ReferenceTag }]);
    // Nobody has looked.
    assert_eq!(host.run(&cdb10(0x28, field(3), 5, 2), &[]).code(), GOOD);
    assert_eq!(told.take(), []);
}

/// VRPROTECT with BYTCHK 00b: the medium is checked, and nothing is transferred.
/// SBC-3: RDPROTECT, VRPROTECT.
#[test]
fn verify_without_data_checks_the_medium() {
    let mut host = type_1();
    host.good(&cdb10(0x2a, 0, 9, 1), &[7; BLOCK]);
    let right = information_of(&host, 9);
    for (what, damage, is_found) in [
        ("guard", 0usize, [true, true, false, false, true, true]),
        ("reference tag", 7, [true, true, true, false, false, true]),
    ] {
        let mut bytes = right;
        bytes[damage] ^= 0x40;
        set_information(&mut host, 9, bytes);
        for value in 0..=5u8 {
            let reply = host.run(&cdb10(0x2f, field(value), 9, 1), &[]);
            let code = if what == "guard" { GUARD } else { REFERENCE_TAG };
            let wanted = if is_found[usize::from(value)] { code } else { GOOD };
            assert_eq!((reply.code(), reply.asked_bytes), (wanted, 0), "{what}, {value}");
        }
    }
}

/// VRPROTECT with BYTCHK 01b and 11b: the information that comes is checked and compared.
/// SBC-3: RDPROTECT, VRPROTECT.
#[test]
fn verify_with_data_compares_the_information() {
    const COMPARED_GUARD: (u8, u8, u8) = (0xe, 0x10, 0x01);
    const COMPARED_APPLICATION_TAG: (u8, u8, u8) = (0xe, 0x10, 0x02);
    const COMPARED_REFERENCE_TAG: (u8, u8, u8) = (0xe, 0x10, 0x03);
    let given = [block(7, 0x11, 9), block(7, 0x11, 10)].concat();
    for flags in [0x02u8, 0x06] {
        let mut host = type_1();
        host.good(&cdb10(0x2a, field(1), 9, 2), &given);
        let one = if flags == 0x06 { &given[..STORED] } else { &given };
        for value in 1..=5 {
            let reply = host.run(&cdb10(0x2f, flags | field(value), 9, 2), one);
            assert_eq!((reply.code(), reply.asked_bytes), (GOOD, one.len() as u32), "{value}");
        }
        let plain = if flags == 0x06 { BLOCK } else { 2 * BLOCK };
        let reply = host.run(&cdb10(0x2f, flags, 9, 2), &vec![7; plain]);
        assert_eq!((reply.code(), reply.asked_bytes), (GOOD, plain as u32));
        let right = information_of(&host, 10);
        // What the medium has is not checked where it is compared, but for 000b.
        for (byte, code, values) in [
            (1usize, COMPARED_GUARD, [false, true, false, true, true, true]),
            (3, COMPARED_APPLICATION_TAG, [false, true, true, true, true, true]),
            (7, COMPARED_REFERENCE_TAG, [false, true, true, true, true, true]),
        ] {
            let mut bytes = right;
            bytes[byte] ^= 0x01;
            set_information(&mut host, 10, bytes);
            for value in 1..=5u8 {
                let reply = host.run(&cdb10(0x2f, flags | field(value), 9, 2), one);
                let wanted = if values[usize::from(value)] { code } else { GOOD };
                assert_eq!(reply.code(), wanted, "byte {byte}, value {value}");
            }
            set_information(&mut host, 10, right);
        }
        host.disk.bytes[10 * BLOCK + 3] ^= 1;
        let reply = host.run(&cdb10(0x2f, flags | field(3), 9, 2), one);
        let at = if flags == 0x06 { 3 } else { STORED as u32 + 3 };
        assert_eq!((reply.code(), told_lba(&reply)), (MISCOMPARE, at));
        // What comes is checked before.
        let mut wrong = one.to_vec();
        wrong[BLOCK] ^= 1;
        assert_eq!(host.run(&cdb10(0x2f, flags | field(1), 9, 2), &wrong).code(), GUARD);
    }
}

/// FORMAT UNIT: a unit keeps its type, and who asks for another hears where.
/// SBC-3: 4.22 protection information.
#[test]
fn formatting_does_not_change_the_type() {
    let format = |information: u8, data: bool| padded(&[0x04, information << 6 | u8::from(data) << 4]);
    // FMTPINFO, PROTECTION FIELD USAGE, and where the fault is.
    let none = || Host::new(LogicalUnitConfig { write_cache: false, ..config() });
    for (make, right) in [(none as fn() -> Host, (0, 0)), (type_1, (2, 0)), (type_3, (3, 1))] {
        for information in 0..=3u8 {
            for usage in 0..=2u8 {
                let mut host = make();
                let reply = host.run(&format(information, true), &[usage, 0x80, 0, 0]);
                if (information, usage) == right {
                    assert_eq!(reply.code(), GOOD);
                    continue;
                }
                let wanted = match information == right.0 {
                    true => (INVALID_PARAMETER, Some((0, Some(2)))),
                    false if right == (0, 0) => {
                        (INVALID_FIELD, Some((1, Some(7 - (information << 6).leading_zeros() as u8))))
                    }
                    false => (INVALID_FIELD, Some((1, Some(7)))),
                };
                assert_eq!((reply.code(), reply.field()), wanted, "{information} {usage}");
            }
        }
    }
    assert_eq!(type_1().run(&format(2, false), &[]).code(), GOOD);
    let reply = type_3().run(&format(3, false), &[]);
    assert_eq!((reply.code(), reply.field()), (INVALID_FIELD, Some((1, Some(4)))), "it needs a list");
}

#[test]
fn erased_blocks_have_no_information() {
    let patterns: [(&[u8], &[u8]); 3] = [
        (&[0x04, 0x90], &[0, 0x80, 0, 0]),
        (&[0x04, 0x90], &[0, 0x88, 0, 0, 0, 1, 0, 1, 0x5a]),
        (&[0x48, 0x01, 0, 0, 0, 0, 0, 0, 5], &[1, 0, 0, 1, 0x5a]),
    ];
    for (cdb, list) in patterns {
        let mut host = type_1();
        host.good(&cdb10(0x2a, 0, 9, 1), &[7; BLOCK]);
        host.good(&padded(cdb), list);
        assert!(host.disk.information.as_ref().unwrap().iter().all(|bytes| *bytes == [0xff; 8]));
        assert!(host.run(&cdb10(0x28, 0, 9, 1), &[]).data.iter().all(|&byte| byte != 7));
    }
}
