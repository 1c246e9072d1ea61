//! Additional header segments of a SCSI Command (RFC 7143, 11.2.2 and 11.3).

/// AHSType of an extended CDB (11.2.2.3).
pub const EXTENDED_CDB: u8 = 1;
/// AHSType of the expected bidirectional read data length (11.2.2.4).
pub const BIDIRECTIONAL_READ_LENGTH: u8 = 2;
/// The longest list that is accepted: one extended CDB of 260 bytes (SPC's longest CDB, 16 of them in the BHS)
/// with its 4-byte header, and one 8-byte bidirectional length.
pub const AHS_LENGTH_MAX: u32 = 4 + 244 + 8;

/// Why a list of additional header segments is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AhsError {
    /// A segment claims more bytes than the list has.
    #[error("an additional header segment runs past the end of the list")]
    Truncated,
    /// A type that the RFC reserves.
    #[error("additional header segment type {0} is not defined")]
    Type(u8),
    /// A second segment of a type that may occur once, or a length that its type forbids.
    #[error("additional header segment of type {0} is repeated or has a wrong length")]
    Malformed(u8),
}

/// The segments of one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AhsList<'a> {
    /// CDB bytes from the 17th on; empty without an extended CDB.
    pub extended_cdb: &'a [u8],
    /// Bytes that the initiator can take on the read half of a bidirectional command.
    pub bidirectional_read_length: Option<u32>,
}

impl<'a> AhsList<'a> {
    /// Reads `bytes`, the whole AHS part of a PDU.
    ///
    /// # Errors
    /// [`AhsError`] says which segment is at fault.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, AhsError> {
        let mut list = Self::default();
        let mut seen_cdb = false;
        let mut rest = bytes;
        while !rest.is_empty() {
            let [high, low, kind, ..] = *rest else { return Err(AhsError::Truncated) };
            // AHSLength counts the bytes behind the type byte, reserved byte included, padding excluded.
            let length = usize::from(u16::from_be_bytes([high, low]));
            let body = rest.get(3..3 + length).ok_or(AhsError::Truncated)?;
            match kind & 0x3f {
                EXTENDED_CDB if length > 1 && !seen_cdb => {
                    seen_cdb = true;
                    list.extended_cdb = &body[1..];
                }
                BIDIRECTIONAL_READ_LENGTH if length == 5 && list.bidirectional_read_length.is_none() => {
                    list.bidirectional_read_length =
                        Some(u32::from_be_bytes([body[1], body[2], body[3], body[4]]));
                }
                kind @ (EXTENDED_CDB | BIDIRECTIONAL_READ_LENGTH) => return Err(AhsError::Malformed(kind)),
                kind => return Err(AhsError::Type(kind)),
            }
            let whole = 3 + length + crate::frame::padding(3 + length);
            rest = rest.get(whole..).ok_or(AhsError::Truncated)?;
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn an_extended_cdb_and_a_bidirectional_length() {
        let bytes =
            [0, 17, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 5, 2, 0, 0, 0, 16, 0];
        let list = AhsList::decode(&bytes).unwrap();
        assert_eq!(list.extended_cdb, &(1..=16).collect::<Vec<u8>>()[..]);
        assert_eq!(list.bidirectional_read_length, Some(4096));
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(AhsList::decode(&[0, 9, 1, 0]), Err(AhsError::Truncated));
        assert_eq!(AhsList::decode(&[0, 1, 9, 0]), Err(AhsError::Type(9)));
        assert_eq!(AhsList::decode(&[0, 1, 1, 0]), Err(AhsError::Malformed(1)));
        let twice = [0, 5, 2, 0, 0, 0, 16, 0, 0, 5, 2, 0, 0, 0, 16, 0];
        assert_eq!(AhsList::decode(&twice), Err(AhsError::Malformed(2)));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn decoding_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(list) = AhsList::decode(&bytes) {
                prop_assert!(list.extended_cdb.len() <= bytes.len());
            }
        }
    }
}
