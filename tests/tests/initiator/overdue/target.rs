//! A target that follows rules for what it answers, and tells what has come.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction, TaskManagementRequest};
use lunette_wire::target::{NopIn, Numbers, Reject, ScsiDataIn, ScsiResponse, TaskManagementResponse};
use lunette_wire::{CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, StatSn, TargetPdu, TargetTransferTag};

use super::super::hostile::Script;

/// What a target does with a function.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reply {
    Code(u8),
    Silence,
    Reject,
    /// The first so many are rejected for now (RFC 7143, 11.17.1), the others are answered with 0.
    LaterThan(u32),
}

/// What a target does with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    Swallowed,
    /// It is answered just before the ABORT TASK is.
    Late,
    /// It is answered, and no other is let in.
    Last,
    /// A read's data comes block by block, after a pause each; then that and what was late are answered.
    Slow(Duration),
}

#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// By the connection, from 0 on, and the command.
    pub(super) fate: fn(u32, &ScsiCommand) -> Fate,
    pub(super) abort: Reply,
    pub(super) reset: Reply,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Command(u8),
    Function(TaskManagementFunction),
}

/// Serves each connection by these rules.
pub(super) fn serve(rules: Rules) -> (SocketAddr, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (sender, seen) = channel();
    std::thread::spawn(move || {
        for (connection, stream) in (0..).zip(listener.incoming().map_while(Result::ok)) {
            let seen = sender.clone();
            // Each lives until its initiator closes it.
            std::thread::spawn(move || {
                let script = Script::log_in(stream);
                Target { script, rules, seen, late: None, managed: 0 }.run(connection);
            });
        }
    });
    (address, seen)
}

/// One connection of the target.
struct Target {
    script: Script,
    rules: Rules,
    seen: Sender<Seen>,
    late: Option<ScsiCommand>,
    /// Functions that have come.
    managed: u32,
}

impl Target {
    fn run(mut self, connection: u32) {
        while let Some(pdu) = self.script.try_receive() {
            match pdu {
                InitiatorPdu::ScsiCommand(command) => {
                    let _ = self.seen.send(Seen::Command(command.cdb[0]));
                    match (self.rules.fate)(connection, &command) {
                        Fate::Answered => self.answer(&command, 31),
                        Fate::Last => self.answer(&command, u32::MAX),
                        Fate::Late => self.late = Some(command),
                        Fate::Slow(pause) => self.answer_slowly(&command, pause),
                        Fate::Swallowed => {}
                    }
                }
                InitiatorPdu::TaskManagementRequest(request) => self.manage(&request),
                InitiatorPdu::NopOut(nop) if nop.initiator_task_tag != InitiatorTaskTag::RESERVED => {
                    let numbers = self.numbers(nop.cmd_sn);
                    self.script.say(
                        &TargetPdu::NopIn(NopIn {
                            lun: nop.lun,
                            initiator_task_tag: nop.initiator_task_tag,
                            target_transfer_tag: TargetTransferTag::RESERVED,
                            numbers,
                        }),
                        &[],
                    );
                    self.counts();
                }
                _ => {}
            }
        }
    }

    fn numbers(&self, exp_cmd_sn: CmdSn) -> Numbers {
        Numbers { stat_sn: self.script.stat_sn, exp_cmd_sn, max_cmd_sn: CmdSn(exp_cmd_sn.0.wrapping_add(31)) }
    }

    fn counts(&mut self) {
        self.script.stat_sn = StatSn(self.script.stat_sn.0.wrapping_add(1));
    }

    /// GOOD, with the window open for so many more.
    fn answer(&mut self, command: &ScsiCommand, room: u32) {
        let mut response = self.script.response(command);
        let exp_cmd_sn = response.numbers.exp_cmd_sn;
        response.numbers.max_cmd_sn = CmdSn(exp_cmd_sn.0.wrapping_add(room));
        response.exp_data_sn = DataSn(u32::from(command.read));
        if command.read {
            let mut data_in = self.script.data_in(command);
            data_in.numbers.max_cmd_sn = response.numbers.max_cmd_sn;
            let length = command.expected_data_transfer_length as usize;
            self.script.say(&TargetPdu::ScsiDataIn(data_in), &vec![7; length]);
        }
        self.script.say(&TargetPdu::ScsiResponse(response), &[]);
        self.counts();
    }

    fn answer_slowly(&mut self, command: &ScsiCommand, pause: Duration) {
        let blocks = command.expected_data_transfer_length / 512;
        for block in 0..blocks {
            std::thread::sleep(pause);
            let data_in = ScsiDataIn {
                data_sn: DataSn(block),
                buffer_offset: block * 512,
                is_final: block + 1 == blocks,
                ..self.script.data_in(command)
            };
            self.script.say(&TargetPdu::ScsiDataIn(data_in), &[7; 512]);
        }
        let exp_data_sn = DataSn(blocks);
        let response = ScsiResponse { exp_data_sn, ..self.script.response(command) };
        self.script.say(&TargetPdu::ScsiResponse(response), &[]);
        self.counts();
        if let Some(command) = self.late.take() {
            self.answer(&command, 31);
        }
    }

    fn manage(&mut self, request: &TaskManagementRequest) {
        let _ = self.seen.send(Seen::Function(request.function));
        if let Some(command) = self.late.take() {
            self.answer(&command, 31);
        }
        let is_abort = request.function == TaskManagementFunction::AbortTask;
        let numbers = self.numbers(request.cmd_sn);
        self.managed += 1;
        let reply = match if is_abort { self.rules.abort } else { self.rules.reset } {
            Reply::LaterThan(count) if self.managed > count => Reply::Code(0),
            reply => reply,
        };
        match reply {
            Reply::Silence => return,
            Reply::Code(response) => {
                let initiator_task_tag = request.initiator_task_tag;
                let additional = [0; 3];
                self.script.say(
                    &TargetPdu::TaskManagementResponse(TaskManagementResponse {
                        response,
                        initiator_task_tag,
                        numbers,
                        additional,
                    }),
                    &[],
                );
            }
            Reply::Reject | Reply::LaterThan(_) => {
                let reason = if matches!(reply, Reply::Reject) { 5 } else { 6 };
                let reject = Reject { reason, numbers, data_sn: DataSn(0) };
                self.script.say(&TargetPdu::Reject(reject), &request.encode());
            }
        }
        self.counts();
    }
}
