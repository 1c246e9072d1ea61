//! Sense data: keys, pointers to what was wrong, and both encodings (SPC-4, sense data).

mod codes;

use std::fmt;

pub use codes::AdditionalSense;

/// What kind of thing happened (SPC-4, SENSE KEY field). The discriminant is the four-bit value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SenseKey {
    /// Nothing to report.
    NoSense = 0x0,
    /// The command worked, with some recovery.
    RecoveredError = 0x1,
    /// The unit is not accessible now.
    NotReady = 0x2,
    /// The medium has an error.
    MediumError = 0x3,
    /// The device has an error that is not the medium's.
    HardwareError = 0x4,
    /// The command or its parameters are wrong.
    IllegalRequest = 0x5,
    /// Something changed that the initiator must know of.
    UnitAttention = 0x6,
    /// The medium may not be written or read here.
    DataProtect = 0x7,
    /// Blank or not blank medium was met.
    BlankCheck = 0x8,
    /// Meaning given by the vendor.
    VendorSpecific = 0x9,
    /// A copy command was aborted.
    CopyAborted = 0xa,
    /// The device server aborted the command.
    AbortedCommand = 0xb,
    /// A buffered device reached the end of its medium.
    VolumeOverflow = 0xd,
    /// Data-Out and medium differ.
    Miscompare = 0xe,
    /// The command is done and there is something to tell.
    Completed = 0xf,
}

impl SenseKey {
    const ALL: [SenseKey; 15] = [
        SenseKey::NoSense,
        SenseKey::RecoveredError,
        SenseKey::NotReady,
        SenseKey::MediumError,
        SenseKey::HardwareError,
        SenseKey::IllegalRequest,
        SenseKey::UnitAttention,
        SenseKey::DataProtect,
        SenseKey::BlankCheck,
        SenseKey::VendorSpecific,
        SenseKey::CopyAborted,
        SenseKey::AbortedCommand,
        SenseKey::VolumeOverflow,
        SenseKey::Miscompare,
        SenseKey::Completed,
    ];

    /// The key with this four-bit value; `None`: the value is reserved.
    pub fn from_code(code: u8) -> Option<SenseKey> {
        SenseKey::ALL.into_iter().find(|key| *key as u8 == code)
    }
}

/// What a field pointer counts its bytes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldPlace {
    /// The CDB.
    Cdb,
    /// The parameter list.
    ParameterList,
    /// The segment descriptor that the COMMAND-SPECIFIC INFORMATION names (SPC-4, segment pointer; with COPY ABORTED).
    SegmentDescriptor,
}

/// Which field is wrong (SPC-4, field pointer and segment pointer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// What it is a field of.
    pub place: FieldPlace,
    /// The first byte of the field, counted from 0.
    pub byte: u16,
    /// The field's most significant bit in that byte (7 is the highest), where a bit can be told.
    pub bit: Option<u8>,
}

/// Sense data as a value: what to tell, in neither format yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseData {
    /// The sense key.
    pub key: SenseKey,
    /// The additional sense code and qualifier.
    pub code: AdditionalSense,
    /// The INFORMATION field: an LBA, or an offset for a miscompare.
    pub information: Option<u64>,
    /// ILI: the length asked for is not that of the block. INFORMATION tells the difference, in two's complement.
    pub incorrect_length: bool,
    /// COMMAND-SPECIFIC INFORMATION: for a copy, the number of the segment.
    pub command_specific: Option<u64>,
    /// The wrong field, for ILLEGAL REQUEST and COPY ABORTED.
    pub field: Option<FieldPointer>,
    /// How much of something long is done, in parts of 65536, for NOT READY (SPC-4, progress indication).
    pub progress: Option<u16>,
}

impl SenseData {
    /// Sense data without INFORMATION and field pointer.
    pub const fn new(key: SenseKey, code: AdditionalSense) -> SenseData {
        SenseData {
            key,
            code,
            information: None,
            incorrect_length: false,
            command_specific: None,
            field: None,
            progress: None,
        }
    }

    /// ILLEGAL REQUEST with `code`.
    pub(crate) const fn illegal(code: AdditionalSense) -> SenseData {
        SenseData::new(SenseKey::IllegalRequest, code)
    }

    /// INVALID FIELD IN CDB that points at `bit` of `byte`.
    pub(crate) const fn invalid_cdb_field(byte: u16, bit: u8) -> SenseData {
        let field = Some(FieldPointer { place: FieldPlace::Cdb, byte, bit: Some(bit) });
        SenseData { field, ..SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_CDB) }
    }

    /// INVALID FIELD IN PARAMETER LIST that points at `byte`.
    pub(crate) const fn invalid_parameter(byte: u16) -> SenseData {
        SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST).pointing_at(byte)
    }

    /// INVALID FIELD IN PARAMETER LIST that points at `bit` of `byte`.
    pub(crate) const fn invalid_parameter_bit(byte: u16, bit: u8) -> SenseData {
        let field = Some(FieldPointer { place: FieldPlace::ParameterList, byte, bit: Some(bit) });
        SenseData { field, ..SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST) }
    }

    /// HARDWARE ERROR, INTERNAL TARGET FAILURE: the device server, or its driver, went wrong.
    pub(crate) const fn internal() -> SenseData {
        SenseData::new(SenseKey::HardwareError, AdditionalSense::INTERNAL_TARGET_FAILURE)
    }

    /// COPY ABORTED with `code` in segment `segment` of a copy.
    pub(crate) const fn copy_aborted(code: AdditionalSense, segment: u16) -> SenseData {
        let sense = SenseData::new(SenseKey::CopyAborted, code);
        SenseData { command_specific: Some(segment as u64), ..sense }
    }

    /// The same, pointing at `byte` of the parameter list.
    pub(crate) const fn pointing_at(self, byte: u16) -> SenseData {
        let field = Some(FieldPointer { place: FieldPlace::ParameterList, byte, bit: None });
        SenseData { field, ..self }
    }

    /// The same, pointing at `byte` of the segment descriptor.
    pub(crate) const fn pointing_into_segment(self, byte: u16) -> SenseData {
        let field = Some(FieldPointer { place: FieldPlace::SegmentDescriptor, byte, bit: None });
        SenseData { field, ..self }
    }

    /// The same with an INFORMATION field.
    pub(crate) const fn with_information(self, information: Option<u64>) -> SenseData {
        SenseData { information, ..self }
    }

    /// The same with ILI: so many bytes more were asked for than there are, or fewer.
    pub(crate) const fn with_wrong_length(self, difference: i64) -> SenseData {
        // Two's complement is what the field wants.
        SenseData { incorrect_length: true, information: Some(difference as u64), ..self }
    }

    /// The bytes, in descriptor format (SPC-4) or in fixed format (SPC-4).
    pub fn encode(&self, descriptor_format: bool) -> EncodedSense {
        if descriptor_format { self.encode_descriptors() } else { self.encode_fixed() }
    }

    /// The three sense-key specific bytes, valid bit first.
    fn sense_key_specific(&self) -> Option<[u8; 3]> {
        if let Some(progress) = self.progress {
            let [high, low] = progress.to_be_bytes();
            return Some([0x80, high, low]);
        }
        self.field.map(|field| {
            let place = match field.place {
                FieldPlace::Cdb => 0x40,
                FieldPlace::ParameterList => 0,
                FieldPlace::SegmentDescriptor => 0x20,
            };
            let bit = field.bit.map_or(0, |bit| 0x08 | (bit & 0x07));
            let [high, low] = field.byte.to_be_bytes();
            [0x80 | place | bit, high, low]
        })
    }

    fn encode_fixed(&self) -> EncodedSense {
        let mut bytes = [0; EncodedSense::CAPACITY];
        bytes[0] = 0x70;
        // The field has 32 bits; a larger value is left out rather than cut (SPC-4). A length that is wrong always fits.
        let fits = |value: u64| {
            if self.incorrect_length { Some(value as u32) } else { u32::try_from(value).ok() }
        };
        if let Some(information) = self.information.and_then(fits) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[2] = self.key as u8 | u8::from(self.incorrect_length) << 5;
        bytes[7] = 10;
        if let Some(information) = self.command_specific.and_then(|value| u32::try_from(value).ok()) {
            bytes[8..12].copy_from_slice(&information.to_be_bytes());
        }
        bytes[12] = self.code.asc();
        bytes[13] = self.code.ascq();
        if let Some(specific) = self.sense_key_specific() {
            bytes[15..18].copy_from_slice(&specific);
        }
        EncodedSense { bytes, length: 18 }
    }

    fn encode_descriptors(&self) -> EncodedSense {
        let mut bytes = [0; EncodedSense::CAPACITY];
        bytes[0] = 0x72;
        bytes[1] = self.key as u8;
        bytes[2] = self.code.asc();
        bytes[3] = self.code.ascq();
        let mut length = 8;
        let information =
            [(self.information, [0x00, 0x0a, 0x80, 0x00]), (self.command_specific, [0x01, 0x0a, 0, 0])];
        for (value, header) in information {
            if let Some(value) = value {
                bytes[length..length + 4].copy_from_slice(&header);
                bytes[length + 4..length + 12].copy_from_slice(&value.to_be_bytes());
                length += 12;
            }
        }
        if let Some(specific) = self.sense_key_specific() {
            bytes[length..length + 2].copy_from_slice(&[0x02, 0x06]);
            bytes[length + 4..length + 7].copy_from_slice(&specific);
            length += 8;
        }
        if self.incorrect_length {
            // SBC-3, block commands sense data descriptor.
            bytes[length..length + 4].copy_from_slice(&[0x05, 0x02, 0, 0x20]);
            length += 4;
        }
        bytes[7] = (length - 8) as u8;
        EncodedSense { bytes, length: length as u8 }
    }
}

/// Sense data as bytes, ready to be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EncodedSense {
    bytes: [u8; EncodedSense::CAPACITY],
    length: u8,
}

impl EncodedSense {
    /// Header and all descriptors: 8 + 12 + 12 + 8 + 4.
    const CAPACITY: usize = 44;

    /// The bytes, at most 252 (SPC-4).
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The sense key, in either format (SPC-4, 4.5).
    pub const fn key(&self) -> u8 {
        let byte = if self.is_descriptors() { self.bytes[1] } else { self.bytes[2] };
        byte & 0x0f
    }

    /// ADDITIONAL SENSE CODE, in either format.
    pub const fn asc(&self) -> u8 {
        if self.is_descriptors() { self.bytes[2] } else { self.bytes[12] }
    }

    /// Response codes 72h and 73h.
    const fn is_descriptors(&self) -> bool {
        self.bytes[0] & 0x02 != 0
    }
}

impl fmt::Debug for EncodedSense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodedSense({:02x?})", self.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_format() {
        let sense = SenseData::new(SenseKey::MediumError, AdditionalSense::UNRECOVERED_READ_ERROR)
            .with_information(Some(0x1234_5678));
        let expected = [0xf0, 0, 3, 0x12, 0x34, 0x56, 0x78, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0];
        assert_eq!(sense.encode(false).as_bytes(), expected);
    }

    #[test]
    fn fixed_format_leaves_out_what_does_not_fit() {
        let sense = SenseData::new(SenseKey::MediumError, AdditionalSense::WRITE_ERROR)
            .with_information(Some(1 << 32));
        let encoded = sense.encode(false);
        assert_eq!(encoded.as_bytes()[0], 0x70);
        assert_eq!(encoded.as_bytes()[3..7], [0; 4]);
    }

    #[test]
    fn wrong_lengths() {
        let sense = SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_CDB).with_wrong_length(-8);
        let fixed = sense.encode(false);
        assert_eq!(fixed.as_bytes()[..7], [0xf0, 0, 0x25, 0xff, 0xff, 0xff, 0xf8]);
        assert_eq!(fixed.key(), 5);
        let descriptors = sense.encode(true);
        assert_eq!(descriptors.as_bytes()[..8], [0x72, 5, 0x24, 0, 0, 0, 0, 16]);
        assert_eq!(descriptors.as_bytes()[8..12], [0, 10, 0x80, 0]);
        assert_eq!(descriptors.as_bytes()[12..20], (-8_i64).to_be_bytes());
        assert_eq!(descriptors.as_bytes()[20..], [5, 2, 0, 0x20]);
    }

    #[test]
    fn field_pointers() {
        let fixed = SenseData::invalid_cdb_field(1, 4).encode(false);
        assert_eq!(fixed.as_bytes()[12..18], [0x24, 0, 0, 0xcc, 0, 1]);
        let fixed = SenseData::invalid_parameter(0x102).encode(false);
        assert_eq!(fixed.as_bytes()[12..18], [0x26, 0, 0, 0x80, 1, 2]);
        let descriptor = SenseData::invalid_cdb_field(9, 2).encode(true);
        assert_eq!(descriptor.as_bytes(), [0x72, 5, 0x24, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0xca, 0, 9, 0]);
    }

    #[test]
    fn progress_is_told_in_both_formats() {
        let sense = SenseData::new(SenseKey::NotReady, AdditionalSense::FORMAT_IN_PROGRESS);
        let sense = SenseData { progress: Some(0x1234), ..sense };
        assert_eq!(sense.encode(false).as_bytes()[12..18], [0x04, 0x04, 0, 0x80, 0x12, 0x34]);
        assert_eq!(
            sense.encode(true).as_bytes(),
            [0x72, 2, 0x04, 0x04, 0, 0, 0, 8, 2, 6, 0, 0, 0x80, 0x12, 0x34, 0]
        );
    }

    #[test]
    fn descriptor_format_carries_64_bits() {
        let sense = SenseData::new(SenseKey::Miscompare, AdditionalSense::MISCOMPARE_DURING_VERIFY)
            .with_information(Some(0x1_0000_0002));
        let expected = [0x72, 0xe, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(sense.encode(true).as_bytes(), expected);
    }

    #[test]
    fn a_copy_names_its_segment() {
        let sense =
            SenseData::copy_aborted(AdditionalSense::UNREACHABLE_COPY_TARGET, 3).pointing_into_segment(6);
        let fixed = [0x70, 0, 0xa, 0, 0, 0, 0, 10, 0, 0, 0, 3, 8, 4, 0, 0xa0, 0, 6];
        assert_eq!(sense.encode(false).as_bytes(), fixed);
        let descriptors = sense.encode(true);
        assert_eq!(descriptors.as_bytes()[7..20], [20, 1, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(descriptors.as_bytes()[20..], [2, 6, 0, 0, 0xa0, 0, 6, 0]);
    }

    #[test]
    fn all_descriptors_fit() {
        let sense = SenseData::copy_aborted(AdditionalSense::NONE, 1).pointing_at(1).with_wrong_length(1);
        assert_eq!(sense.encode(true).as_bytes().len(), EncodedSense::CAPACITY);
    }
}
