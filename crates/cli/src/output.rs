//! Files that results are written to: looked at before a measurement, so that none is made for nothing.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::device::Device;
use crate::failure::Failure;

/// What a command reads or measures: what it is called, and its file.
pub(crate) type Input<'a> = (&'a str, &'a Path);

/// Looks whether the file can be written and nothing else is lost by it, and leaves everything as it is.
///
/// # Errors
/// It cannot be written, is one of the inputs, or is a block device.
pub(crate) fn check(path: &Path, inputs: &[Input<'_>]) -> Result<(), Failure> {
    refuse(path, inputs)?;
    look(path).map_err(|error| failed(path, &error))
}

/// Refuses to write where something else would be lost: over an input, by whatever name, or over a block device.
///
/// # Errors
/// The file is one of them.
pub(crate) fn refuse(path: &Path, inputs: &[Input<'_>]) -> Result<(), Failure> {
    let output = path.display();
    let lost = if fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        format!("{output} is a block device, and what is on it would be lost")
    } else if let Some((what, input)) = inputs.iter().find(|(_, input)| is_same_file(path, input)) {
        format!("{output} is the same file as {what} {}, which would be lost", input.display())
    } else if let Some((what, input)) = inputs.iter().find(|(_, input)| is_below(path, input)) {
        format!("{output} is the file of {what} {}, a loop device, and would be lost", input.display())
    } else {
        return Ok(());
    };
    Err(Failure::usage(lost).with_help("nothing was done: give another file to write to"))
}

/// Whether both are one file or block device, by whatever names; also where it is still to be created.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |file: &Metadata| {
        let is_device = file.file_type().is_block_device();
        let place = if is_device { (None, file.rdev()) } else { (Some(file.dev()), file.ino()) };
        (is_device || file.is_file()).then_some(place)
    };
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => place(&one).is_some() && place(&one) == place(&other),
        (Err(_), Err(_)) => created(one).is_some_and(|one| created(other) == Some(one)),
        _ => false,
    }
}

/// Whether a loop device, or a partition of one, has its data in this file.
pub(crate) fn is_below(file: &Path, device: &Path) -> bool {
    let Ok(metadata) = fs::metadata(device) else { return false };
    metadata.file_type().is_block_device()
        && Device::numbered(metadata.rdev())
            .disk()
            .backing_file()
            .is_some_and(|below| is_same_file(file, &below))
}

/// Where a file would be created.
fn created(path: &Path) -> Option<PathBuf> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = fs::canonicalize(directory.unwrap_or(Path::new("."))).ok()?;
    Some(directory.join(path.file_name()?))
}

/// Writes an object of JSON to the file, in the place of what it held, which is there until all of the new one is.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(path: &Path, result: &impl Serialize, form: Form) -> Result<(), Failure> {
    let json = match form {
        Form::Line => serde_json::to_string(result),
        Form::Lines => serde_json::to_string_pretty(result),
    };
    let json = json.map_err(|error| Failure::new("cannot write JSON", &error))?;
    replace(path, (json + "\n").as_bytes()).map_err(|error| failed(path, &error))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some((path, old)) = replaceable(path) else { return fs::write(path, bytes) };
    let mut new = path.clone().into_os_string();
    new.push(format!(".{}.new", std::process::id()));
    let mut file = match File::create_new(&new) {
        Ok(file) => file,
        // A directory may let nobody create files, or none with a longer name.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::InvalidFilename | ErrorKind::AlreadyExists
            ) =>
        {
            return fs::write(path, bytes);
        }
        Err(error) => return Err(error),
    };
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    let takes_its_place = old.is_none_or(|old| resemble(&file, &old).is_ok());
    if takes_its_place && fs::rename(&new, &path).is_ok() {
        return Ok(());
    }
    // It is mounted there, say, or somebody else's: there is room for it.
    let _ = fs::remove_file(&new);
    fs::write(path, bytes)
}

/// Where the path leads, and what is there; nothing where that is no regular file with one name, or a descriptor's.
fn replaceable(path: &Path) -> Option<(PathBuf, Option<Metadata>)> {
    if path.is_symlink() && !path.exists() || path.starts_with("/dev") || path.starts_with("/proc") {
        return None;
    }
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&path) {
        Ok(metadata) => (metadata.is_file() && metadata.nlink() == 1).then_some((path, Some(metadata))),
        Err(_) => Some((path, None)),
    }
}

/// Gives a file the owner and the permissions of another one.
fn resemble(file: &File, other: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (other.uid(), other.gid()) {
        std::os::unix::fs::fchown(file, Some(other.uid()), Some(other.gid()))?;
    }
    file.set_permissions(other.permissions())
}

/// How an object is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form {
    /// As one line.
    Line,
    /// A line for each value.
    Lines,
}

fn look(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(metadata) if metadata.is_file() => OpenOptions::new().append(true).open(path).map(drop),
        // To open a pipe and to close it again would be the end of it for who reads there.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            File::create(path)?;
            // It may be named by a link, which stays.
            fs::remove_file(fs::canonicalize(path)?)
        }
        Err(error) => Err(error),
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot write {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    #[test]
    fn a_look_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let (old, new, link) = (file("old"), file("new"), file("link"));
        fs::write(&old, "a result").expect("written");
        symlink(&new, &link).expect("a link");
        for path in [&old, &new, &link] {
            check(path, &[]).expect("it can be written");
        }
        assert_eq!(fs::read_to_string(&old).expect("it is there"), "a result");
        assert!(!new.exists() && link.is_symlink());
        for path in [directory.path(), &file("nowhere/new"), &old.join("new")] {
            assert!(check(path, &[]).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn what_was_there_is_whole_until_the_new_one_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let (result, link) = (file("result"), file("link"));
        symlink(&result, &link).expect("a link");
        for number in 0..2 {
            write(&link, &number, Form::Line).expect("written");
            assert_eq!(fs::read_to_string(&result).expect("it is there"), format!("{number}\n"));
        }
        fs::set_permissions(&result, fs::Permissions::from_mode(0o600)).expect("its owner may");
        let mut old = File::open(&result).expect("it is there");
        write(&link, &2, Form::Line).expect("written");
        let mut told = String::new();
        old.read_to_string(&mut told).expect("it was not cut");
        assert_eq!(told, "1\n");
        let mode = fs::metadata(&result).expect("it is there").permissions().mode();
        assert_eq!((mode & 0o777, fs::read_to_string(&result).expect("a result")), (0o600, "2\n".to_owned()));
        // A longer name than there are.
        let long = file(&"x".repeat(300));
        assert!(write(&long, &1, Form::Line).is_err());
        assert!(link.is_symlink() && fs::read_dir(directory.path()).expect("a directory").count() == 2);
        // What takes nothing, as a full disk does.
        assert!(write(Path::new("/dev/full"), &1, Form::Line).is_err());
        assert!(Path::new("/dev/full").exists());
    }

    #[test]
    fn an_input_is_never_written_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let (image, trace, link, hard) = (file("image"), file("trace"), file("link"), file("hard"));
        for path in [&image, &trace] {
            fs::write(path, "data").expect("written");
        }
        symlink(&image, &link).expect("a link");
        fs::hard_link(&image, &hard).expect("a link");
        let inputs: [Input<'_>; 2] = [("--trace", &trace), ("the disk", &image)];
        for path in [&image, &link, &hard, &directory.path().join("./image")] {
            let said = format!("{:?}", check(path, &inputs).expect_err("it is the disk"));
            let both = format!("{} is the same file as the disk {}", path.display(), image.display());
            assert!(said.contains(&both) && said.contains("give another file"), "{said}");
        }
        assert!(check(&trace, &inputs).is_err());
        check(&file("new"), &inputs).expect("nothing is lost");
        // What both are told to be is no file that could be lost.
        check(Path::new("/dev/null"), &[("--trace", Path::new("/dev/null"))]).expect("it is no file");
        assert!(is_same_file(&file("new"), &file("./new")) && !is_same_file(&file("new"), &image));
    }

    #[test]
    fn what_a_loop_device_has_its_data_in_is_never_written_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let (image, other) = (file("image"), file("other"));
        for path in [&image, &other] {
            fs::write(path, vec![0; 1 << 20]).expect("written");
        }
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            lunette_skip::record_lacking("losetup, or the right to make loop devices");
            return;
        };
        let device = PathBuf::from(OsStr::from_bytes(made.stdout.trim_ascii()));
        let inputs: [Input<'_>; 1] = [("the disk", &device)];
        let refused =
            [&image, &other].map(|path| check(path, &inputs).map_err(|failure| failure.to_string()));
        let ended = Command::new("losetup").arg("--detach").arg(&device).status().expect("it was there");
        assert!(ended.success());
        let told = format!("{} is the file of the disk {}, a loop device", image.display(), device.display());
        assert!(refused[0].as_ref().is_err_and(|said| said.starts_with(&told)), "{refused:?}");
        assert!(refused[1].is_ok(), "{refused:?}");
    }

    #[test]
    fn a_block_device_is_never_written_over() {
        let mut devices = fs::read_dir("/dev").expect("it is there").flatten();
        let Some(device) =
            devices.find(|entry| entry.file_type().is_ok_and(|file_type| file_type.is_block_device()))
        else {
            lunette_skip::record_lacking("a block device");
            return;
        };
        let said = format!("{:?}", check(&device.path(), &[]).expect_err("it is a device"));
        assert!(said.contains("is a block device, and what is on it would be lost"), "{said}");
    }
}
