//! What every row must have, and how rows are found.

use super::*;
use crate::codes::opcode::{FORMAT_UNIT, SANITIZE};
use crate::unit::tests::{config, unit_of};

#[test]
fn rows_are_in_order_and_unique() {
    let keys: Vec<_> = COMMANDS.iter().map(|row| (row.opcode, row.service_action)).collect();
    assert!(keys.is_sorted());
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(COMMANDS.len() < usize::from(NO_ROW));
}

#[test]
fn every_row_is_found_by_its_own_usage() {
    for row in &COMMANDS {
        let mut cdb: Cdb = [0; 16];
        cdb[0] = row.opcode;
        cdb[1] = row.service_action.unwrap_or(0);
        let found = find(&cdb).unwrap_or_else(|_| panic!("{}", row.name));
        assert_eq!(found.name, row.name);
        assert_eq!(row.check_usage(&cdb), Ok(()), "{}", row.name);
    }
}

/// SPC-4, operation code: the group code, the top three bits of the operation code, gives the length of the CDB.
#[test]
fn lengths_follow_the_group_code() {
    let unit = unit_of(config());
    for row in &COMMANDS {
        let expected = match row.opcode >> 5 {
            0 => 6,
            1 | 2 => 10,
            4 => 16,
            5 => 12,
            group => panic!("group {group}"),
        };
        assert_eq!(row.usage.len(), expected, "{}", row.name);
        assert_eq!(row.usage.last(), Some(&0), "CONTROL of {}", row.name);
        assert_eq!(row.usage_data(&unit).last(), Some(&0x04), "NACA of {}", row.name);
    }
}

/// A handler must not read what its row does not tell: the row would refuse it before.
#[test]
fn usage_covers_the_fields_that_handlers_read() {
    // A # for each byte that belongs to an LBA or a length.
    let fields = |row: &Command| match (row.opcode, row.usage.len()) {
        (TEST_UNIT_READY | FORMAT_UNIT | 0x16 | 0x17 | 0x1b | 0x1d | 0x1e, 6) | (0x25 | 0x56 | 0x57, 10) => {
            ""
        }
        (0x08 | 0x0a, 6) => "..###.",
        (REQUEST_SENSE | 0x15 | 0x1a, 6) => "....#.",
        (INQUIRY, 6) => "..###.",
        (0x28 | 0x2a | 0x2e | 0x2f | 0x34 | 0x35 | 0x41, 10) => "..####.##.",
        (0x5f, 10) => "..#..####.",
        (0x37 | 0x42 | 0x55 | 0x5a | 0x5e, 10) => ".......##.",
        (0xa8 | 0xaa | 0xae | 0xaf, 12) => "..########..",
        (REPORT_LUNS | 0xa3 | 0xa4 | 0xb7, 12) => "......####..",
        (0x88 | 0x8a | 0x8b | 0x8e | 0x8f | 0x90 | 0x91 | 0x93 | 0x9c, 16) => "..############..",
        (0x3e | 0x3f, 10) => "..####.##.",
        (0x9e | 0x9f, 16) if row.service_action == Some(0x11) => "..########..##..",
        (0x3b | 0x3c, 10) => "..#######.",
        (0x4c, 10) => ".......##.",
        (0x4d, 10) => "..##.####.",
        (SANITIZE, 10) if row.service_action == Some(1) => ".......##.",
        (SANITIZE, 10) => "",
        (0x89, 16) => "..########...#..",
        (0x9e, 16) if row.service_action == Some(0x15) => "...#............",
        (0x83, 16) if row.service_action == Some(0x1c) => "..####..........",
        (0x83, 16) if matches!(row.service_action, Some(0x10 | 0x11)) => "......########..",
        (0x84, 16) if matches!(row.service_action, Some(0x05 | 0x07)) => "..####....####..",
        (0x84, 16) if !matches!(row.service_action, Some(0x03 | 0x08)) => "..#.......####..",
        (0x83 | 0x84 | 0x9e, 16) => "..........####..",
        other => panic!("say which fields {other:02x?} has"),
    };
    for row in &COMMANDS {
        for (byte, _) in fields(row).char_indices().filter(|&(_, mark)| mark == '#') {
            assert_eq!(row.usage[byte], 0xff, "byte {byte} of {}", row.name);
        }
    }
}

#[test]
fn undefined_bits_are_pointed_at() {
    let mut cdb: Cdb = [0; 16];
    cdb[0] = 0x28;
    cdb[1] = 0x20;
    let row = find(&cdb).unwrap();
    assert_eq!(row.check_usage(&cdb), Err(SenseData::invalid_cdb_field(1, 5)), "RDPROTECT");
    cdb[1] = 0;
    cdb[9] = 0x04;
    assert_eq!(row.check_usage(&cdb), Ok(()), "NACA");
    assert_eq!(row.check_naca(&cdb), Err(SenseData::invalid_cdb_field(9, 2)));
    cdb[9] = 0x02;
    assert_eq!(row.check_usage(&cdb), Err(SenseData::invalid_cdb_field(9, 1)), "obsolete FLAG");
    cdb[9] = 0;
    assert_eq!(row.check_naca(&cdb), Ok(()));
    cdb[10] = 0xff;
    assert_eq!(row.check_usage(&cdb), Ok(()), "bytes after the CDB");
}

#[test]
fn names_for_logs() {
    assert_eq!(command_name(&[0x9e, 0x12]), Some("GET LBA STATUS"));
    assert_eq!(command_name(&[0x9e, 0x1f]), None);
    assert_eq!(command_name(&[0xff; 16]), None);
    assert_eq!(command_name(&[]), None);
}
