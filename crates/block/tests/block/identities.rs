//! Identities: they stay with the data, whatever happens to paths and processes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use lunette_block::*;
use tempfile::TempDir;

use crate::common::{LoopDevice, file_spec, open_again, spec};

fn identity_of(spec: &VolumeSpec) -> VolumeIdentity {
    let volume = open_again(spec);
    let identity = volume.identity().clone();
    volume.close().expect("it closes");
    identity
}

fn at(path: &Path) -> VolumeIdentity {
    identity_of(&file_spec(path, None))
}

fn image(directory: &TempDir, name: &str) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, vec![0; 4096]).expect("an image");
    path
}

fn with_serial(spec: &VolumeSpec, serial: &str) -> VolumeSpec {
    VolumeSpec { identity: IdentityOverride { serial: Some(serial.to_owned()) }, ..spec.clone() }
}

#[test]
fn an_image_keeps_its_identity_when_it_moves_and_a_copy_gets_another() {
    let directory = TempDir::new().unwrap();
    let path = image(&directory, "a.img");
    let first = at(&path);
    assert_eq!(first.naa >> 60, 3, "locally assigned");
    assert_eq!(first.serial.len(), 32);
    assert_eq!(at(&path), first, "after a restart");

    let moved = directory.path().join("b.img");
    let sidecar = |path: &Path| PathBuf::from(format!("{}.lunette-id", path.display()));
    fs::rename(&path, &moved).unwrap();
    if sidecar(&path).exists() {
        fs::rename(sidecar(&path), sidecar(&moved)).unwrap();
    }
    assert_eq!(at(&moved), first, "after a move");
    fs::copy(&moved, &path).unwrap();
    let copy = at(&path);
    assert_ne!(copy.uuid, first.uuid);
    assert_ne!(copy.naa, first.naa);
    assert_ne!(copy.serial, first.serial);
}

#[test]
fn one_place_holds_the_identity() {
    let directory = TempDir::new().unwrap();
    let path = image(&directory, "a.img");
    at(&path);
    let attribute = rustix::fs::getxattr(&path, "user.lunette.uuid", &mut [0_u8; 64]).is_ok();
    let sidecar = directory.path().join("a.img.lunette-id").exists();
    assert!(attribute != sidecar, "attribute {attribute}, sidecar {sidecar}");
}

#[test]
fn a_read_only_image_has_a_lasting_identity() {
    let directory = TempDir::new().unwrap();
    let path = image(&directory, "a.img");
    let read_only = VolumeSpec { read_only: true, ..file_spec(&path, None) };
    let first = identity_of(&read_only);
    assert_eq!(identity_of(&read_only), first);
    assert_eq!(at(&path), first, "and the same when it is writable");
}

#[test]
fn a_configured_serial_is_the_identity() {
    let directory = TempDir::new().unwrap();
    let path = image(&directory, "a.img");
    let named = with_serial(&file_spec(&path, None), "disk 1");
    let first = identity_of(&named);
    assert_eq!(first.serial, "disk 1");
    assert_eq!(identity_of(&named), first);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is stored");
    assert!(rustix::fs::getxattr(&path, "user.lunette.uuid", &mut [0_u8; 64]).is_err());
    for store in [StoreSpec::Memory { size_bytes: 4096 }, StoreSpec::Null { size_bytes: 4096 }] {
        assert_eq!(identity_of(&with_serial(&spec(store, EngineKind::Sync), "disk 1")), first);
    }
    assert_ne!(identity_of(&with_serial(&named, "disk 2")).naa, first.naa);

    for bad in ["", " disk", "disk ", "d\u{e4}sk", "a\nb", &"x".repeat(65)] {
        let error = Volume::open(&with_serial(&named, bad)).expect_err("not a serial number");
        assert!(matches!(error, OpenError::BadSerial { .. }), "{error}");
    }
    assert_eq!(identity_of(&with_serial(&named, &"x".repeat(64))).serial.len(), 64);
}

#[test]
fn memory_is_a_new_disk_each_time() {
    for store in [StoreSpec::Memory { size_bytes: 4096 }, StoreSpec::Null { size_bytes: 4096 }] {
        let spec = spec(store, EngineKind::Sync);
        assert_ne!(identity_of(&spec), identity_of(&spec));
    }
}

#[test]
fn a_loop_device_is_its_image() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    File::create(&path).and_then(|file| file.set_len(4 << 20)).unwrap();
    let first = at(&path);
    let device_spec = |path: PathBuf| spec(StoreSpec::BlockDevice { path }, EngineKind::Sync);
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    assert_eq!(identity_of(&device_spec(device.path.clone())), first);
    drop(device);
    let Some(part) = LoopDevice::attach(&path, &["--offset", "1048576"]) else { return };
    let part_identity = identity_of(&device_spec(part.path.clone()));
    assert_ne!(part_identity, first, "a part is a disk of its own");
    assert_eq!(identity_of(&device_spec(part.path.clone())), part_identity);
}
