//! The few commands that the tests send themselves: READ (16), WRITE (16), SYNCHRONIZE CACHE (10) (SBC-3).

/// READ (16) of `blocks` from `lba`.
#[must_use]
pub fn read(lba: u64, blocks: u32) -> [u8; 16] {
    read_or_write(0x88, lba, blocks)
}

/// WRITE (16) of `blocks` to `lba`.
#[must_use]
pub fn write(lba: u64, blocks: u32) -> [u8; 16] {
    read_or_write(0x8a, lba, blocks)
}

/// SYNCHRONIZE CACHE (10) of everything.
#[must_use]
pub fn synchronize_cache() -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x35;
    cdb
}

fn read_or_write(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
