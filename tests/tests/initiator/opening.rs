//! Units whose target does not give a usable answer to a question that none has to answer: they are opened without it. And units that abort
//! what else they are asked when one question fails (SPC-4, QERR).

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use lunette_initiator::multipath::{self, PathOptions, PathState};
use lunette_initiator::{Command, CommandError, Engine, EngineEvent, Options, Timing};
use lunette_tests::attach::Attached;
use lunette_tests::engine::{execute, lun, make_ready, options, read, wait_for, write};
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::binary;
use lunette_wire::initiator::{LoginStage, ScsiCommand};
use lunette_wire::target::{NopIn, Numbers, Residual, ScsiResponse, TaskManagementResponse};
use lunette_wire::{CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, StatSn, TargetPdu, TargetTransferTag};

use super::guard::identity;
use super::hostile::{NAME, Script, Sign};
use super::login::{No, take, take_no_short_login};

const INQUIRY: u8 = 0x12;
const MODE_SENSE_6: u8 = 0x1a;
const READ_CAPACITY_16: u8 = 0x9e;
/// REPORT SUPPORTED OPERATION CODES and REPORT TARGET PORT GROUPS.
const MAINTENANCE_IN: u8 = 0xa3;

/// What a small disk without VPD pages answers; `None`: that all came, and nothing does.
pub(super) fn answer(cdb: &[u8; 16], broken: u8) -> Option<Vec<u8>> {
    match cdb[0] {
        opcode if opcode == broken => None,
        // Four bytes of header, and no page in the list.
        INQUIRY if cdb[1] & 1 == 1 => Some(vec![0; 4]),
        INQUIRY => Some([&[0, 0, 6, 2, 31][..], &[0; 31]].concat()),
        READ_CAPACITY_16 => Some([&[0, 0, 0, 0, 0, 0, 0, 63, 0, 0, 2, 0][..], &[0; 20]].concat()),
        MODE_SENSE_6 => Some(vec![3, 0, 0, 0]),
        _ => Some(Vec::new()),
    }
}

/// A target whose answer to one command is faulty.
fn serve(broken: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || tell(Script::log_in(listener.accept().expect("a connection").0), broken));
    address
}

/// Answers questions on one connection, until something else than a command comes, or a read.
fn tell(mut target: Script, broken: u8) {
    while let Some(pdu) = target.try_receive() {
        let InitiatorPdu::ScsiCommand(command) = pdu else { return };
        if command.cdb[0] == READ_16 {
            return;
        }
        let wanted = command.expected_data_transfer_length;
        let mut data = answer(&command.cdb, broken);
        if let Some(data) = data.as_mut().filter(|data| !data.is_empty()) {
            data.truncate(wanted as usize);
            target.say(&TargetPdu::ScsiDataIn(target.data_in(&command)), data);
        }
        let length = data.as_ref().map_or(0, Vec::len);
        let residual = match wanted - length as u32 {
            missing if missing > 0 && data.is_some() => Residual::Underflow(missing),
            _ => Residual::None,
        };
        let exp_data_sn = DataSn((length > 0).into());
        let response = ScsiResponse { residual, exp_data_sn, ..target.response(&command) };
        target.say(&TargetPdu::ScsiResponse(response), &[]);
        target.stat_sn = StatSn(target.stat_sn.0.wrapping_add(1));
    }
}

/// A path whose target wants the security stage: once it is known, each new session of the path begins with it.
#[test]
fn a_path_remembers_how_its_target_is_logged_in_to() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        drop(take_no_short_login(&listener, No::Status));
        tell(take(&listener, LoginStage::Security), u8::MAX);
        tell(take(&listener, LoginStage::Security), u8::MAX);
    });
    let path = PathOptions::new(options(NAME, address), lun(0));
    let engine = multipath::Engine::connect(multipath::Options::new(vec![path]));
    let mut engine = engine.unwrap_or_else(|error| panic!("{error}"));
    // The connection ends at it.
    engine.submit(read(0, 0, 1, 512));
    let is_back = |event: &EngineEvent| {
        matches!(event, EngineEvent::Path { news: multipath::PathNews::Up { after: Some(_) }, .. })
    };
    while !std::iter::from_fn(|| engine.event()).any(|event| is_back(&event)) {
        engine.poll(Some(Duration::from_millis(100)), &mut Vec::new()).expect("the system lets us");
        assert!(!engine.is_over());
    }
    drop(engine);
    server.join().expect("each login is as it should be");
}

fn attach(broken: u8) -> anyhow::Result<Attached> {
    Attached::start(&format!("iscsi://{}/{NAME}/0", serve(broken)), &[])
}

#[test]
fn a_disk_is_attached_without_answers_that_nobody_needs() {
    for broken in [MAINTENANCE_IN, MODE_SENSE_6] {
        let attached = attach(broken).unwrap_or_else(|error| panic!("{broken:02x}: {error}"));
        attached.detach().expect("nothing was written");
    }
    for broken in [INQUIRY, READ_CAPACITY_16] {
        assert!(attach(broken).is_err(), "{broken:02x}");
    }
}

#[test]
fn a_path_is_opened_by_a_unit_that_does_not_tell_its_port_groups() {
    let path = PathOptions::new(options(NAME, serve(MAINTENANCE_IN)), lun(0));
    let engine = multipath::Engine::connect(multipath::Options::new(vec![path]));
    let engine = engine.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(engine.paths()[0].state, PathState::Up);
}

const TEST_UNIT_READY: u8 = 0x00;
const READ_CAPACITY_10: u8 = 0x25;
const READ_16: u8 = 0x88;
const SYNCHRONIZE_CACHE_10: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The time in which a unit asks for more when it is asked several things at once.
const A_ROUND: Duration = Duration::from_millis(200);
/// ABORT TASK: the task does not exist (RFC 7143, 11.6.1).
const NO_TASK: u8 = 1;

/// How long a connection is served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Logout,
    /// Until a command has failed.
    Failure,
    /// Until it is read.
    Read,
}

/// One connection of a disk whose QERR is 01b: when a command ends with CHECK CONDITION, all others that came with it are aborted, and
/// nobody is told. The one that fails is carried out first.
struct Unforgiving {
    target: Script,
    has_attention: bool,
}

impl Unforgiving {
    /// The sense key and additional sense code of a command that fails.
    fn failure(&self, command: &ScsiCommand) -> Option<Sign> {
        match command.cdb[0] {
            TEST_UNIT_READY if self.has_attention => Some([6, 0x29, 0]),
            READ_CAPACITY_16 => Some([5, 0x20, 0]),
            _ => None,
        }
    }

    /// Serves it, as long as is asked for.
    fn serve(mut self, until: Until) {
        while let Some(pdu) = self.target.try_receive() {
            if matches!(pdu, InitiatorPdu::LogoutRequest(_)) {
                return;
            }
            let mut round = Vec::new();
            self.take(pdu, &mut round);
            let _ = self.target.stream.set_read_timeout(Some(A_ROUND));
            while let Some(pdu) = self.target.try_receive() {
                self.take(pdu, &mut round);
            }
            let _ = self.target.stream.set_read_timeout(None);
            if until == Until::Read && round.iter().any(|command| command.cdb[0] == READ_16) {
                return;
            }
            let failed = round.iter().find_map(|command| Some((command, self.failure(command)?)));
            match failed {
                Some((command, sense)) => {
                    self.fail(command, sense);
                    if until == Until::Failure {
                        return;
                    }
                }
                None => round.iter().for_each(|command| self.answer(command)),
            }
        }
    }

    fn numbers(&self, exp_cmd_sn: CmdSn) -> Numbers {
        Numbers { stat_sn: self.target.stat_sn, exp_cmd_sn, max_cmd_sn: CmdSn(exp_cmd_sn.0.wrapping_add(31)) }
    }

    fn take(&mut self, pdu: InitiatorPdu, round: &mut Vec<ScsiCommand>) {
        let reply = match pdu {
            InitiatorPdu::ScsiCommand(command) => return round.push(command),
            InitiatorPdu::TaskManagementRequest(request) => {
                TargetPdu::TaskManagementResponse(TaskManagementResponse {
                    response: NO_TASK,
                    initiator_task_tag: request.initiator_task_tag,
                    numbers: self.numbers(request.cmd_sn),
                    additional: [0; 3],
                })
            }
            InitiatorPdu::NopOut(nop) if nop.initiator_task_tag != InitiatorTaskTag::RESERVED => {
                TargetPdu::NopIn(NopIn {
                    lun: nop.lun,
                    initiator_task_tag: nop.initiator_task_tag,
                    target_transfer_tag: TargetTransferTag::RESERVED,
                    numbers: self.numbers(nop.cmd_sn),
                })
            }
            _ => return,
        };
        self.target.say(&reply, &[]);
        self.target.counts();
    }

    fn fail(&mut self, command: &ScsiCommand, sign: Sign) {
        self.has_attention &= command.cdb[0] != TEST_UNIT_READY;
        self.target.fail(command, sign);
    }

    fn answer(&mut self, command: &ScsiCommand) {
        let data = match command.cdb[0] {
            READ_CAPACITY_10 => vec![0, 0, 0, 63, 0, 0, 2, 0],
            READ_16 => vec![7; command.expected_data_transfer_length as usize],
            // None of them is broken.
            _ => answer(&command.cdb, u8::MAX).unwrap_or_default(),
        };
        self.target.succeed(command, data);
    }
}

/// Such a disk, whose connections are served for so long one after the other, and the others until their logout.
fn unforgiving(until: &'static [Until], has_attention: fn(usize) -> bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let serve = move || {
                let target = Script::log_in(stream);
                let until = until.get(at).copied().unwrap_or(Until::Logout);
                Unforgiving { target, has_attention: has_attention(at) }.serve(until);
            };
            std::thread::spawn(serve);
        }
    });
    address
}

/// Far less than a command may take, and enough for two rounds in which questions are lost.
const SOON: Duration = Duration::from_secs(30);

/// SPC-4: 0Ah Control: QERR.
#[test]
fn questions_that_the_failure_of_another_ended_are_asked_again() {
    let began = Instant::now();
    let url = || format!("iscsi://{}/{NAME}/0", unforgiving(&[], |_| true));
    let attached = Attached::start(&url(), &[]).expect("a disk");
    attached.detach().expect("nothing was written");
    let told = std::process::Command::new(binary()).args(["info", &url()]).output().expect("it runs");
    assert!(told.status.success(), "{told:?}");
    let path = PathOptions::new(options(NAME, unforgiving(&[], |_| true)), lun(0));
    let engine = multipath::Engine::connect(multipath::Options::new(vec![path]));
    let engine = engine.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(engine.paths()[0].state, PathState::Up);
    assert!(began.elapsed() < 3 * SOON, "{:?}", began.elapsed());
}

/// The same when a guarded unit is looked at in a new session.
#[test]
fn a_guarded_unit_that_aborts_questions_is_known_again() {
    let timing = Timing { recovery: 10 * SOON, ..Timing::default() };
    let options = Options { timing, ..options(NAME, unforgiving(&[Until::Read], |_| true)) };
    let mut engine = Engine::connect(options).expect("a session");
    make_ready(&mut engine, 0);
    let known = identity(&mut engine, 0);
    engine.guard(lun(0), known);
    let began = Instant::now();
    let id = engine.submit(read(0, 0, 1, 512));
    let ended = wait_for(&mut engine, id);
    assert!(ended.is_good() && ended.data() == [7; 512], "{:?}", ended.result);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(ended.attempts, 2);
}

/// The unit tells of its reset in a login that fails then, and not again in the next one.
#[test]
fn a_reset_that_was_told_to_a_login_that_failed_fails_the_next_flush() {
    let address = unforgiving(&[Until::Read, Until::Failure], |at| at == 1);
    let path = PathOptions::new(options(NAME, address), lun(0));
    let engine = multipath::Engine::connect(multipath::Options::new(vec![path]));
    let mut engine = engine.unwrap_or_else(|error| panic!("{error}"));
    let mut execute = |command: Command| {
        let mut done = Vec::new();
        let id = engine.submit(command);
        loop {
            engine.poll(Some(Duration::from_millis(100)), &mut done).expect("the system lets us");
            if let Some(at) = done.iter().position(|ended| ended.id == id) {
                return done.swap_remove(at).result;
            }
        }
    };
    assert!(execute(write(0, 0, 1, vec![1; 512])).is_ok());
    // It is answered in the third session.
    assert!(execute(read(0, 0, 1, 512)).is_ok());
    assert_eq!(execute(Command::new(lun(0), SYNCHRONIZE_CACHE_10)), Err(CommandError::ResetSinceFlush));
    assert!(execute(Command::new(lun(0), SYNCHRONIZE_CACHE_10)).is_ok(), "once");
}

/// Sets QERR of our target's unit. TAS, and the other bits, are as they were.
fn set_queue_error(target: &InProcess, bits: u8) {
    let mut engine = Engine::connect(options(target.name(), target.portal())).expect("a session");
    make_ready(&mut engine, 0);
    let list = vec![0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10 | bits << 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let select = Command::new(lun(0), [0x15, 0x10, 0, 0, 16, 0]).writing(list);
    let ended = execute(&mut engine, select);
    assert!(ended.is_good(), "{:?}", ended.result);
    engine.close().expect("a logout");
}

/// Our target with QERR 01b and 11b: its disks are opened as ever, with one connection and with several, and nothing has to be ended.
#[test]
fn disks_of_ours_that_abort_what_is_beside_a_failure_are_opened() {
    for bits in [1, 3] {
        let target = InProcess::start(&["mem:16M"]);
        set_queue_error(&target, bits);
        let url = |keys: &str| format!("iscsi://{}/{}/0{keys}", target.portal(), target.name());
        for keys in ["", "?connections=4"] {
            let attached = Attached::start(&url(keys), &[]).expect("a disk");
            attached.detach().expect("nothing was written");
            let run = std::process::Command::new(binary()).args(["info", &url(keys)]).output();
            let told = run.expect("it runs");
            assert!(told.status.success() && told.stderr.is_empty(), "{told:?}");
        }
        let path = PathOptions::new(options(target.name(), target.portal()), lun(0));
        let paths = multipath::Engine::connect(multipath::Options::new(vec![path]));
        let mut paths = paths.unwrap_or_else(|error| panic!("{error}"));
        let overdue = |event: &EngineEvent| matches!(event, EngineEvent::Overdue { .. });
        assert!(!std::iter::from_fn(|| paths.event()).any(|event| overdue(&event)));
    }
}
