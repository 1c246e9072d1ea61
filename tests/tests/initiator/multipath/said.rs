//! What units say of themselves over their paths: that they may be others by now, or are larger.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lunette_initiator::Notice;
use lunette_tests::attach::Attached;
use lunette_tests::lunette::binary;
use lunette_wire::initiator::NopOut;
use lunette_wire::target::{AsynchronousMessage, NopIn, Numbers};
use lunette_wire::{CmdSn, InitiatorPdu, LunField, StatSn, TargetPdu, TargetTransferTag};

use super::super::hostile::{
    INQUIRY_DATA_CHANGED, NAME, NOT_SUPPORTED, REPORTED_LUNS_CHANGED, Script, Sign, sense_data,
};
use super::super::opening::answer;
use super::*;

const TEST_UNIT_READY: u8 = 0x00;
const INQUIRY: u8 = 0x12;
const READ_CAPACITY_10: u8 = 0x25;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const READ_CAPACITY_16: u8 = 0x9e;
const MAINTENANCE_IN: u8 = 0xa3;

const CAPACITY_CHANGED: Sign = [6, 0x2a, 0x09];
const STATES_CHANGED: Sign = [6, 0x2a, 0x06];
const MEDIUM_CHANGED: Sign = [6, 0x28, 0x00];
const BECOMES_READY: Sign = [2, 0x04, 0x01];

/// A disk of 64 blocks without a name, which anybody may have.
#[derive(Default)]
struct Disk {
    /// What it says to the next question for port groups.
    sign: Mutex<Option<Sign>>,
    /// What its target says of a unit, before the next answer.
    event: Mutex<Option<(LunField, Sign)>>,
    /// Its medium was changed, which it tells once when it is asked whether it is ready.
    is_exchanged: AtomicBool,
    /// Another one is in its place.
    is_other: AtomicBool,
    /// Its medium is not there yet.
    is_absent: AtomicBool,
    /// It has 128 blocks.
    is_larger: AtomicBool,
    /// Reads and writes that it has carried out.
    carried: AtomicUsize,
    /// INQUIRY commands.
    asked: AtomicUsize,
}

impl Disk {
    fn carried(&self) -> usize {
        self.carried.load(Ordering::SeqCst)
    }

    fn has_said(&self) -> bool {
        self.sign.lock().expect("nobody panics with it").is_none()
    }

    fn says(&self, sign: Sign) {
        *self.sign.lock().expect("nobody panics with it") = Some(sign);
    }

    /// What it has to say in place of an answer.
    fn sense(&self, opcode: u8) -> Option<Sign> {
        let is_of_medium =
            matches!(opcode, TEST_UNIT_READY | READ_16 | WRITE_16 | READ_CAPACITY_10 | READ_CAPACITY_16);
        if is_of_medium && self.is_absent.load(Ordering::SeqCst) {
            return Some(BECOMES_READY);
        }
        if opcode == TEST_UNIT_READY && self.is_exchanged.swap(false, Ordering::SeqCst) {
            return Some(MEDIUM_CHANGED);
        }
        self.sign.lock().expect("nobody panics with it").take_if(|_| opcode == MAINTENANCE_IN)
    }

    fn answer(&self, cdb: &[u8; 16], wanted: usize) -> Vec<u8> {
        let mut data = match cdb[0] {
            READ_16 => vec![0; wanted],
            WRITE_16 => Vec::new(),
            _ => answer(cdb, u8::MAX).unwrap_or_default(),
        };
        if cdb[0] == INQUIRY {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if data.len() == 36 && self.is_other.load(Ordering::SeqCst) {
                data[16..21].copy_from_slice(b"OTHER");
            }
        }
        if cdb[0] == READ_CAPACITY_16 && self.is_larger.load(Ordering::SeqCst) {
            data[7] = 127;
        }
        data
    }

    /// Serves one connection until its logout.
    fn serve(&self, mut target: Script) {
        while let Some(pdu) = target.try_receive() {
            let command = match pdu {
                InitiatorPdu::ScsiCommand(command) => command,
                InitiatorPdu::NopOut(nop) => {
                    target.say(&pong(&nop, target.stat_sn), &[]);
                    target.counts();
                    continue;
                }
                _ => return,
            };
            let opcode = command.cdb[0];
            if let Some((lun, sign)) = self.event.lock().expect("nobody panics with it").take() {
                let numbers = target.numbers(&command);
                let message = AsynchronousMessage { lun, numbers, ..AsynchronousMessage::default() };
                target.say(&TargetPdu::AsynchronousMessage(message), &sense_data(sign));
                target.counts();
            }
            if let Some(sign) = self.sense(opcode) {
                target.fail(&command, sign);
                continue;
            }
            self.carried.fetch_add(matches!(opcode, READ_16 | WRITE_16).into(), Ordering::SeqCst);
            let data = self.answer(&command.cdb, command.expected_data_transfer_length as usize);
            target.succeed(&command, data);
        }
    }

    fn listen(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let disk = Arc::clone(self);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let disk = Arc::clone(&disk);
                std::thread::spawn(move || disk.serve(Script::log_in(stream)));
            }
        });
        address
    }
}

/// The answer to a ping, which is immediate.
fn pong(nop: &NopOut, stat_sn: StatSn) -> TargetPdu {
    let (exp_cmd_sn, max_cmd_sn) = (nop.cmd_sn, CmdSn(nop.cmd_sn.0.wrapping_add(31)));
    TargetPdu::NopIn(NopIn {
        lun: nop.lun,
        initiator_task_tag: nop.initiator_task_tag,
        target_transfer_tag: TargetTransferTag::RESERVED,
        numbers: Numbers { stat_sn, exp_cmd_sn, max_cmd_sn },
    })
}

/// Disks that are taken for one, with a path to each; the numbers of their units count on from 3.
fn paths_to<const N: usize>(names: [&str; N]) -> ([Arc<Disk>; N], Options) {
    let disks = names.map(|_| Arc::new(Disk::default()));
    let path =
        |(at, name): (usize, &&str)| PathOptions::new(options(name, disks[at].listen()), lun(3 + at as u16));
    let paths = names.iter().enumerate().map(path).collect();
    let timing =
        PathTiming { failback: Duration::ZERO, check: Duration::from_millis(50), ..PathTiming::default() };
    (disks, Options { policy: Policy::RoundRobin, timing, ..Options::new(paths) })
}

/// Polls until something is so; what was told meanwhile.
fn told_until(paths: &mut Paths, is_so: impl Fn(&[EngineEvent], &Engine) -> bool) -> Vec<EngineEvent> {
    let (mut told, mut done) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + LIMIT;
    while !is_so(&told, &paths.engine) {
        assert!(Instant::now() < deadline, "{told:?} {:?}", paths.engine.paths());
        paths.engine.poll(Some(Duration::from_millis(20)), &mut done).expect("the system lets us");
        paths.done.extend(done.drain(..).map(|completion| (completion.id, completion)));
        while let Some(event) = paths.engine.event() {
            if let EngineEvent::Path { path, news, .. } = &event {
                paths.news.push((*path, news.clone()));
            }
            told.push(event);
        }
    }
    told
}

fn attentions(told: &[EngineEvent]) -> Vec<(LunField, [u8; 3])> {
    let of = |event: &EngineEvent| match event {
        EngineEvent::Attention { lun, sense } => Some((*lun, [sense[2] & 0x0f, sense[12], sense[13]])),
        _ => None,
    };
    told.iter().filter_map(of).collect()
}

/// The caller has one unit, whose number is that over the first path.
#[test]
fn what_is_told_to_a_question_for_states_is_told_to_the_caller() {
    for sign in [CAPACITY_CHANGED, INQUIRY_DATA_CHANGED, REPORTED_LUNS_CHANGED, NOT_SUPPORTED] {
        let (disks, options) = paths_to([NAME, NAME]);
        let mut paths = Paths::connect(options);
        disks[1].says(sign);
        let told = told_until(&mut paths, |told, _| !attentions(told).is_empty());
        assert_eq!(attentions(&told), [(lun(3).field(), sign)]);
        disks[1].says(STATES_CHANGED);
        let told = told_until(&mut paths, |_, engine| {
            disks[1].has_said() && engine.paths().iter().all(|path| path.is_in_use)
        });
        assert!(attentions(&told).is_empty(), "states are no affair of the caller's: {told:?}");
    }
}

/// A target says it on the same connection, and its numbers are those of that path.
#[test]
fn what_is_told_of_other_units_is_not_taken_for_this_one() {
    let (disks, options) = paths_to([NAME, NAME]);
    let mut paths = Paths::connect(options);
    let events = |told: &[EngineEvent]| {
        let of = |event: &EngineEvent| match event {
            EngineEvent::Notice(Notice::ScsiEvent { lun, .. }) => Some(*lun),
            _ => None,
        };
        told.iter().filter_map(of).collect::<Vec<_>>()
    };
    // Over the second path the unit has the number 4, and what has 3 there is another one.
    for (lun_there, sign) in [(3, INQUIRY_DATA_CHANGED), (5, MEDIUM_CHANGED)] {
        *disks[1].event.lock().expect("nobody panics with it") = Some((lun(lun_there).field(), sign));
        let told = told_until(&mut paths, |_, _| disks[1].event.lock().expect("no panic").is_none());
        assert!(events(&told).is_empty(), "{told:?}");
        assert!(paths.execute(read(0, 0, 1, 512)).is_good());
        assert!(paths.engine.paths().iter().all(|path| path.is_in_use));
    }
    *disks[1].event.lock().expect("nobody panics with it") = Some((lun(4).field(), CAPACITY_CHANGED));
    let told = told_until(&mut paths, |told, _| !events(told).is_empty());
    assert_eq!(events(&told), [lun(3).field()], "as the caller knows it");
}

#[test]
fn a_path_that_may_lead_elsewhere_is_used_once_it_has_said_that_it_does_not() {
    let (disks, options) = paths_to([NAME, NAME]);
    let mut paths = Paths::connect(options);
    let asked = disks[1].asked.load(Ordering::SeqCst);
    disks[1].says(REPORTED_LUNS_CHANGED);
    told_until(&mut paths, |told, _| !attentions(told).is_empty());
    paths.wait_until("both", |paths| paths.engine.paths().iter().all(|path| path.is_in_use));
    assert!(disks[1].asked.load(Ordering::SeqCst) > asked, "over that path");
    for lba in 0..8 {
        assert!(paths.execute(read(0, lba, 1, 512)).is_good());
    }
    assert_eq!(disks.map(|disk| disk.carried()), [4, 4]);
}

#[test]
fn nothing_is_sent_to_another_disk_that_a_path_leads_to() {
    for sign in [INQUIRY_DATA_CHANGED, REPORTED_LUNS_CHANGED, NOT_SUPPORTED] {
        let (disks, options) = paths_to([NAME, NAME]);
        let mut paths = Paths::connect(options);
        disks[1].is_other.store(true, Ordering::SeqCst);
        disks[1].says(sign);
        told_until(&mut paths, |told, _| !attentions(told).is_empty());
        for lba in 0..16 {
            assert!(paths.execute(safe(lba, block(lba))).is_good());
        }
        paths.wait_until("the path's end", |paths| paths.is_lost(1));
        let reason = paths.engine.paths()[1].reason.clone().unwrap_or_default();
        assert!(reason.contains("another logical unit"), "{reason}");
        assert_eq!(disks.map(|disk| disk.carried()), [16, 0]);
    }
}

#[test]
fn where_all_paths_lead_to_another_disk_commands_end() {
    let (disks, options) = paths_to([NAME, NAME]);
    let mut paths = Paths::connect(options);
    for disk in &disks {
        disk.is_other.store(true, Ordering::SeqCst);
        disk.says(REPORTED_LUNS_CHANGED);
    }
    let is_changed = |event: &EngineEvent| matches!(event, EngineEvent::UnitChanged { .. });
    told_until(&mut paths, |told, _| told.iter().any(is_changed));
    let write = paths.execute(safe(0, block(1)));
    assert!(matches!(write.result, Err(CommandError::Changed(_))), "{:?}", write.result);
    assert_eq!(disks.map(|disk| disk.carried()), [0, 0]);
}

/// A target that is restarted may be there before its store is, and tell the capacity later, or that of another disk.
#[test]
fn a_path_that_comes_back_before_the_medium_is_compared_when_that_is_there() {
    for is_larger in [false, true] {
        let (disks, mut options) = paths_to([NAME]);
        let relay = Relay::to(disks[0].listen());
        let portal = Portal::new(relay.address.ip().to_string(), relay.address.port());
        options.paths[0].session.portals = vec![portal];
        let mut paths = Paths::connect(options);
        disks[0].is_absent.store(true, Ordering::SeqCst);
        disks[0].is_larger.store(is_larger, Ordering::SeqCst);
        relay.close();
        paths.wait_until("the loss", |paths| paths.is_lost(0));
        relay.open();
        paths.wait_until("its return", |paths| paths.engine.paths()[0].state == PathState::Up);
        let write = paths.engine.submit(safe(0, block(1)));
        paths.engine.poll(Some(Duration::from_millis(100)), &mut Vec::new()).expect("the system lets us");
        assert!(!paths.done.contains_key(&write) && disks[0].carried() == 0, "nobody knows the disk");
        disks[0].is_absent.store(false, Ordering::SeqCst);
        let write = paths.wait_for(write);
        if is_larger {
            assert!(matches!(write.result, Err(CommandError::Changed(_))), "{:?}", write.result);
        }
        assert_eq!((write.is_good(), disks[0].carried()), (!is_larger, usize::from(!is_larger)));
    }
}

/// tgtd gives its first disk the same names on each host.
#[test]
fn disks_of_two_targets_are_not_taken_for_one_by_names_that_anybody_may_give() {
    let (_, same) = paths_to([NAME, NAME]);
    assert_eq!(Paths::connect(same).engine.paths().len(), 2);
    let (disks, others) = paths_to([NAME, "iqn.2026-11.io.lunette:another"]);
    let engine = Engine::connect(others).expect("one of the two");
    let mut paths = Paths { engine, done: HashMap::new(), news: Vec::new() };
    paths.wait_until("a word on the other", |paths| {
        paths.news.iter().any(|(_, news)| matches!(news, PathNews::Failed { .. }))
    });
    let refused = paths.engine.paths().into_iter().find_map(|path| path.reason).unwrap_or_default();
    assert!(refused.contains("no name in common that is unique in the world"), "{refused}");
    for lba in 0..8 {
        assert!(paths.execute(read(0, lba, 1, 512)).is_good());
    }
    let carried = disks.map(|disk| disk.carried());
    assert!(carried == [8, 0] || carried == [0, 8], "{carried:?}");
}

/// Over one path the login after a loss heeds it, too (0026).
#[test]
fn a_medium_that_was_changed_while_no_path_was_there_is_another_disk() {
    let (disks, mut options) = paths_to([NAME]);
    let relay = Relay::to(disks[0].listen());
    let portal = Portal::new(relay.address.ip().to_string(), relay.address.port());
    options.paths[0].session.portals = vec![portal];
    disks[0].is_exchanged.store(true, Ordering::SeqCst);
    let mut paths = Paths::connect(options);
    assert!(paths.execute(safe(0, block(1))).is_good(), "what was before the first login does not matter");
    disks[0].is_exchanged.store(true, Ordering::SeqCst);
    relay.close();
    paths.wait_until("the loss", |paths| paths.is_lost(0));
    relay.open();
    let is_changed = |event: &EngineEvent| matches!(event, EngineEvent::UnitChanged { .. });
    told_until(&mut paths, |told, _| told.iter().any(is_changed));
    let write = paths.execute(safe(0, block(2)));
    assert!(matches!(write.result, Err(CommandError::Changed(_))), "{:?}", write.result);
    assert_eq!(disks[0].carried(), 1);
}

/// Two paths to one disk, as the command line has them.
fn urls(disks: &[Arc<Disk>; 2]) -> [String; 2] {
    [0, 1].map(|at: usize| format!("iscsi://{}/{NAME}/0", disks[at].listen()))
}

fn exchange(disks: &[Arc<Disk>; 2]) {
    for disk in disks {
        disk.is_other.store(true, Ordering::SeqCst);
        disk.says(REPORTED_LUNS_CHANGED);
    }
}

#[test]
fn an_idle_disk_that_becomes_another_is_given_up() {
    let disks = [0; 2].map(|_| Arc::new(Disk::default()));
    let [one, other] = urls(&disks);
    let attached = Attached::start(&one, &["--path", &other]).expect("a disk");
    exchange(&disks);
    let error = attached.end().expect_err("it is no clean end");
    assert!(error.to_string().contains("another disk is in its place"), "{error:#}");
}

#[test]
fn a_command_whose_disk_becomes_another_while_it_waits_for_data_ends() {
    let disks = [0; 2].map(|_| Arc::new(Disk::default()));
    let [one, other] = urls(&disks);
    let mut command = std::process::Command::new(binary());
    command.args(["write", &one, "--path", &other, "--input", "-", "--length", "1024"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let pipe = child.stdin.take().expect("a pipe");
    let began = Instant::now();
    while disks[0].asked.load(Ordering::SeqCst) == 0 || disks[1].asked.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < LIMIT, "it logs in");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Until the command has asked for itself.
    std::thread::sleep(Duration::from_secs(2));
    exchange(&disks);
    let ended = child.wait_with_output().expect("it ends");
    drop(pipe);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(5), "{said}");
    assert!(said.contains("the disk is not the one that it was"), "{said}");
    assert_eq!(disks.map(|disk| disk.carried()), [0, 0]);
}
