//! What tells a file or a block device from others, for the record of how far a copy is. A device is known by its medium, and not by
//! its place: another image may be behind the same loop device by the time a copy goes on.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::UNIX_EPOCH;

use crate::device::Device;

/// How many loop devices lie on each other at most.
const DEPTH_MAX: u32 = 8;
/// Mappings whose names are those of what they map; others have the names that were given to them.
const MAPPINGS: [&str; 3] = ["LVM-", "CRYPT-LUKS", "mpath-"];

/// Tells it from others. `None` for a block device of which nothing tells which medium it has.
pub(super) fn of(file: &Metadata) -> Option<String> {
    of_one(file, DEPTH_MAX)
}

fn of_one(file: &Metadata, depth: u32) -> Option<String> {
    if file.file_type().is_block_device() {
        return of_device(&Device::numbered(file.rdev()), depth);
    }
    let place = format!("file {}:{}", file.dev(), file.ino());
    // The number of a file that was removed is given to another one. Not every file system tells when that was.
    let born = file.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    Some(match born {
        Some(born) => format!("{place} of {}.{:09}", born.as_secs(), born.subsec_nanos()),
        None => place,
    })
}

fn of_device(device: &Device, depth: u32) -> Option<String> {
    let disk = device.disk();
    let name = lasting_name(&disk, depth).or_else(|| name_until_restart(&disk))?;
    Some(match device.partition_start() {
        Some(start) => format!("sectors from {start} of {name}"),
        None => name,
    })
}

/// The name of a medium that it has on any machine, or of the file that it is.
fn lasting_name(disk: &Device, depth: u32) -> Option<String> {
    if let Some(path) = disk.backing_file() {
        let file = fs::metadata(path).ok()?;
        let file = of_one(&file, depth.checked_sub(1)?)?;
        let part = |name| disk.attribute(name).unwrap_or_default();
        return Some(format!("loop from {} for {} of {file}", part("loop/offset"), part("loop/sizelimit")));
    }
    // The name of a drive is not that of the medium in it.
    if disk.attribute("removable").is_some_and(|removable| removable != "0") {
        return None;
    }
    if let Some(mapping) = disk.attribute("dm/uuid") {
        let is_of_content = MAPPINGS.iter().any(|kind| mapping.starts_with(kind));
        return is_of_content.then(|| format!("dm {mapping}"));
    }
    if let Some(array) = disk.attribute("md/uuid") {
        return Some(format!("md {array}"));
    }
    // Who has a name that is not unique in the world may have a serial number that others have, too.
    if let Some(name) = disk.attribute("wwid").or_else(|| disk.attribute("device/wwid")) {
        return is_world_wide(&name).then_some(name);
    }
    let serials = ["device/cid", "serial", "device/serial"];
    serials.iter().find_map(|name| disk.attribute(name)).map(|serial| format!("disk {serial}"))
}

/// As [`lunette_scsi::client::vpd::identification::Designation::is_world_wide`] has it.
fn is_world_wide(name: &str) -> bool {
    let organization = match name.split_once('.') {
        Some(("naa", digits)) if !digits.starts_with('3') => digits.get(1..7),
        Some(("eui", digits)) => digits.get(..6),
        Some(("uuid" | "nvme", _)) => return true,
        _ => None,
    };
    organization.is_some_and(|digits| digits != "000000")
}

/// What the kernel calls the medium until this machine is started again (Linux 5.15).
fn name_until_restart(disk: &Device) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let mut name = format!("disk {} since start {}", disk.attribute("diskseq")?, boot.trim());
    // An NBD device that is connected anew keeps its number.
    if let Some(client) = disk.attribute("pid") {
        name.push_str(&format!(", process {client}"));
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;

    /// A directory of a device with these attributes.
    fn device(directory: &Path, attributes: &[(&str, &str)]) -> Device {
        for (name, text) in attributes {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        Device::at(directory)
    }

    fn named(attributes: &[(&str, &str)]) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        of_device(&device(directory.path(), attributes), DEPTH_MAX)
    }

    #[test]
    fn a_device_is_known_by_its_medium() {
        let sequence = ("diskseq", "7");
        for (attributes, name) in [
            (("device/wwid", "naa.5000c500a1b2c3d4"), "naa.5000c500a1b2c3d4"),
            (("wwid", "eui.0025385b71b01234"), "eui.0025385b71b01234"),
            (("dm/uuid", "LVM-Yk9nIk"), "dm LVM-Yk9nIk"),
            (("serial", "volume-1"), "disk volume-1"),
        ] {
            assert_eq!(named(&[attributes, sequence]).as_deref(), Some(name));
        }
        // What all disks of a kind have, what was given to a mapping, and what has another medium at any time.
        for attributes in [
            [("device/wwid", "naa.60000000000000000e00000000010001"), ("device/serial", "beaf11")],
            [("device/wwid", "t10.ATA     QEMU HARDDISK  QM00001"), ("serial", "QM00001")],
            [("dm/uuid", "CRYPT-PLAIN-secret"), ("serial", "1")],
            [("removable", "1"), ("device/wwid", "naa.5000c500a1b2c3d4")],
        ] {
            let told = named(&[&attributes[..], &[sequence]].concat()).unwrap();
            assert!(told.starts_with("disk 7 since start "), "{attributes:?}: {told}");
            assert_ne!(Some(told), named(&[&attributes[..], &[("diskseq", "8")]].concat()));
            assert_eq!(named(&attributes), None, "{attributes:?}");
        }
        let of_process = |pid| named(&[sequence, ("pid", pid)]).unwrap();
        assert_ne!(of_process("1"), of_process("2"));
        assert_eq!(named(&[]), None);
    }

    #[test]
    fn a_partition_is_a_part_of_its_disk() {
        let directory = tempfile::tempdir().unwrap();
        device(directory.path(), &[("wwid", "eui.0025385b71b01234")]);
        let part = |name: &str, start| {
            let place = directory.path().join(name);
            device(&place, &[("partition", "1"), ("start", start)]);
            // Where the kernel has its directories is told by links.
            let link = directory.path().join(format!("{name}.link"));
            symlink(place, &link).unwrap();
            of_device(&Device::at(link), DEPTH_MAX).unwrap()
        };
        assert_eq!(part("p1", "2048"), "sectors from 2048 of eui.0025385b71b01234");
        assert_eq!(part("p2", "4096"), "sectors from 4096 of eui.0025385b71b01234");
    }

    #[test]
    fn a_file_is_known_by_when_it_was_made() {
        let directory = tempfile::tempdir().unwrap();
        let metadata = File::create_new(directory.path().join("image")).unwrap().metadata().unwrap();
        let name = of(&metadata).unwrap();
        assert!(name.starts_with(&format!("file {}:{}", metadata.dev(), metadata.ino())), "{name}");
        let Ok(born) = metadata.created() else {
            lunette_skip::record_lacking("a file system that tells when a file was made");
            return;
        };
        let born = born.duration_since(UNIX_EPOCH).unwrap();
        // The next one may well get the number of this one, when it is removed.
        assert!(name.ends_with(&format!(" of {}.{:09}", born.as_secs(), born.subsec_nanos())), "{name}");
    }

    /// A loop device, as long as it is wanted.
    struct Loop(PathBuf);

    impl Loop {
        fn of(options: &[&str], image: &Path) -> Option<Loop> {
            let made = Command::new("losetup").args(options).args(["--find", "--show"]).arg(image).output();
            let made = made.ok().filter(|made| made.status.success())?;
            Some(Loop(String::from_utf8(made.stdout).unwrap().trim().into()))
        }

        fn name(&self) -> Option<String> {
            of(&fs::metadata(&self.0).unwrap())
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
        }
    }

    #[test]
    fn a_loop_device_is_its_image() {
        let directory = tempfile::tempdir().unwrap();
        let images = ["one", "other"].map(|name| directory.path().join(name));
        for image in &images {
            File::create_new(image).unwrap().set_len(1 << 20).unwrap();
        }
        let named = |options: &[&str], image: &Path| Loop::of(options, image).map(|device| device.name());
        let Some(one) = named(&[], &images[0]) else {
            lunette_skip::record_lacking("losetup, or the right to make loop devices");
            return;
        };
        assert!(one.is_some());
        assert_eq!(named(&[], &images[0]), Some(one.clone()), "also behind another device");
        assert_ne!(named(&[], &images[1]), Some(one.clone()));
        assert_ne!(named(&["--offset", "4096"], &images[0]), Some(one.clone()));
        assert_ne!(named(&["--sizelimit", "8192"], &images[0]), Some(one.clone()));
        // On each other, and with an image that nobody can be asked for any more.
        let below = Loop::of(&[], &images[1]).unwrap();
        let above = named(&[], &below.0).unwrap().unwrap();
        assert!(above.contains(&below.name().unwrap()), "{above}");
        fs::remove_file(&images[1]).unwrap();
        let name = below.name();
        assert!(name.as_ref().is_none_or(|name| name.contains("since start")), "{name:?}");
    }
}
