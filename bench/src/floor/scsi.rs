//! The commands that initiators send before they read and write, in as few bytes as these are content with.

use super::store::BLOCK_BYTES;

/// How a command without a transfer of blocks is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Parameter data, before it is cut to the allocation length.
    Data(Vec<u8>),
    Good,
    Flush,
    /// ILLEGAL REQUEST with this additional sense code.
    Illegal(u8),
}

/// INVALID COMMAND OPERATION CODE.
const INVALID_OPERATION: u8 = 0x20;
/// INVALID FIELD IN CDB.
const INVALID_FIELD: u8 = 0x24;

/// What a unit of so many bytes answers.
pub(super) fn answer(cdb: &[u8; 16], bytes: u64) -> Answer {
    let last = bytes / BLOCK_BYTES - 1;
    match (cdb[0], cdb[1] & 0x1f) {
        // TEST UNIT READY, START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL.
        (0x00 | 0x1b | 0x1e, _) => Answer::Good,
        // SYNCHRONIZE CACHE(10) and (16).
        (0x35 | 0x91, _) => Answer::Flush,
        // INQUIRY: standard data, and the two vital pages.
        (0x12, flags) => match (flags & 1, cdb[2]) {
            (0, 0) => Answer::Data(inquiry()),
            (1, 0x00) => Answer::Data(vec![0, 0x00, 0, 2, 0x00, 0x83]),
            (1, 0x83) => Answer::Data(designation()),
            _ => Answer::Illegal(INVALID_FIELD),
        },
        // MODE SENSE(6) and (10): a header, nothing protected, no pages.
        (0x1a, _) => Answer::Data(vec![3, 0, 0, 0]),
        (0x5a, _) => Answer::Data(vec![0, 6, 0, 0, 0, 0, 0, 0]),
        // READ CAPACITY(10).
        (0x25, _) => {
            let last = u32::try_from(last).unwrap_or(u32::MAX);
            Answer::Data([last.to_be_bytes(), (BLOCK_BYTES as u32).to_be_bytes()].concat())
        }
        // READ CAPACITY(16).
        (0x9e, 0x10) => {
            let mut data = last.to_be_bytes().to_vec();
            data.extend((BLOCK_BYTES as u32).to_be_bytes());
            data.resize(32, 0);
            Answer::Data(data)
        }
        // REPORT LUNS: unit 0.
        (0xa0, _) => Answer::Data([&[0, 0, 0, 8, 0, 0, 0, 0][..], &[0; 8]].concat()),
        _ => Answer::Illegal(INVALID_OPERATION),
    }
}

/// Standard INQUIRY data (SPC-4, 6.6.2): a disk of SPC-3 that takes several commands at a time.
fn inquiry() -> Vec<u8> {
    let mut data = vec![0, 0, 5, 2, 31, 0, 0, 2];
    data.extend_from_slice(b"LUNETTE floor           0001");
    data
}

/// Device identification (SPC-4, 7.8.6): a name of the vendor's own making.
fn designation() -> Vec<u8> {
    const NAME: &[u8; 16] = b"LUNETTE floor   ";
    [&[0, 0x83, 0, 20, 2, 1, 0, 16][..], NAME].concat()
}

/// Fixed-format sense data behind its length, as a response carries it (RFC 7143, 11.4.7).
pub(super) fn illegal_request(additional_sense_code: u8) -> [u8; 20] {
    let mut sense = [0; 20];
    (sense[1], sense[2], sense[4], sense[9], sense[14]) = (18, 0x70, 5, 10, additional_sense_code);
    sense
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(cdb: &[u8]) -> Vec<u8> {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        match answer(&padded, 1 << 20) {
            Answer::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lengths_in_the_data_are_right() {
        assert_eq!(data(&[0x12]).len(), 31 + 5);
        assert_eq!(data(&[0x12, 1, 0x83]).len(), 20 + 4);
        assert_eq!(data(&[0x25]), [0, 0, 7, 0xff, 0, 0, 2, 0]);
        assert_eq!(data(&[0x9e, 0x10])[..12], [0, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 2, 0]);
        assert_eq!(data(&[0xa0]).len(), 16);
        assert_eq!(answer(&[0xff; 16], 1 << 20), Answer::Illegal(INVALID_OPERATION));
    }
}
