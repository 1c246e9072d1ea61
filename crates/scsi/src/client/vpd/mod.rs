//! Vital product data pages (SPC-4; the block pages are SBC-3's and in [`block`], designators in [`identification`]).

pub mod block;
pub mod identification;

use super::answer::{Fields, Malformed, text};
use super::command::{Command, Query};
use super::inquiry::ALLOCATION;
use crate::codes::{opcode, vpd_page};

/// What is asked for at first. Targets of before SPC-3 have one byte for the length.
const ASKED_BYTES: u32 = 0xff;
const HEADER_BYTES: usize = 4;

/// Any page: its body, without the header of four bytes.
pub fn page(code: u8) -> Query<Vec<u8>> {
    query(code, |command, data| Ok(body(command, data)?.bytes().to_vec()))
}

/// Which pages there are, in the order in which the target lists them.
pub fn supported_pages() -> Query<Vec<u8>> {
    page(vpd_page::SUPPORTED_PAGES)
}

/// The serial number, without spaces around it; empty where the target tells none.
pub fn unit_serial_number() -> Query<String> {
    query(vpd_page::UNIT_SERIAL_NUMBER, |command, data| Ok(text(body(command, data)?.bytes())))
}

/// Extended INQUIRY data.
pub fn extended_inquiry() -> Query<ExtendedInquiry> {
    query(vpd_page::EXTENDED_INQUIRY, |command, data| {
        let page = whole(command, data)?;
        Ok(ExtendedInquiry {
            protection_types: page.u8_told(4) >> 3 & 0x07,
            checks_guard: page.bit_told(4, 0x04),
            checks_application_tag: page.bit_told(4, 0x02),
            checks_reference_tag: page.bit_told(4, 0x01),
            head_of_queue: page.bit_told(5, 0x04),
            ordered: page.bit_told(5, 0x02),
            simple: page.bit_told(5, 0x01),
            volatile_cache: page.bit_told(6, 0x01),
            non_volatile_cache: page.bit_told(6, 0x02),
        })
    })
}

/// Extended INQUIRY Data page: what of it initiators look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedInquiry {
    /// SPT: which types of protection information there can be, as the standard codes it.
    pub protection_types: u8,
    /// GRD_CHK
    pub checks_guard: bool,
    /// APP_CHK
    pub checks_application_tag: bool,
    /// REF_CHK
    pub checks_reference_tag: bool,
    /// HEADSUP: the task attribute HEAD OF QUEUE works.
    pub head_of_queue: bool,
    /// ORDSUP
    pub ordered: bool,
    /// SIMPSUP
    pub simple: bool,
    /// V_SUP: there may be a volatile cache.
    pub volatile_cache: bool,
    /// NV_SUP: there may be a non-volatile cache.
    pub non_volatile_cache: bool,
}

fn query<T>(code: u8, decode: fn(&Command, &[u8]) -> Result<T, Malformed>) -> Query<T> {
    let command = Command::new(opcode::INQUIRY).bits(1, 0x01).bits(2, code);
    Query::new(command, ALLOCATION, ASKED_BYTES, decode)
}

fn name(code: u8) -> &'static str {
    match code {
        vpd_page::SUPPORTED_PAGES => "VPD page 00h (Supported VPD Pages)",
        vpd_page::UNIT_SERIAL_NUMBER => "VPD page 80h (Unit Serial Number)",
        vpd_page::DEVICE_IDENTIFICATION => "VPD page 83h (Device Identification)",
        vpd_page::EXTENDED_INQUIRY => "VPD page 86h (Extended INQUIRY Data)",
        vpd_page::SCSI_PORTS => "VPD page 88h (SCSI Ports)",
        vpd_page::BLOCK_LIMITS => "VPD page B0h (Block Limits)",
        vpd_page::BLOCK_DEVICE_CHARACTERISTICS => "VPD page B1h (Block Device Characteristics)",
        vpd_page::LOGICAL_BLOCK_PROVISIONING => "VPD page B2h (Logical Block Provisioning)",
        _ => "VPD page",
    }
}

/// The page, header and all, as long as it says that it is; checked to be the one that was asked for.
fn whole<'a>(command: &Command, data: &'a [u8]) -> Result<Fields<'a>, Malformed> {
    let code = command.cdb()[2];
    let fields = Fields::new(name(code), data);
    if fields.u8(1, "PAGE CODE")? != code {
        return Err(fields.wrong("PAGE CODE", "it is another page's"));
    }
    let length = usize::from(fields.be16(2, "PAGE LENGTH")?);
    fields.part(0, HEADER_BYTES + length, "the page")
}

fn body<'a>(command: &Command, data: &'a [u8]) -> Result<Fields<'a>, Malformed> {
    let page = whole(command, data)?;
    page.part(HEADER_BYTES, page.bytes().len() - HEADER_BYTES, "the page")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_asked_for_and_read() {
        let query = supported_pages();
        assert_eq!(query.command().cdb(), [0x12, 1, 0, 0, 255, 0]);
        assert_eq!(query.decode(&[0, 0, 0, 2, 0, 0x80]), Ok(vec![0, 0x80]));
        assert_eq!(unit_serial_number().decode(b"\0\x80\0\x06  S-1 "), Ok("S-1".to_owned()));
        assert_eq!(page(0xc0).decode(&[0, 0xc0, 0, 1, 9, 9]), Ok(vec![9]), "what follows is not the page");
    }

    #[test]
    fn wrong_pages_are_named() {
        let error = unit_serial_number().decode(&[0, 0x83, 0, 0]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "PAGE CODE in the target's VPD page 80h (Unit Serial Number) data is wrong: it is another page's"
        );
        let error = unit_serial_number().decode(&[0, 0x80, 0x10, 0]).unwrap_err();
        assert_eq!(error.needed_bytes(), Some(0x1004));
        let longer = unit_serial_number().longer(&error).unwrap();
        assert_eq!(longer.command().cdb()[3..5], [0x10, 0x04]);
        assert_eq!(supported_pages().decode(&[]).unwrap_err().needed_bytes(), Some(2));
    }

    #[test]
    fn extended_inquiry_data() {
        let mut data = vec![0, 0x86, 0, 0x3c];
        data.resize(64, 0);
        data[4..7].copy_from_slice(&[0x0f, 0x07, 0x01]);
        let page = extended_inquiry().decode(&data).unwrap();
        assert_eq!(page.protection_types, 1);
        assert!(page.checks_guard && page.checks_application_tag && page.checks_reference_tag);
        assert!(page.head_of_queue && page.ordered && page.simple && page.volatile_cache);
        assert!(!page.non_volatile_cache);
    }
}
