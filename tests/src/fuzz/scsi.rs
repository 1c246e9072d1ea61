//! The device server: any CDBs to any LUN, with any answers of the store and too little data.
//!
//! Checked: every command ends within a bounded number of steps, and asks the medium only for whole blocks inside the
//! capacity.

use std::num::NonZeroU16;
use std::sync::Arc;

use lunette_scsi::{
    Allocation, AtomicWrites, DataIn, Device, Event, Extent, Identity, Io, IoError, IoOutcome, LogicalUnit,
    LogicalUnitConfig, Lun, Next, Nexus, ProtectionType, Provisioning, Saved, Task,
};

use super::Input;

const BLOCKS: u64 = 4096;
const MAX_TRANSFER_BYTES: u32 = 64 << 10;
/// WRITE SAME of the whole unit block by block takes the most.
const STEPS_MAX: usize = 3 * BLOCKS as usize;

/// Sends commands to one nexus; a second one makes unit attentions.
///
/// # Panics
/// A property does not hold.
pub fn scsi(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.byte();
    let block_length_bytes = if flags & 1 != 0 { 4096 } else { 512 };
    let unit = |number: u8| {
        let config = LogicalUnitConfig {
            identity: Identity {
                naa: 0x3000_0000_0000_0000 | u64::from(number),
                uuid: [number; 16],
                serial: format!("{number:04}"),
                vendor: "LUNETTE".to_owned(),
                product: "FUZZ".to_owned(),
                revision: "1".to_owned(),
            },
            block_length_bytes,
            blocks: BLOCKS,
            physical_block_exponent: 0,
            read_only: flags & 2 != 0,
            write_cache: flags & 4 != 0,
            provisioning: Provisioning {
                unmap: flags & 8 != 0,
                granularity_blocks: 8,
                write_zeroes: flags & 16 != 0,
                anchors: flags & 24 == 24,
            },
            atomic_writes: NonZeroU16::new(8)
                .filter(|_| flags & 128 == 0)
                .map(|granularity_blocks| AtomicWrites { granularity_blocks, blocks_max: 16 }),
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            optimal_transfer_bytes: 0,
            removable: flags & 32 != 0,
            solid_state: flags & 64 != 0,
            protection: ProtectionType::from_number(if flags & 128 != 0 { 1 + 2 * number } else { 0 }),
        };
        (
            Lun::from_number(number.into()),
            Arc::new(LogicalUnit::new(config, Saved::Nowhere).expect("a right configuration")),
        )
    };
    let device =
        Device::new("iqn.2026-11.io.lunette:fuzz", [1, 2], [unit(0), unit(1)]).expect("a right device");
    let device = Arc::new(device);
    let nexuses = [("one", 0), ("two", 1)]
        .map(|(name, port)| Nexus::new(Arc::clone(&device), device.ports()[port], name.to_owned()));
    let medium_form = MediumForm { block_length_bytes, is_protected: flags & 128 != 0 };
    while !input.is_empty() {
        let choice = input.byte();
        let nexus = &nexuses[usize::from(choice & 1)];
        match choice >> 5 {
            7 => {
                nexus.logical_unit_reset(Lun::from_number((choice & 2).into()));
            }
            6 => nexus.target_reset(),
            _ => command(&mut input, nexus, choice, medium_form),
        }
    }
}

fn command(input: &mut Input<'_>, nexus: &Nexus, choice: u8, medium_form: MediumForm) {
    let lun = match choice >> 1 & 3 {
        3 => Lun::from_bytes(input.array()),
        number => Lun::from_number(number.into()),
    };
    let cdb = input.array::<16>();
    let (mut task, mut next) = Task::start(nexus, lun, &cdb);
    let (mut data_out, mut medium) = (Vec::new(), Vec::new());
    for _ in 0..STEPS_MAX {
        next = match next {
            Next::Done(done) => {
                let length_bytes = match done.data_in {
                    DataIn::Medium { length_bytes } | DataIn::MediumData { length_bytes, .. } => length_bytes,
                    DataIn::None | DataIn::Parameter(_) => 0,
                };
                assert!(length_bytes as usize <= medium.len(), "more than was read");
                return;
            }
            Next::Yield => task.resume(nexus, Event::Turn { data_out: &data_out }),
            Next::Wait => panic!("no other command is there"),
            Next::DataOut { length_bytes } => {
                assert!(length_bytes > 0);
                data_out = vec![input.byte(); length_bytes.min(MAX_TRANSFER_BYTES) as usize];
                let head = input.bytes(usize::from(input.0.first().copied().unwrap_or(0)));
                let head = &head[..head.len().min(data_out.len())];
                data_out[..head.len()].copy_from_slice(head);
                if choice & 8 != 0 {
                    data_out.truncate(usize::from(input.byte()) * 64);
                }
                task.resume(nexus, Event::DataOut(&data_out))
            }
            Next::Io(io) | Next::IoOn { io, .. } => {
                check(&io, medium_form, data_out.len());
                if let Io::Read { length_bytes, .. } = io {
                    medium = vec![input.byte(); medium_form.stored(length_bytes)];
                }
                if let (Io::Work { .. }, Some(unit)) = (&io, nexus.device().unit(lun)) {
                    work(input, unit, medium_form);
                }
                let result = answer(input, &io);
                task.resume(nexus, Event::Io { result, data_out: &data_out, medium: &medium })
            }
        };
    }
    panic!("a command does not end: {cdb:02x?}");
}

/// Some of the work that a unit has taken on.
fn work(input: &mut Input<'_>, unit: &LogicalUnit, medium_form: MediumForm) {
    for _ in 0..4 {
        let Some(io) = unit.next_work() else { return };
        check(&io, medium_form, 0);
        unit.work_done(answer(input, &io).map(|_| ()));
    }
}

fn answer(input: &mut Input<'_>, io: &Io) -> Result<IoOutcome, IoError> {
    match (input.byte(), io) {
        (0xf0, _) => Err(IoError::Medium { offset_bytes: Some(512) }),
        (0xf1, _) => Err(IoError::Hardware),
        (0xf2, _) => Err(IoError::NoSpace),
        (0xf3, _) => Err(IoError::WriteProtected),
        (0xf4, _) => Err(IoError::Faulted),
        (0xf5, _) => Err(IoError::Unsupported),
        (choice, Io::Extents { offset_bytes, length_bytes }) => {
            let half = length_bytes / 2 / 512 * 512;
            let extent = |offset_bytes, length_bytes, choice| {
                let allocation = match choice & 3 {
                    0 => Allocation::Deallocated,
                    1 => Allocation::Mapped,
                    _ => Allocation::Anchored,
                };
                Extent { offset_bytes, length_bytes, allocation }
            };
            let first = extent(*offset_bytes, half, choice);
            let second = extent(offset_bytes + half, length_bytes - half, choice >> 3);
            let extents = if choice & 4 != 0 { Vec::new() } else { vec![first, second] };
            Ok(IoOutcome::Extents(extents.into_iter().filter(|extent| extent.length_bytes > 0).collect()))
        }
        _ => Ok(IoOutcome::Done),
    }
}

/// What the blocks of both units are.
#[derive(Clone, Copy)]
struct MediumForm {
    block_length_bytes: u32,
    is_protected: bool,
}

impl MediumForm {
    fn stored_block(self) -> u32 {
        self.block_length_bytes + if self.is_protected { 8 } else { 0 }
    }

    /// So much data in a buffer.
    fn stored(self, data_bytes: u32) -> usize {
        (data_bytes / self.block_length_bytes * self.stored_block()) as usize
    }

    /// The data of so much in a buffer.
    fn data(self, stored_bytes: usize) -> u64 {
        let block = self.stored_block() as usize;
        assert!(stored_bytes.is_multiple_of(block), "{stored_bytes} bytes are no whole blocks");
        (stored_bytes / block) as u64 * u64::from(self.block_length_bytes)
    }
}

fn check(io: &Io, medium_form: MediumForm, data_out_bytes: usize) {
    let capacity_bytes = BLOCKS * u64::from(medium_form.block_length_bytes);
    let (offset, length) = match io {
        Io::Flush | Io::SaveState | Io::AbortTasks { .. } | Io::Work { .. } => return,
        Io::Read { offset_bytes, length_bytes, .. } => {
            assert!(medium_form.stored(*length_bytes) <= MAX_TRANSFER_BYTES as usize);
            (*offset_bytes, u64::from(*length_bytes))
        }
        Io::WriteDataOut { offset_bytes, start, length_bytes, .. } => {
            assert!(
                u64::from(*start) + u64::from(*length_bytes) <= data_out_bytes as u64,
                "more than there is"
            );
            (*offset_bytes, medium_form.data(*length_bytes as usize))
        }
        Io::WriteAtomic { offset_bytes, length_bytes, .. } => {
            assert!(*length_bytes as usize <= data_out_bytes, "more than there is");
            (*offset_bytes, medium_form.data(*length_bytes as usize))
        }
        Io::WriteMedium { offset_bytes, length_bytes, .. } => {
            (*offset_bytes, medium_form.data(*length_bytes as usize))
        }
        Io::WriteOwned { offset_bytes, bytes, .. } => (*offset_bytes, medium_form.data(bytes.len())),
        Io::Zero { offset_bytes, length_bytes, .. }
        | Io::Unmap { offset_bytes, length_bytes }
        | Io::Prefetch { offset_bytes, length_bytes }
        | Io::Extents { offset_bytes, length_bytes } => (*offset_bytes, *length_bytes),
    };
    assert!(length > 0, "{io:?}");
    assert!(offset.checked_add(length).is_some_and(|end| end <= capacity_bytes), "{io:?} is beyond the end");
    assert!(offset % 512 == 0 && length % 512 == 0, "{io:?} is no whole block");
}
