//! Sessions of `lunette_initiator` as tests use them: commands with their CDBs, waiting for their ends, and data that is
//! written and read back in every way.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lunette_initiator::{
    Command, CommandId, Completion, DigestWish, Engine, EngineEvent, IscsiName, Lun, Options, Portal, Wishes,
};

use crate::initiator::cdb;

/// How long something that must happen may take. Generous: tests share the machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The portal at an address.
#[must_use]
pub fn portal_of(address: SocketAddr) -> Portal {
    Portal::new(address.ip().to_string(), address.port())
}

/// The defaults for a target at this address.
///
/// # Panics
/// The name is none.
#[must_use]
pub fn options(target: &str, address: SocketAddr) -> Options {
    Options::new(IscsiName::parse(target).expect("a good name"), portal_of(address))
}

/// The number of a unit.
///
/// # Panics
/// No unit has such a number.
#[must_use]
pub fn lun(number: u16) -> Lun {
    Lun::new(number).expect("a small number")
}

/// READ (16) of so many blocks.
///
/// # Panics
/// As [`lun`].
#[must_use]
pub fn read(unit: u16, lba: u64, blocks: u32, block_bytes: u32) -> Command {
    Command::new(lun(unit), cdb::read(lba, blocks)).reading(vec![0; (blocks * block_bytes) as usize])
}

/// WRITE (16) of so many blocks, which `data` is long.
///
/// # Panics
/// As [`lun`].
#[must_use]
pub fn write(unit: u16, lba: u64, blocks: u32, data: Vec<u8>) -> Command {
    Command::new(lun(unit), cdb::write(lba, blocks)).writing(data)
}

/// Bytes that differ from block to block and from seed to seed.
#[must_use]
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Polls until this command is over.
///
/// # Panics
/// It does not end, or the session is over.
pub fn wait_for(engine: &mut Engine, id: CommandId) -> Completion {
    let mut done = Vec::new();
    let deadline = Instant::now() + LIMIT;
    loop {
        engine.poll(Some(Duration::from_secs(1)), &mut done).expect("the system lets us");
        if let Some(at) = done.iter().position(|completion| completion.id == id) {
            return done.swap_remove(at);
        }
        while let Some(event) = engine.event() {
            assert!(!matches!(event, EngineEvent::Over { .. }) || engine.outstanding() == 0, "{event:?}");
        }
        assert!(Instant::now() < deadline, "{id:?} does not end");
    }
}

/// Carries a command out.
///
/// # Panics
/// As [`wait_for`].
pub fn execute(engine: &mut Engine, command: Command) -> Completion {
    let id = engine.submit(command);
    wait_for(engine, id)
}

/// Takes the unit attentions of a unit.
///
/// # Panics
/// It does not get ready.
pub fn make_ready(engine: &mut Engine, unit: u16) {
    for _ in 0..16 {
        if execute(engine, Command::new(lun(unit), [0; 6])).is_good() {
            return;
        }
    }
    panic!("the unit does not get ready");
}

/// Polls until all commands are over.
///
/// # Panics
/// They do not end.
pub fn wait_for_all(engine: &mut Engine) -> HashMap<CommandId, Completion> {
    let (mut all, mut done) = (HashMap::new(), Vec::new());
    let deadline = Instant::now() + LIMIT;
    while engine.outstanding() > 0 {
        engine.poll(Some(Duration::from_secs(1)), &mut done).expect("the system lets us");
        while engine.event().is_some() {}
        all.extend(done.drain(..).map(|completion| (completion.id, completion)));
        assert!(Instant::now() < deadline, "{} commands do not end", engine.outstanding());
    }
    engine.poll(Some(Duration::ZERO), &mut done).expect("the system lets us");
    all.extend(done.drain(..).map(|completion| (completion.id, completion)));
    all
}

/// Writes and reads back with many commands under way, of many sizes, and one that is larger than any burst.
///
/// # Panics
/// A command fails, or other data is read than was written.
pub fn exercise(engine: &mut Engine, unit: u16, block_bytes: u32, seed: u64) {
    make_ready(engine, unit);
    let sizes = [1u32, 2, 7, 8, 16, 33, 64, 128];
    let mut content = Vec::new();
    let mut lba = 3;
    for (index, &blocks) in sizes.iter().cycle().take(24).enumerate() {
        let data = pattern(seed + index as u64, (blocks * block_bytes) as usize);
        engine.submit(write(unit, lba, blocks, data.clone()));
        content.push((lba, blocks, data));
        lba += u64::from(blocks);
    }
    for (id, completion) in wait_for_all(engine) {
        assert!(completion.is_good(), "{id:?}: {:?}", completion.result);
        let times = completion.times;
        assert!(times.sent.is_some_and(|sent| times.queued <= sent && sent <= times.done));
    }
    let reads: Vec<_> = content
        .iter()
        .map(|(lba, blocks, data)| (engine.submit(read(unit, *lba, *blocks, block_bytes)), data))
        .collect();
    let mut done = wait_for_all(engine);
    for (id, data) in reads {
        let completion = done.remove(&id).expect("each ends");
        assert!(completion.is_good(), "{:?}", completion.result);
        assert!(completion.data() == data.as_slice(), "what was written is read");
    }
    let blocks = (3 << 20) / block_bytes;
    let data = pattern(seed + 99, (blocks * block_bytes) as usize);
    let written = execute(engine, write(unit, 1024, blocks, data.clone()));
    assert!(written.is_good() && written.buffer == data, "{:?}", written.result);
    let back = execute(engine, read(unit, 1024, blocks, block_bytes));
    assert!(back.is_good() && back.data() == data.as_slice(), "{:?}", back.result);
}

/// All combinations of immediate and unsolicited data, with small bursts so that R2Ts are needed.
#[must_use]
pub fn ways() -> Vec<Wishes> {
    let mut ways = vec![Wishes::default()];
    for (initial_r2t, immediate_data) in [(false, false), (false, true), (true, false), (true, true)] {
        for digest in [DigestWish::Refused, DigestWish::Preferred] {
            ways.push(Wishes {
                initial_r2t,
                immediate_data,
                max_burst_length: 65536,
                first_burst_length: 16384,
                max_recv_data_segment_length: 8192,
                header_digest: digest,
                data_digest: digest,
                ..Wishes::default()
            });
        }
    }
    ways
}
