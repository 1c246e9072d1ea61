//! Volumes that have all their space from the start.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lunette_block::*;
use tempfile::TempDir;

use crate::common::{Bench, Mount, class, file_spec, spec};

const SIZE_BYTES: u64 = 512 << 10;

fn thick(path: &Path, create_bytes: Option<u64>) -> VolumeSpec {
    VolumeSpec { provisioning: Provisioning::Thick, ..file_spec(path, create_bytes) }
}

fn allocated_bytes(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// A file system of one MiB for one test.
fn small() -> Option<(Mount, TempDir)> {
    let directory = TempDir::new().unwrap();
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=1M", "tmpfs"], directory.path())?;
    Some((mount, directory))
}

#[test]
fn a_new_image_has_all_its_space_and_keeps_it() {
    let Some((mount, _directory)) = small() else { return };
    let path = mount.path.join("a.img");
    let mut bench = Bench::new(Volume::open(&thick(&path, Some(SIZE_BYTES))).unwrap());
    assert!(allocated_bytes(&path) >= SIZE_BYTES);
    let features = bench.volume.features();
    assert!(!features.unmap && bench.volume.space().is_none());
    assert_eq!(class(bench.unmap(0..SIZE_BYTES)), ErrorClass::Unsupported);
    // Others take all that is left of the file system.
    let _ = fs::write(mount.path.join("others"), vec![1; 2 << 20]);
    for offset in (0..SIZE_BYTES).step_by(65536) {
        bench.write(offset, &[7; 65536], true).unwrap();
    }
    bench.zero(0..SIZE_BYTES, false).unwrap();
    assert!(allocated_bytes(&path) >= SIZE_BYTES);
    assert!(bench.read(0, SIZE_BYTES as usize).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn what_does_not_fit_is_not_created_and_what_is_there_stays() {
    let Some((mount, _directory)) = small() else { return };
    let path = mount.path.join("a.img");
    let error = Volume::open(&thick(&path, Some(4 << 20))).unwrap_err();
    assert!(error.to_string().contains("provisioning=thick"), "{error}");
    assert!(!path.exists());
    // A sparse image of the user's, with data in the middle: too long, and then not.
    let sparse = |bytes: u64| {
        fs::write(&path, []).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[5; 4096], 65536).unwrap();
        file.set_len(bytes).unwrap();
    };
    sparse(4 << 20);
    assert!(Volume::open(&thick(&path, None)).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
    sparse(SIZE_BYTES);
    let mut bench = Bench::new(Volume::open(&thick(&path, None)).unwrap());
    assert!(allocated_bytes(&path) >= SIZE_BYTES);
    let mut expected = vec![0; SIZE_BYTES as usize];
    expected[65536..65536 + 4096].fill(5);
    assert!(bench.read(0, SIZE_BYTES as usize).unwrap() == expected);
}

#[test]
fn it_grows_when_there_is_space_for_all_of_it() {
    let Some((mount, _directory)) = small() else { return };
    let path = mount.path.join("a.img");
    let volume = Volume::open(&thick(&path, Some(SIZE_BYTES))).unwrap();
    let set_len = |bytes| OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    set_len(4 << 20);
    assert_eq!(volume.look_at_size(), None, "no space for so much");
    assert_eq!(volume.size_bytes(), SIZE_BYTES);
    set_len(SIZE_BYTES + 65536);
    assert_eq!(volume.look_at_size(), Some(SIZE_BYTES + 65536));
    assert!(allocated_bytes(&path) >= SIZE_BYTES + 65536);
}

#[test]
fn what_cannot_be_thick_is_refused() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.img");
    let protected = VolumeSpec { protection: Some(1), ..thick(&path, Some(SIZE_BYTES)) };
    assert!(Volume::open(&protected).unwrap_err().to_string().contains("cannot be thick"));
    assert!(!path.exists());
    for store in [StoreSpec::Memory { size_bytes: 1 << 20 }, StoreSpec::Null { size_bytes: 1 << 20 }] {
        let thick = VolumeSpec { provisioning: Provisioning::Thick, ..spec(store, EngineKind::Auto) };
        let error = Volume::open(&thick).unwrap_err().to_string();
        assert!(error.contains("files and block devices"), "{error}");
    }
}
