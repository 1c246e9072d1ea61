//! The numbers of SPC-4 and SBC-3 that device server and application client share: operation codes, service actions and
//! page codes. What is behind a number is with whoever handles it.

/// Operation codes, and service actions as `(operation code, service action)`.
pub(crate) mod opcode {
    pub(crate) const TEST_UNIT_READY: u8 = 0x00;
    pub(crate) const REQUEST_SENSE: u8 = 0x03;
    pub(crate) const FORMAT_UNIT: u8 = 0x04;
    pub(crate) const READ_6: u8 = 0x08;
    pub(crate) const WRITE_6: u8 = 0x0a;
    pub(crate) const INQUIRY: u8 = 0x12;
    pub(crate) const MODE_SELECT_6: u8 = 0x15;
    pub(crate) const MODE_SENSE_6: u8 = 0x1a;
    pub(crate) const START_STOP_UNIT: u8 = 0x1b;
    pub(crate) const READ_CAPACITY_10: u8 = 0x25;
    pub(crate) const READ_10: u8 = 0x28;
    pub(crate) const WRITE_10: u8 = 0x2a;
    pub(crate) const WRITE_AND_VERIFY_10: u8 = 0x2e;
    pub(crate) const VERIFY_10: u8 = 0x2f;
    pub(crate) const PRE_FETCH_10: u8 = 0x34;
    pub(crate) const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub(crate) const WRITE_SAME_10: u8 = 0x41;
    pub(crate) const UNMAP: u8 = 0x42;
    pub(crate) const SANITIZE: u8 = 0x48;
    pub(crate) const LOG_SENSE: u8 = 0x4d;
    pub(crate) const MODE_SELECT_10: u8 = 0x55;
    pub(crate) const MODE_SENSE_10: u8 = 0x5a;
    pub(crate) const PERSISTENT_RESERVE_IN: u8 = 0x5e;
    pub(crate) const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub(crate) const READ_16: u8 = 0x88;
    pub(crate) const COMPARE_AND_WRITE: u8 = 0x89;
    pub(crate) const WRITE_16: u8 = 0x8a;
    pub(crate) const WRITE_AND_VERIFY_16: u8 = 0x8e;
    pub(crate) const VERIFY_16: u8 = 0x8f;
    pub(crate) const PRE_FETCH_16: u8 = 0x90;
    pub(crate) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub(crate) const WRITE_SAME_16: u8 = 0x93;
    pub(crate) const READ_CAPACITY_16: (u8, u8) = (0x9e, 0x10);
    pub(crate) const GET_LBA_STATUS: (u8, u8) = (0x9e, 0x12);
    pub(crate) const REPORT_LUNS: u8 = 0xa0;
    pub(crate) const REPORT_TARGET_PORT_GROUPS: (u8, u8) = (0xa3, 0x0a);
    pub(crate) const REPORT_SUPPORTED_OPERATION_CODES: (u8, u8) = (0xa3, 0x0c);
    pub(crate) const REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS: (u8, u8) = (0xa3, 0x0d);
    pub(crate) const SET_TARGET_PORT_GROUPS: (u8, u8) = (0xa4, 0x0a);
    pub(crate) const READ_12: u8 = 0xa8;
    pub(crate) const WRITE_12: u8 = 0xaa;
}

/// Vital product data pages (SPC-4; from B0h on SBC-3).
pub(crate) mod vpd_page {
    pub(crate) const SUPPORTED_PAGES: u8 = 0x00;
    pub(crate) const UNIT_SERIAL_NUMBER: u8 = 0x80;
    pub(crate) const DEVICE_IDENTIFICATION: u8 = 0x83;
    pub(crate) const EXTENDED_INQUIRY: u8 = 0x86;
    pub(crate) const SCSI_PORTS: u8 = 0x88;
    pub(crate) const THIRD_PARTY_COPY: u8 = 0x8f;
    pub(crate) const BLOCK_LIMITS: u8 = 0xb0;
    pub(crate) const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
    pub(crate) const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;
}

/// Mode pages (SPC-4, SBC-3), as page and subpage.
pub(crate) mod mode_page {
    pub(crate) const ERROR_RECOVERY: (u8, u8) = (0x01, 0);
    pub(crate) const CACHING: (u8, u8) = (0x08, 0);
    pub(crate) const CONTROL: (u8, u8) = (0x0a, 0);
    pub(crate) const CONTROL_EXTENSION: (u8, u8) = (0x0a, 0x01);
    pub(crate) const INFORMATIONAL_EXCEPTIONS: (u8, u8) = (0x1c, 0);
    pub(crate) const LOGICAL_BLOCK_PROVISIONING: (u8, u8) = (0x1c, 0x02);
    /// In a CDB: every page, or every subpage of a page.
    pub(crate) const ALL_PAGES: u8 = 0x3f;
    pub(crate) const ALL_SUBPAGES: u8 = 0xff;
}

/// Log pages (SPC-4; 0Ch is SBC-3's).
pub(crate) mod log_page {
    pub(crate) const SUPPORTED_PAGES: u8 = 0x00;
    pub(crate) const WRITE_ERRORS: u8 = 0x02;
    pub(crate) const READ_ERRORS: u8 = 0x03;
    pub(crate) const NON_MEDIUM_ERRORS: u8 = 0x06;
    pub(crate) const LOGICAL_BLOCK_PROVISIONING: u8 = 0x0c;
    pub(crate) const INFORMATIONAL_EXCEPTIONS: u8 = 0x2f;
    pub(crate) const ALL_SUBPAGES: u8 = 0xff;
}

/// Designation descriptors (SPC-4, Device Identification page).
pub(crate) mod designator {
    pub(crate) const BINARY: u8 = 1;
    pub(crate) const ASCII: u8 = 2;
    pub(crate) const UTF_8: u8 = 3;

    pub(crate) const VENDOR_ID: u8 = 0x1;
    pub(crate) const EUI_64: u8 = 0x2;
    pub(crate) const NAA: u8 = 0x3;
    pub(crate) const RELATIVE_TARGET_PORT: u8 = 0x4;
    pub(crate) const TARGET_PORT_GROUP: u8 = 0x5;
    pub(crate) const LOGICAL_UNIT_GROUP: u8 = 0x6;
    pub(crate) const SCSI_NAME: u8 = 0x8;
    /// SPC-5.
    pub(crate) const UUID: u8 = 0xa;
}
