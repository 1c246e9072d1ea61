//! A model of blocks with their information, and kills, losses of power and failures inside writes: every block is then
//! the old one or the new one.

mod layers;

use std::sync::{Mutex, OnceLock, Weak};

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::area::Pages;
use crate::engine::operation::Operation;
use crate::error::{ErrorClass, StoreError};
use crate::spec::StoreSpec;
use crate::store::memory;
use crate::volume::Volume;
use layers::{Event, Layers, Machine};

const BLOCKS: u64 = 24;

fn spec(block_length_bytes: u32) -> VolumeSpec {
    VolumeSpec {
        engine: EngineKind::Threads,
        block_length_bytes,
        protection: Some(1),
        ..VolumeSpec::new("test", StoreSpec::Null { size_bytes: 1 })
    }
}

#[derive(Debug, Clone, Copy)]
enum Change {
    /// Blocks of these bytes.
    Write(u8),
    Zero,
    Unmap,
}

/// A change of so many blocks from a first one, and what comes after how many steps of it; the last are after its end.
type Step = (Change, u64, u64, Option<(Event, usize)>);

fn step() -> impl Strategy<Value = Step> {
    let kind =
        prop_oneof![4 => (0..4u8).prop_map(Change::Write), 1 => Just(Change::Zero), 1 => Just(Change::Unmap)];
    let event = prop_oneof![Just(Event::Kill), Just(Event::PowerLoss), Just(Event::Failure)];
    let event = proptest::option::weighted(0.8, (event, any::<prop::sample::Index>()));
    let count = prop_oneof![1 => 1..=BLOCKS, 2 => 1..=2u64];
    (kind, prop_oneof![0..BLOCKS, Just(0)], count, event).prop_map(|(kind, first, count, event)| {
        let count = count.min(BLOCKS - first);
        let steps_max = 3 * count as usize + 12;
        (kind, first, count, event.map(|(event, steps)| (event, steps.index(steps_max))))
    })
}

/// Data that says what was written, and information that says it too, but nothing of whether they belong together.
fn block(byte: u8, block_bytes: usize) -> Vec<u8> {
    let mut block = vec![byte; block_bytes];
    block.extend([byte ^ 0x50; INFORMATION_BYTES]);
    block
}

fn blank(block_bytes: usize) -> Vec<u8> {
    let mut block = vec![0; block_bytes];
    block.extend([0xff; INFORMATION_BYTES]);
    block
}

/// The machine and the process on it.
struct Bench {
    machine: Arc<Machine>,
    data: Arc<Layers>,
    area: Arc<Layers>,
    store: ProtectedStore,
    block_bytes: usize,
}

impl Bench {
    fn new(block_bytes: usize, chance: u64) -> Self {
        let machine = Machine::new(chance);
        let data = Layers::new(&machine, block_bytes, BLOCKS as usize * block_bytes);
        let area = Layers::new(&machine, ENTRY_BYTES, Area::bytes_for(BLOCKS) as usize);
        let store = Self::start(&data, &area, block_bytes);
        Self { machine, data, area, store, block_bytes }
    }

    fn start(data: &Arc<Layers>, area: &Arc<Layers>, block_bytes: usize) -> ProtectedStore {
        ProtectedStore::new(data.clone(), Area::Store(area.clone()), &spec(block_bytes as u32))
    }

    /// Does one step; returns what the change ended with.
    fn take(&mut self, (change, first, count, event): Step) -> io::Result<()> {
        self.machine.plan(event);
        let stored = (self.block_bytes + INFORMATION_BYTES) as u64;
        let (offset, length) = (first * stored, count * stored);
        let result = match change {
            Change::Write(byte) => {
                self.store.write_at(offset, &block(byte, self.block_bytes).repeat(count as usize))
            }
            Change::Zero => self.store.zero(offset, length, false),
            Change::Unmap => self.store.unmap(offset, length),
        };
        self.machine.plan(None);
        let event = event.map(|(event, _)| event);
        if event == Some(Event::PowerLoss) {
            self.data.lose_power();
            self.area.lose_power();
        }
        if matches!(event, Some(Event::PowerLoss | Event::Kill)) || self.store.flush().is_err() {
            self.store = Self::start(&self.data, &self.area, self.block_bytes);
        }
        result
    }

    fn read(&self) -> Vec<Vec<u8>> {
        let stored = self.block_bytes + INFORMATION_BYTES;
        let mut all = vec![0; BLOCKS as usize * stored];
        self.store.read_at(0, &mut all).unwrap();
        let mut cached = vec![0; all.len()];
        assert_eq!(self.store.read_cached(0, &mut cached).unwrap(), all.len());
        assert_eq!(all, cached);
        all.chunks(stored).map(<[u8]>::to_vec).collect()
    }
}

/// Takes the steps, and holds every block after each against all that it may be.
fn check_model(block_bytes: usize, chance: u64, steps: &[Step]) {
    let mut bench = Bench::new(block_bytes, chance);
    let mut model = vec![vec![blank(block_bytes)]; BLOCKS as usize];
    for &step in steps {
        let (change, first, count, event) = step;
        let result = bench.take(step);
        assert!(result.is_ok() || event.is_some(), "{result:?}");
        let new = match change {
            Change::Write(byte) => block(byte, block_bytes),
            Change::Zero | Change::Unmap => blank(block_bytes),
        };
        for possible in &mut model[first as usize..(first + count) as usize] {
            if result.is_ok() {
                possible.clear();
            } else if !matches!(change, Change::Write(_)) {
                // What was to be cleared and was not has no information, so that it is not checked.
                let mut unchecked = possible.clone();
                unchecked.iter_mut().for_each(|block| block[block_bytes..].fill(0xff));
                possible.append(&mut unchecked);
            }
            possible.push(new.clone());
            possible.sort();
            possible.dedup();
        }
        for (index, (found, possible)) in bench.read().into_iter().zip(&mut model).enumerate() {
            let (data, information) = (found[0], &found[block_bytes..]);
            assert!(possible.contains(&found), "block {index}: {data} with {information:x?} after {step:?}");
            if matches!(event, Some((Event::PowerLoss, _))) {
                // Nothing but the disk can have said it.
                *possible = vec![found];
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn blocks_have_their_information_whatever_crashes_come(
        steps in proptest::collection::vec(step(), 1..20),
        chance in any::<u64>(),
        block_bytes in prop_oneof![Just(512), Just(4096)],
    ) {
        check_model(block_bytes, chance, &steps);
    }
}

/// Each place to cut a write short, and then a loss of power at each place of the next one: what the first leaves open the
/// second must not lose.
#[test]
fn one_crash_after_another() {
    const STEPS: usize = 14;
    let write = |byte, event| (Change::Write(byte), 0, 1, event);
    for event in [Event::Kill, Event::PowerLoss, Event::Failure] {
        for (first, second) in (0..STEPS).flat_map(|first| (0..STEPS).map(move |second| (first, second))) {
            for chance in 0..4 {
                let second = write(3, Some((Event::PowerLoss, second)));
                let steps = [write(1, None), write(2, Some((event, first))), second, write(1, None)];
                check_model(512, chance, &steps);
            }
        }
    }
}

#[test]
fn parts_of_blocks_are_refused() {
    let data = memory::open(8 * 512, Pages::Small).unwrap();
    let store = for_memory(data, &spec(512)).unwrap();
    assert_eq!(store.size_bytes(), 8 * 520);
    assert!(store.write_at(0, &[0; 512]).is_err());
    assert!(store.read_at(8, &mut [0; 520]).is_err());
    assert!(store.zero(520, 8, true).is_err());
}

/// Memory that looks, whenever some of it is cleared, whether the last block can be read meanwhile.
#[derive(Debug)]
struct Watched {
    memory: Arc<dyn Store>,
    above: OnceLock<Weak<ProtectedStore>>,
    /// How much was cleared each time, in bytes.
    cleared: Mutex<Vec<u64>>,
}

impl Store for Watched {
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn features(&self) -> Features {
        self.memory.features()
    }

    fn describe(&self) -> String {
        self.memory.describe()
    }

    fn in_memory(&self) -> bool {
        true
    }

    fn clears_memory(&self) -> bool {
        true
    }

    fn buffers_writes(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(offset, buffer)
    }

    fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.memory.read_cached(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.memory.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn zero(&self, offset: u64, length: u64, _unmap: bool) -> io::Result<()> {
        self.unmap(offset, length)
    }

    fn unmap(&self, offset: u64, length: u64) -> io::Result<()> {
        self.cleared.lock().unwrap().push(length);
        let above = self.above.get().and_then(Weak::upgrade).unwrap();
        let stored = above.stored_bytes();
        let mut block = vec![0; stored];
        let last = above.size_bytes() - stored as u64;
        assert_eq!(above.read_cached(last, &mut block)?, stored, "a reader waits for what it does not read");
        self.memory.unmap(offset, length)
    }

    fn prefetch(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        self.memory.extents(offset, length)
    }
}

/// Nobody waits until all of a long range is cleared, and all of its memory is given back.
#[test]
fn memory_is_cleared_piece_by_piece() {
    for block_bytes in [512, 4096, 65536] {
        let blocks = (32 << 20) / u64::from(block_bytes);
        let memory = memory::open(blocks * u64::from(block_bytes), Pages::Small).unwrap();
        let watched = Arc::new(Watched { memory, above: OnceLock::new(), cleared: Mutex::default() });
        let entries = memory::open(Area::bytes_for(blocks), Pages::Small).unwrap();
        let area = Area::Store(Arc::clone(&entries));
        let store = Arc::new(ProtectedStore::new(watched.clone(), area, &spec(block_bytes)));
        watched.above.set(Arc::downgrade(&store)).unwrap();
        assert!(store.clears_memory());
        let stored = store.stored_bytes() as u64;
        for first in (0..blocks).step_by(64.min(blocks as usize / 64)) {
            store.write_at(first * stored, &block(7, block_bytes as usize)).unwrap();
        }
        // Its locks are none of the last block's.
        let cleared = 0..blocks - 64.max(blocks / 16);
        store.unmap(0, cleared.end * stored).unwrap();
        let lengths = watched.cleared.lock().unwrap();
        assert!(lengths.iter().all(|length| *length <= CLEARED_BYTES_MAX), "{lengths:?}");
        assert_eq!(lengths.iter().sum::<u64>(), cleared.end * u64::from(block_bytes));
        let mut found = vec![0; 4 * stored as usize];
        store.read_at((cleared.end - 2) * stored, &mut found).unwrap();
        let (before, behind) = found.split_at(2 * stored as usize);
        assert_eq!(before, blank(block_bytes as usize).repeat(2));
        assert_eq!(behind[..stored as usize], block(7, block_bytes as usize));
        let holes = |store: &dyn Store, bytes| {
            let extents = store.extents(0, bytes).unwrap();
            let holes = extents.iter().filter(|extent| extent.allocation == Allocation::Hole);
            holes.map(|extent| extent.length).sum::<u64>()
        };
        let data_bytes = cleared.end * u64::from(block_bytes);
        assert_eq!(holes(&*watched.memory, data_bytes), data_bytes);
        if block_bytes <= 4096 {
            let entry_bytes = cleared.end * ENTRY_BYTES as u64;
            // The first page of a file has its place in memory, too, and the last piece goes on with other entries.
            assert!(holes(&*entries, entry_bytes) >= entry_bytes - (128 << 10), "{block_bytes}");
        }
    }
}

/// Nothing is written any more once it is not known what was.
#[test]
fn a_failed_flush_ends_writing() {
    let store = Bench::new(512, 0).store;
    store.write_at(0, &block(1, 512)).unwrap();
    assert!(store.data_barrier.pass(|| Err(io::Error::from_raw_os_error(5))).is_err());
    assert!(store.flush().is_err());
    assert!(store.write_at(0, &block(2, 512)).is_err());
    assert!(store.unmap(0, 520).is_err());
    let mut found = vec![0; 520];
    store.read_at(0, &mut found).unwrap();
    assert_eq!(found, block(1, 512));
}

/// As after a failed flush of the volume's own: whoever waited for it is told that, and no place.
#[test]
fn a_failed_flush_faults_the_volume() {
    // The flush of the entries and that of the data, when one block is unmapped.
    for steps in [2, 6] {
        let Bench { machine, store, .. } = Bench::new(512, 0);
        let memory = StoreSpec::Memory { size_bytes: BLOCKS * 512 };
        let spec = VolumeSpec { store: memory, ..spec(512) };
        let volume = Volume::open_layered(&spec, |_| Arc::new(store)).unwrap();
        let unmap = || Operation::Unmap { offset: 0, length: 520 };
        machine.plan(Some((Event::Failure, steps)));
        let error = volume.execute(unmap(), 0).result.unwrap_err();
        assert!(matches!(error, StoreError::Flush { .. }), "{error}");
        assert_eq!(volume.fault().unwrap().class, ErrorClass::Medium);
        machine.plan(None);
        let error = volume.check(&unmap()).unwrap_err();
        assert!(matches!(error, StoreError::Faulted), "{error}");
        // One that had been checked before comes too late.
        let error = volume.execute(unmap(), 0).result.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Faulted, "{error}");
    }
}

/// The data alone in the page cache is not enough for a read that must not wait.
#[test]
fn a_read_that_must_not_wait_does_not_wait_for_entries() {
    let bench = Bench::new(512, 0);
    let mut found = vec![0; 520];
    assert_eq!(bench.store.read_cached(0, &mut found).unwrap(), 520);
    bench.area.evict();
    assert_eq!(bench.store.read_cached(0, &mut found).unwrap(), 0);
    bench.store.read_at(0, &mut found).unwrap();
    assert_eq!(found, blank(512));
}
