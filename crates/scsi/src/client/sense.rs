//! Sense data as it comes from a target, in both formats (SPC-4, sense data).
//!
//! It tells why a command failed, so it is never refused: whatever is cut off or strange is left out, and what remains is
//! told. What the codes mean is in [`super::sense_text`].

use std::fmt;

use super::sense_text;
use crate::bytes::{be16, be32, be64};
use crate::sense::{AdditionalSense, FieldPlace, FieldPointer, SenseKey};

/// The additional sense code of all that protection information finds.
const PROTECTION_ERROR: u8 = 0x10;

/// The longest sense data that is looked at, in bytes (SPC-4: at most 252).
const SENSE_BYTES_MAX: usize = 252;

/// Why a command is not carried out although nothing is wrong with the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The target does not know it.
    Command,
    /// The target knows it, but takes it otherwise: a field of the CDB is not as it can have it.
    Field,
}

/// What a target says of a command, or of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sense {
    /// It belongs to a command that had ended with GOOD before, not to the one that brought it (response codes 71h, 73h).
    pub deferred: bool,
    /// SENSE KEY, four bits.
    pub key_code: u8,
    /// ADDITIONAL SENSE CODE and its qualifier.
    pub code: AdditionalSense,
    /// INFORMATION: mostly the LBA, or the offset of a miscompare.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION
    pub command_specific: Option<u64>,
    /// The field of CDB or parameter list that is wrong.
    pub field: Option<FieldPointer>,
    /// How much of something long is done, in parts of 65536.
    pub progress: Option<u16>,
    /// ILI: the length was not the right one.
    pub incorrect_length: bool,
    /// The bytes as they came, at most 252.
    pub bytes: Vec<u8>,
}

impl Sense {
    /// Reads sense data. `None` where there is none: nothing, or a response code that is not known (the vendor's own
    /// format among them).
    pub fn decode(bytes: &[u8]) -> Option<Sense> {
        let bytes = &bytes[..bytes.len().min(SENSE_BYTES_MAX)];
        match bytes.first()? & 0x7f {
            code @ (0x70 | 0x71) => Some(fixed(bytes, code == 0x71)),
            code @ (0x72 | 0x73) => Some(descriptors(bytes, code == 0x73)),
            _ => None,
        }
    }

    /// SENSE KEY, if it is one that the standard knows.
    pub fn key(&self) -> Option<SenseKey> {
        SenseKey::from_code(self.key_code)
    }

    /// The unit has something to tell before it takes commands: send the command again.
    pub fn is_unit_attention(&self) -> bool {
        self.key() == Some(SenseKey::UnitAttention)
    }

    /// Whether the command was not for this target, or not in this form.
    pub fn unfit(&self) -> Option<Unfit> {
        if self.is_unknown_command() {
            Some(Unfit::Command)
        } else {
            self.is_invalid_field().then_some(Unfit::Field)
        }
    }

    /// The target does not know the command at all.
    pub fn is_unknown_command(&self) -> bool {
        self.code == AdditionalSense::INVALID_COMMAND_OPERATION_CODE
    }

    /// The target knows the command but not this form of it, or not this page.
    pub fn is_invalid_field(&self) -> bool {
        self.code == AdditionalSense::INVALID_FIELD_IN_CDB
    }

    /// The unit is not ready and says that it gets ready by itself: it starts, or its path changes.
    pub fn becomes_ready(&self) -> bool {
        self.key() == Some(SenseKey::NotReady)
            && matches!((self.code.asc(), self.code.ascq()), (0x04, 0x01 | 0x0a | 0x14))
    }

    /// The unit behind this number may be another one: it tells something else about itself, its target has other units, or has none here.
    pub fn may_be_of_another(&self) -> bool {
        matches!(
            self.code,
            AdditionalSense::INQUIRY_DATA_CHANGED
                | AdditionalSense::REPORTED_LUNS_CHANGED
                | AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED
        )
    }

    /// The target has ended a command that it may well carry out another time. Data that does not match its protection information is
    /// none (SBC-3, 4.22.4).
    pub fn is_aborted(&self) -> bool {
        self.key() == Some(SenseKey::AbortedCommand) && self.code.asc() != PROTECTION_ERROR
    }

    /// The standard's text of the code, in its own words and capitals.
    pub fn text(&self) -> &'static str {
        sense_text::of(self.code)
    }

    /// How much is done, in per cent from 0 to 100.
    pub fn progress_percent(&self) -> Option<f64> {
        self.progress.map(|parts| f64::from(parts) * 100.0 / 65536.0)
    }
}

impl fmt::Display for Sense {
    /// `ILLEGAL REQUEST: INVALID FIELD IN CDB (24/00), byte 1 bit 3 of the CDB`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key() {
            Some(key) => f.write_str(sense_text::of_key(key))?,
            None => write!(f, "SENSE KEY {:X}h", self.key_code)?,
        }
        write!(f, ": {} ({:?})", self.text(), self.code)?;
        if let Some(FieldPointer { place, byte, bit }) = self.field {
            write!(f, ", byte {byte}")?;
            if let Some(bit) = bit {
                write!(f, " bit {bit}")?;
            }
            f.write_str(match place {
                FieldPlace::Cdb => " of the CDB",
                FieldPlace::ParameterList => " of the parameter list",
                FieldPlace::SegmentDescriptor => " of the segment descriptor",
            })?;
        }
        match self.information {
            Some(offset) if self.key() == Some(SenseKey::Miscompare) => {
                write!(f, ", first difference at byte {offset}")?;
            }
            Some(information) => write!(f, ", at {information}")?,
            None => {}
        }
        if let Some(percent) = self.progress_percent() {
            write!(f, ", {percent:.1} % done")?;
        }
        if self.deferred { f.write_str(", of an earlier command") } else { Ok(()) }
    }
}

fn fixed(bytes: &[u8], deferred: bool) -> Sense {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    // ADDITIONAL SENSE LENGTH counts from byte 8; what lies behind it is not sense data.
    let bytes = &bytes[..bytes.len().min(8 + usize::from(byte(7)))];
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let key_code = byte(2) & 0x0f;
    let is_valid = byte(0) & 0x80 != 0;
    let (field, progress) = specific(key_code, [byte(15), byte(16), byte(17)]);
    Sense {
        deferred,
        key_code,
        code: AdditionalSense::new(byte(12), byte(13)),
        information: be32(bytes, 3).filter(|_| is_valid).map(u64::from),
        command_specific: be32(bytes, 8).filter(|&value| value != 0).map(u64::from),
        field,
        progress,
        incorrect_length: byte(2) & 0x20 != 0,
        bytes: bytes.to_vec(),
    }
}

fn descriptors(bytes: &[u8], deferred: bool) -> Sense {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let bytes = &bytes[..bytes.len().min(8 + usize::from(byte(7)))];
    let mut sense = Sense {
        deferred,
        key_code: byte(1) & 0x0f,
        code: AdditionalSense::new(byte(2), byte(3)),
        information: None,
        command_specific: None,
        field: None,
        progress: None,
        incorrect_length: false,
        bytes: bytes.to_vec(),
    };
    let mut rest = bytes.get(8..).unwrap_or_default();
    while let [kind, length, ..] = *rest {
        let end = (2 + usize::from(length)).min(rest.len());
        let (descriptor, after) = rest.split_at(end);
        match kind {
            // VALID is the top bit of the third byte.
            0x00 if descriptor.get(2).is_some_and(|flags| flags & 0x80 != 0) => {
                sense.information = be64(descriptor, 4);
            }
            0x01 => sense.command_specific = be64(descriptor, 4),
            0x02 => {
                if let Some(&bytes) = descriptor.get(4..).and_then(|rest| rest.first_chunk()) {
                    (sense.field, sense.progress) = specific(sense.key_code, bytes);
                }
            }
            // Block commands: ILI.
            0x05 => sense.incorrect_length = descriptor.get(3).is_some_and(|flags| flags & 0x20 != 0),
            // Another progress indication.
            0x0a => sense.progress = be16(descriptor, 6).or(sense.progress),
            _ => {}
        }
        rest = after;
    }
    sense
}

/// The three sense-key specific bytes: a field pointer, a segment pointer or progress.
fn specific(key_code: u8, bytes: [u8; 3]) -> (Option<FieldPointer>, Option<u16>) {
    let [flags, high, low] = bytes;
    if flags & 0x80 == 0 {
        return (None, None);
    }
    let value = u16::from_be_bytes([high, low]);
    let bit = (flags & 0x08 != 0).then_some(flags & 0x07);
    match SenseKey::from_code(key_code) {
        Some(SenseKey::IllegalRequest) => {
            let place = if flags & 0x40 != 0 { FieldPlace::Cdb } else { FieldPlace::ParameterList };
            (Some(FieldPointer { place, byte: value, bit }), None)
        }
        Some(SenseKey::CopyAborted) => {
            let segment = flags & 0x20 != 0;
            let place = if segment { FieldPlace::SegmentDescriptor } else { FieldPlace::ParameterList };
            (Some(FieldPointer { place, byte: value, bit }), None)
        }
        Some(SenseKey::NoSense | SenseKey::NotReady) => (None, Some(value)),
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SenseData;

    #[test]
    fn what_the_device_server_encodes_is_decoded_in_both_formats() {
        let cases = [
            SenseData::new(SenseKey::UnitAttention, AdditionalSense::POWER_ON),
            SenseData::invalid_cdb_field(300, 4),
            SenseData::invalid_parameter(7),
            SenseData::new(SenseKey::MediumError, AdditionalSense::UNRECOVERED_READ_ERROR)
                .with_information(Some(0x1234)),
            SenseData::copy_aborted(AdditionalSense::UNREACHABLE_COPY_TARGET, 3).pointing_into_segment(6),
            SenseData {
                progress: Some(0x8000),
                ..SenseData::new(SenseKey::NotReady, AdditionalSense::SANITIZE_IN_PROGRESS)
            },
        ];
        for case in cases {
            for descriptor_format in [false, true] {
                let sense = Sense::decode(case.encode(descriptor_format).as_bytes()).unwrap();
                assert_eq!((sense.key(), sense.code), (Some(case.key), case.code));
                assert_eq!(sense.information, case.information);
                assert_eq!(sense.command_specific, case.command_specific);
                assert_eq!((sense.field, sense.progress), (case.field, case.progress), "{case:?}");
                assert!(!sense.deferred);
            }
        }
    }

    #[test]
    fn for_people() {
        let told = |sense: SenseData| Sense::decode(sense.encode(true).as_bytes()).unwrap().to_string();
        assert_eq!(
            told(SenseData::invalid_cdb_field(1, 3)),
            "ILLEGAL REQUEST: INVALID FIELD IN CDB (24/00), byte 1 bit 3 of the CDB"
        );
        assert_eq!(
            told(
                SenseData::new(SenseKey::Miscompare, AdditionalSense::MISCOMPARE_DURING_VERIFY)
                    .with_information(Some(512))
            ),
            "MISCOMPARE: MISCOMPARE DURING VERIFY OPERATION (1d/00), first difference at byte 512"
        );
        let progress = SenseData {
            progress: Some(0x8000),
            ..SenseData::new(SenseKey::NotReady, AdditionalSense::FORMAT_IN_PROGRESS)
        };
        assert_eq!(
            told(progress),
            "NOT READY: LOGICAL UNIT NOT READY, FORMAT IN PROGRESS (04/04), 50.0 % done"
        );
        let strange = Sense::decode(&[0x73, 0x0c, 0x91, 0x02]).unwrap();
        assert_eq!(strange.to_string(), "SENSE KEY Ch: vendor-specific (91/02), of an earlier command");
    }

    #[test]
    fn nothing_is_refused_but_what_is_no_sense_data() {
        assert_eq!(Sense::decode(&[]), None);
        assert_eq!(Sense::decode(&[0x7f, 1, 2, 3]), None);
        assert_eq!(Sense::decode(&[0x70]).unwrap().key(), Some(SenseKey::NoSense));
        let mut short = vec![0xf0, 0, 3, 0, 0, 0, 9, 4, 0, 0, 0, 0, 0x11, 0x01];
        let cut = Sense::decode(&short).unwrap();
        assert_eq!(
            (cut.information, cut.code),
            (Some(9), AdditionalSense::NONE),
            "its own length ends first"
        );
        short[7] = 200;
        assert_eq!(Sense::decode(&short).unwrap().code, AdditionalSense::new(0x11, 0x01));
        let endless = [&[0x72, 0, 0, 0, 0, 0, 0, 255][..], &[0; 1000]].concat();
        assert_eq!(Sense::decode(&endless).unwrap().bytes.len(), SENSE_BYTES_MAX);
    }

    #[test]
    fn what_to_do_about_it() {
        let sense = |key, asc, ascq| {
            let sense = SenseData::new(key, AdditionalSense::new(asc, ascq));
            Sense::decode(sense.encode(false).as_bytes()).unwrap()
        };
        assert!(sense(SenseKey::UnitAttention, 0x29, 0).is_unit_attention());
        assert!(sense(SenseKey::IllegalRequest, 0x20, 0).is_unknown_command());
        assert!(sense(SenseKey::IllegalRequest, 0x24, 0).is_invalid_field());
        let unfit = |asc, ascq| sense(SenseKey::IllegalRequest, asc, ascq).unfit();
        assert_eq!(unfit(0x20, 0), Some(Unfit::Command));
        assert_eq!(unfit(0x24, 0), Some(Unfit::Field));
        assert_eq!(unfit(0x21, 0), None, "beyond the end");
        assert!(sense(SenseKey::NotReady, 0x04, 0x01).becomes_ready());
        assert!(!sense(SenseKey::NotReady, 0x04, 0x02).becomes_ready());
        let aborted = |asc| sense(SenseKey::AbortedCommand, asc, 1).is_aborted();
        assert!(aborted(0x44) && !aborted(0x10) && !sense(SenseKey::HardwareError, 0x44, 0).is_aborted());
    }
}
