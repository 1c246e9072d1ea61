//! The additional sense codes that the device server tells (SPC-4, annex of ASC and ASCQ assignments).
//!
//! The names that people read are in [`crate::client`], which knows many more.

use std::fmt;

/// An additional sense code with its qualifier: the ASC is the high byte, the ASCQ the low one (SPC-4).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdditionalSense(u16);

impl AdditionalSense {
    /// NO ADDITIONAL SENSE INFORMATION
    pub const NONE: Self = Self::new(0x00, 0x00);
    /// OPERATION IN PROGRESS
    pub const OPERATION_IN_PROGRESS: Self = Self::new(0x00, 0x16);
    /// PERIPHERAL DEVICE WRITE FAULT
    pub const PERIPHERAL_DEVICE_WRITE_FAULT: Self = Self::new(0x03, 0x00);
    /// LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED
    pub const INITIALIZING_COMMAND_REQUIRED: Self = Self::new(0x04, 0x02);
    /// LOGICAL UNIT NOT READY, FORMAT IN PROGRESS
    pub const FORMAT_IN_PROGRESS: Self = Self::new(0x04, 0x04);
    /// LOGICAL UNIT NOT READY, SANITIZE IN PROGRESS
    pub const SANITIZE_IN_PROGRESS: Self = Self::new(0x04, 0x1b);
    /// LOGICAL UNIT NOT ACCESSIBLE, ASYMMETRIC ACCESS STATE TRANSITION
    pub const ACCESS_STATE_TRANSITION: Self = Self::new(0x04, 0x0a);
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE
    pub const TARGET_PORT_IN_STANDBY: Self = Self::new(0x04, 0x0b);
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE
    pub const TARGET_PORT_UNAVAILABLE: Self = Self::new(0x04, 0x0c);
    /// LOGICAL UNIT NOT READY, OFFLINE
    pub const LOGICAL_UNIT_OFFLINE: Self = Self::new(0x04, 0x12);
    /// UNREACHABLE COPY TARGET
    pub const UNREACHABLE_COPY_TARGET: Self = Self::new(0x08, 0x04);
    /// WRITE ERROR
    pub const WRITE_ERROR: Self = Self::new(0x0c, 0x00);
    /// THIRD PARTY DEVICE FAILURE
    pub const THIRD_PARTY_DEVICE_FAILURE: Self = Self::new(0x0d, 0x01);
    /// COPY TARGET DEVICE NOT REACHABLE
    pub const COPY_TARGET_DEVICE_NOT_REACHABLE: Self = Self::new(0x0d, 0x02);
    /// INCORRECT COPY TARGET DEVICE TYPE
    pub const INCORRECT_COPY_TARGET_DEVICE_TYPE: Self = Self::new(0x0d, 0x03);
    /// INVALID FIELD IN COMMAND INFORMATION UNIT
    pub const INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT: Self = Self::new(0x0e, 0x03);
    /// LOGICAL BLOCK GUARD CHECK FAILED
    pub const GUARD_CHECK_FAILED: Self = Self::new(0x10, 0x01);
    /// LOGICAL BLOCK APPLICATION TAG CHECK FAILED
    pub const APPLICATION_TAG_CHECK_FAILED: Self = Self::new(0x10, 0x02);
    /// LOGICAL BLOCK REFERENCE TAG CHECK FAILED
    pub const REFERENCE_TAG_CHECK_FAILED: Self = Self::new(0x10, 0x03);
    /// UNRECOVERED READ ERROR
    pub const UNRECOVERED_READ_ERROR: Self = Self::new(0x11, 0x00);
    /// READ ERROR - LBA MARKED BAD BY APPLICATION CLIENT
    pub const LBA_MARKED_BAD: Self = Self::new(0x11, 0x14);
    /// PARAMETER LIST LENGTH ERROR
    pub const PARAMETER_LIST_LENGTH_ERROR: Self = Self::new(0x1a, 0x00);
    /// MISCOMPARE DURING VERIFY OPERATION
    pub const MISCOMPARE_DURING_VERIFY: Self = Self::new(0x1d, 0x00);
    /// INVALID COMMAND OPERATION CODE
    pub const INVALID_COMMAND_OPERATION_CODE: Self = Self::new(0x20, 0x00);
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE
    pub const LBA_OUT_OF_RANGE: Self = Self::new(0x21, 0x00);
    /// INVALID FIELD IN CDB
    pub const INVALID_FIELD_IN_CDB: Self = Self::new(0x24, 0x00);
    /// INVALID TOKEN OPERATION, CAUSE NOT REPORTABLE
    pub const INVALID_TOKEN_OPERATION: Self = Self::new(0x23, 0x00);
    /// INVALID TOKEN OPERATION, UNSUPPORTED TOKEN TYPE
    pub const UNSUPPORTED_TOKEN_TYPE: Self = Self::new(0x23, 0x01);
    /// INVALID TOKEN OPERATION, TOKEN UNKNOWN
    pub const TOKEN_UNKNOWN: Self = Self::new(0x23, 0x04);
    /// INVALID TOKEN OPERATION, TOKEN REVOKED
    pub const TOKEN_REVOKED: Self = Self::new(0x23, 0x06);
    /// INVALID TOKEN OPERATION, INVALID TOKEN LENGTH
    pub const INVALID_TOKEN_LENGTH: Self = Self::new(0x23, 0x0a);
    /// LOGICAL UNIT NOT SUPPORTED
    pub const LOGICAL_UNIT_NOT_SUPPORTED: Self = Self::new(0x25, 0x00);
    /// INVALID FIELD IN PARAMETER LIST
    pub const INVALID_FIELD_IN_PARAMETER_LIST: Self = Self::new(0x26, 0x00);
    /// INVALID RELEASE OF PERSISTENT RESERVATION
    pub const INVALID_RELEASE: Self = Self::new(0x26, 0x04);
    /// TOO MANY TARGET DESCRIPTORS
    pub const TOO_MANY_TARGET_DESCRIPTORS: Self = Self::new(0x26, 0x06);
    /// UNSUPPORTED TARGET DESCRIPTOR TYPE CODE
    pub const UNSUPPORTED_TARGET_DESCRIPTOR: Self = Self::new(0x26, 0x07);
    /// TOO MANY SEGMENT DESCRIPTORS
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: Self = Self::new(0x26, 0x08);
    /// UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR: Self = Self::new(0x26, 0x09);
    /// UNEXPECTED INEXACT SEGMENT
    pub const UNEXPECTED_INEXACT_SEGMENT: Self = Self::new(0x26, 0x0a);
    /// INLINE DATA LENGTH EXCEEDED
    pub const INLINE_DATA_LENGTH_EXCEEDED: Self = Self::new(0x26, 0x0b);
    /// WRITE PROTECTED
    pub const WRITE_PROTECTED: Self = Self::new(0x27, 0x00);
    /// LOGICAL UNIT SOFTWARE WRITE PROTECTED
    pub const SOFTWARE_WRITE_PROTECTED: Self = Self::new(0x27, 0x02);
    /// SPACE ALLOCATION FAILED WRITE PROTECT
    pub const SPACE_ALLOCATION_FAILED: Self = Self::new(0x27, 0x07);
    /// NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED
    pub const MEDIUM_MAY_HAVE_CHANGED: Self = Self::new(0x28, 0x00);
    /// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED
    pub const POWER_ON: Self = Self::new(0x29, 0x00);
    /// BUS DEVICE RESET FUNCTION OCCURRED
    pub const BUS_DEVICE_RESET: Self = Self::new(0x29, 0x03);
    /// I_T NEXUS LOSS OCCURRED
    pub const IT_NEXUS_LOSS: Self = Self::new(0x29, 0x07);
    /// LOG PARAMETERS CHANGED
    pub const LOG_PARAMETERS_CHANGED: Self = Self::new(0x2a, 0x02);
    /// PRIORITY CHANGED
    pub const PRIORITY_CHANGED: Self = Self::new(0x2a, 0x08);
    /// TIMESTAMP CHANGED
    pub const TIMESTAMP_CHANGED: Self = Self::new(0x2a, 0x10);
    /// PREVIOUS BUSY STATUS
    pub const PREVIOUS_BUSY: Self = Self::new(0x2c, 0x07);
    /// PREVIOUS TASK SET FULL STATUS
    pub const PREVIOUS_TASK_SET_FULL: Self = Self::new(0x2c, 0x08);
    /// PREVIOUS RESERVATION CONFLICT STATUS
    pub const PREVIOUS_RESERVATION_CONFLICT: Self = Self::new(0x2c, 0x09);
    /// COMMAND SEQUENCE ERROR
    pub const COMMAND_SEQUENCE_ERROR: Self = Self::new(0x2c, 0x00);
    /// INQUIRY DATA HAS CHANGED
    pub const INQUIRY_DATA_CHANGED: Self = Self::new(0x3f, 0x03);
    /// DEVICE IDENTIFIER CHANGED: the identifying information, a label that administrators give (SPC-4, 6.45)
    pub const DEVICE_IDENTIFIER_CHANGED: Self = Self::new(0x3f, 0x05);
    /// REPORTED LUNS DATA HAS CHANGED
    pub const REPORTED_LUNS_CHANGED: Self = Self::new(0x3f, 0x0e);
    /// MODE PARAMETERS CHANGED
    pub const MODE_PARAMETERS_CHANGED: Self = Self::new(0x2a, 0x01);
    /// CAPACITY DATA HAS CHANGED
    pub const CAPACITY_CHANGED: Self = Self::new(0x2a, 0x09);
    /// RESERVATIONS PREEMPTED
    pub const RESERVATIONS_PREEMPTED: Self = Self::new(0x2a, 0x03);
    /// RESERVATIONS RELEASED
    pub const RESERVATIONS_RELEASED: Self = Self::new(0x2a, 0x04);
    /// REGISTRATIONS PREEMPTED
    pub const REGISTRATIONS_PREEMPTED: Self = Self::new(0x2a, 0x05);
    /// ASYMMETRIC ACCESS STATE CHANGED
    pub const ACCESS_STATE_CHANGED: Self = Self::new(0x2a, 0x06);
    /// COMMANDS CLEARED BY ANOTHER INITIATOR
    pub const COMMANDS_CLEARED: Self = Self::new(0x2f, 0x00);
    /// SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT
    pub const COMMANDS_CLEARED_BY_PROTOCOL: Self = Self::new(0x47, 0x7f);
    /// INVALID MESSAGE ERROR
    pub const INVALID_MESSAGE: Self = Self::new(0x49, 0x00);
    /// MEDIUM FORMAT CORRUPTED
    pub const MEDIUM_FORMAT_CORRUPTED: Self = Self::new(0x31, 0x00);
    /// FORMAT COMMAND FAILED
    pub const FORMAT_COMMAND_FAILED: Self = Self::new(0x31, 0x01);
    /// SANITIZE COMMAND FAILED
    pub const SANITIZE_COMMAND_FAILED: Self = Self::new(0x31, 0x03);
    /// THIN PROVISIONING SOFT THRESHOLD REACHED
    pub const SOFT_THRESHOLD_REACHED: Self = Self::new(0x38, 0x07);
    /// SAVING PARAMETERS NOT SUPPORTED
    pub const SAVING_PARAMETERS_NOT_SUPPORTED: Self = Self::new(0x39, 0x00);
    /// MEDIUM NOT PRESENT
    pub const MEDIUM_NOT_PRESENT: Self = Self::new(0x3a, 0x00);
    /// INTERNAL TARGET FAILURE
    pub const INTERNAL_TARGET_FAILURE: Self = Self::new(0x44, 0x00);
    /// PERSISTENT RESERVATION INFORMATION LOST
    pub const RESERVATION_INFORMATION_LOST: Self = Self::new(0x44, 0x01);
    /// INSUFFICIENT RESOURCES
    pub const INSUFFICIENT_RESOURCES: Self = Self::new(0x55, 0x03);
    /// MEDIUM REMOVAL PREVENTED
    pub const MEDIUM_REMOVAL_PREVENTED: Self = Self::new(0x53, 0x02);
    /// INSUFFICIENT REGISTRATION RESOURCES
    pub const INSUFFICIENT_REGISTRATION_RESOURCES: Self = Self::new(0x55, 0x04);

    /// The pair `asc`, `ascq`.
    pub const fn new(asc: u8, ascq: u8) -> Self {
        Self((asc as u16) << 8 | ascq as u16)
    }

    /// ADDITIONAL SENSE CODE
    pub const fn asc(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// ADDITIONAL SENSE CODE QUALIFIER
    pub const fn ascq(self) -> u8 {
        self.0 as u8
    }
}

impl fmt::Debug for AdditionalSense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}/{:02x}", self.asc(), self.ascq())
    }
}
