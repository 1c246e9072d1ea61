use std::collections::VecDeque;

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::sense::{AdditionalSense, SenseData, SenseKey};

const GOOD: Reply<'static> = Reply { status: Some(Status::Good), sense: &[], data: &[] };

fn good(data: &[u8]) -> Reply<'_> {
    Reply { data, ..GOOD }
}

/// Standard INQUIRY data of a connected disk that tells nothing.
const DISK: [u8; 36] = {
    let mut data = [0; 36];
    data[4] = 31;
    data
};

/// READ CAPACITY(16) data of ten blocks of 512 bytes.
const TEN_BLOCKS: [u8; 32] = {
    let mut data = [0; 32];
    (data[7], data[10]) = (9, 2);
    data
};

/// A probe with its commands under way.
#[derive(Default)]
struct Asked {
    probe: Probe,
    under_way: VecDeque<(Ticket, Command)>,
}

impl Asked {
    /// Sends what is due, and tells what is under way.
    fn names(&mut self) -> Vec<&'static str> {
        while let Next::Send(ticket, command) = self.probe.proceed() {
            self.under_way.push_back((ticket, command));
        }
        self.under_way.iter().map(|(_, command)| command.name()).collect()
    }

    /// Answers the first command under way with this name.
    fn answer(&mut self, name: &str, reply: Reply<'_>) {
        self.names();
        let at = self.under_way.iter().position(|(_, command)| command.name() == name);
        let (ticket, _) = at.and_then(|at| self.under_way.remove(at)).expect("it is under way");
        self.probe.answered(ticket, reply);
    }

    fn refuse(&mut self, name: &str, key: SenseKey, code: AdditionalSense) {
        let sense = SenseData::new(key, code).encode(false);
        let status = Some(Status::CheckCondition);
        self.answer(name, Reply { status, sense: sense.as_bytes(), data: &[] });
    }

    /// The first command under way with this name ends without an answer that can be used.
    fn fail(&mut self, name: &str) -> bool {
        self.names();
        let at = self.under_way.iter().position(|(_, command)| command.name() == name);
        let (ticket, _) = at.and_then(|at| self.under_way.remove(at)).expect("it is under way");
        self.probe.failed(ticket)
    }

    fn unknown(&mut self, name: &str) {
        self.refuse(name, SenseKey::IllegalRequest, AdditionalSense::INVALID_COMMAND_OPERATION_CODE);
    }

    fn attention(&mut self, name: &str) {
        self.refuse(name, SenseKey::UnitAttention, AdditionalSense::POWER_ON);
    }

    /// The first round of a disk that has these pages.
    fn of_disk(pages: &[u8]) -> Asked {
        let mut asked = Asked::default();
        asked.answer("INQUIRY", good(&DISK));
        asked.answer("INQUIRY", good(&[&[0, 0, 0, pages.len() as u8], pages].concat()));
        asked.answer("TEST UNIT READY", GOOD);
        asked
    }

    fn end(mut self) -> Result<UnitFacts, ProbeError> {
        assert!(self.names().is_empty());
        assert_eq!(self.probe.proceed(), Next::Done);
        self.probe.into_facts()
    }
}

#[test]
fn everything_is_asked_in_two_rounds() {
    let mut asked = Asked { probe: Probe::new().with_write_same().with_port_groups(), ..Asked::default() };
    assert_eq!(asked.names(), ["INQUIRY", "INQUIRY", "TEST UNIT READY"]);
    asked.attention("TEST UNIT READY");
    for data in [&DISK[..], &[0, 0, 0, 7, 0x00, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2]] {
        let (ticket, _) = asked.under_way.pop_front().unwrap();
        asked.probe.answered(ticket, good(data));
    }
    let names = asked.names();
    assert_eq!(names[..6], ["INQUIRY"; 6], "one for each page but that of the pages");
    assert_eq!(
        names[6..],
        [
            "READ CAPACITY(16)",
            "MODE SENSE(6)",
            "REPORT SUPPORTED OPERATION CODES",
            "REPORT TARGET PORT GROUPS",
            "TEST UNIT READY"
        ]
    );
}

#[test]
fn the_plainest_disk_of_old() {
    let mut asked = Asked::default();
    asked.answer("INQUIRY", good(&DISK));
    asked.unknown("INQUIRY");
    asked.answer("TEST UNIT READY", GOOD);
    assert_eq!(asked.names(), ["READ CAPACITY(16)", "MODE SENSE(6)"]);
    asked.unknown("MODE SENSE(6)");
    assert_eq!(asked.names(), ["READ CAPACITY(16)", "MODE SENSE(10)"]);
    asked.unknown("READ CAPACITY(16)");
    assert_eq!(asked.names(), ["MODE SENSE(10)", "READ CAPACITY(10)"]);
    asked.unknown("MODE SENSE(10)");
    asked.answer("READ CAPACITY(10)", good(&[0, 0, 0, 9, 0, 0, 2, 0]));
    let facts = asked.end().unwrap();
    assert_eq!(facts.capacity.map(|capacity| capacity.blocks), Some(10));
    assert!(facts.has_write_cache() && !facts.is_write_protected());
    assert_eq!(facts.transfer_blocks_max(1 << 20), 2048);
}

#[test]
fn unit_attentions_are_drained_and_kept() {
    let mut asked = Asked::of_disk(&[]);
    asked.attention("READ CAPACITY(16)");
    asked.attention("READ CAPACITY(16)");
    asked.attention("MODE SENSE(6)");
    assert_eq!(asked.names(), ["READ CAPACITY(16)", "MODE SENSE(6)"], "both are asked again");
    assert_eq!(asked.probe.facts().attentions.len(), 3);
    for _ in 3..ATTENTIONS_MAX {
        asked.attention("MODE SENSE(6)");
    }
    asked.attention("MODE SENSE(6)");
    assert_eq!(
        asked.names(),
        ["READ CAPACITY(16)"],
        "nothing more is asked, and what is under way is waited for"
    );
    assert_eq!(asked.probe.proceed(), Next::Wait);
    asked.answer("READ CAPACITY(16)", good(&TEN_BLOCKS));
    assert_eq!(asked.end(), Err(ProbeError::EndlessAttentions));
}

#[test]
fn a_busy_unit_is_asked_later_and_not_for_ever() {
    let busy = Reply { status: Some(Status::Busy), ..GOOD };
    let mut asked = Asked::default();
    asked.answer("TEST UNIT READY", busy);
    assert_eq!(asked.probe.proceed(), Next::Wait, "others are under way");
    asked.answer("INQUIRY", good(&DISK));
    asked.unknown("INQUIRY");
    asked.unknown("MODE SENSE(6)");
    asked.unknown("MODE SENSE(10)");
    asked.answer("READ CAPACITY(16)", good(&TEN_BLOCKS));
    for _ in 0..RETRIES_MAX {
        assert!(asked.names().is_empty());
        assert_eq!((asked.probe.proceed(), asked.probe.proceed()), (Next::Pause, Next::Pause));
        asked.probe.rested();
        asked.answer("TEST UNIT READY", busy);
    }
    let error = asked.end().unwrap_err();
    assert_eq!(error.to_string(), "the target refused TEST UNIT READY: BUSY");
}

#[test]
fn a_unit_that_is_not_ready_is_told_as_such() {
    let absent = (SenseKey::NotReady, AdditionalSense::MEDIUM_NOT_PRESENT);
    let mut asked = Asked::default();
    asked.answer("INQUIRY", good(&DISK));
    for name in ["INQUIRY", "READ CAPACITY(16)", "READ CAPACITY(10)", "MODE SENSE(6)", "MODE SENSE(10)"] {
        asked.refuse(name, absent.0, absent.1);
    }
    assert_eq!(asked.names(), ["TEST UNIT READY"], "that it has no capacity is no failure yet");
    asked.refuse("TEST UNIT READY", absent.0, absent.1);
    let facts = asked.end().unwrap();
    assert_eq!(facts.not_ready.map(|sense| sense.code), Some(AdditionalSense::MEDIUM_NOT_PRESENT));
    assert_eq!(facts.capacity, None);
}

#[test]
fn a_disk_without_a_capacity_is_an_error() {
    let mut asked = Asked::of_disk(&[]);
    for name in ["READ CAPACITY(16)", "READ CAPACITY(10)", "MODE SENSE(6)", "MODE SENSE(10)"] {
        asked.unknown(name);
    }
    assert!(matches!(asked.end(), Err(ProbeError::Refused { command: "READ CAPACITY(10)", .. })));
}

#[test]
fn what_was_cut_off_is_asked_for_once_more_and_then_left_out() {
    let mut asked = Asked::of_disk(&[0x80]);
    asked.answer("INQUIRY", good(&[0, 0x80, 0x10, 0]));
    asked.names();
    let (_, longer) = asked.under_way.back().unwrap();
    assert_eq!((longer.cdb()[2], longer.data_in_bytes()), (0x80, 0x1004));
    asked.answer("INQUIRY", good(&[0, 0x80, 0x20, 0]));
    assert_eq!(asked.names(), ["READ CAPACITY(16)", "MODE SENSE(6)"]);
    assert_eq!(asked.probe.facts().serial, "");
}

#[test]
fn what_is_optional_may_fail_in_any_way() {
    let mut asked = Asked { probe: Probe::new().with_write_same().with_port_groups(), ..Asked::default() };
    asked.answer("INQUIRY", good(&DISK));
    asked.answer("INQUIRY", good(&[0, 0, 0, 1, 0xb0]));
    asked.answer("TEST UNIT READY", GOOD);
    let optional = [
        "INQUIRY",
        "READ CAPACITY(16)",
        "MODE SENSE(6)",
        "REPORT SUPPORTED OPERATION CODES",
        "REPORT TARGET PORT GROUPS",
    ];
    for name in optional {
        assert!(asked.fail(name), "{name}");
    }
    assert_eq!(asked.names(), ["READ CAPACITY(10)", "MODE SENSE(10)"], "their younger forms");
    assert!(asked.fail("MODE SENSE(10)"));
    asked.answer("READ CAPACITY(10)", good(&[0, 0, 0, 9, 0, 0, 2, 0]));
    let facts = asked.end().unwrap();
    assert_eq!(facts.capacity.map(|capacity| capacity.blocks), Some(10));
    assert!(!facts.has_write_same && facts.mode.is_none() && facts.port_groups.is_empty());
}

/// QERR: what another question's failure has ended is asked again, needed or not.
#[test]
fn what_another_failure_has_ended_is_asked_again() {
    let mut asked = Asked::default();
    asked.names();
    asked.attention("TEST UNIT READY");
    let ended: Vec<_> = asked.under_way.drain(..).collect();
    assert!(ended.iter().all(|(ticket, _)| asked.probe.again(*ticket)));
    assert!(!ended.iter().any(|(ticket, _)| asked.probe.again(*ticket)), "it is not under way");
    assert_eq!(asked.names(), ["INQUIRY", "INQUIRY", "TEST UNIT READY"]);
    // Not for ever.
    let (ticket, _) = asked.under_way[0].clone();
    let times = (0..).take_while(|_| {
        let is_asked = asked.probe.again(ticket);
        asked.names();
        is_asked
    });
    assert_eq!(times.count() as u32 + 1, RETRIES_MAX);
}

#[test]
fn what_a_unit_has_to_tell_may_not_fail() {
    let mut asked = Asked::default();
    assert!(!asked.fail("INQUIRY") && !asked.fail("INQUIRY") && !asked.fail("TEST UNIT READY"));
    for page in [0x80, 0x83] {
        assert!(!Asked::of_disk(&[page]).fail("INQUIRY"), "what it is called");
    }
    let mut asked = Asked::of_disk(&[]);
    assert!(asked.fail("READ CAPACITY(16)") && !asked.fail("READ CAPACITY(10)"));
}

#[test]
fn no_disk_and_no_unit() {
    let mut absent = DISK;
    absent[0] = 0x7f;
    let mut asked = Asked::default();
    asked.unknown("TEST UNIT READY");
    asked.answer("INQUIRY", good(&absent));
    asked.unknown("INQUIRY");
    assert_eq!(asked.end(), Err(ProbeError::NoUnit), "whatever else it said");

    let mut player = DISK;
    player[0] = 0x05;
    let mut asked = Asked::default();
    asked.answer("INQUIRY", good(&player));
    asked.answer("TEST UNIT READY", GOOD);
    asked.unknown("INQUIRY");
    assert_eq!(asked.end().map(|facts| facts.capacity), Ok(None), "no capacity is asked for");

    let mut asked = Asked::default();
    asked.answer("INQUIRY", good(&[0; 4]));
    asked.unknown("INQUIRY");
    asked.answer("TEST UNIT READY", GOOD);
    assert!(matches!(asked.end(), Err(ProbeError::Malformed(_))));
}

#[test]
fn an_answer_that_nobody_waits_for_changes_nothing() {
    let mut asked = Asked::of_disk(&[]);
    asked.names();
    let (ticket, _) = asked.under_way[0].clone();
    asked.unknown("READ CAPACITY(16)");
    asked.answer("READ CAPACITY(10)", good(&[0, 0, 0, 9, 0, 0, 2, 0]));
    asked.probe.answered(ticket, good(&[0; 32]));
    asked.unknown("MODE SENSE(6)");
    asked.unknown("MODE SENSE(10)");
    assert_eq!(asked.end().unwrap().capacity.map(|capacity| capacity.blocks), Some(10));
}

/// What a unit says to one command, whenever it is asked.
#[derive(Clone, Debug)]
enum Says {
    Data(Vec<u8>),
    Refuses(SenseKey, AdditionalSense),
    Status(Status),
}

fn says() -> impl Strategy<Value = Says> {
    let codes = prop::sample::select(vec![
        (SenseKey::IllegalRequest, AdditionalSense::INVALID_COMMAND_OPERATION_CODE),
        (SenseKey::NotReady, AdditionalSense::MEDIUM_NOT_PRESENT),
        (SenseKey::HardwareError, AdditionalSense::INTERNAL_TARGET_FAILURE),
    ]);
    let head = prop::sample::select(vec![
        DISK.to_vec(),
        vec![0, 0, 0, 6, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2],
        vec![0, 0x80, 0, 4, b'a', b'b', b'c', b'd'],
        vec![0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 2, 0],
        vec![0, 0, 0, 9, 0, 0, 2, 0],
        vec![],
    ]);
    prop_oneof![
        6 => (head, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(head, rest)| Says::Data([head, rest].concat())),
        3 => codes.prop_map(|(key, code)| Says::Refuses(key, code)),
        1 => prop::sample::select(vec![Status::ReservationConflict, Status::TaskAborted]).prop_map(Says::Status),
    ]
}

/// A unit that has an answer to every command.
#[derive(Clone, Debug)]
struct Unit {
    standard: Says,
    answers: Vec<Says>,
    /// To which of the commands that come it is busy, or has something to tell.
    busy: Vec<bool>,
    attentions: usize,
}

impl Unit {
    fn to(&self, ticket: Ticket) -> &Says {
        let Ticket(question) = ticket;
        match question {
            Question::Inquiry => &self.standard,
            other => &self.answers[other as usize % self.answers.len()],
        }
    }

    /// Runs a probe; of the commands under way `pick` takes one. Answers its end, and how many commands there were.
    fn open(&self, mut pick: impl FnMut(usize) -> usize) -> (Result<UnitFacts, ProbeError>, usize) {
        let (mut probe, mut under_way) = (Probe::new().with_write_same(), Vec::new());
        let (mut commands, mut attentions) = (0, 0);
        loop {
            match probe.proceed() {
                Next::Send(ticket, command) => under_way.push((ticket, command)),
                Next::Wait => {
                    let (ticket, command) = under_way.remove(pick(under_way.len()));
                    commands += 1;
                    let (mut sense, mut reply) = (Vec::new(), GOOD);
                    if self.busy.get(commands).is_some_and(|busy| *busy) {
                        reply.status = Some(Status::Busy);
                    } else if attentions < self.attentions && !matches!(ticket, Ticket(Question::Inquiry)) {
                        attentions += 1;
                        (reply.status, sense) = refusal(SenseKey::UnitAttention, AdditionalSense::POWER_ON);
                    } else {
                        match self.to(ticket) {
                            Says::Data(data) => {
                                reply.data = &data[..data.len().min(command.data_in_bytes() as usize)];
                            }
                            Says::Refuses(key, code) => (reply.status, sense) = refusal(*key, *code),
                            Says::Status(status) => reply.status = Some(*status),
                        }
                    }
                    probe.answered(ticket, Reply { sense: &sense, ..reply });
                }
                Next::Pause => probe.rested(),
                Next::Done => return (probe.into_facts(), commands),
            }
        }
    }
}

fn refusal(key: SenseKey, code: AdditionalSense) -> (Option<Status>, Vec<u8>) {
    (Some(Status::CheckCondition), SenseData::new(key, code).encode(false).as_bytes().to_vec())
}

fn units() -> impl Strategy<Value = Unit> {
    let standard = prop_oneof![4 => Just(Says::Data(DISK.to_vec())), 1 => says()];
    let (answers, busy) =
        (prop::collection::vec(says(), 15), prop::collection::vec(any::<bool>(), 0..RETRIES_MAX as usize));
    (standard, answers, busy, 0..10usize).prop_map(|(standard, answers, busy, attentions)| Unit {
        standard,
        answers,
        busy,
        attentions,
    })
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn the_order_of_the_answers_does_not_matter(
        unit in units(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..30),
    ) {
        let (mut first, _) = unit.open(|_| 0);
        let mut picks = picks.iter().cycle();
        let (mut other, commands) = unit.open(|count| picks.next().map_or(0, |pick| pick.index(count)));
        for facts in [&mut first, &mut other].into_iter().flatten() {
            // How many were told before a failure was clear differs.
            facts.attentions.clear();
        }
        prop_assert_eq!(first.is_ok(), other.is_ok());
        if first.is_ok() {
            prop_assert_eq!(first, other);
        }
        // Each question twice at most, where its answer is cut off.
        prop_assert!(commands <= 2 * Question::ALL.len() + unit.attentions + unit.busy.len());
    }
}
