//! Big-endian fields in CDBs and parameter data.

/// A command descriptor block, zero-filled to the sixteen bytes that every supported command fits.
pub(crate) type Cdb = [u8; 16];

/// The two-byte field at `at`, or `None` past the end.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The four-byte field at `at`, or `None` past the end.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The eight-byte field at `at`, or `None` past the end.
pub(crate) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A field of a CDB at a constant place. Const generics let the compiler refuse a place outside the block.
pub(crate) fn cdb16<const AT: usize>(cdb: &Cdb) -> u16 {
    const { assert!(AT + 2 <= 16) }
    u16::from_be_bytes([cdb[AT], cdb[AT + 1]])
}

/// As [`cdb16`], four bytes.
pub(crate) fn cdb32<const AT: usize>(cdb: &Cdb) -> u32 {
    const { assert!(AT + 4 <= 16) }
    u32::from_be_bytes([cdb[AT], cdb[AT + 1], cdb[AT + 2], cdb[AT + 3]])
}

/// As [`cdb16`], eight bytes.
pub(crate) fn cdb64<const AT: usize>(cdb: &Cdb) -> u64 {
    const { assert!(AT + 8 <= 16) }
    (u64::from(u32::from_be_bytes([cdb[AT], cdb[AT + 1], cdb[AT + 2], cdb[AT + 3]])) << 32)
        | u64::from(u32::from_be_bytes([cdb[AT + 4], cdb[AT + 5], cdb[AT + 6], cdb[AT + 7]]))
}

/// The place of the CONTROL byte in a CDB that begins with `opcode`: the last byte, or byte 1 where the length varies (SPC-4, 4.2.2).
/// Vendor-specific groups have none that is known.
pub(crate) const fn control_at(opcode: u8) -> Option<usize> {
    match opcode >> 5 {
        0 => Some(5),
        1 | 2 => Some(9),
        3 if opcode == 0x7f => Some(1),
        4 => Some(15),
        5 => Some(11),
        _ => None,
    }
}

/// The bit of a CONTROL byte that asks for an auto contingent allegiance (SAM-5, NACA).
pub(crate) const NACA: u8 = 0x04;

/// Whether a command asks for an auto contingent allegiance if it ends with CHECK CONDITION (SAM-5, NACA). `cdb` has the
/// first 16 bytes of its CDB.
pub const fn asks_for_allegiance(cdb: &[u8; 16]) -> bool {
    match control_at(cdb[0]) {
        Some(at) => cdb[at] & NACA != 0,
        None => false,
    }
}

/// `value` in 32 bits, or all ones where it does not fit: how SBC says "more than this field can tell".
pub(crate) fn saturate_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian_and_bounded() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(be16(&bytes, 1), Some(0x0203));
        assert_eq!(be32(&bytes, 5), Some(0x0607_0809));
        assert_eq!(be64(&bytes, 1), Some(0x0203_0405_0607_0809));
        assert_eq!(be16(&bytes, 8), None);
        assert_eq!(be32(&bytes, 100), None);
        assert_eq!(be64(&bytes, 2), None);
    }

    #[test]
    fn cdb_fields() {
        let mut cdb: Cdb = [0; 16];
        cdb[2..10].copy_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
        assert_eq!(cdb64::<2>(&cdb), 0x0102_0304_0506_0708);
        assert_eq!(cdb32::<2>(&cdb), 0x0102_0304);
        assert_eq!(cdb16::<8>(&cdb), 0x0708);
        assert_eq!(saturate_u32(1 << 32), u32::MAX);
    }
}
