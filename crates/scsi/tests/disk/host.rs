//! A host and a disk in memory: the driver's part, as small as it can be.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use lunette_scsi::{
    Allocation, AtomicWrites, Completion, DataIn, Device, Event, Extent, Identity, Io, IoError, IoOutcome,
    LogicalUnit, LogicalUnitConfig, Lun, Next, Nexus, Provisioning, Saved, Status, Task, Terms, Unhindered,
};

pub(crate) const BLOCK: usize = 512;
pub(crate) const BLOCKS: u64 = 4096;

/// No command may need more steps than this: 32 MiB of WRITE SAME in pieces of 1 MiB, and some for flushes.
pub(crate) const STEPS_MAX: usize = 300;

pub(crate) fn config() -> LogicalUnitConfig {
    LogicalUnitConfig {
        identity: Identity {
            naa: 0x3aaa_bbbb_cccc_dddd,
            uuid: [9; 16],
            serial: "SERIAL-1".into(),
            vendor: "LUNETTE".into(),
            product: "VOLUME".into(),
            revision: "0.1".into(),
        },
        block_length_bytes: BLOCK as u32,
        blocks: BLOCKS,
        physical_block_exponent: 3,
        read_only: false,
        write_cache: true,
        provisioning: Provisioning { unmap: true, granularity_blocks: 8, write_zeroes: true, anchors: true },
        atomic_writes: NonZeroU16::new(8)
            .map(|granularity_blocks| AtomicWrites { granularity_blocks, blocks_max: 64 }),
        max_transfer_bytes: 1 << 20,
        optimal_transfer_bytes: 1 << 20,
        removable: false,
        solid_state: true,
        protection: None,
    }
}

pub(crate) fn device(config: LogicalUnitConfig) -> Arc<Device> {
    device_keeping(config, Saved::Nowhere)
}

pub(crate) fn device_keeping(config: LogicalUnitConfig, saved: Saved<'_>) -> Arc<Device> {
    let unit = Arc::new(LogicalUnit::new(config, saved).expect("a possible unit"));
    Arc::new(
        Device::new("iqn.2026-11.io.lunette:t", [1], [(Lun::from_number(0), unit)])
            .expect("a possible device"),
    )
}

/// Which operations fail, and with what.
pub(crate) type Failure = (fn(&Io) -> bool, IoError);

/// The volume: bytes, what space each block has, what was asked of it, and what it shall fail with.
pub(crate) struct Disk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) allocation: Vec<Allocation>,
    pub(crate) log: Vec<Io>,
    pub(crate) fail: Option<Failure>,
    /// The protection information of each block, where there is any.
    pub(crate) information: Option<Vec<[u8; 8]>>,
}

impl Disk {
    pub(crate) fn new() -> Disk {
        let size = BLOCKS as usize * BLOCK;
        Disk {
            bytes: vec![0; size],
            allocation: vec![Allocation::Deallocated; BLOCKS as usize],
            log: Vec::new(),
            fail: None,
            information: None,
        }
    }

    pub(crate) fn protected() -> Disk {
        Disk { information: Some(vec![[0xff; 8]; BLOCKS as usize]), ..Disk::new() }
    }

    fn read(&self, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
        let offset = offset_bytes as usize;
        let data = &self.bytes[offset..offset + length_bytes as usize];
        let Some(information) = &self.information else { return data.to_vec() };
        let blocks = data.chunks(BLOCK).zip(&information[offset / BLOCK..]);
        blocks.flat_map(|(data, information)| [data, information].concat()).collect()
    }

    fn write(&mut self, offset_bytes: u64, data: &[u8]) {
        let offset = offset_bytes as usize;
        let mut plain = Vec::new();
        let data = match &mut self.information {
            None => data,
            Some(information) => {
                assert_eq!(data.len() % (BLOCK + 8), 0);
                for (block, place) in data.chunks(BLOCK + 8).zip(&mut information[offset / BLOCK..]) {
                    plain.extend_from_slice(&block[..BLOCK]);
                    place.copy_from_slice(&block[BLOCK..]);
                }
                &plain
            }
        };
        self.bytes[offset..offset + data.len()].copy_from_slice(data);
        self.allocation[offset / BLOCK..(offset + data.len()) / BLOCK].fill(Allocation::Mapped);
    }

    fn zero(&mut self, offset_bytes: u64, length_bytes: u64, unmap: bool) {
        let (start, end) = (offset_bytes as usize, (offset_bytes + length_bytes) as usize);
        self.bytes[start..end].fill(0);
        if let Some(information) = &mut self.information {
            information[start / BLOCK..end / BLOCK].fill([0xff; 8]);
        }
        let allocation = if unmap { Allocation::Deallocated } else { Allocation::Anchored };
        self.allocation[start / BLOCK..end / BLOCK].fill(allocation);
    }

    pub(crate) fn run(
        &mut self,
        io: Io,
        data_out: &[u8],
        medium: &mut Vec<u8>,
    ) -> Result<IoOutcome, IoError> {
        self.log.push(io.clone());
        if let Some((when, error)) = self.fail
            && when(&io)
        {
            return Err(error);
        }
        match io {
            Io::Read { offset_bytes, length_bytes, .. } => {
                *medium = self.read(offset_bytes, length_bytes);
            }
            Io::WriteDataOut { offset_bytes, start, length_bytes, .. } => {
                self.write(offset_bytes, &data_out[start as usize..(start + length_bytes) as usize]);
            }
            Io::WriteAtomic { offset_bytes, length_bytes, .. } => {
                self.write(offset_bytes, &data_out[..length_bytes as usize]);
            }
            Io::WriteOwned { offset_bytes, bytes, .. } => self.write(offset_bytes, &bytes),
            Io::WriteMedium { offset_bytes, length_bytes, .. } => {
                self.write(offset_bytes, &medium[..length_bytes as usize]);
            }
            Io::Zero { offset_bytes, length_bytes, unmap, .. } => {
                self.zero(offset_bytes, length_bytes, unmap);
            }
            Io::Unmap { offset_bytes, length_bytes } => self.zero(offset_bytes, length_bytes, true),
            Io::Extents { offset_bytes, length_bytes } => {
                let first = offset_bytes as usize / BLOCK;
                let count = length_bytes as usize / BLOCK;
                let extents = (first..first + count).map(|block| Extent {
                    offset_bytes: (block * BLOCK) as u64,
                    length_bytes: BLOCK as u64,
                    allocation: self.allocation[block],
                });
                return Ok(IoOutcome::Extents(extents.collect()));
            }
            Io::Flush | Io::Prefetch { .. } | Io::SaveState | Io::AbortTasks { .. } | Io::Work { .. } => {}
        }
        Ok(IoOutcome::Done)
    }
}

/// What the host sees.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    /// Sense data as it came.
    pub(crate) sense: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// How much Data-Out the command asked for.
    pub(crate) asked_bytes: u32,
}

impl Reply {
    /// Sense key, additional sense code and qualifier, from either format; zeros without sense data.
    pub(crate) fn code(&self) -> (u8, u8, u8) {
        match self.sense.as_slice() {
            [0x70 | 0xf0, _, key, rest @ ..] => (*key, rest[9], rest[10]),
            [0x72, key, asc, ascq, ..] => (*key, *asc, *ascq),
            [] => (0, 0, 0),
            other => panic!("{other:02x?}"),
        }
    }

    /// The field pointer of fixed format sense data: byte, and bit if it is valid.
    pub(crate) fn field(&self) -> Option<(u16, Option<u8>)> {
        let specific = &self.sense[15..18];
        let bit = (specific[0] & 8 != 0).then_some(specific[0] & 7);
        (specific[0] & 0x80 != 0).then_some((u16::from_be_bytes([specific[1], specific[2]]), bit))
    }
}

/// A nexus with the disk behind it.
pub(crate) struct Host {
    pub(crate) nexus: Nexus,
    pub(crate) lun: Lun,
    pub(crate) disk: Disk,
    /// The media of other units, by their NAA identifiers.
    pub(crate) others: BTreeMap<u64, Disk>,
}

/// What a driver does for a command that it ends at once.
pub(crate) fn foreseen(nexus: &Nexus, lun: Lun, cdb: &[u8]) -> Option<Io> {
    let (block, terms) = (padded(&cdb[..cdb.len().min(16)]), Terms::default());
    Unhindered::begin(nexus.way_to(lun)?, &block, &terms).map(|command| command.io())
}

/// Begins a command. What a driver would do that ends it at once is what it asks for.
pub(crate) fn begin(nexus: &Nexus, lun: Lun, cdb: &[u8]) -> (Task, Next) {
    let foreseen = foreseen(nexus, lun, cdb);
    let (task, next) = Task::start(nexus, lun, cdb);
    match foreseen {
        Some(Io::WriteDataOut { length_bytes, .. }) => assert_eq!(next, Next::DataOut { length_bytes }),
        Some(io) => assert_eq!(next, Next::Io(io)),
        None => {}
    }
    (task, next)
}

impl Host {
    /// A host that has already heard the POWER ON unit attention.
    pub(crate) fn new(config: LogicalUnitConfig) -> Host {
        let is_protected = config.protection.is_some();
        let mut host = Host::on(device(config));
        if is_protected {
            host.disk = Disk::protected();
        }
        assert!(host.nexus.device().units().len() == 1);
        host
    }

    pub(crate) fn on(device: Arc<Device>) -> Host {
        let port = device.ports()[0];
        let nexus = Nexus::new(device, port, "iqn.host,i,0x800000000001".into());
        let mut host = Host { nexus, lun: Lun::from_number(0), disk: Disk::new(), others: BTreeMap::new() };
        assert_eq!(host.code(&[0]), (6, 0x29, 0));
        host
    }

    pub(crate) fn run(&mut self, cdb: &[u8], data_out: &[u8]) -> Reply {
        let foreseen = foreseen(&self.nexus, self.lun, cdb);
        let (task, next) = begin(&self.nexus, self.lun, &padded(cdb));
        self.finish_as(task, next, data_out, foreseen)
    }

    pub(crate) fn finish(&mut self, task: Task, next: Next, data_out: &[u8]) -> Reply {
        self.finish_as(task, next, data_out, None)
    }

    /// The first operation is the one that was foreseen, if all data for it has come.
    fn finish_as(
        &mut self,
        mut task: Task,
        mut next: Next,
        data_out: &[u8],
        mut foreseen: Option<Io>,
    ) -> Reply {
        let (mut buffer, mut medium, mut asked_bytes) = (Vec::new(), Vec::new(), 0);
        for _ in 0..STEPS_MAX {
            next = match next {
                Next::DataOut { length_bytes } => {
                    assert!(length_bytes > 0);
                    asked_bytes = length_bytes;
                    buffer = data_out[..data_out.len().min(length_bytes as usize)].to_vec();
                    task.resume(&self.nexus, Event::DataOut(&buffer))
                }
                Next::Io(io) => {
                    if let Some(foreseen) = foreseen.take()
                        && buffer.len() as u32 == asked_bytes
                    {
                        assert_eq!(io, foreseen);
                    }
                    let whole_work = io == Io::Work { until_over: true };
                    while whole_work && self.work() {}
                    if io == Io::SaveState {
                        let unit = self.nexus.device().unit(self.lun).expect("a unit");
                        unit.state();
                    }
                    let result = self.disk.run(io, &buffer, &mut medium);
                    task.resume(&self.nexus, Event::Io { result, data_out: &buffer, medium: &medium })
                }
                Next::IoOn { naa, io } => {
                    let disk = self.others.get_mut(&naa).unwrap_or(&mut self.disk);
                    let result = disk.run(io, &buffer, &mut medium);
                    task.resume(&self.nexus, Event::Io { result, data_out: &buffer, medium: &medium })
                }
                Next::Yield => task.resume(&self.nexus, Event::Turn { data_out: &buffer }),
                Next::Wait => panic!("nobody else is there"),
                Next::Done(Completion { status, sense, data_in }) => {
                    let data = match data_in {
                        DataIn::None => Vec::new(),
                        DataIn::Parameter(data) => data,
                        DataIn::Medium { length_bytes } => medium[..length_bytes as usize].to_vec(),
                        DataIn::MediumData { length_bytes, block_length_bytes } => {
                            let block = block_length_bytes as usize;
                            let blocks = medium.chunks(block + 8).flat_map(|stored| &stored[..block]);
                            blocks.copied().take(length_bytes as usize).collect()
                        }
                    };
                    let sense = sense.map_or(Vec::new(), |sense| sense.as_bytes().to_vec());
                    return Reply { status, sense, data, asked_bytes };
                }
            };
        }
        panic!("the command does not end");
    }

    /// Runs a command and tells its sense.
    pub(crate) fn code(&mut self, cdb: &[u8]) -> (u8, u8, u8) {
        self.run(cdb, &[]).code()
    }

    /// Runs a command that must be good and tells its data.
    pub(crate) fn good(&mut self, cdb: &[u8], data_out: &[u8]) -> Vec<u8> {
        let reply = self.run(cdb, data_out);
        assert_eq!(reply.status, Status::Good, "{cdb:02x?}: {:02x?}", reply.sense);
        reply.data
    }

    /// Does one operation of the unit's own work; false when there was none.
    pub(crate) fn work(&mut self) -> bool {
        let unit = Arc::clone(self.nexus.device().unit(self.lun).expect("a unit"));
        let Some(io) = unit.next_work() else { return false };
        let result = self.disk.run(io, &[], &mut Vec::new());
        unit.work_done(result.map(|_| ()));
        true
    }

    /// The medium operations since the last call.
    pub(crate) fn log(&mut self) -> Vec<Io> {
        std::mem::take(&mut self.disk.log)
    }
}

pub(crate) fn padded(cdb: &[u8]) -> [u8; 16] {
    let mut block = [0; 16];
    block[..cdb.len()].copy_from_slice(cdb);
    block
}

/// A ten-byte CDB with LBA and length.
pub(crate) fn cdb10(opcode: u8, flags: u8, lba: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = padded(&[opcode, flags]);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A twelve-byte CDB with LBA and length.
pub(crate) fn cdb12(opcode: u8, flags: u8, lba: u32, blocks: u32) -> [u8; 16] {
    let mut cdb = padded(&[opcode, flags]);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[6..10].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A sixteen-byte CDB with LBA and length.
pub(crate) fn cdb16(opcode: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = padded(&[opcode, flags]);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A six-byte CDB with LBA and length.
pub(crate) fn cdb6(opcode: u8, lba: u32, blocks: u8) -> [u8; 16] {
    let mut cdb = padded(&[opcode]);
    cdb[1..4].copy_from_slice(&lba.to_be_bytes()[1..]);
    cdb[4] = blocks;
    cdb
}

pub(crate) const GOOD: (u8, u8, u8) = (0, 0, 0);
pub(crate) const NOT_READY_STOPPED: (u8, u8, u8) = (2, 0x04, 0x02);
pub(crate) const NO_MEDIUM: (u8, u8, u8) = (2, 0x3a, 0x00);
pub(crate) const INVALID_FIELD_IN_UNIT: (u8, u8, u8) = (5, 0x0e, 0x03);
pub(crate) const LENGTH_ERROR: (u8, u8, u8) = (5, 0x1a, 0x00);
pub(crate) const INVALID_OPCODE: (u8, u8, u8) = (5, 0x20, 0x00);
pub(crate) const OUT_OF_RANGE: (u8, u8, u8) = (5, 0x21, 0x00);
pub(crate) const INVALID_FIELD: (u8, u8, u8) = (5, 0x24, 0x00);
pub(crate) const NO_UNIT: (u8, u8, u8) = (5, 0x25, 0x00);
pub(crate) const INVALID_PARAMETER: (u8, u8, u8) = (5, 0x26, 0x00);
pub(crate) const PREVENTED: (u8, u8, u8) = (5, 0x53, 0x02);
pub(crate) const WRITE_PROTECTED: (u8, u8, u8) = (7, 0x27, 0x00);
pub(crate) const MISCOMPARE: (u8, u8, u8) = (0xe, 0x1d, 0x00);
