//! Headers and texts: decoding is total, and what was decoded encodes to something that decodes to the same.

use lunette_wire::digest::{crc32c, crc32c_of};
use lunette_wire::frame::{Digests, Frame};
use lunette_wire::text::{pairs, push};
use lunette_wire::{AhsList, BHS_LENGTH, Bhs, InitiatorPdu, TargetPdu};

/// A PDU as it comes from the network: header, additional segments, data; both directions.
///
/// # Panics
/// A property does not hold.
pub fn pdu(data: &[u8]) {
    let mut bhs: Bhs = [0; BHS_LENGTH];
    let length = data.len().min(BHS_LENGTH);
    bhs[..length].copy_from_slice(&data[..length]);
    let rest = &data[length..];

    let digests = Digests { header: bhs[2] & 1 != 0, data: bhs[2] & 2 != 0 };
    if let Ok(frame) = Frame::of(&bhs, digests, 8192, 64) {
        assert!(frame.ahs_length <= 64 && frame.data_length <= 8192);
        assert!(frame.total_length() <= BHS_LENGTH + 64 + 4 + 8192 + 3 + 4);
        assert!(frame.data_offset() + frame.data_length + frame.padding() <= frame.total_length());
    }
    // Any length of additional segments, also none and half ones.
    if let Ok(list) = AhsList::decode(&rest[..rest.len().min(1020)]) {
        assert!(list.extended_cdb.len() <= rest.len());
    }
    let data_length = usize::from(bhs[7]);
    if let Ok(pdu) = InitiatorPdu::decode(&bhs) {
        assert_eq!(InitiatorPdu::decode(&pdu.encode(data_length)), Ok(pdu));
    }
    if let Ok(pdu) = TargetPdu::decode(&bhs) {
        assert_eq!(TargetPdu::decode(&pdu.encode(data_length)), Ok(pdu));
    }
    let middle = rest.len() / 2;
    assert_eq!(crc32c(rest), crc32c_of(&[&rest[..middle], &rest[middle..]]));
}

/// The text of a login or text request.
///
/// # Panics
/// A property does not hold.
pub fn text(data: &[u8]) {
    let Ok(found) = pairs(data) else { return };
    let mut again = Vec::new();
    for (key, value) in &found {
        push(&mut again, key, value);
    }
    assert_eq!(pairs(&again).as_deref(), Ok(found.as_slice()));
    assert!(again.len() <= data.len());
}
