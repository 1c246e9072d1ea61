//! Files that results are written to: looked at before a measurement, so that none is made for nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;

/// Looks whether the file can be written, and leaves everything as it is.
///
/// # Errors
/// It cannot be written.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    look(path).map_err(|error| failed(path, &error))
}

/// Writes an object of JSON to the file, in the place of what it held.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(path: &Path, result: &impl Serialize, form: Form) -> Result<(), Failure> {
    let json = match form {
        Form::Line => serde_json::to_string(result),
        Form::Lines => serde_json::to_string_pretty(result),
    };
    let json = json.map_err(|error| Failure::new("cannot write JSON", &error))?;
    fs::write(path, json + "\n").map_err(|error| failed(path, &error))
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
    use std::os::unix::fs::symlink;

    #[test]
    fn a_look_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let (old, new, link) = (file("old"), file("new"), file("link"));
        fs::write(&old, "a result").expect("written");
        symlink(&new, &link).expect("a link");
        for path in [&old, &new, &link] {
            check(path).expect("it can be written");
        }
        assert_eq!(fs::read_to_string(&old).expect("it is there"), "a result");
        assert!(!new.exists() && link.is_symlink());
        for path in [directory.path(), &file("nowhere/new"), &old.join("new")] {
            assert!(check(path).is_err(), "{}", path.display());
        }
    }
}
