//! A session against a peer that says exactly what each test has it say.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::{LogoutResponse, NopIn, Numbers, ReadyToTransfer, Reject, ScsiResponse};
use lunette_wire::{BHS_LENGTH, CmdSn, DataSn, InitiatorPdu, StatSn};

use super::*;
use crate::link::{Capacity, ExpStatSn};
use crate::load::plan::{Order, Pattern};

const FIRST_STAT_SN: u32 = 5;

/// What the sessions of these tests agree on: nothing goes unasked.
const ASKED_ONLY: Agreed = Agreed {
    immediate_data: false,
    initial_r2t: true,
    first_burst_bytes: 65536,
    segment_max_bytes: 2048,
    max_connections: 1,
};

const PLAIN: Habits = Habits { depth: 1, burst: false, flush_every: 0 };

/// A connection in full feature phase and its peer; the window is 8 wide.
fn link() -> (Link, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Blocking, so that a turn takes in what was sent before it.
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    for socket in [&stream, &peer] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    let window = Window { max_cmd_sn: CmdSn(8), ..Window::new(CmdSn(1)) };
    let exp_stat_sn = ExpStatSn(StatSn(FIRST_STAT_SN));
    (Link { stream, digests: Digests::default(), window, exp_stat_sn, began: Instant::now() }, peer)
}

/// A session and its peer: that of the leading connection, where there are several.
struct Pair {
    session: Session,
    shared: Shared,
    peer: TcpStream,
    stat_sn: u32,
}

impl Pair {
    fn new(read_percent: u8, agreed: Agreed, habits: Habits, quota: u64) -> Self {
        let (link, peer) = link();
        Self::of(vec![link], peer, read_percent, agreed, habits, quota)
    }

    /// Transfers of 4096 bytes.
    fn of(
        links: Vec<Link>,
        peer: TcpStream,
        read_percent: u8,
        agreed: Agreed,
        habits: Habits,
        quota: u64,
    ) -> Self {
        let mix = "4096".parse().unwrap();
        let pattern = Pattern { mix, order: Order::Sequential, read_percent, span_bytes: None, seed: 1 };
        let plan = Plan::new(&pattern, Capacity { blocks: 1024, block_bytes: 512 }, 0, 1).unwrap();
        let (now, window) = (Instant::now(), links[0].window);
        let mut session = Session::new(links, window, agreed, LunField::default(), plan, habits, quota);
        let shared = Shared {
            scratch: vec![0; 65536].into(),
            pattern: (0..4096_u32).map(|index| (index / 16) as u8).collect(),
            statistics: Statistics::new(),
            counted: now..now + Duration::from_secs(3600),
            discards: false,
        };
        session.start(&shared).unwrap();
        Self { session, shared, peer, stat_sn: FIRST_STAT_SN }
    }

    /// The next PDU of the session with so many bytes of data.
    fn sent(&mut self, data_bytes: usize) -> (InitiatorPdu, Vec<u8>) {
        let mut bhs = [0; BHS_LENGTH];
        self.peer.read_exact(&mut bhs).unwrap();
        let mut data = vec![0; data_bytes];
        self.peer.read_exact(&mut data).unwrap();
        let pdu = InitiatorPdu::decode(&bhs).unwrap();
        assert_eq!(pdu.encode(data_bytes), bhs, "another length than {data_bytes}");
        (pdu, data)
    }

    fn command(&mut self) -> ScsiCommand {
        match self.sent(0).0 {
            InitiatorPdu::ScsiCommand(command) => command,
            other => panic!("{other:?}"),
        }
    }

    fn nothing_was_sent(&self) -> bool {
        self.peer.set_nonblocking(true).unwrap();
        let nothing = self.peer.peek(&mut [0]).is_err();
        self.peer.set_nonblocking(false).unwrap();
        nothing
    }

    fn numbers(&mut self) -> Numbers {
        self.stat_sn += 1;
        Numbers { stat_sn: StatSn(self.stat_sn - 1), exp_cmd_sn: CmdSn(2), max_cmd_sn: CmdSn(9) }
    }

    /// Has the session take in a PDU of the peer.
    fn say(&mut self, bhs: &[u8], data_bytes: usize) -> Result<()> {
        self.peer.write_all(&[bhs, &vec![0; data_bytes]].concat()).unwrap();
        self.session.turn(0, &mut self.shared)
    }

    /// As [`Self::say`]: a Data-In with status, changed by `change`.
    fn data_in(&mut self, data_bytes: usize, change: impl FnOnce(&mut ScsiDataIn)) -> Result<()> {
        let mut pdu = ScsiDataIn {
            is_final: true,
            status: Some(GOOD),
            numbers: self.numbers(),
            initiator_task_tag: InitiatorTaskTag(0),
            ..ScsiDataIn::default()
        };
        change(&mut pdu);
        self.say(&pdu.encode(data_bytes), data_bytes)
    }

    /// As [`Self::say`]: a response to task `tag`.
    fn response(&mut self, tag: u32, status: u8) -> Result<()> {
        let initiator_task_tag = InitiatorTaskTag(tag);
        let numbers = self.numbers();
        let pdu = ScsiResponse { initiator_task_tag, status, numbers, ..ScsiResponse::default() };
        self.say(&pdu.encode(0), 0)
    }

    fn r2t(&mut self, buffer_offset: u32, desired_length: u32) -> Result<()> {
        let numbers = self.numbers();
        self.stat_sn -= 1;
        let pdu = ReadyToTransfer {
            initiator_task_tag: InitiatorTaskTag(0),
            target_transfer_tag: TargetTransferTag(77),
            numbers,
            buffer_offset,
            desired_length,
            ..ReadyToTransfer::default()
        };
        self.say(&pdu.encode(), 0)
    }
}

fn one_read() -> Pair {
    let mut pair = Pair::new(100, ASKED_ONLY, PLAIN, 1);
    let command = pair.command();
    assert!(command.read && command.cdb[0] == 0x88 && command.cdb[13] == 8);
    pair
}

#[test]
fn a_read_ends_with_all_of_its_data() {
    let mut pair = one_read();
    pair.data_in(2048, |pdu| (pdu.is_final, pdu.status) = (false, None)).unwrap();
    pair.stat_sn -= 1;
    assert!(!pair.session.is_done());
    pair.data_in(2048, |pdu| pdu.buffer_offset = 2048).unwrap();
    assert!(pair.session.is_done());
    assert_eq!((pair.session.counted, pair.shared.statistics.operations), (1, 1));
    assert_eq!(pair.shared.statistics.bytes, 4096);
}

#[test]
fn an_answer_that_says_something_else_is_an_error() {
    let fault = |data_bytes, change: fn(&mut ScsiDataIn)| {
        let error = one_read().data_in(data_bytes, change).unwrap_err();
        format!("{error:#}")
    };
    assert!(fault(2048, |_| ()).contains("ended after 2048 bytes"));
    assert!(fault(8192, |_| ()).contains("more data"));
    assert!(fault(4096, |pdu| pdu.buffer_offset = 512).contains("not due"));
    assert!(fault(4096, |pdu| pdu.residual = Residual::Underflow(1)).contains("Underflow"));
    assert!(fault(4096, |pdu| pdu.status = Some(4)).contains("status 0x04"));
    assert!(fault(4096, |pdu| pdu.numbers.stat_sn.0 += 1).contains("was due"));
    assert!(fault(4096, |pdu| pdu.initiator_task_tag.0 = 1).contains("does not exist"));
    let without_data = one_read().response(0, GOOD).unwrap_err();
    assert!(format!("{without_data:#}").contains("ended after 0 bytes"));
    assert!(one_read().response(9, GOOD).is_err(), "a tag that was never used");
    assert!(one_read().r2t(0, 4096).is_err(), "an R2T for a read");
    let mut twice = one_read();
    twice.data_in(4096, |_| ()).unwrap();
    assert!(twice.data_in(4096, |_| ()).is_err(), "a second answer");
    let mut rejected = one_read();
    let reject = Reject { numbers: rejected.numbers(), ..Reject::default() };
    assert!(rejected.say(&reject.encode(0), 0).is_err());
}

#[test]
fn a_busy_target_is_asked_again_and_counted() {
    for status in [BUSY, TASK_SET_FULL] {
        let mut pair = one_read();
        pair.response(0, status).unwrap();
        let again = pair.command();
        assert_eq!((again.cmd_sn, again.cdb[0]), (CmdSn(2), 0x88));
        pair.data_in(4096, |_| ()).unwrap();
        assert!(pair.session.is_done());
        assert_eq!((pair.shared.statistics.busy, pair.shared.statistics.operations), (1, 1));
    }
    let mut late = one_read();
    late.session.wind_down();
    late.response(0, BUSY).unwrap();
    assert!(late.session.is_done() && late.nothing_was_sent());
}

#[test]
fn a_ping_is_answered() {
    let mut pair = one_read();
    let ping = NopIn {
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TargetTransferTag(3),
        ..NopIn::default()
    };
    pair.say(&ping.encode(0), 0).unwrap();
    let InitiatorPdu::NopOut(pong) = pair.sent(0).0 else { panic!() };
    assert_eq!(pong.target_transfer_tag, TargetTransferTag(3));
    assert_eq!(pong.initiator_task_tag, InitiatorTaskTag::RESERVED);
}

fn one_write(agreed: Agreed) -> Pair {
    Pair::new(0, agreed, PLAIN, 1)
}

#[test]
fn data_goes_out_as_it_is_asked_for() {
    let mut pair = one_write(ASKED_ONLY);
    let command = pair.command();
    assert!(command.write && command.is_final && command.cdb[0] == 0x8a);
    pair.r2t(0, 4096).unwrap();
    for (index, is_final) in [(0, false), (1, true)] {
        let (InitiatorPdu::ScsiDataOut(pdu), data) = pair.sent(2048) else { panic!() };
        assert_eq!((pdu.buffer_offset, pdu.data_sn, pdu.is_final), (index * 2048, DataSn(index), is_final));
        assert_eq!(pdu.target_transfer_tag, TargetTransferTag(77));
        assert!(data == pair.shared.pattern[..2048]);
    }
    pair.response(0, GOOD).unwrap();
    assert!(pair.session.is_done());
}

#[test]
fn data_goes_out_unasked_as_far_as_was_agreed() {
    let agreed = |immediate_data, initial_r2t, first_burst_bytes| Agreed {
        immediate_data,
        initial_r2t,
        first_burst_bytes,
        segment_max_bytes: 2048,
        max_connections: 1,
    };
    // Agreed; immediate bytes, then unsolicited ones.
    for (agreed, immediate, unsolicited) in [
        (agreed(true, true, 65536), 2048, 0),
        (agreed(true, false, 65536), 2048, 2048),
        (agreed(false, false, 1024), 0, 1024),
        (agreed(true, false, 512), 512, 0),
    ] {
        let mut pair = one_write(agreed);
        let (InitiatorPdu::ScsiCommand(command), _) = pair.sent(immediate) else { panic!() };
        assert_eq!(command.is_final, unsolicited == 0);
        if unsolicited > 0 {
            let (InitiatorPdu::ScsiDataOut(pdu), _) = pair.sent(unsolicited) else { panic!() };
            assert_eq!(pdu.target_transfer_tag, TargetTransferTag::RESERVED);
            assert_eq!((pdu.buffer_offset as usize, pdu.is_final), (immediate, true));
        }
        assert!(pair.nothing_was_sent());
    }
}

#[test]
fn what_is_asked_for_twice_or_not_at_all_is_an_error() {
    assert!(one_write(ASKED_ONLY).r2t(0, 4097).is_err());
    assert!(one_write(ASKED_ONLY).r2t(512, 512).is_err());
    assert!(one_write(ASKED_ONLY).r2t(0, 0).is_err());
    let early = one_write(ASKED_ONLY).response(0, GOOD).unwrap_err();
    assert!(format!("{early:#}").contains("ended after 0 bytes"));
}

#[test]
fn a_flush_waits_for_the_writes_before_it() {
    let agreed = Agreed { immediate_data: true, segment_max_bytes: 4096, ..ASKED_ONLY };
    let mut pair = Pair::new(0, agreed, Habits { depth: 4, burst: false, flush_every: 2 }, 3);
    let (first, second) = (pair.sent(4096).0, pair.sent(4096).0);
    let tag = |pdu| match pdu {
        InitiatorPdu::ScsiCommand(command) => command.initiator_task_tag.0,
        other => panic!("{other:?}"),
    };
    pair.response(tag(second), GOOD).unwrap();
    assert!(pair.nothing_was_sent());
    pair.response(tag(first), GOOD).unwrap();
    let flush = pair.command();
    assert_eq!(flush.cdb[0], 0x35);
    assert!(pair.nothing_was_sent());
    pair.response(flush.initiator_task_tag.0, GOOD).unwrap();
    let last = pair.sent(4096).0;
    pair.response(tag(last), GOOD).unwrap();
    assert!(pair.session.is_done());
    assert_eq!((pair.shared.statistics.operations, pair.shared.statistics.flushes), (3, 1));
}

#[test]
fn lock_step_waits_for_all_answers() {
    let mut pair = Pair::new(100, ASKED_ONLY, Habits { depth: 2, burst: true, flush_every: 0 }, 3);
    let tags = [pair.command(), pair.command()].map(|command| command.initiator_task_tag);
    assert!(pair.nothing_was_sent());
    pair.data_in(4096, |pdu| pdu.initiator_task_tag = tags[1]).unwrap();
    assert!(pair.nothing_was_sent());
    pair.data_in(4096, |pdu| pdu.initiator_task_tag = tags[0]).unwrap();
    let last = pair.command().initiator_task_tag;
    assert!(pair.nothing_was_sent(), "the quota is used up");
    pair.data_in(4096, |pdu| pdu.initiator_task_tag = last).unwrap();
    assert!(pair.session.is_done());
}

#[test]
fn no_command_goes_beyond_the_window() {
    let mut pair = Pair::new(100, ASKED_ONLY, Habits { depth: 10, burst: false, flush_every: 0 }, 10);
    let tags: Vec<_> = (0..8).map(|_| pair.command().initiator_task_tag).collect();
    assert!(pair.nothing_was_sent());
    // The answer opens it by one.
    pair.data_in(4096, |pdu| pdu.initiator_task_tag = tags[3]).unwrap();
    assert_eq!(pair.command().cmd_sn, CmdSn(9));
    assert!(pair.nothing_was_sent());
}

#[test]
fn a_task_stays_on_its_connection() {
    let session = || {
        let ((leading, peer), (second, mut second_peer)) = (link(), link());
        let habits = Habits { depth: 2, burst: false, flush_every: 0 };
        let mut pair = Pair::of(vec![leading, second], peer, 100, ASKED_ONLY, habits, 3);
        let first = pair.command();
        let mut bhs = [0; BHS_LENGTH];
        second_peer.read_exact(&mut bhs).unwrap();
        let InitiatorPdu::ScsiCommand(second) = InitiatorPdu::decode(&bhs).unwrap() else { panic!() };
        // One numbering over both, and each tag on its own.
        assert_eq!((first.cmd_sn, second.cmd_sn), (CmdSn(1), CmdSn(2)));
        (pair, first.initiator_task_tag, second.initiator_task_tag)
    };
    let (mut good, first, _) = session();
    good.data_in(4096, |pdu| pdu.initiator_task_tag = first).unwrap();
    assert_eq!(good.command().initiator_task_tag, first);
    let (mut crossed, _, second) = session();
    assert!(crossed.data_in(4096, |pdu| pdu.initiator_task_tag = second).is_err());
}

#[test]
fn a_logout_may_end_with_the_connection() {
    let Pair { session, mut peer, .. } = Pair::new(100, ASKED_ONLY, PLAIN, 0);
    // What comes before the end is the logout, so that nothing is reset.
    let closing = std::thread::spawn(move || peer.read_exact(&mut [0; BHS_LENGTH]).map(|()| drop(peer)));
    assert!(!session.logout().unwrap());
    closing.join().unwrap().unwrap();

    let Pair { session, mut peer, .. } = Pair::new(100, ASKED_ONLY, PLAIN, 0);
    peer.write_all(&LogoutResponse::default().encode()).unwrap();
    assert!(session.logout().unwrap());
}
