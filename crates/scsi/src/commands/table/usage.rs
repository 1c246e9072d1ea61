//! CDB USAGE DATA that several rows of the command table share (SPC-4, REPORT SUPPORTED OPERATION CODES).

/// Usage of PERSISTENT RESERVE OUT by service action: scope and type, which some ignore, and the list's length.
pub(super) const RESERVE_OUT: [[u8; 10]; 9] = {
    let mut usage = [[0x5f, 0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]; 9];
    let mut action = 0;
    while action < usage.len() {
        usage[action][1] = action as u8;
        action += 1;
    }
    usage
};

/// Usage of the sixteen-byte commands: flags, 64-bit LBA, 32-bit length, group number.
pub(super) const LONG_CDB: [[u8; 16]; 8] = [
    long(0x88, 0x1a),
    long(0x8a, 0x1a),
    long(0x8e, 0x16),
    long(0x8f, 0x16),
    long(0x90, 0x02),
    long(0x91, 0x06),
    long(0x93, 0x19),
    long(0x8b, 0x1a),
];

const fn long(opcode: u8, flags: u8) -> [u8; 16] {
    [opcode, flags, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0]
}

/// Usage of WRITE ATOMIC (16): as above, with ATOMIC BOUNDARY and a 16-bit length.
pub(super) const WRITE_ATOMIC: [u8; 16] = long(0x9c, 0x18);

/// Usage of READ LONG (10) and WRITE LONG (10): flags, 32-bit LBA, 16-bit length.
pub(super) const LONG_BLOCK: [[u8; 10]; 2] =
    [[0x3e, 0x06, 255, 255, 255, 255, 0, 255, 255, 0], [0x3f, 0xe0, 255, 255, 255, 255, 0, 255, 255, 0]];

/// Usage of READ LONG (16) and WRITE LONG (16), whose flags are at opposite ends.
pub(super) const LONG_BLOCK_16: [[u8; 16]; 2] = [
    [0x9e, 0x11, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 255, 255, 0x03, 0],
    [0x9f, 0xf1, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 255, 255, 0, 0],
];

/// Usage of the third-party copy commands: a list identifier of one or four bytes, if any, and a length.
pub(super) const THIRD_PARTY_COPY_OUT: [[u8; 16]; 5] = [
    [0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x83, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x83, 0x10, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    [0x83, 0x11, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    [0x83, 0x1c, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];

pub(super) const THIRD_PARTY_COPY_IN: [[u8; 16]; 7] = [
    [0x84, 0x00, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x01, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x04, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x05, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x07, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
];

pub(super) const SERVICE_ACTION_IN: [[u8; 16]; 3] = [
    [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x9e, 0x12, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0],
    [0x9e, 0x15, 0xc0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];
