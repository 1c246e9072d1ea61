//! Opening: creation, sizes, locks, and what cannot be served.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use lunette_block::*;
use tempfile::TempDir;

use crate::common::{Bench, LoopDevice, Mount, class, file_spec, open_again, spec};

fn refusal(spec: &VolumeSpec) -> OpenError {
    match Volume::open(spec) {
        Ok(volume) => panic!("{} was opened", volume.describe()),
        Err(error) => error,
    }
}

#[test]
fn a_missing_image_is_created_only_with_a_size() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    let error = refusal(&file_spec(&path, None));
    assert!(matches!(error, OpenError::Missing { .. }));
    assert!(
        error.to_string().contains("a.img") && error.to_string().contains("for example size=10G"),
        "{error}"
    );
    assert!(!path.exists());

    let volume = Volume::open(&file_spec(&path, Some(1 << 30))).unwrap();
    assert_eq!(volume.size_bytes(), 1 << 30);
    assert_eq!(volume.describe(), format!("file {}", fs::canonicalize(&path).unwrap().display()));
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 1 << 30);
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "a disk is nobody else's to read");
    assert!(metadata.blocks() * 512 < 1 << 20, "sparse");
}

#[test]
fn an_image_is_never_resized() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    for wanted in [2 << 20, 512, 1 << 40] {
        let error = refusal(&file_spec(&path, Some(wanted)));
        let OpenError::SizeDiffers { found_bytes, wanted_bytes, .. } = error else { panic!("{error}") };
        assert_eq!((found_bytes, wanted_bytes), (1 << 20, wanted));
    }
    assert_eq!(fs::read(&path).unwrap(), vec![1; 1 << 20]);
    assert!(Volume::open(&file_spec(&path, Some(1 << 20))).is_ok());
    assert_eq!(fs::read(&path).unwrap(), vec![1; 1 << 20]);
}

#[test]
fn sizes_are_whole_blocks() {
    let directory = TempDir::new().unwrap();
    let odd = directory.path().join("odd.img");
    fs::write(&odd, vec![1; 5 * 512]).unwrap();
    assert!(Volume::open(&file_spec(&odd, None)).is_ok());
    let large_blocks = VolumeSpec { block_length_bytes: 4096, ..file_spec(&odd, None) };
    assert!(matches!(refusal(&large_blocks), OpenError::BadSize { size_bytes: 2560, .. }));

    let empty = directory.path().join("empty.img");
    File::create(&empty).unwrap();
    assert!(matches!(refusal(&file_spec(&empty, None)), OpenError::BadSize { size_bytes: 0, .. }));

    let new = directory.path().join("new.img");
    for size_bytes in [0, 1000, u64::MAX - 511] {
        assert!(matches!(refusal(&file_spec(&new, Some(size_bytes))), OpenError::BadSize { .. }));
        assert!(!new.exists(), "a refused image is not left behind");
        for store in [StoreSpec::Memory { size_bytes }, StoreSpec::Null { size_bytes }] {
            assert!(matches!(refusal(&spec(store, EngineKind::Sync)), OpenError::BadSize { .. }));
        }
    }
    // More than any disk file system takes: created, refused by the kernel, and removed again. tmpfs takes it.
    if let Err(error) = Volume::open(&file_spec(&new, Some(i64::MAX as u64 - 511))) {
        assert!(matches!(error, OpenError::Io { .. }), "{error}");
        assert!(!new.exists());
    }

    for block_length_bytes in [0, 1, 256, 513, 520, 131_072] {
        let spec = VolumeSpec { block_length_bytes, ..file_spec(&odd, None) };
        assert!(matches!(refusal(&spec), OpenError::BadBlockLength { .. }), "{block_length_bytes}");
    }
}

#[test]
fn an_image_is_served_once() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    let writable = file_spec(&path, Some(1 << 20));
    let read_only = VolumeSpec { read_only: true, ..file_spec(&path, None) };
    let first = Volume::open(&writable).unwrap();
    for spec in [&writable, &read_only] {
        let error = refusal(spec);
        assert!(matches!(error, OpenError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("a.img"), "{error}");
    }
    // A link is the same image.
    let link = directory.path().join("link.img");
    fs::hard_link(&path, &link).unwrap();
    assert!(matches!(refusal(&file_spec(&link, None)), OpenError::InUse { .. }));

    first.close().unwrap();
    let second = Volume::open(&read_only).unwrap();
    let third = Volume::open(&read_only).unwrap();
    assert!(matches!(refusal(&writable), OpenError::InUse { .. }), "readers keep writers away");
    drop((second, third));
    let fourth = Volume::open(&writable).unwrap();
    drop(fourth);
    assert!(Volume::open(&writable).is_ok(), "dropping is closing");
    assert_eq!(first.name(), "test");
}

#[test]
fn what_is_no_disk_is_refused_without_waiting() {
    let directory = TempDir::new().unwrap();
    let refused = |path: &Path| {
        let error = refusal(&file_spec(path, None));
        assert!(matches!(error, OpenError::NotServable { .. }), "{error}");
    };
    refused(directory.path());
    refused(Path::new("/dev/null"));
    let fifo = directory.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    refused(&fifo);

    let image = directory.path().join("a.img");
    fs::write(&image, [0; 512]).unwrap();
    let as_device = spec(StoreSpec::BlockDevice { path: image }, EngineKind::Sync);
    assert!(matches!(refusal(&as_device), OpenError::NotServable { .. }));
    let nowhere = spec(StoreSpec::BlockDevice { path: "/dev/no-such-disk".into() }, EngineKind::Sync);
    assert!(refusal(&nowhere).to_string().contains("/dev/no-such-disk"));
    let new = directory.path().join("new.img");
    let read_only = VolumeSpec { read_only: true, ..file_spec(&new, Some(4096)) };
    assert!(matches!(refusal(&read_only), OpenError::NotServable { .. }));
    assert!(!new.exists());
}

#[test]
fn a_link_leads_to_its_image() {
    let directory = TempDir::new().unwrap();
    let image = directory.path().join("real.img");
    fs::write(&image, vec![1; 4096]).unwrap();
    let link = directory.path().join("link.img");
    symlink(&image, &link).unwrap();
    let volume = Volume::open(&file_spec(&link, None)).unwrap();
    assert!(volume.describe().ends_with("real.img"));
    assert!(!directory.path().join("link.img.lunette-id").exists());
}

#[test]
fn a_claimed_device_is_refused_and_sectors_are_respected() {
    let directory = TempDir::new().unwrap();
    let image = directory.path().join("a.img");
    File::create(&image).and_then(|file| file.set_len(4 << 20)).unwrap();
    let Some(device) = LoopDevice::attach(&image, &["--sector-size", "4096"]) else { return };
    assert_eq!(logical_sector_bytes(&device.path), Some(4096));
    assert_eq!(logical_sector_bytes(&image), None);
    let path = device.path.clone();
    let small = spec(StoreSpec::BlockDevice { path }, EngineKind::Threads);
    let error = refusal(&small);
    assert!(matches!(error, OpenError::BadBlockLength { .. }), "{error}");
    assert!(error.to_string().contains("4096"), "{error}");
    let right = VolumeSpec { block_length_bytes: 4096, ..small };
    let first = Volume::open(&right).unwrap();
    assert_eq!(first.features().physical_block_bytes, 4096);
    assert!(matches!(refusal(&right), OpenError::InUse { .. }));
    drop(first);
    open_again(&right);
}

#[test]
fn a_mounted_device_is_refused() {
    let directory = TempDir::new().unwrap();
    let image = directory.path().join("a.img");
    File::create(&image).and_then(|file| file.set_len(8 << 20)).unwrap();
    let Some(device) = LoopDevice::attach(&image, &[]) else { return };
    let mount_point = directory.path().join("mnt");
    fs::create_dir(&mount_point).unwrap();
    let made = Command::new("mkfs.ext4").arg(&device.path).output();
    if !made.is_ok_and(|output| output.status.success()) {
        lunette_skip::record_lacking("no file system can be made here");
        return;
    }
    let device_path = device.path.to_str().unwrap();
    let Some(_mount) = Mount::new(&[device_path], &mount_point) else { return };
    let error = refusal(&spec(StoreSpec::BlockDevice { path: device.path.clone() }, EngineKind::Sync));
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("mounted"), "{error}");
}

#[test]
fn a_full_file_system_is_no_space_and_nothing_worse() {
    let directory = TempDir::new().unwrap();
    let small = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
    let Some(mount) = Mount::new(&small, directory.path()) else { return };
    let mut bench = Bench::open(&file_spec(&mount.path.join("a.img"), Some(16 << 20)));
    assert_eq!(class(bench.write(0, &vec![1; 4 << 20], true)), ErrorClass::NoSpace);
    assert_eq!(class(bench.write(8 << 20, &[1; 65536], false)), ErrorClass::NoSpace);
    assert_eq!(bench.read(0, 65536).unwrap(), vec![1; 65536]);
    assert_eq!(bench.volume.fault(), None);
    bench.volume.close().unwrap();
}

/// A device that lies on a full file system takes writes into the page cache and loses them when they are flushed.
#[test]
fn writes_that_the_kernel_loses_fault_the_volume() {
    for engine in [EngineKind::Sync, EngineKind::Threads] {
        let directory = TempDir::new().unwrap();
        let small = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
        let Some(mount) = Mount::new(&small, directory.path()) else { return };
        let image = mount.path.join("a.img");
        File::create(&image).and_then(|file| file.set_len(16 << 20)).unwrap();
        let Some(device) = LoopDevice::attach(&image, &[]) else { return };
        let store = StoreSpec::BlockDevice { path: device.path.clone() };
        let mut bench = Bench::open(&spec(store, engine));
        bench.write(0, &vec![1; 4 << 20], false).unwrap();
        let failed = bench.write(8 << 20, &[1; 4096], true).unwrap_err();
        assert!(matches!(failed, StoreError::Flush { .. }), "{failed}");
        assert_eq!(class(bench.flush()), ErrorClass::Faulted);
        assert!(bench.volume.fault().is_some());
        assert!(bench.read(15 << 20, 4096).is_ok());
        assert!(bench.volume.close().is_err());
        drop(bench);
    }
}

#[test]
fn another_size_is_seen_when_it_is_looked_for() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    let mut bench = Bench::open(&VolumeSpec { block_length_bytes: 4096, ..file_spec(&path, Some(1 << 20)) });
    let set = |bytes: u64| File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    assert_eq!(bench.volume.look_at_size(), None);
    set((2 << 20) + 4095);
    assert_eq!(class(bench.write(1 << 20, &[1; 4096], false)), ErrorClass::OutOfRange);
    assert_eq!(bench.volume.look_at_size(), Some(2 << 20));
    assert_eq!(bench.volume.look_at_size(), None);
    assert_eq!(bench.volume.size_bytes(), 2 << 20);
    bench.write((2 << 20) - 4096, &[1; 4096], true).unwrap();
    assert_eq!(class(bench.write(2 << 20, &[1; 512], false)), ErrorClass::OutOfRange);
    set(8192);
    assert_eq!(bench.volume.look_at_size(), Some(8192));
    assert_eq!(class(bench.write(8192, &[1; 4096], false)), ErrorClass::OutOfRange);
    assert_eq!(fs::metadata(&path).unwrap().len(), 8192, "a write does not make it longer");
    set(100);
    assert_eq!(bench.volume.look_at_size(), None, "less than a block is no disk");
    assert_eq!(bench.volume.size_bytes(), 8192);
    bench.volume.close().unwrap();
    set(1 << 20);
    assert_eq!(bench.volume.look_at_size(), None, "it is closed");
}

#[test]
fn a_larger_device_is_seen() {
    let directory = TempDir::new().unwrap();
    let image = directory.path().join("a.img");
    File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let Some(device) = LoopDevice::attach(&image, &[]) else { return };
    for engine in [EngineKind::Threads, EngineKind::Direct] {
        File::options().write(true).open(&image).unwrap().set_len(4 << 20).unwrap();
        let renew = || Command::new("losetup").arg("--set-capacity").arg(&device.path).status().unwrap();
        assert!(renew().success());
        let store = StoreSpec::BlockDevice { path: device.path.clone() };
        let volume = Volume::open(&spec(store, engine)).unwrap();
        File::options().write(true).open(&image).unwrap().set_len(8 << 20).unwrap();
        assert!(renew().success());
        assert_eq!(volume.look_at_size(), Some(8 << 20), "{engine}");
        let mut bench = Bench::new(volume);
        bench.write((8 << 20) - 512, &[7; 512], true).unwrap();
        assert_eq!(bench.read((8 << 20) - 512, 512).unwrap(), [7; 512]);
        bench.volume.close().unwrap();
    }
}

#[test]
fn a_volume_whose_image_is_gone_does_not_close_cleanly() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.img");
    for replaced in [false, true] {
        let volume = Volume::open(&file_spec(&path, Some(1 << 20))).unwrap();
        std::fs::remove_file(&path).unwrap();
        if replaced {
            std::fs::write(&path, "another").unwrap();
        }
        for _ in 0..2 {
            let error = volume.close().unwrap_err();
            assert!(matches!(&error, CloseError::Astray { astray, .. } if astray.is_nameless), "{error}");
            assert_eq!(error.to_string().contains("another file now"), replaced, "{error}");
        }
        let _ = std::fs::remove_file(&path);
    }
    let volume = Volume::open(&file_spec(&path, Some(1 << 20))).unwrap();
    std::fs::rename(&path, directory.path().join("b.img")).unwrap();
    volume.close().unwrap();
}
