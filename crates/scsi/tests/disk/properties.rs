//! Any CDB with any events: never a panic, an end after a bounded number of steps, and no medium operation outside
//! the capacity.

use std::sync::Arc;

use lunette_cases::cases;
use lunette_scsi::{
    Allocation, Device, Event, Extent, Io, IoError, IoOutcome, LogicalUnit, LogicalUnitConfig, Lun, Next,
    Nexus, ProtectionType, Saved, Task,
};
use proptest::prelude::*;

use crate::host::*;

/// Operation codes that have rows, with service actions where they have some.
const OPCODES: [u8; 45] = [
    0x00, 0x03, 0x04, 0x48, 0x08, 0x0a, 0x12, 0x15, 0x1a, 0x1b, 0x1d, 0x1e, 0x25, 0x28, 0x2a, 0x2e, 0x2f,
    0x34, 0x35, 0x37, 0x3e, 0x3f, 0x41, 0x42, 0x55, 0x5a, 0x88, 0x89, 0x8a, 0x8b, 0x8e, 0x8f, 0x90, 0x91,
    0x93, 0x9c, 0x9e, 0x9f, 0xa0, 0xa3, 0xa8, 0xaa, 0xae, 0xaf, 0xb7,
];

/// A driver that answers with whatever the test drew.
#[derive(Clone, Debug)]
struct Answer {
    error: Option<IoError>,
    extents: Option<Vec<(u64, u64, Allocation)>>,
    /// How many bytes less than asked for come.
    missing: usize,
    wrong_event: bool,
}

fn answers() -> impl Strategy<Value = Answer> {
    let error = prop_oneof![
        6 => Just(None),
        1 => any::<Option<u64>>().prop_map(|offset_bytes| Some(IoError::Medium { offset_bytes })),
        1 => prop::sample::select(vec![
            IoError::Hardware, IoError::NoSpace, IoError::WriteProtected, IoError::Faulted, IoError::Unsupported,
        ]).prop_map(Some),
    ];
    let allocations = [Allocation::Mapped, Allocation::Deallocated, Allocation::Anchored];
    let allocation = prop::sample::select(allocations.to_vec());
    let extents = prop::collection::vec((any::<u64>(), any::<u64>(), allocation), 0..5);
    let missing = prop_oneof![6 => Just(0), 1 => 0..2000usize];
    (error, prop::option::weighted(0.3, extents), missing, prop::bool::weighted(0.05))
        .prop_map(|(error, extents, missing, wrong_event)| Answer { error, extents, missing, wrong_event })
}

/// Mostly a CDB that gets past the first checks: small numbers, few flags.
fn cdbs() -> impl Strategy<Value = Vec<u8>> {
    let plausible = (
        prop::sample::select(OPCODES.to_vec()),
        prop::collection::vec(0..40u8, 15),
        any::<u32>(),
    )
        .prop_map(|(opcode, rest, holes)| {
            let mut cdb = vec![opcode];
            cdb.extend(
                rest.iter().enumerate().map(|(index, &byte)| if holes >> index & 1 == 0 { 0 } else { byte }),
            );
            cdb
        });
    let random = prop::collection::vec(any::<u8>(), 0..40);
    let known_opcode = (prop::sample::select(OPCODES.to_vec()), prop::collection::vec(any::<u8>(), 15..20))
        .prop_map(|(opcode, rest)| [vec![opcode], rest].concat());
    prop_oneof![6 => plausible, 1 => random, 1 => known_opcode]
}

fn configs() -> impl Strategy<Value = LogicalUnitConfig> {
    let protections = prop::sample::select(vec![None, None, Some(1u8), Some(3)]);
    (any::<[bool; 6]>(), prop::sample::select(vec![512u32, 4096]), 1..70_000u64, 0..=15u8, protections)
        .prop_map(
            |(
                [read_only, write_cache, unmap, write_zeroes, removable, small],
                block_length_bytes,
                blocks,
                exponent,
                protection,
            )| {
                let mut config =
                    LogicalUnitConfig { read_only, write_cache, removable, block_length_bytes, ..config() };
                config.provisioning.unmap = unmap;
                config.provisioning.anchors = unmap && write_zeroes;
                config.provisioning.write_zeroes = write_zeroes;
                config.physical_block_exponent = exponent;
                config.blocks = blocks;
                config.max_transfer_bytes = if small { 4096 } else { 3 << 20 };
                config.optimal_transfer_bytes = 0;
                config.protection = protection.and_then(ProtectionType::from_number);
                config.atomic_writes = config.atomic_writes.filter(|_| !small && protection.is_none());
                if protection.is_some() {
                    // Larger than a block with what belongs to it.
                    config.max_transfer_bytes = config.max_transfer_bytes.max(8192);
                }
                config
            },
        )
}

/// The data of whole blocks that a buffer has.
fn data_bytes(unit: &LogicalUnit, buffer_bytes: u64) -> u64 {
    let block_length = u64::from(unit.block_length_bytes());
    let stored = block_length + if unit.config().protection.is_some() { 8 } else { 0 };
    assert!(buffer_bytes.is_multiple_of(stored), "{buffer_bytes} are no whole blocks");
    buffer_bytes / stored * block_length
}

/// The length of so much data in a buffer.
fn stored(unit: &LogicalUnit, data_bytes: u32) -> usize {
    let blocks = data_bytes / unit.block_length_bytes();
    (data_bytes + if unit.config().protection.is_some() { 8 * blocks } else { 0 }) as usize
}

/// Whole blocks inside the capacity, and never nothing.
fn check_range(unit: &LogicalUnit, io: &Io) {
    let (offset, length) = match io {
        Io::Flush | Io::SaveState | Io::AbortTasks { .. } | Io::Work { .. } => return,
        Io::Read { offset_bytes, length_bytes, .. } => (*offset_bytes, u64::from(*length_bytes)),
        Io::WriteDataOut { offset_bytes, length_bytes, .. }
        | Io::WriteAtomic { offset_bytes, length_bytes, .. }
        | Io::WriteMedium { offset_bytes, length_bytes, .. } => {
            (*offset_bytes, data_bytes(unit, (*length_bytes).into()))
        }
        Io::WriteOwned { offset_bytes, bytes, .. } => {
            let length = data_bytes(unit, bytes.len() as u64);
            assert!(length <= 1 << 20);
            (*offset_bytes, length)
        }
        Io::Zero { offset_bytes, length_bytes, .. }
        | Io::Unmap { offset_bytes, length_bytes }
        | Io::Prefetch { offset_bytes, length_bytes }
        | Io::Extents { offset_bytes, length_bytes } => (*offset_bytes, *length_bytes),
    };
    let block_length = u64::from(unit.block_length_bytes());
    assert!(
        length > 0 && length.is_multiple_of(block_length) && offset.is_multiple_of(block_length),
        "{io:?}"
    );
    assert!(offset.checked_add(length).is_some_and(|end| end <= unit.capacity_bytes()), "{io:?}");
    let writes = matches!(
        io,
        Io::WriteDataOut { .. }
            | Io::WriteMedium { .. }
            | Io::WriteOwned { .. }
            | Io::Zero { .. }
            | Io::Unmap { .. }
    );
    assert!(!(writes && unit.config().read_only), "{io:?} on a read-only unit");
}

/// Some of the unit's own work, with errors as the commands meet them.
fn work(unit: &LogicalUnit, answers: &[Answer]) {
    for answer in answers {
        let Some(io) = unit.next_work() else { return };
        check_range(unit, &io);
        unit.work_done(answer.error.map_or(Ok(()), Err));
    }
}

fn drive(nexus: &Nexus, unit: &LogicalUnit, lun: Lun, cdb: &[u8], data: &[u8], answers: &[Answer]) {
    let (mut task, mut next) = begin(nexus, lun, cdb);
    let mut data_out = Vec::new();
    for step in 0..=STEPS_MAX + 256 {
        let answer = &answers[step % answers.len()];
        next = match next {
            Next::Done(done) => {
                assert_eq!(done.sense.is_some(), done.status == lunette_scsi::Status::CheckCondition);
                assert!(done.sense.is_none_or(|sense| sense.as_bytes().len() <= 252));
                return;
            }
            Next::Yield => task.resume(nexus, Event::Turn { data_out: &data_out }),
            Next::Wait => panic!("nobody else is there"),
            Next::DataOut { length_bytes } => {
                assert!(length_bytes > 0);
                data_out = data.iter().copied().cycle().take(length_bytes as usize).collect();
                data_out.truncate(data_out.len().saturating_sub(answer.missing));
                let event = if answer.wrong_event {
                    Event::Io { result: Ok(IoOutcome::Done), data_out: &data_out, medium: &[] }
                } else {
                    Event::DataOut(&data_out)
                };
                task.resume(nexus, event)
            }
            Next::Io(io) | Next::IoOn { io, .. } => {
                check_range(unit, &io);
                if let Io::Work { .. } = io {
                    work(unit, answers);
                }
                if let Io::WriteDataOut { start, length_bytes, .. } = io {
                    assert!((start + length_bytes) as usize <= data_out.len());
                }
                let wanted =
                    if let Io::Read { length_bytes, .. } = io { stored(unit, length_bytes) } else { 0 };
                let medium = vec![0; wanted.saturating_sub(answer.missing)];
                let outcome = match &answer.extents {
                    Some(extents) => IoOutcome::Extents(
                        extents
                            .iter()
                            .map(|&(offset_bytes, length_bytes, allocation)| Extent {
                                offset_bytes,
                                length_bytes,
                                allocation,
                            })
                            .collect(),
                    ),
                    None => IoOutcome::Done,
                };
                let result = answer.error.map_or(Ok(outcome), Err);
                let event = if answer.wrong_event {
                    Event::DataOut(&data_out)
                } else {
                    Event::Io { result, data_out: &data_out, medium: &medium }
                };
                task.resume(nexus, event)
            }
        };
    }
    panic!("{cdb:02x?} does not end");
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn any_commands_with_any_events_end(
        config in configs(),
        commands in prop::collection::vec((cdbs(), prop::sample::select(vec![0u16, 0, 0, 0, 1])), 1..8),
        data in prop_oneof![Just(vec![0]), prop::collection::vec(any::<u8>(), 1..64)],
        answers in prop::collection::vec(answers(), 1..6),
    ) {
        let unit = Arc::new(LogicalUnit::new(config, Saved::Nothing).unwrap());
        let device = Device::new("iqn.x", [1], [(Lun::from_number(0), Arc::clone(&unit))]).unwrap();
        let port = device.ports()[0];
        let nexus = Nexus::new(Arc::new(device), port, "host".into());
        drive(&nexus, &unit, Lun::from_number(0), &[0; 16], &data, &answers);
        for (cdb, number) in &commands {
            drive(&nexus, &unit, Lun::from_number(*number), cdb, &data, &answers);
        }
    }

    #[test]
    fn any_lun_field_is_taken(bytes in any::<[u8; 8]>(), cdb in cdbs()) {
        let device = device(config());
        let port = device.ports()[0];
        let nexus = Nexus::new(device, port, "host".into());
        let unit = Arc::clone(nexus.device().unit(Lun::from_number(0)).unwrap());
        let lun = Lun::from_bytes(bytes);
        prop_assert_eq!(Lun::from_bytes(lun.to_bytes()), lun);
        let answer = Answer { error: None, extents: None, missing: 0, wrong_event: false };
        drive(&nexus, &unit, lun, &cdb, &[0], &[answer]);
    }

    /// The property above is of no use if its CDBs are all refused; this one fails if reads stop getting through.
    #[test]
    fn reads_inside_the_capacity_reach_the_medium(lba in 0..BLOCKS as u32 - 8, blocks in 1..=8u16) {
        let host = Host::new(config());
        let (_, next) = Task::start(&host.nexus, host.lun, &cdb10(0x28, 0, lba, blocks));
        let expected = Io::Read {
            offset_bytes: u64::from(lba) * 512,
            length_bytes: u32::from(blocks) * 512,
            inspected: false,
        };
        prop_assert_eq!(next, Next::Io(expected));
    }
}
