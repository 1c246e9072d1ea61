//! An initiator's session in full feature phase: a hostile target's PDUs, with small tags and numbers near those that are
//! expected, on connections that come and go, mixed with what a driver does, in any order.
//!
//! Checked: data is placed within its command's buffer and sent from within it, no PDU is longer than the target takes or
//! meant for a connection that has gone, each task ends once, and all have ended when the session is over.

use std::collections::HashMap;
use std::time::Duration;

use lunette_iscsi::initiator::session::{
    Command, ConnectionId, End, Event, Function, LoggedIn, Logout, Loss, Outbox, Payload, Place, Segment,
    Session, Settings, TaskHandle,
};
use lunette_iscsi::parameters::{ConnectionParameters, SessionParameters, TaskReporting};
use lunette_wire::{BHS_LENGTH, Bhs, Cid, CmdSn, LunField, StatSn, TargetPdu};

use super::Input;

const FIRST: CmdSn = CmdSn(0xffff_fffc);
const FIRST_STATUS: StatSn = StatSn(0xffff_fff8);
const SEGMENT: u32 = 512;
const TASKS_MAX: usize = 16;
/// A target that goes on without end would be a slow test, not a fault.
const TRANSMITTED_MAX: usize = 1 << 16;

struct Driver {
    session: Session,
    outbox: Outbox,
    now: Duration,
    level: u8,
    /// Read and write lengths of what has not ended.
    tasks: HashMap<TaskHandle, (u32, u32)>,
    open: Vec<ConnectionId>,
    over: bool,
}

/// Plays one session.
///
/// # Panics
/// A property does not hold.
pub fn initiator(data: &[u8]) {
    let mut input = Input(data);
    let (flags, more) = (input.byte(), input.byte());
    let parameters = SessionParameters {
        initial_r2t: flags & 1 != 0,
        immediate_data: flags & 2 != 0,
        data_pdu_in_order: flags & 4 != 0,
        data_sequence_in_order: flags & 8 != 0,
        error_recovery_level: (flags >> 4 & 3).min(2),
        max_outstanding_r2t: 1 + u16::from(flags >> 6),
        max_burst_length: 4096,
        first_burst_length: 1024,
        max_connections: 3,
        default_time2wait_s: 0,
        default_time2retain_s: 5,
        task_reporting: if more & 1 != 0 { TaskReporting::FastAbort } else { TaskReporting::Rfc3720 },
        protocol_level: 1 + (more >> 1 & 1),
    };
    let settings = Settings { tasks_max: TASKS_MAX, text_length_max: 4096, ..Settings::default() };
    let mut driver = Driver {
        session: Session::new(parameters, FIRST, settings),
        outbox: Outbox::default(),
        now: Duration::from_secs(1),
        level: parameters.error_recovery_level,
        tasks: HashMap::new(),
        open: Vec::new(),
        over: false,
    };
    driver.connect(Cid(0));
    while !input.is_empty() {
        driver.step(&mut input);
        driver.look();
    }
    driver.finish();
}

impl Driver {
    fn connect(&mut self, cid: Cid) {
        let parameters = ConnectionParameters {
            max_send_data_segment_length: SEGMENT,
            max_recv_data_segment_length: 1024,
            ..ConnectionParameters::default()
        };
        let (exp_cmd_sn, max_cmd_sn) = (FIRST, FIRST.plus(7));
        let login = LoggedIn { cid, parameters, exp_stat_sn: FIRST_STATUS, exp_cmd_sn, max_cmd_sn };
        if let Ok(id) = self.session.add_connection(self.now, &login) {
            self.open.push(id);
        }
    }

    fn pick(&self, input: &mut Input<'_>) -> Option<ConnectionId> {
        let which = usize::from(input.byte());
        self.open.get(which % self.open.len().max(1)).copied()
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        match choice & 15 {
            0..=6 => self.receive(input),
            7 | 8 => self.transmit(input),
            9 | 10 => self.submit(input),
            11 => {
                self.now += Duration::from_millis(u64::from(input.byte()) * 50);
                self.session.tick(self.now, &mut self.outbox);
                if let Some(deadline) = self.session.next_deadline() {
                    assert!(!self.over && deadline < self.now + Duration::from_secs(3600));
                }
            }
            12 => self.abort(input),
            13 => self.manage(input),
            14 => {
                if let Some(id) = self.pick(input) {
                    self.open.retain(|of| *of != id);
                    self.session.connection_lost(id, Loss::Transport, &mut self.outbox);
                }
            }
            _ => self.ask(choice >> 4, input),
        }
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let (kind, length) = (input.byte(), u32::from(input.byte()) * 32);
        let (read_length, write_length) = if kind & 1 == 0 { (length, 0) } else { (0, length) };
        let cdb = [kind; 40];
        let lun = LunField([0, kind >> 6, 0, 0, 0, 0, 0, 0]);
        let cdb = &cdb[..1 + usize::from(kind >> 1 & 31)];
        let command = Command { lun, cdb, read_length, write_length, ..Command::default() };
        if let Ok(task) = self.session.submit(&command) {
            assert!(task.place() < TASKS_MAX);
            assert!(self.tasks.insert(task, (read_length, write_length)).is_none(), "a tag is used twice");
        }
    }

    fn abort(&mut self, input: &mut Input<'_>) {
        let which = usize::from(input.byte());
        let mut tasks: Vec<_> = self.tasks.keys().copied().collect();
        tasks.sort_by_key(|task| task.initiator_task_tag().0);
        if let Some(&task) = tasks.get(which % tasks.len().max(1)) {
            let _ = self.session.abort(self.now, task, &mut self.outbox);
        }
    }

    fn manage(&mut self, input: &mut Input<'_>) {
        let (kind, unit) = (input.byte(), input.byte());
        let lun = LunField([0, unit & 3, 0, 0, 0, 0, 0, 0]);
        let function = match kind & 7 {
            0 => Function::AbortTaskSet(lun),
            1 => Function::ClearTaskSet(lun),
            2 => Function::LogicalUnitReset(lun),
            3 => Function::TargetWarmReset,
            4 => Function::ItNexusReset,
            _ => Function::QueryTaskSet(lun),
        };
        let _ = self.session.manage(self.now, function, &mut self.outbox);
    }

    fn ask(&mut self, what: u8, input: &mut Input<'_>) {
        let id = self.pick(input);
        match (what, id) {
            (0..=3, Some(id)) => {
                let _ = self.session.nop(self.now, id, &[what; 9]);
            }
            (4..=6, Some(id)) => {
                let _ = self.session.text(self.now, id, b"SendTargets=All\0");
            }
            (7, Some(id)) => {
                let _ = self.session.logout(self.now, Logout::Connection(id), &mut self.outbox);
            }
            (8, _) if input.byte() == 0 => {
                let _ = self.session.logout(self.now, Logout::Session, &mut self.outbox);
            }
            (9, Some(id)) => self.session.retire(id),
            (10..=12, _) => {
                let lost = self.session.lost_connections().next();
                self.connect(lost.map_or_else(|| self.session.free_cid(), |(cid, _)| cid));
            }
            _ => {}
        }
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.pick(input) else { return };
        let (bhs, is_intact) = header(input);
        let Ok(pdu) = TargetPdu::decode(&bhs) else {
            return self.session.undecodable(id, &mut self.outbox);
        };
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) % 1025;
        let bytes = match self.session.place(id, &pdu, length) {
            Place::Task { task, offset } => {
                let (read_length, _) = self.tasks[&task];
                assert!(u64::from(offset) + u64::from(length) <= u64::from(read_length));
                &[][..]
            }
            Place::Core => input.bytes(length as usize),
            Place::Discard => &[],
        };
        let length = if bytes.is_empty() { length } else { bytes.len() as u32 };
        let segment = Segment { length, bytes, is_intact };
        self.session.received(self.now, id, &pdu, &segment, &mut self.outbox);
    }

    fn transmit(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.pick(input) else { return };
        let budget = usize::from(input.byte()) * 64;
        self.session.transmit(self.now, id, budget, &mut self.outbox);
        let sent: usize = self.outbox.pdus.iter().map(|pdu| pdu.bhs.len()).sum();
        assert!(sent <= budget + BHS_LENGTH && sent <= TRANSMITTED_MAX);
    }

    fn look(&mut self) {
        for pdu in self.outbox.pdus.drain(..) {
            assert!(self.open.contains(&pdu.connection), "a PDU for a connection that has gone");
            let carried = match &pdu.payload {
                Payload::None => 0,
                Payload::Bytes(bytes) => bytes.len() as u32,
                Payload::Data(range) => {
                    let (_, write_length) = self.tasks[&range.task];
                    assert!(u64::from(range.offset) + u64::from(range.length) <= u64::from(write_length));
                    range.length
                }
            };
            assert!(carried <= SEGMENT, "a PDU longer than the target takes");
            assert_eq!(carried, u32::from_be_bytes([0, pdu.bhs[5], pdu.bhs[6], pdu.bhs[7]]));
            assert_eq!(usize::from(pdu.bhs[4]) * 4, pdu.ahs.len());
        }
        for event in std::mem::take(&mut self.outbox.events) {
            match event {
                Event::Ended { task, end } => {
                    let (read_length, _) = self.tasks.remove(&task).expect("a task ends once");
                    if let End::Answered(answer) = end {
                        assert!(answer.received <= read_length);
                    }
                }
                Event::LoggedOut { connection } | Event::ConnectionFailed { connection, .. } => {
                    self.open.retain(|of| *of != connection);
                }
                Event::SessionEnded | Event::SessionLost { .. } => {
                    assert!(!self.over, "a session ends once");
                    self.over = true;
                    self.open.clear();
                }
                _ => {}
            }
        }
        assert_eq!(self.session.open_tasks(), self.tasks.len());
        assert!(!self.over || self.tasks.is_empty(), "a task outlives its session");
        assert_eq!(self.over, self.session.is_over());
    }

    fn finish(mut self) {
        for id in std::mem::take(&mut self.open) {
            self.session.connection_lost(id, Loss::Transport, &mut self.outbox);
            self.look();
        }
        // Only level 2 keeps tasks without a connection, and not for long.
        assert!(self.over || self.level == 2);
        for _ in 0..2 {
            self.session.tick(self.now, &mut self.outbox);
            self.look();
            self.now += Duration::from_secs(3600);
        }
        assert!(self.over, "a session without a connection does not end");
        assert_eq!(self.session.next_deadline(), None);
    }
}

/// A header with a defined opcode, small tags and numbers near those that are expected; the rest as the input has it. And
/// whether its data is intact.
fn header(input: &mut Input<'_>) -> (Bhs, bool) {
    const OPCODES: [u8; 16] =
        [0x25, 0x25, 0x25, 0x21, 0x21, 0x31, 0x31, 0x20, 0x22, 0x22, 0x24, 0x26, 0x32, 0x3f, 0x25, 0x21];
    let mut bhs = [0; BHS_LENGTH];
    let shape = input.byte();
    if shape == 0xff {
        return (input.array(), true);
    }
    let opcode = OPCODES[usize::from(shape & 15)];
    bhs[0] = opcode;
    bhs[1] = input.byte();
    let small = input.byte();
    bhs[2] = if small & 0xe0 == 0xe0 { small & 7 } else { 0 };
    bhs[3] = if small & 0x1c == 0x1c { 2 } else { 0 };
    bhs[6..8].copy_from_slice(&input.array::<2>());
    bhs[9] = small & 3;
    // A place, how often it was used, and which of the two tables.
    let tag = input.byte();
    let is_request = matches!(opcode, 0x20 | 0x22 | 0x24 | 0x26);
    bhs[16..20].copy_from_slice(&[u8::from(is_request) << 7, tag >> 4 & 1, 0, tag & 15]);
    if tag == 0xff {
        bhs[16..20].copy_from_slice(&[0xff; 4]);
    }
    let transfer_tag = if shape & 16 == 0 { [0xff; 4] } else { [0, 0, 0, input.byte()] };
    bhs[20..24].copy_from_slice(&transfer_tag);
    let numbers = input.byte();
    bhs[24..28].copy_from_slice(&FIRST_STATUS.plus(u32::from(input.byte()) & 31).0.to_be_bytes());
    bhs[28..32].copy_from_slice(&FIRST.plus(u32::from(numbers) & 15).0.to_be_bytes());
    bhs[32..36].copy_from_slice(&FIRST.plus(7 + (u32::from(numbers) >> 4)).0.to_be_bytes());
    match opcode {
        0x32 => {
            bhs[36] = input.byte() & 7;
            bhs[39] = input.byte() & 3;
        }
        _ => bhs[39] = input.byte() & 15,
    }
    bhs[42..44].copy_from_slice(&input.array::<2>());
    bhs[46..48].copy_from_slice(&input.array::<2>());
    (bhs, shape & 32 == 0)
}
