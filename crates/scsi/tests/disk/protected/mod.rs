//! Units with protection information: what they tell of themselves, and every value of the protect fields.

mod commands;
mod copies;
mod model;
mod writing;

use std::sync::{Arc, Mutex};

use lunette_scsi::{Check, Damage, DamageWatch, LogicalUnitConfig, ProtectionType};

use crate::host::*;

/// A block with its information, as the store keeps it.
const STORED: usize = BLOCK + 8;

const GUARD: (u8, u8, u8) = (0xb, 0x10, 0x01);
const REFERENCE_TAG: (u8, u8, u8) = (0xb, 0x10, 0x03);

fn protected(kind: ProtectionType) -> LogicalUnitConfig {
    LogicalUnitConfig { protection: Some(kind), atomic_writes: None, ..config() }
}

fn type_1() -> Host {
    Host::new(protected(ProtectionType::Type1))
}

fn type_3() -> Host {
    Host::new(protected(ProtectionType::Type3))
}

/// The guard, bit by bit (SBC-3: polynomial 8BB7h).
fn guard(data: &[u8]) -> u16 {
    data.iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x8bb7 } else { 0 })
    })
}

fn information(data: &[u8], application_tag: u16, reference_tag: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&guard(data).to_be_bytes());
    bytes[2..4].copy_from_slice(&application_tag.to_be_bytes());
    bytes[4..].copy_from_slice(&reference_tag.to_be_bytes());
    bytes
}

/// A block of a byte with right information for `lba`.
fn block(byte: u8, application_tag: u16, lba: u32) -> Vec<u8> {
    let data = [byte; BLOCK];
    [&data[..], &information(&data, application_tag, lba)].concat()
}

fn field(value: u8) -> u8 {
    value << 5
}

fn information_of(host: &Host, lba: usize) -> [u8; 8] {
    host.disk.information.as_ref().expect("it is protected")[lba]
}

fn set_information(host: &mut Host, lba: usize, bytes: [u8; 8]) {
    host.disk.information.as_mut().expect("it is protected")[lba] = bytes;
}

/// What a driver is told of damage.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<Damage>>);

impl DamageWatch for Told {
    fn stored_data_is_damaged(&self, damage: Damage) {
        self.0.lock().expect("no panic").push(damage);
    }
}

impl Told {
    /// What it is told of unit 0 of a host from now on.
    fn of(host: &Host) -> Arc<Told> {
        let told = Arc::new(Told::default());
        let (_, unit) = host.nexus.device().units().next().expect("a unit");
        unit.watch_damage(Arc::<Told>::clone(&told));
        told
    }

    fn take(&self) -> Vec<Damage> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

/// INFORMATION of fixed format sense data.
fn told_lba(reply: &Reply) -> u32 {
    assert_eq!(reply.sense[0], 0xf0, "INFORMATION is valid");
    u32::from_be_bytes([reply.sense[3], reply.sense[4], reply.sense[5], reply.sense[6]])
}
