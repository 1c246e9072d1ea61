//! Tests of identities from inside: places that refuse attributes, files that were damaged, devices made up.

use super::*;
use std::fs::File;
use tempfile::TempDir;

/// The kernel refuses names outside its namespaces with `EOPNOTSUPP`, as a file system without attributes does.
const REFUSED: &str = "lunette.uuid";

fn image(directory: &TempDir) -> (File, PathBuf) {
    let path = directory.path().join("a.img");
    let file = File::options().create(true).truncate(false).write(true).open(&path).unwrap();
    (file, path)
}

#[test]
fn without_attributes_a_sidecar_holds_the_identity() {
    let directory = TempDir::new().unwrap();
    let (file, path) = image(&directory);
    let first = file_uuid(file.as_fd(), &path, REFUSED).unwrap();
    assert_eq!(file_uuid(file.as_fd(), &path, REFUSED).unwrap(), first);
    let mut names: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.img", "a.img.lunette-id"], "no temporary file stays");
    let content = fs::read_to_string(sidecar_path(&path)).unwrap();
    assert_eq!(content, format!("lunette volume identity 1\n{}\n", text(&first)));
    // An image that came from such a place keeps its identity where attributes work, and gets no second one.
    assert_eq!(file_uuid(file.as_fd(), &path, ATTRIBUTE).unwrap(), first);
    assert!(rustix::fs::fgetxattr(&file, ATTRIBUTE, &mut [0_u8; 64]).is_err());
}

#[test]
fn the_attribute_counts_more_than_a_foreign_sidecar() {
    let directory = TempDir::new().unwrap();
    let (file, path) = image(&directory);
    let own = file_uuid(file.as_fd(), &path, ATTRIBUTE).unwrap();
    if sidecar_path(&path).exists() {
        lunette_skip::record_lacking("this file system takes no attributes");
        return;
    }
    write_sidecar(&sidecar_path(&path), &[7; 16]).unwrap();
    assert_eq!(file_uuid(file.as_fd(), &path, ATTRIBUTE).unwrap(), own);
}

#[test]
fn the_second_writer_of_a_sidecar_takes_the_first_ones_identity() {
    let directory = TempDir::new().unwrap();
    let sidecar = directory.path().join("a.img.lunette-id");
    assert_eq!(write_sidecar(&sidecar, &[1; 16]).unwrap(), [1; 16]);
    assert_eq!(write_sidecar(&sidecar, &[2; 16]).unwrap(), [1; 16]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn readers_that_open_a_new_image_at_once_agree() {
    for attribute in [ATTRIBUTE, REFUSED] {
        for _ in 0..20 {
            let directory = TempDir::new().unwrap();
            let (file, path) = image(&directory);
            let start = std::sync::Barrier::new(4);
            let uuids: Vec<_> = std::thread::scope(|scope| {
                let read = || {
                    start.wait();
                    file_uuid(file.as_fd(), &path, attribute).unwrap()
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(uuids.iter().all(|uuid| *uuid == uuids[0]), "{attribute}: {uuids:?}");
        }
    }
}

#[test]
fn damage_is_an_error_that_names_the_way_out() {
    let directory = TempDir::new().unwrap();
    let (file, path) = image(&directory);
    for content in ["", "garbage", "lunette volume identity 1\n", "lunette volume identity 1\nxyz\n"] {
        fs::write(sidecar_path(&path), content).unwrap();
        let error = file_uuid(file.as_fd(), &path, ATTRIBUTE).unwrap_err();
        assert!(error.to_string().contains("serial="), "{error}");
    }
    fs::remove_file(sidecar_path(&path)).unwrap();
    for value in ["", "garbage", &"0".repeat(1000)] {
        if rustix::fs::fsetxattr(&file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty()).is_err() {
            lunette_skip::record_lacking("this file system takes no attributes");
            return;
        }
        let error = file_uuid(file.as_fd(), &path, ATTRIBUTE).unwrap_err();
        assert!(error.to_string().contains("serial="), "{value:?}: {error}");
    }
}

#[test]
fn an_image_that_can_hold_no_identity_asks_for_a_serial() {
    let directory = TempDir::new().unwrap();
    let (file, _) = image(&directory);
    let nowhere = directory.path().join("missing/a.img");
    let error = file_uuid(file.as_fd(), &nowhere, REFUSED).unwrap_err();
    assert!(matches!(error, OpenError::NoIdentity { .. }));
    let text = error.to_string();
    assert!(text.contains("serial=") && text.contains("missing/a.img"), "{text}");
}

#[test]
fn uuids_are_read_as_they_are_written() {
    let uuid = random_uuid().unwrap();
    assert_eq!(parse(&text(&uuid)), Some(uuid));
    assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (4, 2), "version and variant");
    assert_eq!(text(&[0xab; 16]), "abababab-abab-abab-abab-abababababab");
    for bad in [
        "",
        "abababab-abab-abab-abab-ababababab",
        "abababababababababababababababab",
        "+bababab-abab-abab-abab-abababababab",
        "\u{e4}bababa-abab-abab-abab-abababababab",
    ] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}

#[test]
fn names_follow_from_the_uuid() {
    let identity = VolumeIdentity::from_uuid([0xff; 16]);
    assert_eq!(identity.naa, 0x3fff_ffff_ffff_ffff);
    assert_eq!(identity.serial, "f".repeat(32));
    assert_eq!(VolumeIdentity::from_uuid([0; 16]).naa, 0x3000_0000_0000_0000);
}

/// These values are on initiators' disks: a change here would take every configured volume's name away.
#[test]
fn a_serial_always_gives_the_same_names() {
    let identity = from_serial("disk1").unwrap();
    assert_eq!(text(&identity.uuid), "bae827ef-707f-8ce1-8560-9767e242c889");
    assert_eq!(identity.naa, 0x3560_9767_e242_c889);
}

fn device(files: &[(&str, &str)]) -> (TempDir, DeviceDirectory) {
    let root = TempDir::new().unwrap();
    for (name, content) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let directory = DeviceDirectory::at(root.path());
    (root, directory)
}

fn device_identity(files: &[(&str, &str)]) -> Result<VolumeIdentity, OpenError> {
    let (_root, directory) = device(files);
    for_device(&directory, Path::new("/dev/made-up"))
}

#[test]
fn a_device_is_known_by_the_best_name_it_has() {
    let wwid = device_identity(&[("device/wwid", "naa.5000c500a0b1c2d3\n")]).unwrap();
    let both = device_identity(&[("device/wwid", "naa.5000c500a0b1c2d3"), ("serial", "vm-disk-1")]).unwrap();
    let serial = device_identity(&[("serial", "vm-disk-1")]).unwrap();
    let mapped = device_identity(&[("dm/uuid", "LVM-abc"), ("serial", "vm-disk-1")]).unwrap();
    assert_eq!(wwid, both);
    assert_ne!(wwid, serial);
    assert_ne!(mapped, serial);
    assert_eq!(mapped, device_identity(&[("dm/uuid", "LVM-abc")]).unwrap());
}

#[test]
fn partitions_of_a_disk_differ() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("wwid"), "eui.0011223344556677").unwrap();
    let identity = |number: &str| {
        let partition = root.path().join(format!("p{number}"));
        fs::create_dir_all(&partition).unwrap();
        fs::write(partition.join("partition"), number).unwrap();
        for_device(&DeviceDirectory::at(&partition), Path::new("/dev/made-up")).unwrap()
    };
    let whole = for_device(&DeviceDirectory::at(root.path()), Path::new("/dev/made-up")).unwrap();
    let (first, second) = (identity("1"), identity("2"));
    assert_ne!(first, second);
    assert_ne!(first, whole);
    assert_eq!(first, identity("1"));
}

#[test]
fn a_device_without_a_name_asks_for_a_serial() {
    for files in [&[][..], &[("serial", "   \n")], &[("loop/backing_file", "/gone/a.img (deleted)\n")]] {
        let error = device_identity(files).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/dev/made-up") && text.contains("serial="), "{text}");
    }
}
