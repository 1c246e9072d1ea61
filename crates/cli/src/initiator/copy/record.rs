//! The record of how far a copy is, from which a later run goes on.
//!
//! It is a line of JSON in a file of its own, replaced as a whole: whoever reads it finds either the old state or the new
//! one. What it says is done was stable at the destination before it said so.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lunette_block::sync_directory_of;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::banner::printable;
use crate::failure::Failure;

/// The longest record that is read.
const RECORD_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    source: String,
    destination: String,
    /// When the source was changed last, if it is a file.
    #[serde(default)]
    source_changed_at: Option<String>,
    size_bytes: u64,
    done_bytes: u64,
}

impl State {
    fn what(&self) -> String {
        let (source, destination) = (printable(&self.source), printable(&self.destination));
        format!("from {source} to {destination}, {} bytes", self.size_bytes)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    state: Option<State>,
}

impl Record {
    /// Reads the record, if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is no record.
    pub(super) fn open(path: &Path) -> Result<Record, Failure> {
        let state = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Ok(metadata) if metadata.len() > RECORD_BYTES_MAX => return Err(no_record(path)),
            _ => {
                let text = fs::read_to_string(path)
                    .map_err(|error| Failure::new(format!("cannot read {}", path.display()), &error))?;
                Some(serde_json::from_str(&text).map_err(|_| no_record(path))?)
            }
        };
        Ok(Record { path: path.to_owned(), state })
    }

    /// How far an earlier run has come, if there was one.
    pub(super) fn done(&self) -> Option<u64> {
        self.state.as_ref().map(|state| state.done_bytes)
    }

    /// Checks that the earlier run was about the same, and says where to go on.
    ///
    /// # Errors
    /// It was about something else.
    pub(super) fn begin(
        &mut self,
        [source, destination]: [String; 2],
        source_changed_at: Option<String>,
        size_bytes: u64,
    ) -> Result<u64, Failure> {
        let fresh = State { source, destination, source_changed_at, size_bytes, done_bytes: 0 };
        let Some(old) = &self.state else {
            self.state = Some(fresh);
            self.write()?;
            return Ok(0);
        };
        let done_bytes = old.done_bytes;
        let is_of_same_ends = (&fresh.source, &fresh.destination, fresh.size_bytes)
            == (&old.source, &old.destination, old.size_bytes);
        if is_of_same_ends && fresh.source_changed_at != old.source_changed_at {
            let message = format!("{} was changed since the copy was begun", printable(&old.source));
            let help = format!("remove {} to begin anew", self.path.display());
            return Err(Failure::usage(message).with_help(&help));
        }
        let fresh = State { done_bytes, ..fresh };
        if fresh != *old || done_bytes > size_bytes {
            return Err(Failure::usage(format!(
                "{} is the record of another copy: {}; this one is {}",
                self.path.display(),
                old.what(),
                fresh.what()
            ))
            .with_help("remove it to begin anew"));
        }
        Ok(done_bytes)
    }

    /// Notes that everything before `done_bytes` is stable at the destination.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(super) fn note(&mut self, done_bytes: u64) -> Result<(), Failure> {
        if let Some(state) = &mut self.state {
            state.done_bytes = done_bytes;
        }
        self.write()
    }

    fn write(&self) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::new(format!("cannot write {}", self.path.display()), &error);
        let text = serde_json::to_string(&self.state).map_err(|error| failed(error.into()))?;
        let new = replacement(&self.path);
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(format!("{text}\n").as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&new, &self.path).map_err(failed)?;
        sync_directory_of(&self.path).map_err(|errno| failed(errno.into()))
    }

    /// The copy is complete. A record that came back after a loss of power would say so of the next one.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub(super) fn remove(self) -> Result<(), Failure> {
        let remove = || {
            let file = File::open(&self.path)?;
            fs::remove_file(&self.path)?;
            match sync_directory_of(&self.path) {
                // The directory may not be read, and there is no file by its name any more.
                Err(Errno::ACCESS) => rustix::fs::syncfs(&file)?,
                synced => synced?,
            }
            Ok(())
        };
        remove().map_err(|error: io::Error| {
            Failure::new(format!("cannot remove {}", self.path.display()), &error)
        })
    }
}

/// Where the new state is written before it takes the place of the old one.
pub(super) fn replacement(record: &Path) -> PathBuf {
    let mut new = record.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

fn no_record(path: &Path) -> Failure {
    Failure::usage(format!("{} is no record of a copy", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(destination: &str) -> [String; 2] {
        ["naa.1".to_owned(), destination.to_owned()]
    }

    fn changed(at: &str) -> Option<String> {
        Some(at.to_owned())
    }

    #[test]
    fn a_record_is_of_one_copy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy.record");
        let mut record = Record::open(&path).unwrap();
        assert_eq!((record.done(), record.begin(ends("naa.2"), changed("1"), 1000).unwrap()), (None, 0));
        record.note(512).unwrap();
        let mut again = Record::open(&path).unwrap();
        assert_eq!((again.done(), again.begin(ends("naa.2"), changed("1"), 1000).unwrap()), (Some(512), 512));
        for (destination, size) in [("naa.3", 1000), ("naa.2", 999)] {
            let other =
                Record::open(&path).unwrap().begin(ends(destination), changed("1"), size).unwrap_err();
            let said = other.to_string();
            let told = ["the record of another copy: from naa.1 to naa.2, 1000 bytes", destination];
            assert!(told.into_iter().all(|told| said.contains(told)), "{said}");
        }
        for at in [changed("2"), None] {
            let later = Record::open(&path).unwrap().begin(ends("naa.2"), at, 1000).unwrap_err();
            assert!(later.to_string().contains("was changed since the copy was begun"), "{later}");
        }
        again.remove().unwrap();
        assert_eq!(Record::open(&path).unwrap().done(), None);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy.record");
        for text in ["", "{}", "[1]", "null\u{0}", &" ".repeat(100_000)] {
            fs::write(&path, text).unwrap();
            let failure = Record::open(&path).unwrap_err();
            assert!(failure.to_string().contains("no record of a copy"), "{failure}");
        }
    }
}
