//! Who a volume is: one UUID from which the NAA name and the serial number follow.
//!
//! An identity belongs to the data, not to the path or the place in a configuration, because initiators find their
//! disks again by it. Sources, first match wins:
//!
//! 1. `serial=` in the configuration: the UUID is a hash of it, and nothing is stored with the image;
//! 2. an image: the extended attribute `user.lunette.uuid`, which moves with the file and which plain `cp` leaves
//!    out; where the file system takes none, a sidecar file `IMAGE.lunette-id` that has to be moved along;
//! 3. a block device: a hash of the name that the device itself has; a loop device: its image's identity;
//! 4. memory and null: a fresh one each time, because it is a new disk each time.
//!
//! Hashes are the first 16 bytes of SHA-256 with the version and variant bits of a version 8 UUID (RFC 9562, 5.8).

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::OpenError;
use crate::store::file::sync_directory_of;
use crate::store::sysfs::DeviceDirectory;

const ATTRIBUTE: &str = "user.lunette.uuid";
const SIDECAR_SUFFIX: &str = ".lunette-id";
const SIDECAR_FIRST_LINE: &str = "lunette volume identity 1";

/// Longest serial number: what initiators are known to take without cutting it.
const SERIAL_BYTES_MAX: usize = 64;

/// How a volume names itself to initiators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// The UUID, in the order of its text.
    pub uuid: [u8; 16],
    /// The same as a locally assigned NAA name: 3h and 60 bits of the UUID (SPC-6, NAA Locally Assigned format).
    pub naa: u64,
    /// The serial number: the configured one, or the UUID in 32 hexadecimal digits.
    pub serial: String,
}

impl VolumeIdentity {
    fn from_uuid(uuid: [u8; 16]) -> Self {
        // The last eight bytes begin with the variant bits, which carry nothing; the NAA digit takes their place.
        let tail = u128::from_be_bytes(uuid) as u64;
        let naa = (0x3 << 60) | (tail & (u64::MAX >> 4));
        let serial = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { uuid, naa, serial }
    }
}

/// Sets the version and variant bits.
fn with_version(mut uuid: [u8; 16], version: u8) -> [u8; 16] {
    uuid[6] = (uuid[6] & 0x0f) | (version << 4);
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    uuid
}

fn hashed(kind: &str, value: &str) -> [u8; 16] {
    let mut hash = Sha256::new();
    // Neither the fixed text nor a kind contains a NUL, so two different inputs never hash the same bytes.
    hash.update(b"lunette volume identity 1\0");
    hash.update(kind);
    hash.update(b"\0");
    hash.update(value);
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hash.finalize()[..16]);
    with_version(uuid, 8)
}

fn random_uuid() -> Result<[u8; 16], OpenError> {
    let mut uuid = [0; 16];
    getrandom::fill(&mut uuid).map_err(OpenError::Random)?;
    Ok(with_version(uuid, 4))
}

/// The identity that a configured serial number stands for.
pub(crate) fn from_serial(serial: &str) -> Result<VolumeIdentity, OpenError> {
    let printable = serial.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    let length_fits = (1..=SERIAL_BYTES_MAX).contains(&serial.len());
    if !printable || !length_fits || serial.trim() != serial {
        return Err(OpenError::BadSerial { serial: serial.to_owned() });
    }
    let identity = VolumeIdentity::from_uuid(hashed("serial", serial));
    Ok(VolumeIdentity { serial: serial.to_owned(), ..identity })
}

/// A new identity for a store that does not outlive the process.
pub(crate) fn random() -> Result<VolumeIdentity, OpenError> {
    Ok(VolumeIdentity::from_uuid(random_uuid()?))
}

/// The identity stored with an image; a new one is stored if there is none.
pub(crate) fn for_file(file: BorrowedFd<'_>, path: &Path) -> Result<VolumeIdentity, OpenError> {
    Ok(VolumeIdentity::from_uuid(file_uuid(file, path, ATTRIBUTE)?))
}

fn no_identity(path: &Path, why: impl Into<String>) -> OpenError {
    OpenError::NoIdentity { path: path.to_owned(), why: why.into() }
}

fn file_uuid(file: BorrowedFd<'_>, path: &Path, attribute: &str) -> Result<[u8; 16], OpenError> {
    let sidecar = sidecar_path(path);
    let beside = read_sidecar(&sidecar)?;
    if let Some(uuid) = read_attribute(file, path, attribute)? {
        if beside.is_some_and(|other| other != uuid) {
            tracing::warn!(
                image = %path.display(), sidecar = %sidecar.display(),
                "the image has its own identity; the sidecar belongs to another image and is not used"
            );
        }
        return Ok(uuid);
    }
    if let Some(uuid) = beside {
        return Ok(uuid);
    }
    let uuid = random_uuid()?;
    let refused = match rustix::fs::fsetxattr(file, attribute, text(&uuid).as_bytes(), XattrFlags::CREATE) {
        Ok(()) => {
            rustix::fs::fsync(file).map_err(|errno| OpenError::io(path, "store its identity", errno))?;
            return Ok(uuid);
        }
        // Another reader of the same image was faster.
        Err(Errno::EXIST) => {
            return read_attribute(file, path, attribute)?
                .ok_or_else(|| no_identity(path, format!("{attribute} comes and goes")));
        }
        Err(errno) => errno,
    };
    write_sidecar(&sidecar, &uuid).map_err(|error| {
        let sidecar = sidecar.display();
        no_identity(path, format!("it takes no attribute: {refused}; {sidecar} cannot be written: {error}"))
    })
}

fn read_attribute(file: BorrowedFd<'_>, path: &Path, attribute: &str) -> Result<Option<[u8; 16]>, OpenError> {
    let mut value = [0_u8; 64];
    match rustix::fs::fgetxattr(file, attribute, &mut value) {
        Ok(length) => value
            .get(..length)
            .and_then(|value| parse(std::str::from_utf8(value).ok()?))
            .map(Some)
            .ok_or_else(|| no_identity(path, format!("its attribute {attribute} is not a UUID"))),
        Err(Errno::RANGE) => Err(no_identity(path, format!("its attribute {attribute} is not a UUID"))),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(OpenError::io(path, "read its identity", errno)),
    }
}

fn sidecar_path(image: &Path) -> PathBuf {
    let mut path = OsString::from(image);
    path.push(SIDECAR_SUFFIX);
    path.into()
}

fn read_sidecar(sidecar: &Path) -> Result<Option<[u8; 16]>, OpenError> {
    let failed = |source| OpenError::Io { path: sidecar.to_owned(), doing: "read it", source };
    let file = match fs::File::open(sidecar) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut content = Vec::new();
    file.take(256).read_to_end(&mut content).map_err(failed)?;
    let content = String::from_utf8_lossy(&content);
    let mut lines = content.lines();
    let uuid = (lines.next() == Some(SIDECAR_FIRST_LINE)).then(|| lines.next().and_then(parse)).flatten();
    uuid.map(Some).ok_or_else(|| no_identity(sidecar, "it is not a volume identity file"))
}

/// Writes the sidecar whole or not at all, and never over another: whoever comes second takes the first's UUID.
fn write_sidecar(sidecar: &Path, uuid: &[u8; 16]) -> Result<[u8; 16], OpenError> {
    let failed = |source| OpenError::Io { path: sidecar.to_owned(), doing: "write it", source };
    let mut temporary = OsString::from(sidecar);
    temporary.push(format!(".{}", text(uuid)));
    let temporary = PathBuf::from(temporary);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(failed)?;
    let written = writeln!(file, "{SIDECAR_FIRST_LINE}\n{}", text(uuid)).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| Ok(rename_to_new(&temporary, sidecar)?));
    if renamed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    match renamed {
        Ok(()) => {
            sync_directory_of(sidecar).map_err(|errno| failed(errno.into()))?;
            Ok(*uuid)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            read_sidecar(sidecar)?.ok_or_else(|| failed(error))
        }
        Err(error) => Err(failed(error)),
    }
}

fn rename_to_new(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // This file system cannot refuse to replace; the image's lock makes a race unlikely enough.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(from, to),
        result => result,
    }
}

/// The identity that a block device brings along.
pub(crate) fn for_device(directory: &DeviceDirectory, path: &Path) -> Result<VolumeIdentity, OpenError> {
    let disk = directory.disk();
    let partition = directory.partition();
    if let Some(backing) = disk.attribute("loop/backing_file") {
        let whole = loop_uuid(&disk, Path::new(&backing), path)?;
        let uuid = match partition {
            Some(number) => hashed("partition", &format!("{}\0{number}", text(&whole))),
            None => whole,
        };
        return Ok(VolumeIdentity::from_uuid(uuid));
    }
    // Names that are unique in the world come before serial numbers that are unique for a vendor at best.
    let sources = ["dm/uuid", "md/uuid", "wwid", "device/wwid", "serial", "device/serial", "device/cid"];
    let (source, name) = sources
        .into_iter()
        .find_map(|source| Some((source, disk.attribute(source)?)))
        .ok_or_else(|| no_identity(path, "the device has no name of its own"))?;
    let uuid = match partition {
        Some(number) => hashed(source, &format!("{name}\0{number}")),
        None => hashed(source, &name),
    };
    Ok(VolumeIdentity::from_uuid(uuid))
}

/// A loop device that shows the whole image is the image; one that shows a part of it is a disk of its own.
fn loop_uuid(disk: &DeviceDirectory, backing: &Path, path: &Path) -> Result<[u8; 16], OpenError> {
    let file = fs::File::open(backing)
        .map_err(|error| no_identity(path, format!("its image {}: {error}", backing.display())))?;
    let uuid = file_uuid(file.as_fd(), backing, ATTRIBUTE)?;
    let offset = disk.number("loop/offset").unwrap_or(0);
    let size_limit = disk.number("loop/sizelimit").unwrap_or(0);
    if offset == 0 && size_limit == 0 {
        return Ok(uuid);
    }
    Ok(hashed("loop part", &format!("{}\0{offset}\0{size_limit}", text(&uuid))))
}

/// A UUID in its usual text: 8-4-4-4-12 digits.
fn text(uuid: &[u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.trim().split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let digits = groups.concat();
    if lengths != [8, 4, 4, 4, 12] || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

#[cfg(test)]
mod tests;
