//! Targets that answer wrong: what they say is an error, never data.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use lunette_initiator::{CommandError, DigestWish, Engine, EngineEvent, Options, Timing, Wishes};
use lunette_iscsi::chap::{ChapNonce, ChapPolicy};
use lunette_iscsi::login::{Login, LoginStep, LookupFailure, TargetDirectory, TargetEntry};
use lunette_iscsi::parameters::{ConnectionParameters, TargetLimits};
use lunette_wire::frame::{Frame, assemble};
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction};
use lunette_wire::target::{Numbers, Residual, ScsiDataIn, ScsiResponse};
use lunette_wire::{
    BHS_LENGTH, Bhs, Cid, CmdSn, DataSn, InitiatorPdu, StatSn, TargetPdu, TargetTransferTag, Tsih,
};

use lunette_tests::engine::{options, pattern, read, wait_for_all, write};

pub(super) const NAME: &str = "iqn.2026-11.io.lunette:hostile";

/// SENSE KEY, ADDITIONAL SENSE CODE and its qualifier.
pub(super) type Sign = [u8; 3];

pub(super) const INQUIRY_DATA_CHANGED: Sign = [6, 0x3f, 0x03];
pub(super) const REPORTED_LUNS_CHANGED: Sign = [6, 0x3f, 0x0e];
pub(super) const NOT_SUPPORTED: Sign = [5, 0x25, 0x00];

/// Sense data behind its length, as in a response and in an Asynchronous Message.
pub(super) fn sense_data([key, code, qualifier]: Sign) -> [u8; 20] {
    [0, 18, 0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0]
}

struct Everybody;

impl TargetDirectory for Everybody {
    fn find(&self, _: &str, _: &str) -> Result<TargetEntry, LookupFailure> {
        Ok(TargetEntry { portal_group_tag: 1, alias: None, moved: None })
    }

    fn authentication(&self, _: Option<&str>) -> Option<Arc<ChapPolicy>> {
        None
    }
}

/// One connection of a target that logs everybody in, and then does what a test says.
pub(super) struct Script {
    pub(super) stream: TcpStream,
    pub(super) parameters: ConnectionParameters,
    pub(super) stat_sn: StatSn,
    /// The session and the connection that its login asked for.
    asked: (Tsih, Cid),
}

impl Script {
    pub(super) fn log_in(stream: TcpStream) -> Self {
        Self::log_in_within(stream, TargetLimits::default())
    }

    pub(super) fn log_in_within(mut stream: TcpStream, limits: TargetLimits) -> Self {
        let mut login = Login::new(limits, 1, ChapNonce::from([7; 33]));
        loop {
            let (bhs, data) = receive(&mut stream, ConnectionParameters::default());
            let Ok(InitiatorPdu::LoginRequest(request)) = InitiatorPdu::decode(&bhs) else {
                panic!("{bhs:?}")
            };
            let reply = match login.step(&request, &data, &Everybody) {
                LoginStep::Respond(reply) => reply,
                LoginStep::Ready(outcome) => {
                    let reply = outcome.accept(Tsih(1), outcome.numbers);
                    let (parameters, stat_sn) = (outcome.connection, outcome.next_stat_sn);
                    send(
                        &mut stream,
                        &reply.pdu.encode(reply.text.len()),
                        &reply.text,
                        ConnectionParameters::default(),
                    );
                    return Self { stream, parameters, stat_sn, asked: (request.tsih, request.cid) };
                }
                other => panic!("{other:?}"),
            };
            send(
                &mut stream,
                &reply.pdu.encode(reply.text.len()),
                &reply.text,
                ConnectionParameters::default(),
            );
        }
    }

    /// Waits for the next PDU.
    pub(super) fn receive(&mut self) -> InitiatorPdu {
        let (bhs, _) = receive(&mut self.stream, self.parameters);
        InitiatorPdu::decode(&bhs).expect("a good PDU")
    }

    /// The same; none when the initiator has closed the connection.
    pub(super) fn try_receive(&mut self) -> Option<InitiatorPdu> {
        let is_there = self.stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
        is_there.then(|| self.receive())
    }

    /// Waits for the next command.
    pub(super) fn command(&mut self) -> ScsiCommand {
        loop {
            if let InitiatorPdu::ScsiCommand(command) = self.receive() {
                return command;
            }
        }
    }

    pub(super) fn numbers(&self, command: &ScsiCommand) -> Numbers {
        let exp_cmd_sn = command.cmd_sn.next();
        Numbers { stat_sn: self.stat_sn, exp_cmd_sn, max_cmd_sn: CmdSn(exp_cmd_sn.0.wrapping_add(31)) }
    }

    /// A Data-In that a right target would send for this command, without status.
    pub(super) fn data_in(&self, command: &ScsiCommand) -> ScsiDataIn {
        ScsiDataIn {
            is_final: true,
            initiator_task_tag: command.initiator_task_tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            numbers: Numbers { stat_sn: StatSn(0), ..self.numbers(command) },
            ..ScsiDataIn::default()
        }
    }

    pub(super) fn response(&self, command: &ScsiCommand) -> ScsiResponse {
        ScsiResponse {
            initiator_task_tag: command.initiator_task_tag,
            numbers: self.numbers(command),
            exp_data_sn: DataSn(1),
            ..ScsiResponse::default()
        }
    }

    /// Ends a command with CHECK CONDITION.
    pub(super) fn fail(&mut self, command: &ScsiCommand, sign: Sign) {
        const CHECK_CONDITION: u8 = 2;
        let residual = match command.expected_data_transfer_length {
            0 => Residual::None,
            length => Residual::Underflow(length),
        };
        let (status, exp_data_sn) = (CHECK_CONDITION, DataSn(0));
        let response = ScsiResponse { status, residual, exp_data_sn, ..self.response(command) };
        self.say(&TargetPdu::ScsiResponse(response), &sense_data(sign));
        self.counts();
    }

    /// Ends a command with GOOD; one that reads with this data, of which it gets no more than it wants.
    pub(super) fn succeed(&mut self, command: &ScsiCommand, mut data: Vec<u8>) {
        let wanted = if command.read { command.expected_data_transfer_length } else { 0 };
        data.truncate(wanted as usize);
        if !data.is_empty() {
            self.say(&TargetPdu::ScsiDataIn(self.data_in(command)), &data);
        }
        let residual = match wanted - data.len() as u32 {
            0 => Residual::None,
            missing => Residual::Underflow(missing),
        };
        let exp_data_sn = DataSn((!data.is_empty()).into());
        let response = ScsiResponse { residual, exp_data_sn, ..self.response(command) };
        self.say(&TargetPdu::ScsiResponse(response), &[]);
        self.counts();
    }

    /// What was said last has a number of its own.
    pub(super) fn counts(&mut self) {
        self.stat_sn = StatSn(self.stat_sn.0.wrapping_add(1));
    }

    pub(super) fn say(&mut self, pdu: &TargetPdu, data: &[u8]) {
        send(&mut self.stream, &pdu.encode(data.len()), data, self.parameters);
    }
}

pub(super) fn send(stream: &mut TcpStream, bhs: &Bhs, data: &[u8], parameters: ConnectionParameters) {
    // The initiator may have closed the connection, which is what tests want to see.
    let _ = stream.write_all(&assemble(bhs, data, parameters.digests));
}

pub(super) fn receive(stream: &mut TcpStream, parameters: ConnectionParameters) -> (Bhs, Vec<u8>) {
    let mut bhs = [0; BHS_LENGTH];
    stream.read_exact(&mut bhs).expect("a PDU");
    let frame = Frame::of(&bhs, parameters.digests, 1 << 20, 0).expect("a good frame");
    let mut rest = vec![0; frame.total_length() - BHS_LENGTH];
    stream.read_exact(&mut rest).expect("the rest of it");
    (bhs, rest[frame.header_digest_length..][..frame.data_length].to_vec())
}

/// Serves one connection with a script.
fn serve(script: impl FnOnce(Script) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        script(Script::log_in(stream));
    });
    address
}

/// What becomes of a read of four blocks, and of the session.
fn outcome(
    wishes: Wishes,
    script: impl FnOnce(&mut Script, &ScsiCommand) + Send + 'static,
) -> (Result<Vec<u8>, CommandError>, Vec<EngineEvent>) {
    let address = serve(move |mut target| {
        let command = target.command();
        script(&mut target, &command);
        // What comes until the end is of no interest.
        let _ = target.stream.read_to_end(&mut Vec::new());
    });
    let timing = Timing { recovery: Duration::ZERO, nop_interval: None, ..Timing::default() };
    let mut engine =
        Engine::connect(Options { wishes, timing, ..options(NAME, address) }).expect("a session");
    let mut done = Vec::new();
    engine.submit(read(0, 0, 4, 512));
    while done.is_empty() {
        engine.poll(None, &mut done).expect("the system lets us");
    }
    let events = std::iter::from_fn(|| engine.event()).collect();
    let completion = done.remove(0);
    (completion.result.clone().map(|_| completion.data().to_vec()), events)
}

fn plain(
    script: impl FnOnce(&mut Script, &ScsiCommand) + Send + 'static,
) -> (Result<Vec<u8>, CommandError>, Vec<EngineEvent>) {
    outcome(Wishes::default(), script)
}

#[test]
fn a_right_answer_is_data() {
    let (result, _) = plain(|target, command| {
        target.say(&TargetPdu::ScsiDataIn(target.data_in(command)), &[7; 2048]);
        target.say(&TargetPdu::ScsiResponse(target.response(command)), &[]);
    });
    assert_eq!(result, Ok(vec![7; 2048]));
}

#[test]
fn a_short_read_that_is_not_told_is_an_error() {
    let (result, _) = plain(|target, command| {
        target.say(&TargetPdu::ScsiDataIn(target.data_in(command)), &[7; 1024]);
        target.say(&TargetPdu::ScsiResponse(target.response(command)), &[]);
    });
    let error = result.expect_err("half of it is missing");
    assert!(matches!(error, CommandError::Faulty { status: 0, .. }), "{error}");
    assert!(error.to_string().contains("cannot be trusted") && error.to_string().contains("1024"), "{error}");
}

#[test]
fn a_residual_count_that_is_not_true_is_an_error() {
    for residual in [Residual::Underflow(512), Residual::Underflow(4096)] {
        let (result, _) = plain(move |target, command| {
            target.say(&TargetPdu::ScsiDataIn(target.data_in(command)), &[7; 2048]);
            let response = ScsiResponse { residual, ..target.response(command) };
            target.say(&TargetPdu::ScsiResponse(response), &[]);
        });
        let error = result.expect_err("all of it came");
        assert!(matches!(error, CommandError::Faulty { .. }), "{error}");
    }
}

#[test]
fn a_short_read_that_is_told_is_short() {
    let (result, _) = plain(|target, command| {
        target.say(&TargetPdu::ScsiDataIn(target.data_in(command)), &[7; 512]);
        let response = ScsiResponse { residual: Residual::Underflow(1536), ..target.response(command) };
        target.say(&TargetPdu::ScsiResponse(response), &[]);
    });
    assert_eq!(result, Ok(vec![7; 512]));
}

/// The session ends, and says why.
fn lost(result: (Result<Vec<u8>, CommandError>, Vec<EngineEvent>), word: &str) {
    let (result, events) = result;
    let Err(CommandError::Unknown(reason)) = &result else { panic!("{result:?}") };
    assert!(reason.contains(word), "{reason}");
    assert!(
        events.iter().any(|event| matches!(event, EngineEvent::Over { reason } if reason.contains(word)))
    );
}

#[test]
fn data_beyond_the_buffer_ends_the_session() {
    let beyond = plain(|target, command| {
        let data_in = ScsiDataIn { buffer_offset: 1024, ..target.data_in(command) };
        target.say(&TargetPdu::ScsiDataIn(data_in), &[7; 2048]);
    });
    lost(beyond, "Data-In");
    let long = plain(|target, command| {
        target.say(&TargetPdu::ScsiDataIn(target.data_in(command)), &[7; 4096]);
    });
    lost(long, "beyond the end");
}

#[test]
fn digests_that_do_not_fit_are_errors() {
    let wishes = Wishes {
        header_digest: DigestWish::Required,
        data_digest: DigestWish::Required,
        ..Wishes::default()
    };
    let of_data = outcome(wishes.clone(), |target, command| {
        let bhs = TargetPdu::ScsiDataIn(target.data_in(command)).encode(2048);
        let mut bytes = assemble(&bhs, &[7; 2048], target.parameters.digests);
        bytes[100] ^= 1;
        let _ = target.stream.write_all(&bytes);
        target.say(&TargetPdu::ScsiResponse(target.response(command)), &[]);
    });
    let error = of_data.0.expect_err("a bit is wrong");
    assert!(error.to_string().contains("digest"), "{error}");
    let of_header = outcome(wishes, |target, command| {
        let bhs = TargetPdu::ScsiDataIn(target.data_in(command)).encode(2048);
        let mut bytes = assemble(&bhs, &[7; 2048], target.parameters.digests);
        bytes[17] ^= 1;
        let _ = target.stream.write_all(&bytes);
    });
    lost(of_header, "header digest");
}

#[test]
fn a_segment_that_is_longer_than_was_declared_is_not_received() {
    let wishes = Wishes { max_recv_data_segment_length: 512, ..Wishes::default() };
    let long = outcome(wishes, |target, command| {
        target.say(&TargetPdu::ScsiDataIn(target.data_in(command)), &[7; 2048]);
    });
    lost(long, "PDU");
}

#[test]
fn noise_and_the_end_of_a_connection_are_told_apart() {
    let noise = plain(|target, _| {
        let _ = target.stream.write_all(&[0xff; 480]);
    });
    lost(noise, "PDU");
    let end = plain(|target, _| {
        let _ = target.stream.shutdown(std::net::Shutdown::Both);
    });
    lost(end, "closed the connection");
}

/// Breaks the first connection under a command, and takes the next one, which must not begin before the first has ended.
fn log_in_twice(listener: &TcpListener, limits: TargetLimits, break_off: fn(&mut TcpStream)) -> Script {
    let mut first = Script::log_in_within(listener.accept().expect("a connection").0, limits);
    first.command();
    break_off(&mut first.stream);
    let second = Script::log_in_within(listener.accept().expect("another").0, limits);
    // All that is left of the first is its end, which has come already.
    first.stream.set_nonblocking(true).expect("a socket");
    match first.stream.read(&mut [0; 480]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
    second
}

/// RFC 7143, 6.3.4: at ErrorRecoveryLevel 2 the same connection of the same session comes back, after its end.
#[test]
fn a_connection_has_ended_before_it_is_reinstated() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let target = std::thread::spawn(move || {
        let limits =
            TargetLimits { error_recovery_level: 2, default_time2retain_s: 600, ..TargetLimits::default() };
        let half_close = |stream: &mut TcpStream| stream.shutdown(Shutdown::Write).expect("it is there");
        let mut second = log_in_twice(&listener, limits, half_close);
        let next = second.receive();
        let is_reassign = matches!(&next, InitiatorPdu::TaskManagementRequest(request)
            if request.function == TaskManagementFunction::TaskReassign);
        assert!(is_reassign, "{next:?}");
        second.asked
    });
    let wishes = Wishes { error_recovery_level: 2, ..Wishes::default() };
    let timing = Timing { recovery: Duration::from_secs(600), nop_interval: None, ..Timing::default() };
    let mut engine =
        Engine::connect(Options { wishes, timing, ..options(NAME, address) }).expect("a session");
    engine.submit(read(0, 0, 4, 512));
    while !target.is_finished() {
        engine.poll(Some(Duration::from_millis(5)), &mut Vec::new()).expect("the system lets us");
    }
    assert_eq!(target.join().expect("a target"), (Tsih(1), Cid(0)), "its session, and itself");
}

/// What the system still has of a connection that failed would be sent as long as it takes, behind what goes on elsewhere. At
/// ErrorRecoveryLevel 2 its tasks go on over another one.
#[test]
fn a_connection_that_has_failed_sends_nothing_more() {
    for error_recovery_level in [0, 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let target = std::thread::spawn(move || {
            let limits = TargetLimits { error_recovery_level, ..TargetLimits::default() };
            let mut target = Script::log_in_within(listener.accept().expect("a connection").0, limits);
            target.command();
            target.stream.shutdown(Shutdown::Write).expect("it is there");
            target.stream.read_to_end(&mut Vec::new())
        });
        let wishes = Wishes { error_recovery_level, ..Wishes::default() };
        let timing = Timing { recovery: Duration::from_secs(600), nop_interval: None, ..Timing::default() };
        let mut engine =
            Engine::connect(Options { wishes, timing, ..options(NAME, address) }).expect("a session");
        engine.submit(write(0, 0, 8, pattern(0, 4096)));
        while !target.is_finished() {
            engine.poll(Some(Duration::from_millis(5)), &mut Vec::new()).expect("the system lets us");
        }
        let end = target.join().expect("a target");
        let is_reset = end.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(is_reset, "{error_recovery_level}: {end:?}");
    }
}

/// RFC 7143, 6.3.5: the old session's connection is closed before the next login begins, which has a connection of its own (4.2.4).
#[test]
fn a_session_is_left_before_the_next_one_begins() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let target = std::thread::spawn(move || {
        let noise = |stream: &mut TcpStream| stream.write_all(&[0xff; 480]).expect("the initiator reads");
        let mut second = log_in_twice(&listener, TargetLimits::default(), noise);
        let command = second.command();
        second.say(&TargetPdu::ScsiDataIn(second.data_in(&command)), &[7; 2048]);
        second.say(&TargetPdu::ScsiResponse(second.response(&command)), &[]);
        let _ = second.stream.read_to_end(&mut Vec::new());
    });
    let timing = Timing { recovery: Duration::from_secs(600), nop_interval: None, ..Timing::default() };
    let mut engine = Engine::connect(Options { timing, ..options(NAME, address) }).expect("a session");
    let read = engine.submit(read(0, 0, 4, 512));
    let all = wait_for_all(&mut engine);
    assert!(all[&read].is_good() && all[&read].attempts == 2, "{:?}", all[&read].result);
    drop(engine);
    target.join().expect("a target");
}
