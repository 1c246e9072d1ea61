//! A file of a machine that fails: what the page cache has, and below it what the disk has. Both outlive a process, the
//! disk alone a loss of power.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use crate::store::{Allocation, Extent, Features, Store};

/// What ends a change before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The process is killed; what it wrote stays in the page cache.
    Kill,
    /// Of what was not flushed each unit is on the disk or not, or as it was in between.
    PowerLoss,
    /// A call fails. A flush that does leaves what it did not write in the page cache, where it counts as written.
    Failure,
}

/// When its next event comes, and how chance decides; for all files of the machine.
#[derive(Debug)]
pub(super) struct Machine(Mutex<State>);

#[derive(Debug)]
struct State {
    next: Option<(Event, usize)>,
    chance: u64,
}

impl Machine {
    pub(super) fn new(chance: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { next: None, chance })))
    }

    /// Lets an event come after so many steps, or none.
    pub(super) fn plan(&self, next: Option<(Event, usize)>) {
        self.0.lock().unwrap().next = next;
    }

    fn step(&self) -> Result<(), Event> {
        let mut state = self.0.lock().unwrap();
        match &mut state.next {
            None => Ok(()),
            Some((event, 0)) => Err(*event),
            Some((_, steps)) => {
                *steps -= 1;
                Ok(())
            }
        }
    }

    /// One of so many.
    fn choose(&self, count: usize) -> usize {
        let mut state = self.0.lock().unwrap();
        state.chance = state.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state.chance >> 33) as usize % count
    }
}

/// What is never torn: a block of data, or an entry.
#[derive(Debug, Clone)]
struct Unit {
    cached: Vec<u8>,
    stable: Vec<u8>,
    /// What was written since the last flush, in this order.
    unflushed: Vec<Vec<u8>>,
}

impl Unit {
    /// The first so many writes reach the disk, and the others never will.
    fn settle(&mut self, written: usize) {
        if let Some(last) = written.checked_sub(1).and_then(|last| self.unflushed.get(last)) {
            self.stable.clone_from(last);
        }
        self.unflushed.clear();
    }

    fn settle_by_chance(&mut self, machine: &Machine) {
        self.settle(machine.choose(self.unflushed.len() + 1));
    }
}

/// A file.
#[derive(Debug)]
pub(super) struct Layers {
    machine: Arc<Machine>,
    unit_bytes: usize,
    units: Mutex<Vec<Unit>>,
    is_evicted: AtomicBool,
}

impl Layers {
    pub(super) fn new(machine: &Arc<Machine>, unit_bytes: usize, size_bytes: usize) -> Arc<Self> {
        let nothing = vec![0; unit_bytes];
        let unit = Unit { cached: nothing.clone(), stable: nothing, unflushed: Vec::new() };
        let units = Mutex::new(vec![unit; size_bytes / unit_bytes]);
        Arc::new(Self { machine: Arc::clone(machine), unit_bytes, units, is_evicted: AtomicBool::new(false) })
    }

    /// Whoever reads has to wait for the disk from now on.
    pub(super) fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
    }

    pub(super) fn lose_power(&self) {
        for unit in self.units.lock().unwrap().iter_mut() {
            unit.settle_by_chance(&self.machine);
            unit.cached.clone_from(&unit.stable);
        }
    }

    /// The event may come before each unit and after the last.
    fn change<'a>(&self, offset: u64, units: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut all = self.units.lock().unwrap();
        for (unit, new) in all[offset as usize / self.unit_bytes..].iter_mut().zip(units) {
            self.machine.step().map_err(failed)?;
            unit.cached = new.to_vec();
            unit.unflushed.push(new.to_vec());
        }
        self.machine.step().map_err(failed)
    }
}

fn failed(_event: Event) -> io::Error {
    Errno::IO.into()
}

impl Store for Layers {
    fn size_bytes(&self) -> u64 {
        (self.units.lock().unwrap().len() * self.unit_bytes) as u64
    }

    fn features(&self) -> Features {
        Features {
            unmap: true,
            write_zeroes: true,
            extents: false,
            reserves: false,
            unmap_granularity_bytes: 512,
            physical_block_bytes: 512,
            rotational: None,
            atomic_writes: None,
        }
    }

    fn describe(&self) -> String {
        "a file of a machine that fails".to_owned()
    }

    fn in_memory(&self) -> bool {
        false
    }

    fn buffers_writes(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let units = self.units.lock().unwrap();
        let units = units[offset as usize / self.unit_bytes..].iter();
        buffer
            .chunks_mut(self.unit_bytes)
            .zip(units)
            .for_each(|(part, unit)| part.copy_from_slice(&unit.cached));
        Ok(())
    }

    fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_evicted.load(Ordering::Relaxed) {
            return Ok(0);
        }
        self.read_at(offset, buffer)?;
        Ok(buffer.len())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(offset, data.chunks(self.unit_bytes))
    }

    fn flush(&self) -> io::Result<()> {
        let begun = self.machine.step();
        let mut units = self.units.lock().unwrap();
        match begun {
            Ok(()) => units.iter_mut().for_each(|unit| unit.settle(unit.unflushed.len())),
            Err(Event::Failure) => units.iter_mut().for_each(|unit| unit.settle_by_chance(&self.machine)),
            Err(Event::Kill | Event::PowerLoss) => {}
        }
        begun.and_then(|()| self.machine.step()).map_err(failed)
    }

    fn zero(&self, offset: u64, length: u64, _unmap: bool) -> io::Result<()> {
        self.write_at(offset, &vec![0; length as usize])
    }

    fn unmap(&self, offset: u64, length: u64) -> io::Result<()> {
        self.zero(offset, length, true)
    }

    fn prefetch(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent { offset, length, allocation: Allocation::Data }])
    }
}
