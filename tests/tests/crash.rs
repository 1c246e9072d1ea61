//! The crash test: a writer records what was acknowledged, the target is killed at a random moment, restarted, and asked
//! for everything again.
//!
//! With `write=through` every acknowledged write must be there; with `write=back` every write that was acknowledged before
//! the last acknowledged SYNCHRONIZE CACHE began. What was in flight may be there or not, sector by sector. Loss of the
//! page cache is not simulated here: lunette-block's tests do that where the kernel can.
//!
//! Volumes with protection information (docs/decisions/0019) are held to the same.
//!
//! `LUNETTE_CRASH_ROUNDS` and `LUNETTE_CRASH_SEED` change the number of rounds and replay a seed: the same writes in the
//! same order; the moment of the kill is a count of acknowledgements, so it replays as far as the machine's timing does.

use std::collections::BTreeMap;
use std::env;

use anyhow::{Context, Result, bail, ensure};
use lunette_tests::initiator::{Command, Completion, Initiator, LoginOptions, cdb};
use lunette_tests::lunette::Lunette;
use lunette_tests::random::{Random, fresh_seed};
use lunette_wire::InitiatorTaskTag;

const SECTOR_BYTES: usize = 512;
const SECTORS: usize = 8;
const CELL_BYTES: usize = SECTOR_BYTES * SECTORS;
const CELLS: usize = 4096;
const DEPTH: usize = 16;
const MARK: u64 = 0x4c55_4e45_5454_4521;

/// Which promise is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Through,
    Back,
}

/// What is known of one cell: a run of sectors that is always written as a whole, by one write at a time.
#[derive(Debug, Clone, Default)]
struct Cell {
    /// Per sector the newest version that must survive; 0 was never written.
    stable: [u64; SECTORS],
    /// Versions that may be there instead: in flight, or acknowledged and not yet synchronized; ascending.
    later: Vec<u64>,
    in_flight: bool,
}

/// What a command in flight means when it is acknowledged.
enum Meaning {
    Write {
        cell: usize,
        version: u64,
    },
    /// The acknowledged versions when it was sent.
    Synchronize {
        acknowledged: Vec<(usize, u64)>,
    },
}

struct Writer {
    mode: Mode,
    random: Random,
    seed: u64,
    cells: Vec<Cell>,
    /// Acknowledged and not yet synchronized (write=back only), newest version per cell.
    unsynchronized: BTreeMap<usize, u64>,
    next_version: u64,
    in_flight: BTreeMap<u32, Meaning>,
    acknowledged: u64,
}

/// The bytes of one sector: everything in it follows from its head, so that no mixture goes unseen.
fn sector(seed: u64, cell: usize, index: usize, version: u64) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    if version == 0 {
        return bytes;
    }
    let place = (cell * SECTORS + index) as u64;
    let mut random = Random::new(seed ^ place.rotate_left(32) ^ version);
    for (position, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = match position {
            0 => MARK,
            1 => place,
            2 => version,
            _ => random.next(),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

impl Writer {
    fn new(mode: Mode, seed: u64) -> Self {
        Self {
            mode,
            random: Random::new(seed),
            seed,
            cells: vec![Cell::default(); CELLS],
            unsynchronized: BTreeMap::new(),
            next_version: 1,
            in_flight: BTreeMap::new(),
            acknowledged: 0,
        }
    }

    /// Writes until `count` commands were acknowledged, and leaves the rest in flight.
    fn write_until(&mut self, initiator: &mut Initiator, count: u64) -> Result<()> {
        let goal = self.acknowledged + count;
        loop {
            while self.in_flight.len() < DEPTH {
                self.submit(initiator)?;
            }
            if self.acknowledged >= goal {
                return Ok(());
            }
            let completion = initiator.wait()?;
            self.acknowledge(&completion)?;
        }
    }

    fn submit(&mut self, initiator: &mut Initiator) -> Result<()> {
        if self.mode == Mode::Back && self.random.below(40) == 0 {
            let acknowledged = self.unsynchronized.iter().map(|(cell, version)| (*cell, *version)).collect();
            let command = Command { cdb: cdb::synchronize_cache(), ..Command::default() };
            let tag = initiator.submit(command)?;
            self.in_flight.insert(tag.0, Meaning::Synchronize { acknowledged });
            return Ok(());
        }
        let cell = loop {
            let cell = self.random.below(CELLS as u64) as usize;
            if !self.cells[cell].in_flight {
                break cell;
            }
        };
        let version = self.next_version;
        self.next_version += 1;
        let data_out = (0..SECTORS).flat_map(|index| sector(self.seed, cell, index, version)).collect();
        self.cells[cell].in_flight = true;
        self.cells[cell].later.push(version);
        let cdb = cdb::write((cell * SECTORS) as u64, SECTORS as u32);
        let tag = initiator.submit(Command { cdb, data_out, ..Command::default() })?;
        self.in_flight.insert(tag.0, Meaning::Write { cell, version });
        Ok(())
    }

    fn acknowledge(&mut self, completion: &Completion) -> Result<()> {
        let InitiatorTaskTag(tag) = completion.tag;
        let meaning = self.in_flight.remove(&tag).context("an answer to nothing")?;
        ensure!(completion.status == 0, "status {:#x}, sense {:02x?}", completion.status, completion.sense);
        self.acknowledged += 1;
        match meaning {
            Meaning::Write { cell, version } => {
                self.cells[cell].in_flight = false;
                match self.mode {
                    Mode::Through => self.make_stable(cell, version),
                    Mode::Back => {
                        self.unsynchronized.insert(cell, version);
                    }
                }
            }
            Meaning::Synchronize { acknowledged } => {
                for (cell, version) in acknowledged {
                    self.make_stable(cell, version);
                    if self.unsynchronized.get(&cell) == Some(&version) {
                        self.unsynchronized.remove(&cell);
                    }
                }
            }
        }
        Ok(())
    }

    fn make_stable(&mut self, cell: usize, version: u64) {
        let cell = &mut self.cells[cell];
        // Two synchronizations may be acknowledged in either order; the newer promise stands.
        for stable in &mut cell.stable {
            *stable = (*stable).max(version);
        }
        cell.later.retain(|later| *later > version);
    }

    /// Takes in what the target had acknowledged before it died and the network still holds.
    fn take_in_the_rest(&mut self, initiator: &mut Initiator) -> Result<()> {
        while let Ok(completion) = initiator.wait() {
            self.acknowledge(&completion)?;
        }
        self.in_flight.clear();
        Ok(())
    }

    /// Reads everything and checks every sector; what was found is what must be there from now on.
    fn verify(&mut self, initiator: &mut Initiator) -> Result<()> {
        const CELLS_PER_READ: usize = 64;
        for first in (0..CELLS).step_by(CELLS_PER_READ) {
            let blocks = (CELLS_PER_READ * SECTORS) as u32;
            let cdb = cdb::read((first * SECTORS) as u64, blocks);
            let command = Command { cdb, data_in_bytes: blocks * SECTOR_BYTES as u32, ..Command::default() };
            let data = initiator.execute_good(command)?;
            ensure!(data.len() == CELLS_PER_READ * CELL_BYTES, "a short read of {} bytes", data.len());
            for (position, bytes) in data.chunks_exact(SECTOR_BYTES).enumerate() {
                let (cell, index) = (first + position / SECTORS, position % SECTORS);
                let found = self.check_sector(cell, index, bytes)?;
                self.cells[cell].stable[index] = found;
            }
        }
        for cell in &mut self.cells {
            cell.later.clear();
            cell.in_flight = false;
        }
        self.unsynchronized.clear();
        Ok(())
    }

    fn check_sector(&self, cell: usize, index: usize, bytes: &[u8]) -> Result<u64> {
        let known = &self.cells[cell];
        let mut allowed = known.later.iter().chain([&known.stable[index]]);
        if let Some(version) =
            allowed.find(|version| bytes == sector(self.seed, cell, index, **version)).copied()
        {
            return Ok(version);
        }
        let word =
            |position: usize| bytes.get(position * 8..position * 8 + 8).and_then(|word| word.try_into().ok());
        let found = [0, 1, 2].map(|position| u64::from_le_bytes(word(position).unwrap_or_default()));
        bail!(
            "cell {cell}, sector {index}: version {} must be there (or one of {:?}); found mark {:#x}, place {}, version {}",
            known.stable[index],
            known.later,
            found[0],
            found[1],
            found[2]
        )
    }
}

fn crash(mode: Mode, options: &str, seed: u64, rounds: u32) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let word = if mode == Mode::Through { "through" } else { "back" };
    let image = directory.path().join("disk.img");
    let lun = format!("0=file:{},size={},write={word}{options}", image.display(), CELLS * CELL_BYTES);
    let mut writer = Writer::new(mode, seed);
    for round in 0..=rounds {
        let target = Lunette::serve().luns([&lun]).start().with_context(|| format!("round {round}"))?;
        let mut initiator = Initiator::login(target.portal(), &LoginOptions::default())?;
        initiator.make_ready(0)?;
        writer.verify(&mut initiator).with_context(|| format!("after {round} crashes"))?;
        if round == rounds {
            // A last time without a crash: a drained target keeps all.
            initiator.logout()?;
            return target.stop();
        }
        let before_the_kill = 1 + writer.random.below(1500);
        writer.write_until(&mut initiator, before_the_kill).with_context(|| format!("round {round}"))?;
        target.kill()?;
        writer.take_in_the_rest(&mut initiator)?;
    }
    Ok(())
}

fn run(mode: Mode, options: &str) {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seed = number("LUNETTE_CRASH_SEED").unwrap_or_else(fresh_seed);
    let rounds = number("LUNETTE_CRASH_ROUNDS").unwrap_or(5);
    eprintln!("{mode:?}{options}: {rounds} rounds with LUNETTE_CRASH_SEED={seed}");
    crash(mode, options, seed, u32::try_from(rounds).expect("a number of rounds"))
        .unwrap_or_else(|error| panic!("{mode:?}{options}, LUNETTE_CRASH_SEED={seed}: {error:#}"));
}

#[test]
fn write_through_keeps_all_that_was_acknowledged() {
    run(Mode::Through, "");
}

#[test]
fn write_back_keeps_all_that_was_synchronized() {
    run(Mode::Back, "");
}

/// Every block of the disk is read after each crash, and READ checks what is kept with it: a block that a crash has parted
/// from its protection information would end that with ABORTED COMMAND.
#[test]
fn protection_information_is_right_after_a_crash() {
    run(Mode::Through, ",protection=1");
    run(Mode::Back, ",protection=3");
}

#[test]
fn the_checker_finds_a_lost_write_and_a_torn_one() {
    let mut writer = Writer::new(Mode::Through, 7);
    writer.cells[3].stable = [5; SECTORS];
    writer.cells[3].later = vec![6];
    assert_eq!(writer.check_sector(3, 0, &sector(7, 3, 0, 5)).ok(), Some(5));
    assert_eq!(writer.check_sector(3, 0, &sector(7, 3, 0, 6)).ok(), Some(6));
    assert!(writer.check_sector(3, 0, &sector(7, 3, 0, 4)).is_err(), "an older version");
    assert!(writer.check_sector(3, 0, &sector(7, 3, 1, 5)).is_err(), "another place");
    assert!(writer.check_sector(3, 0, &[0; SECTOR_BYTES]).is_err(), "never written");
    let mut mixed = sector(7, 3, 0, 5);
    mixed[256..].copy_from_slice(&sector(7, 3, 0, 6)[256..]);
    assert!(writer.check_sector(3, 0, &mixed).is_err(), "a mixture within a sector");
}
