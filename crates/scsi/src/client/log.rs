//! LOG SENSE: counters, and the space of thin units (SPC-4, SBC-3).

use super::answer::{Fields, Malformed};
use super::command::{Allocation, Command, Query};
use crate::codes::{log_page, opcode};

const HEADER_BYTES: usize = 4;

/// One log parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogParameter {
    /// PARAMETER CODE
    pub code: u16,
    /// The control byte.
    pub control: u8,
    /// The value, of at most 255 bytes.
    pub value: Vec<u8>,
}

impl LogParameter {
    /// The value as a counter, if it has one to eight bytes.
    pub fn counter(&self) -> Option<u64> {
        let is_possible = (1..=8).contains(&self.value.len());
        is_possible.then(|| self.value.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }
}

/// LOG SENSE of a page's values as they are now.
pub fn page(code: u8) -> Query<Vec<LogParameter>> {
    query(code, parameters)
}

/// Which log pages there are.
pub fn supported_pages() -> Query<Vec<u8>> {
    query(log_page::SUPPORTED_PAGES, |command, data| {
        Ok(body(command, data)?.bytes().iter().map(|code| code & 0x3f).collect())
    })
}

/// The space of a thin unit, in units of two to the threshold exponent blocks
/// ([`super::vpd::block::Provisioning::threshold_exponent`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceCounts {
    /// AVAILABLE LBA MAPPING RESOURCE COUNT
    pub available: Option<u32>,
    /// USED LBA MAPPING RESOURCE COUNT
    pub used: Option<u32>,
}

/// Asks for the logical block provisioning log page.
pub fn space() -> Query<SpaceCounts> {
    query(log_page::LOGICAL_BLOCK_PROVISIONING, |command, data| {
        let parameters = parameters(command, data)?;
        let count = |wanted: u16| {
            let parameter = parameters.iter().find(|parameter| parameter.code == wanted)?;
            parameter.value.first_chunk().copied().map(u32::from_be_bytes)
        };
        Ok(SpaceCounts { available: count(1), used: count(2) })
    })
}

fn query<T>(code: u8, decode: fn(&Command, &[u8]) -> Result<T, Malformed>) -> Query<T> {
    // PAGE CONTROL 01b: cumulative values.
    let command = Command::new(opcode::LOG_SENSE).bits(2, 0x40 | code & 0x3f);
    Query::new(command, Allocation { at: 7, width: 2 }, 1024, decode)
}

/// What follows the header, as long as it says; checked to be of the page that was asked for.
fn body<'a>(command: &Command, data: &'a [u8]) -> Result<Fields<'a>, Malformed> {
    let fields = Fields::new("LOG SENSE", data);
    if (fields.u8(0, "PAGE CODE")? ^ command.cdb()[2]) & 0x3f != 0 {
        return Err(fields.wrong("PAGE CODE", "it is another page's"));
    }
    let length = usize::from(fields.be16(2, "PAGE LENGTH")?);
    fields.part(HEADER_BYTES, length, "the log page")
}

fn parameters(command: &Command, data: &[u8]) -> Result<Vec<LogParameter>, Malformed> {
    let mut rest = body(command, data)?;
    let mut parameters = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(rest.u8(3, "PARAMETER LENGTH")?);
        let (parameter, after) = rest.split(4 + length, "the log parameter")?;
        parameters.push(LogParameter {
            code: parameter.be16(0, "PARAMETER CODE")?,
            control: parameter.u8(2, "the control byte")?,
            value: parameter.part(4, length, "PARAMETER VALUE")?.bytes().to_vec(),
        });
        rest = after;
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        let data = [0x02, 0, 0, 11, 0, 3, 0, 2, 1, 2, 0x80, 0, 3, 1, 9, 0xee];
        let told = page(0x02).decode(&data).unwrap();
        assert_eq!((told[0].code, told[0].counter()), (3, Some(0x0102)));
        assert_eq!((told[1].code, told[1].control, told[1].value.as_slice()), (0x8000, 3, &[9][..]));
        assert!(page(0x03).decode(&data).is_err(), "another page");
        assert!(page(0x02).decode(&data[..14]).unwrap_err().needed_bytes().is_some());
        assert_eq!(supported_pages().decode(&[0, 0, 0, 2, 0, 0x42]), Ok(vec![0, 2]));
        let long = LogParameter { code: 0, control: 0, value: vec![1; 9] };
        assert_eq!(long.counter(), None);
    }

    #[test]
    fn space_of_thin_units() {
        let data = [0x0c, 0, 0, 12, 0, 1, 3, 8, 0, 0, 1, 0, 2, 0, 0, 0];
        assert_eq!(space().decode(&data), Ok(SpaceCounts { available: Some(256), used: None }));
        assert_eq!(space().command().cdb(), [0x4d, 0, 0x4c, 0, 0, 0, 0, 4, 0, 0]);
    }
}
