//! Commands about a logical unit as a whole: is it ready, start and stop it, erase it (SPC-4, SBC-3).

use super::answer::Fields;
use super::command::{Allocation, Command, DoesNotFit, Query, Transfer};
use super::sense::Sense;
use crate::codes::opcode;

/// TEST UNIT READY.
pub fn test_unit_ready() -> Command {
    Command::new(opcode::TEST_UNIT_READY)
}

/// REQUEST SENSE: what the unit has to say, progress of long work among it. `None`: nothing that could be read.
pub fn request_sense(descriptor_format: bool) -> Query<Option<Sense>> {
    let command = Command::new(opcode::REQUEST_SENSE).flag(1, 0x01, descriptor_format);
    Query::new(command, Allocation { at: 4, width: 1 }, 252, |_, data| Ok(Sense::decode(data)))
}

/// What START STOP UNIT does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStop {
    /// The unit gets ready.
    Start,
    /// It goes to rest, after its cache is stable.
    Stop,
    /// The medium is loaded.
    Load,
    /// The medium is put out, after the cache is stable.
    Eject,
}

/// START STOP UNIT; with `immediate` the status comes before it is done.
pub fn start_stop_unit(action: StartStop, immediate: bool) -> Command {
    // LOEJ and START
    let bits = match action {
        StartStop::Start => 0x01,
        StartStop::Stop => 0x00,
        StartStop::Load => 0x03,
        StartStop::Eject => 0x02,
    };
    Command::new(opcode::START_STOP_UNIT).flag(1, 0x01, immediate).bits(4, bits)
}

/// How SANITIZE erases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sanitize {
    /// OVERWRITE with a pattern.
    Overwrite {
        /// One to a block's length of bytes, repeated over each block.
        pattern: Vec<u8>,
        /// How often, from 1 to 31.
        passes: u8,
        /// Every other pass writes the inverse.
        invert: bool,
    },
    /// BLOCK ERASE: what the medium calls erased.
    BlockErase,
    /// CRYPTOGRAPHIC ERASE: the key is thrown away.
    CryptographicErase,
    /// EXIT FAILURE MODE: ends what a SANITIZE that failed has left.
    ExitFailureMode,
}

/// SANITIZE. Whatever is on the medium is lost, and nothing can stop it: not a reset, not a loss of power.
///
/// `immediate`: the status comes at once, and REQUEST SENSE tells progress. `unrestricted_exit`: after a failure EXIT FAILURE
/// MODE works.
///
/// # Errors
/// The pattern is empty or longer than 65,531 bytes, or `passes` is not from 1 to 31.
pub fn sanitize(how: &Sanitize, immediate: bool, unrestricted_exit: bool) -> Result<Command, DoesNotFit> {
    let action = match how {
        Sanitize::Overwrite { .. } => 0x01,
        Sanitize::BlockErase => 0x02,
        Sanitize::CryptographicErase => 0x03,
        Sanitize::ExitFailureMode => 0x1f,
    };
    let command = Command::new(opcode::SANITIZE).bits(1, action).flag(1, 0x80, immediate).flag(
        1,
        0x20,
        unrestricted_exit,
    );
    let Sanitize::Overwrite { pattern, passes, invert } = how else { return Ok(command) };
    if !(1..=31).contains(passes) {
        return Err(DoesNotFit { field: "OVERWRITE COUNT" });
    }
    let length = u16::try_from(pattern.len()).ok().filter(|length| (1..=u16::MAX - 4).contains(length));
    let length = length.ok_or(DoesNotFit { field: "INITIALIZATION PATTERN LENGTH" })?;
    let flags = u8::from(*invert) << 7 | passes;
    let list = [&[flags, 0], &length.to_be_bytes()[..], pattern].concat();
    Ok(command.field(7, (length + 4).to_be_bytes()).transferring(Transfer::List(list)))
}

/// REPORT SUPPORTED OPERATION CODES: every command that the unit knows.
pub fn supported_operation_codes() -> Query<Vec<SupportedCommand>> {
    let command = Command::with_action(opcode::REPORT_SUPPORTED_OPERATION_CODES);
    Query::new(command, Allocation { at: 6, width: 4 }, 4096, |_, data| {
        let fields = Fields::new("REPORT SUPPORTED OPERATION CODES", data);
        let length = fields.be32(0, "COMMAND DATA LENGTH")? as usize;
        let mut rest = fields.part(4, length, "the command descriptors")?;
        let mut commands = Vec::new();
        while !rest.is_empty() {
            let flags = rest.u8(5, "CTDP and SERVACTV")?;
            // Timeouts descriptors were not asked for; one that comes all the same is stepped over.
            let length = if flags & 0x02 != 0 { 20 } else { 8 };
            let (descriptor, after) = rest.split(length, "the command descriptor")?;
            commands.push(SupportedCommand {
                opcode: descriptor.u8(0, "OPERATION CODE")?,
                service_action: if flags & 0x01 != 0 {
                    Some(descriptor.be16(2, "SERVICE ACTION")?)
                } else {
                    None
                },
                cdb_bytes: descriptor.be16(6, "CDB LENGTH")?,
            });
            rest = after;
        }
        Ok(commands)
    })
}

/// A command that a unit knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SupportedCommand {
    /// OPERATION CODE
    pub opcode: u8,
    /// SERVICE ACTION, where the operation code has some.
    pub service_action: Option<u16>,
    /// CDB LENGTH
    pub cdb_bytes: u16,
}

impl SupportedCommand {
    /// The standard's name, for the commands that Lunette's device server knows too.
    pub fn name(&self) -> Option<&'static str> {
        let action = u8::try_from(self.service_action.unwrap_or(0)).ok()?;
        crate::command_name(&[self.opcode, action])
    }
}

/// Whether one command is supported (REPORT SUPPORTED OPERATION CODES with one command).
pub fn is_supported(opcode: u8, service_action: Option<u16>) -> Query<bool> {
    // REPORTING OPTIONS: 001b asks for an operation code alone, 010b with a service action.
    let option = if service_action.is_some() { 0x02 } else { 0x01 };
    let command = Command::with_action(opcode::REPORT_SUPPORTED_OPERATION_CODES)
        .bits(2, option)
        .bits(3, opcode)
        .field(4, service_action.unwrap_or(0).to_be_bytes());
    Query::new(command, Allocation { at: 6, width: 4 }, 64, |_, data| {
        let fields = Fields::new("REPORT SUPPORTED OPERATION CODES", data);
        // SUPPORT: 011b as the standard says, 101b in the vendor's way.
        Ok(matches!(fields.u8(1, "SUPPORT")? & 0x07, 0x03 | 0x05))
    })
}

/// Which task management functions a unit has (REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskManagement {
    /// ATS
    pub abort_task: bool,
    /// ATSS
    pub abort_task_set: bool,
    /// CACAS
    pub clear_aca: bool,
    /// CTSS
    pub clear_task_set: bool,
    /// LURS
    pub logical_unit_reset: bool,
    /// QTS
    pub query_task: bool,
    /// QTSS
    pub query_task_set: bool,
    /// QAES
    pub query_asynchronous_event: bool,
    /// ITNRS
    pub i_t_nexus_reset: bool,
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub fn task_management() -> Query<TaskManagement> {
    let command = Command::with_action(opcode::REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS);
    Query::new(command, Allocation { at: 6, width: 4 }, 4, |_, data| {
        let fields = Fields::new("REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", data);
        let first = fields.u8(0, "ATS")?;
        let second = fields.u8(1, "QTSS")?;
        let has = |byte: u8, mask: u8| byte & mask != 0;
        Ok(TaskManagement {
            abort_task: has(first, 0x80),
            abort_task_set: has(first, 0x40),
            clear_aca: has(first, 0x20),
            clear_task_set: has(first, 0x10),
            logical_unit_reset: has(first, 0x08),
            query_task: has(first, 0x04),
            query_asynchronous_event: has(second, 0x04),
            query_task_set: has(second, 0x02),
            i_t_nexus_reset: has(second, 0x01),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_and_stop() {
        assert_eq!(start_stop_unit(StartStop::Start, false).cdb(), [0x1b, 0, 0, 0, 1, 0]);
        assert_eq!(start_stop_unit(StartStop::Eject, true).cdb(), [0x1b, 1, 0, 0, 2, 0]);
    }

    #[test]
    fn overwriting() {
        let how = Sanitize::Overwrite { pattern: vec![0xaa, 0x55], passes: 3, invert: true };
        let command = sanitize(&how, true, false).unwrap();
        assert_eq!(command.cdb(), [0x48, 0x81, 0, 0, 0, 0, 0, 0, 6, 0]);
        assert_eq!(command.transfer(), &Transfer::List(vec![0x83, 0, 0, 2, 0xaa, 0x55]));
        let wrong = |pattern: Vec<u8>, passes| {
            sanitize(&Sanitize::Overwrite { pattern, passes, invert: false }, true, false).unwrap_err().field
        };
        assert_eq!(wrong(vec![0], 32), "OVERWRITE COUNT");
        assert_eq!(wrong(vec![], 1), "INITIALIZATION PATTERN LENGTH");
        assert_eq!(wrong(vec![0; 65_532], 1), "INITIALIZATION PATTERN LENGTH");
        assert_eq!(sanitize(&Sanitize::BlockErase, false, true).unwrap().cdb()[1], 0x22);
    }

    #[test]
    fn commands_with_and_without_timeouts() {
        let with = [0x12, 0, 0, 0, 0, 2, 0, 6, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        let without = [0x9e, 0, 0, 0x10, 0, 1, 0, 16];
        let data = [&[0, 0, 0, 28][..], &with, &without].concat();
        let commands = supported_operation_codes().decode(&data).unwrap();
        assert_eq!(commands.len(), 2);
        assert_eq!(commands[0].name(), Some("INQUIRY"));
        assert_eq!((commands[1].name(), commands[1].cdb_bytes), (Some("READ CAPACITY(16)"), 16));
        assert!(supported_operation_codes().decode(&data[..31]).is_err());
        let mut odd = data.clone();
        odd[3] = 27;
        assert!(supported_operation_codes().decode(&odd).is_err());
    }

    #[test]
    fn one_command() {
        assert_eq!(is_supported(0x9e, Some(0x12)).command().cdb()[..6], [0xa3, 0x0c, 2, 0x9e, 0, 0x12]);
        assert_eq!(is_supported(0x42, None).decode(&[0, 3]), Ok(true));
        assert_eq!(is_supported(0x42, None).decode(&[0, 1, 0, 0]), Ok(false));
        assert!(is_supported(0x42, None).decode(&[0]).is_err());
    }
}
