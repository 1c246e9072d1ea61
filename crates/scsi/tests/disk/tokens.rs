//! Token copies: POPULATE TOKEN, WRITE USING TOKEN, RECEIVE ROD TOKEN INFORMATION (SPC-4, SBC-3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lunette_cases::cases;
use lunette_scsi::{
    Allocation, Device, Domain, Environment, Event, Identity, Io, IoError, IoOutcome, LogicalUnit,
    LogicalUnitConfig, Lun, Next, Nexus, Saved, Status, Task,
};
use proptest::prelude::*;

use crate::host::*;

const OTHER_NAA: u64 = 0x3eee_0000_0000_0001;
const TOKEN_UNKNOWN: (u8, u8, u8) = (5, 0x23, 0x04);
const TOKEN_REVOKED: (u8, u8, u8) = (5, 0x23, 0x06);

/// A clock that the test turns, and numbers that are random enough for it.
#[derive(Debug, Default)]
struct Surroundings {
    now_s: AtomicU64,
    drawn: AtomicU64,
}

impl Environment for Surroundings {
    fn uptime(&self) -> Duration {
        Duration::from_secs(self.now_s.load(Ordering::Relaxed))
    }

    fn since_epoch(&self) -> Duration {
        self.uptime()
    }

    fn fill_random(&self, bytes: &mut [u8]) -> bool {
        bytes.fill(self.drawn.fetch_add(1, Ordering::Relaxed) as u8 | 0x80);
        true
    }
}

fn device_in(domain: &Arc<Domain>, naa: u64, change: impl FnOnce(&mut LogicalUnitConfig)) -> Arc<Device> {
    let identity = Identity { naa, uuid: [naa as u8; 16], ..config().identity };
    let mut config = LogicalUnitConfig { identity, ..config() };
    change(&mut config);
    let unit = Arc::new(LogicalUnit::new(config, Saved::Nowhere).expect("a possible unit"));
    let units = [(Lun::from_number(0), unit)];
    let name = format!("iqn.2026-11.io.lunette:{naa:x}");
    let device = Device::new(name, [1], units).expect("a possible device");
    Arc::new(device.in_domain(Arc::clone(domain)))
}

/// Two hosts on two devices of one domain: tokens of the first are used on the second.
struct World {
    surroundings: Arc<Surroundings>,
    source: Host,
    destination: Host,
}

fn world() -> World {
    world_of(|_| {})
}

/// With a destination that is another than the source.
fn world_of(change: impl FnOnce(&mut LogicalUnitConfig)) -> World {
    let surroundings = Arc::new(Surroundings::default());
    let domain = Arc::new(Domain::new(surroundings.clone()));
    let mut source = Host::on(device_in(&domain, config().identity.naa, |_| {}));
    let destination = Host::on(device_in(&domain, OTHER_NAA, change));
    for (index, byte) in source.disk.bytes.iter_mut().enumerate() {
        *byte = (index / BLOCK) as u8 ^ (index / BLOCK / 256) as u8 ^ index as u8;
    }
    World { surroundings, source, destination }
}

impl World {
    /// Runs a command on the destination, where the source's medium can be reached too.
    fn write(&mut self, token: &[u8], offset: u64, ranges: &[(u64, u32)]) -> Reply {
        self.write_list(&write_list(token, 0, offset, ranges))
    }

    fn write_list(&mut self, list: &[u8]) -> Reply {
        let naa = config().identity.naa;
        let disk = std::mem::replace(&mut self.source.disk, Disk::new());
        self.destination.others.insert(naa, disk);
        let reply = self.destination.run(&cdb(0x83, 0x11, 7, list.len()), list);
        self.source.disk = self.destination.others.remove(&naa).expect("it was put there");
        reply
    }
}

pub(crate) fn cdb(opcode: u8, action: u8, list: u32, length: usize) -> [u8; 16] {
    let mut cdb = padded(&[opcode, action]);
    let at = if opcode == 0x83 { 6 } else { 2 };
    cdb[at..at + 4].copy_from_slice(&list.to_be_bytes());
    cdb[10..14].copy_from_slice(&(length as u32).to_be_bytes());
    cdb
}

fn range_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    ranges
        .iter()
        .flat_map(|(lba, count)| [&lba.to_be_bytes()[..], &count.to_be_bytes(), &[0; 4]].concat())
        .collect()
}

fn populate_list(timeout_s: u32, kind: Option<u32>, ranges: &[(u64, u32)]) -> Vec<u8> {
    let ranges = range_list(ranges);
    let mut list = vec![0; 16];
    list[..2].copy_from_slice(&(14 + ranges.len() as u16).to_be_bytes());
    list[2] = if kind.is_some() { 2 } else { 0 };
    list[4..8].copy_from_slice(&timeout_s.to_be_bytes());
    list[8..12].copy_from_slice(&kind.unwrap_or(0).to_be_bytes());
    list[14..16].copy_from_slice(&(ranges.len() as u16).to_be_bytes());
    [list, ranges].concat()
}

pub(crate) fn write_list(token: &[u8], flags: u8, offset: u64, ranges: &[(u64, u32)]) -> Vec<u8> {
    let ranges = range_list(ranges);
    let mut list = vec![0; 536];
    list[..2].copy_from_slice(&(534 + ranges.len() as u16).to_be_bytes());
    list[2] = flags;
    list[8..16].copy_from_slice(&offset.to_be_bytes());
    list[16..528].copy_from_slice(token);
    list[534..536].copy_from_slice(&(ranges.len() as u16).to_be_bytes());
    [list, ranges].concat()
}

fn populate(host: &mut Host, list: &[u8]) -> Reply {
    host.run(&cdb(0x83, 0x10, 5, list.len()), list)
}

/// Makes a token and asks for it.
fn token(host: &mut Host, ranges: &[(u64, u32)]) -> Vec<u8> {
    assert_eq!(populate(host, &populate_list(0, None, ranges)).code(), GOOD);
    let data = host.good(&cdb(0x84, 0x07, 5, 4096), &[]);
    assert_eq!(data[..6], [0, 0, 2, 34, 0x10, 1], "POPULATE TOKEN, completed");
    assert_eq!(data[32..38], [0, 0, 2, 2, 0, 0]);
    data[38..].to_vec()
}

pub(crate) fn zero_token() -> [u8; 512] {
    let mut token = [0; 512];
    token[..4].copy_from_slice(&0xffff_0001u32.to_be_bytes());
    token[6..8].copy_from_slice(&0x01f8u16.to_be_bytes());
    token
}

/// SBC-3: POPULATE TOKEN, WRITE USING TOKEN.
#[test]
fn a_token_carries_data_between_devices() {
    let mut world = world();
    let token = token(&mut world.source, &[(10, 100), (2000, 20)]);
    assert_eq!(token.len(), 512);
    assert_eq!(token[..8], [0, 0x80, 0, 1, 0, 0, 1, 0xf8]);
    assert_eq!(token[56..64], (120u64 * 512).to_be_bytes());
    let reply = world.write(&token, 90, &[(7, 12), (500, 18)]);
    assert_eq!(reply.code(), GOOD);
    let blocks = |from: usize, count: usize| from * BLOCK..(from + count) * BLOCK;
    let (source, destination) = (&world.source.disk.bytes, &world.destination.disk.bytes);
    assert_eq!(destination[blocks(7, 10)], source[blocks(100, 10)]);
    assert_eq!(destination[blocks(17, 2)], source[blocks(2000, 2)]);
    assert_eq!(destination[blocks(500, 18)], source[blocks(2002, 18)]);
    let told = world.destination.good(&cdb(0x84, 0x07, 7, 4096), &[]);
    assert_eq!((told[4], told[5], told[15]), (0x11, 1, 0xf1));
    assert_eq!(told[16..24], 30u64.to_be_bytes(), "blocks");
    assert_eq!(told[32..], [0; 4], "no token");
    let all = world.source.good(&cdb(0x84, 0x08, 0, 4096), &[]);
    assert_eq!((&all[..4], &all[8..]), (&[0, 0, 0, 100][..], &token[..96]));
    assert_eq!(world.destination.good(&cdb(0x84, 0x08, 0, 4096), &[]), [0, 0, 0, 4, 0, 0, 0, 0]);
}

/// SPC-4: POPULATE TOKEN, WRITE USING TOKEN, RECEIVE ROD TOKEN INFORMATION.
#[test]
fn a_change_of_the_source_revokes_the_token() {
    let mut world = world();
    let first = token(&mut world.source, &[(10, 10)]);
    let second = token(&mut world.source, &[(30, 10)]);
    world.source.good(&cdb10(0x2a, 0, 20, 1), &[0; 512]);
    assert_eq!(world.write(&first, 0, &[(0, 10)]).code(), GOOD, "the block behind it");
    world.source.good(&cdb10(0x2a, 0, 19, 1), &[0; 512]);
    assert_eq!(world.write(&first, 0, &[(0, 5)]).code(), TOKEN_REVOKED);
    assert_eq!(world.write(&second, 0, &[(0, 10)]).code(), GOOD);
    world.source.good(&cdb10(0x41, 0, 35, 1), &[0; 512]);
    assert_eq!(world.write(&second, 0, &[(0, 5)]).code(), TOKEN_REVOKED, "WRITE SAME");
    let third = token(&mut world.source, &[(30, 10)]);
    let told = world.destination.good(&cdb(0x84, 0x07, 7, 4096), &[]);
    assert_eq!((told[5], told[14]), (2, 18), "failed, with its sense data");
    let copy = write_list(&third, 0, 0, &[(34, 2)]);
    let reply = world.source.run(&cdb(0x83, 0x11, 9, copy.len()), &copy);
    assert_eq!(reply.code(), GOOD, "one piece, read before it is overwritten");
    assert_eq!(world.write(&third, 0, &[(0, 1)]).code(), TOKEN_REVOKED);
}

#[test]
fn a_change_while_a_token_is_used_is_found() {
    let mut world = world();
    let token = token(&mut world.source, &[(0, 8)]);
    let list = write_list(&token, 0, 0, &[(0, 8)]);
    let nexus = &world.destination.nexus;
    let (mut task, _) = Task::start(nexus, Lun::from_number(0), &cdb(0x83, 0x11, 7, list.len()));
    assert_eq!(task.resume(nexus, Event::DataOut(&list)), Next::Yield);
    let next = task.resume(nexus, Event::Turn { data_out: &list });
    let Next::IoOn { naa, io: Io::Read { .. } } = next else { panic!("{next:?}") };
    assert_eq!(naa, config().identity.naa);
    world.source.good(&cdb10(0x2a, 0, 7, 1), &[0; 512]);
    let event = Event::Io { result: Ok(IoOutcome::Done), data_out: &list, medium: &[0; 4096] };
    let next = task.resume(nexus, event);
    assert!(matches!(next, Next::Done(done) if done.status == Status::CheckCondition));
    let told = world.destination.good(&cdb(0x84, 0x07, 7, 4096), &[]);
    assert_eq!((told[5], &told[16..24]), (2, &[0; 8][..]), "nothing was written");
}

/// The sense data is of the unit that was asked, so it does not tell LBAs and states of another one.
#[test]
fn what_fails_at_the_source_is_not_told_as_if_it_were_here() {
    const THIRD_PARTY: (u8, u8, u8) = (0xa, 0x0d, 0x01);
    const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
    const VALID: u8 = 0x80;
    let mut world = world();
    let token = token(&mut world.source, &[(100, 8)]);
    let bad = IoError::Medium { offset_bytes: Some(103 * 512) };
    world.source.disk.fail = Some((|io| matches!(io, Io::Read { .. }), bad));
    let reply = world.write(&token, 0, &[(0, 8)]);
    assert_eq!((reply.code(), reply.sense[0] & VALID), (THIRD_PARTY, 0), "no LBA of the source");
    world.source.disk.fail = None;
    world.source.good(&STOP, &[]);
    assert_eq!(world.write(&token, 0, &[(0, 8)]).code(), THIRD_PARTY, "it is not this unit that was stopped");
    world.source.good(&[0x1b, 0, 0, 0, 1, 0], &[]);
    world.destination.disk.fail = Some((|io| matches!(io, Io::WriteMedium { .. }), bad));
    let reply = world.write(&token, 0, &[(100, 8)]);
    assert_eq!(reply.code(), (3, 0x0c, 0x00));
    assert_eq!((reply.sense[0] & VALID, &reply.sense[3..7]), (VALID, &103u32.to_be_bytes()[..]));
    world.destination.disk.fail = None;
    world.source.good(&cdb10(0x2a, 0, 100, 1), &[0; 512]);
    world.source.good(&STOP, &[]);
    assert_eq!(world.write(&token, 0, &[(0, 8)]).code(), TOKEN_REVOKED, "it would be all the same");
}

/// Who has written a part by a token goes on behind it, so that part must be stable where no write cache is declared.
/// SPC-4: POPULATE TOKEN, WRITE USING TOKEN, RECEIVE ROD TOKEN INFORMATION.
#[test]
fn without_a_write_cache_what_a_failed_write_tells_as_done_is_stable() {
    const HALF: u64 = 1 << 20;
    fn second(io: &Io) -> bool {
        matches!(io, Io::WriteMedium { offset_bytes: HALF, .. })
    }
    for (fails, blocks) in [(second as fn(&Io) -> bool, 2048u64), (|io| second(io) || *io == Io::Flush, 0)] {
        let mut world = world_of(|config| config.write_cache = false);
        let token = token(&mut world.source, &[(0, 4096)]);
        world.destination.disk.fail = Some((fails, IoError::Hardware));
        assert_eq!(world.write(&token, 0, &[(0, 4096)]).status, Status::CheckCondition);
        assert_eq!(world.destination.log().last(), Some(&Io::Flush));
        let told = world.destination.good(&cdb(0x84, 0x07, 7, 4096), &[]);
        assert_eq!((told[5], &told[16..24]), (2, &blocks.to_be_bytes()[..]));
    }
}

/// Blocks that one operation of [`in_pieces`] moves.
const PIECE: u64 = 512;

/// A host whose copies have more than one piece of few blocks.
fn in_pieces() -> Host {
    let domain = Arc::new(Domain::new(Arc::<Surroundings>::default()));
    let bytes = PIECE as u32 * BLOCK as u32;
    Host::on(device_in(&domain, config().identity.naa, |config| {
        (config.max_transfer_bytes, config.optimal_transfer_bytes) = (bytes, bytes);
    }))
}

/// WRITE USING TOKEN on the unit of the token.
fn write_within(host: &mut Host, token: &[u8], ranges: &[(u64, u32)]) -> Reply {
    let list = write_list(token, 0, 0, ranges);
    host.run(&cdb(0x83, 0x11, 7, list.len()), &list)
}

/// COPY OPERATION STATUS and TRANSFER COUNT of the last one.
fn told_within(host: &mut Host) -> (u8, u64) {
    let told = host.good(&cdb(0x84, 0x07, 7, 4096), &[]);
    (told[5], u64::from_be_bytes(told[16..24].try_into().expect("eight bytes")))
}

/// A host goes on behind what is told, so that has no gaps.
#[test]
fn what_was_written_from_the_end_does_not_count() {
    fn beginning(io: &Io) -> bool {
        matches!(io, Io::WriteMedium { offset_bytes, .. } if *offset_bytes == PIECE * BLOCK as u64)
    }
    let mut host = in_pieces();
    let up = [(PIECE, 2 * PIECE as u32)];
    let source = [(0, 2 * PIECE as u32)];
    let first = token(&mut host, &source);
    host.log();
    host.disk.fail = Some((beginning, IoError::Hardware));
    assert_eq!(write_within(&mut host, &first, &up).status, Status::CheckCondition);
    assert_eq!(host.log().iter().filter(|io| matches!(io, Io::WriteMedium { .. })).count(), 2);
    assert_eq!(told_within(&mut host), (2, 0));
    host.disk.fail = None;
    let second = token(&mut host, &source);
    assert_eq!(write_within(&mut host, &second, &up).code(), GOOD);
    assert_eq!(told_within(&mut host), (1, 2 * PIECE));
}

/// It would end after its first writes, with data of the token written over that its host still needs.
#[test]
fn a_copy_that_would_revoke_its_own_token_writes_nothing() {
    type Ranges<'a> = &'a [(u64, u32)];
    const ALL: u32 = 2 * PIECE as u32;
    let far = [(0, ALL), (3000, ALL)];
    let cases: [(&str, Ranges<'_>, Ranges<'_>); 4] = [
        ("up", &[(0, ALL)], &[(100, ALL)]),
        ("down", &[(100, ALL)], &[(0, ALL)]),
        ("onto a range that comes later", &far, &[(3000, ALL), (0, ALL)]),
        ("onto what the copy does not want", &far, &[(3000, ALL)]),
    ];
    for (which, of, to) in cases {
        let mut host = in_pieces();
        let token = token(&mut host, of);
        host.log();
        assert_eq!(write_within(&mut host, &token, to).code(), TOKEN_REVOKED, "{which}");
        assert!(host.log().is_empty(), "{which}");
        assert_eq!(write_within(&mut host, &token, &[(2000, ALL)]).code(), GOOD, "{which}: it is as it was");
    }
    let data = |host: &Host, lba: u64| {
        let at = lba as usize * BLOCK;
        host.disk.bytes[at..at + 2 * PIECE as usize * BLOCK].to_vec()
    };
    for (from, to) in [(0, PIECE), (PIECE, 0)] {
        let mut host = in_pieces();
        (0..).zip(&mut host.disk.bytes).for_each(|(index, byte)| *byte = (index / BLOCK % 251) as u8);
        let before = data(&host, from);
        let token = token(&mut host, &[(from, ALL)]);
        assert_eq!(write_within(&mut host, &token, &[(to, ALL)]).code(), GOOD, "the last piece may");
        assert!(data(&host, to) == before, "{from} {to}");
    }
}

/// The unit's own work, and the end of the medium, change what no command writes.
#[test]
fn an_erasure_or_a_smaller_medium_revokes() {
    const SANITIZE_BLOCK_ERASE: [u8; 10] = [0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0];
    const FORMAT_UNIT: [u8; 6] = [0x04, 0, 0, 0, 0, 0];
    for erase in [&SANITIZE_BLOCK_ERASE[..], &FORMAT_UNIT] {
        let mut world = world();
        let token = token(&mut world.source, &[(0, 8)]);
        world.source.good(erase, &[]);
        while world.source.work() {}
        assert_eq!(world.write(&token, 0, &[(0, 8)]).code(), TOKEN_REVOKED, "{erase:02x?}");
    }
    let mut world = world();
    let [kept, cut] = [(0, 8), (BLOCKS - 8, 8)].map(|range| token(&mut world.source, &[range]));
    let unit = Arc::clone(world.source.nexus.device().unit(world.source.lun).expect("a unit"));
    assert_eq!(unit.resize(BLOCKS - 1), Ok(true));
    assert_eq!(unit.resize(BLOCKS), Ok(true));
    assert_eq!(world.write(&cut, 0, &[(0, 8)]).code(), TOKEN_REVOKED);
    assert_eq!(world.write(&kept, 0, &[(0, 8)]).code(), GOOD);
}

#[test]
fn tokens_end_by_time_and_by_request_and_cannot_be_made_up() {
    let mut world = world();
    let mine = token(&mut world.source, &[(0, 8)]);
    let mut forged = mine.clone();
    forged[511] ^= 1;
    assert_eq!(world.write(&forged, 0, &[(0, 8)]).code(), TOKEN_UNKNOWN);
    world.surroundings.now_s.store(60, Ordering::Relaxed);
    assert_eq!(world.write(&mine, 0, &[(0, 8)]).code(), GOOD);
    world.surroundings.now_s.store(121, Ordering::Relaxed);
    assert_eq!(world.write(&mine, 0, &[(0, 8)]).code(), TOKEN_UNKNOWN, "60 seconds unused");
    let again = token(&mut world.source, &[(0, 8)]);
    assert_eq!(world.write_list(&write_list(&again, 2, 0, &[(0, 8)])).code(), GOOD, "DEL_TKN");
    assert_eq!(world.write(&again, 0, &[(0, 8)]).code(), TOKEN_UNKNOWN);
    let mut host = Host::new(config());
    let list = populate_list(0, None, &[(0, 8)]);
    assert_eq!(populate(&mut host, &list).code(), (5, 0x55, 0x03), "no random numbers, no tokens");
}

/// SPC-4: what is told by a list identifier is of the last command that had it.
#[test]
fn a_refused_command_leaves_no_older_record_under_its_identifier() {
    let mut world = world();
    let token = token(&mut world.source, &[(0, 8)]);
    assert_eq!(populate(&mut world.source, &populate_list(601, None, &[(0, 8)])).code(), INVALID_PARAMETER);
    assert_eq!(world.source.code(&cdb(0x84, 0x07, 5, 4096)), INVALID_FIELD, "no token of the first");
    assert_eq!(world.write(&token, 0, &[(0, 8)]).code(), GOOD);
    assert_eq!(world.write(&token, 1, &[(0, 8)]).code(), INVALID_PARAMETER);
    assert_eq!(world.destination.code(&cdb(0x84, 0x07, 7, 4096)), INVALID_FIELD, "8 blocks are not written");
}

/// SBC-3: DEL_TKN counts when the command has been processed.
#[test]
fn a_token_is_deleted_by_a_copy_that_has_its_data() {
    let mut world = world();
    let token = token(&mut world.source, &[(0, 8)]);
    let delete = |offset| write_list(&token, 2, offset, &[(0, 8)]);
    assert_eq!(world.write_list(&delete(1)).field(), Some((8, None)), "beyond its end");
    world.destination.disk.fail = Some((|io| matches!(io, Io::WriteMedium { .. }), IoError::Hardware));
    assert_eq!(world.write_list(&delete(0)).status, Status::CheckCondition);
    world.destination.disk.fail = None;
    assert_eq!(world.write_list(&delete(0)).code(), GOOD);
    assert_eq!(world.write_list(&delete(0)).code(), TOKEN_UNKNOWN);
}

/// Reads change nothing, and writes have nothing to revoke once the token has been deleted or has expired.
#[test]
fn commands_are_hindered_by_tokens_that_they_could_revoke() {
    let mut world = world();
    let are_plain = |host: &Host| {
        [0x28, 0x2a].map(|opcode| foreseen(&host.nexus, host.lun, &cdb10(opcode, 0, 100, 8)).is_some())
    };
    assert_eq!(are_plain(&world.source), [true, true]);
    let token_of_some = token(&mut world.source, &[(0, 8)]);
    assert_eq!(are_plain(&world.source), [true, false]);
    assert_eq!(world.write_list(&write_list(&token_of_some, 2, 0, &[(0, 8)])).code(), GOOD, "DEL_TKN");
    assert_eq!(are_plain(&world.source), [true, true]);

    let domain = Arc::new(Domain::new(world.surroundings.clone()));
    let mut host = Host::on(device_in(&domain, config().identity.naa, |_| {}));
    token(&mut host, &[(0, 8)]);
    for (now_s, writes) in [(60, false), (61, true)] {
        world.surroundings.now_s.store(now_s, Ordering::Relaxed);
        domain.forget_expired_tokens();
        assert_eq!(are_plain(&host), [true, writes], "{now_s}");
    }
}

/// Whoever logs in under many ISIDs has no more room than others, and cannot take theirs.
#[test]
fn the_ports_of_one_initiator_share_its_tokens() {
    let mut world = world();
    let first = token(&mut world.source, &[(0, 8)]);
    world.surroundings.now_s.store(1, Ordering::Relaxed);
    let (device, port) = (Arc::clone(world.source.nexus.device()), world.source.nexus.target_port());
    let mut second = Vec::new();
    for isid in 2..10 {
        let name = format!("iqn.host,i,0x80000000000{isid}");
        world.source.nexus = Nexus::new(Arc::clone(&device), port, name);
        assert_eq!(world.source.code(&[0]), (6, 0x29, 0));
        (0..16).for_each(|_| second = token(&mut world.source, &[(0, 8)]));
    }
    assert_eq!(world.write(&first, 0, &[(0, 8)]).code(), TOKEN_UNKNOWN, "there are 128 newer ones");
    assert_eq!(world.write(&second, 0, &[(0, 8)]).code(), GOOD);
}

#[test]
fn the_token_for_zeros_needs_no_source() {
    let mut world = world();
    let disk = &mut world.destination.disk;
    disk.bytes.fill(0xaa);
    disk.allocation.fill(Allocation::Mapped);
    assert_eq!(world.write(&zero_token(), 1 << 40, &[(5, 10), (100, 1)]).code(), GOOD);
    let bytes = &world.destination.disk.bytes;
    let zeros = |lba: usize| bytes[lba * BLOCK..(lba + 1) * BLOCK].iter().all(|&byte| byte == 0);
    let written: Vec<_> = (0..200).filter(|&lba| zeros(lba)).collect();
    assert_eq!(written, (5..15).chain([100]).collect::<Vec<_>>());
    let told = world.destination.good(&cdb(0x84, 0x07, 7, 4096), &[]);
    assert_eq!((told[5], &told[16..24]), (1, &11u64.to_be_bytes()[..]));
}

/// SPC-4: 4.5.2.4.2 field pointer.
#[test]
fn what_is_wrong_in_a_list_is_pointed_at() {
    let mut world = world();
    let mut check = |list: &[u8]| {
        let reply = populate(&mut world.source, list);
        (reply.code(), reply.sense.get(15..18).and_then(|_| reply.field()).map(|(byte, _)| byte))
    };
    let wrong = |byte| (INVALID_PARAMETER, Some(byte));
    assert_eq!(check(&populate_list(601, None, &[(0, 8)])), wrong(4));
    assert_eq!(check(&populate_list(600, Some(0x0080_ffff), &[(0, 8)])), (GOOD, None));
    assert_eq!(check(&populate_list(0, Some(0x0001_0000), &[(0, 8)])), wrong(8), "access upon reference");
    assert_eq!(check(&populate_list(0, None, &[])), wrong(0));
    assert_eq!(check(&populate_list(0, None, &[(0, 0)])), wrong(24));
    assert_eq!(check(&populate_list(0, None, &[(0, 8), (7, 1)])), wrong(32), "overlap");
    assert_eq!(check(&populate_list(0, None, &[(4090, 7)])).0, OUT_OF_RANGE);
    assert_eq!(check(&populate_list(0, None, &[(0, 1); 65])).0, (5, 0x26, 0x08));
    assert_eq!(check(&populate_list(0, None, &[(0, 8)])[..20]).0, LENGTH_ERROR);
    assert_eq!(check(&[0; 8]).0, LENGTH_ERROR);
    let token = token(&mut world.source, &[(0, 8)]);
    assert_eq!(world.write(&token, 1, &[(0, 8)]).field(), Some((8, None)), "beyond its end");
    assert_eq!(world.write(&token, u64::MAX, &[(0, 8)]).field(), Some((8, None)));
    let mut other = token.clone();
    other[1] = 0x01;
    assert_eq!(world.write(&other, 0, &[(0, 8)]).code(), (5, 0x23, 0x01));
    other = token.clone();
    other[7] = 0;
    assert_eq!(world.write(&other, 0, &[(0, 8)]).code(), (5, 0x23, 0x0a));
    assert_eq!(world.write(&token, 0, &[(0, 8)]).code(), GOOD);
}

#[test]
fn devices_with_other_blocks_and_other_domains_take_no_tokens() {
    let mut world = world();
    let token = token(&mut world.source, &[(0, 8)]);
    let mut stranger = self::world();
    assert_eq!(stranger.write(&token, 0, &[(0, 8)]).code(), TOKEN_UNKNOWN);
    let domain = Arc::new(Domain::new(world.surroundings.clone()));
    let mut small = Host::on(device_in(&domain, 0x3000_0000_0000_0001, |_| {}));
    let mut large = Host::on(device_in(&domain, 0x3000_0000_0000_0002, |config| {
        config.block_length_bytes = 4096;
        config.blocks = 512;
    }));
    let token = self::token(&mut small, &[(0, 8)]);
    let list = write_list(&token, 0, 0, &[(0, 1)]);
    assert_eq!(large.run(&cdb(0x83, 0x11, 7, list.len()), &list).code(), (5, 0x23, 0x00));
}

fn ranges() -> impl Strategy<Value = Vec<(u64, u32)>> {
    prop::collection::vec((0u64..300, 1u32..40), 1..6).prop_map(|ranges| {
        let mut at = 0;
        ranges
            .into_iter()
            .map(|(gap, count)| {
                let lba = at + gap;
                at = lba + u64::from(count);
                (lba, count)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(cases(48))]

    /// Whatever the ranges on both sides, the destination gets the token's blocks one after another.
    #[test]
    fn the_data_arrives_in_order(from in ranges(), to in ranges(), offset in 0u64..60) {
        let mut world = world();
        let token = token(&mut world.source, &from);
        let blocks = |ranges: &[(u64, u32)]| -> Vec<u64> {
            ranges.iter().flat_map(|&(lba, count)| lba..lba + u64::from(count)).collect()
        };
        let (source, destination) = (blocks(&from), blocks(&to));
        let fits = offset as usize + destination.len() <= source.len();
        let mut expected = world.destination.disk.bytes.clone();
        if fits {
            for (index, &lba) in destination.iter().enumerate() {
                let from = source[offset as usize + index] as usize * BLOCK;
                let to = lba as usize * BLOCK;
                expected[to..to + BLOCK].copy_from_slice(&world.source.disk.bytes[from..from + BLOCK]);
            }
        }
        let reply = world.write(&token, offset, &to);
        prop_assert_eq!(reply.code(), if fits { GOOD } else { INVALID_PARAMETER });
        prop_assert!(world.destination.disk.bytes == expected);
    }

    /// Any bytes as a list end the command.
    #[test]
    fn any_list_ends(
        action in prop::sample::select(vec![0x10u8, 0x11]),
        noise in prop::collection::vec((0usize..700, any::<u8>()), 0..6),
        length in 1usize..700,
    ) {
        let mut world = world();
        let token = token(&mut world.source, &[(0, 8)]);
        let mut list = match action {
            0x10 => populate_list(0, None, &[(1, 8), (20, 3)]),
            _ => write_list(&token, 0, 0, &[(40, 8)]),
        };
        for (at, byte) in noise {
            if let Some(place) = list.get_mut(at) {
                *place = byte;
            }
        }
        list.truncate(length);
        world.source.run(&cdb(0x83, action, 1, list.len()), &list);
    }
}
