//! A mail server's work, from cold caches until all of it is stable on the target.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use lunette_workload::{FileOperation, MailPool};

use super::{FILLING, Figure, Files, Outcome, Way, over_iscsi, prepared, site_of};
use crate::LabError;
use crate::study::probe::{Design, Duty, Place};

/// Files at the beginning, and transactions: the paper's, and of a quick run.
const FULL: (u32, u32) = (20_000, 50_000);
const QUICK: (u32, u32) = (500, 1250);
/// The shortest and the longest piece that is written, in bytes.
const LENGTHS_BYTES: (u32, u32) = (512, 16 << 10);

/// Room for the files, and as much again for what is appended.
const fn image_bytes(duty: Duty) -> u64 {
    if duty.is_quick { 128 << 20 } else { 1 << 30 }
}

/// A directory with a mail server's files.
struct Server {
    root: PathBuf,
    piece: Vec<u8>,
    read_bytes: u64,
    written_bytes: u64,
}

impl Server {
    fn at(root: &Path) -> Self {
        let piece = vec![FILLING; LENGTHS_BYTES.1 as usize];
        Self { root: root.to_owned(), piece, read_bytes: 0, written_bytes: 0 }
    }

    fn carry(&mut self, operation: FileOperation) -> io::Result<()> {
        let path = |file: u64| self.root.join(file.to_string());
        let (file, length_bytes) = match operation {
            FileOperation::Create { file, length_bytes } => {
                (OpenOptions::new().write(true).create_new(true).open(path(file)), length_bytes)
            }
            FileOperation::Append { file, length_bytes } => {
                (OpenOptions::new().append(true).open(path(file)), length_bytes)
            }
            FileOperation::Read { file } => {
                self.read_bytes += fs::read(path(file))?.len() as u64;
                return Ok(());
            }
            FileOperation::Delete { file } => return fs::remove_file(path(file)),
        };
        file?.write_all(&self.piece[..self.piece.len().min(length_bytes as usize)])?;
        self.written_bytes += u64::from(length_bytes);
        Ok(())
    }
}

/// Runs it.
pub(super) fn run(place: Place<'_>, design: Design, duty: Duty) -> Result<(Outcome, Option<f64>), LabError> {
    let (files, transactions) = if duty.is_quick { QUICK } else { FULL };
    let mut pool = MailPool::new(LENGTHS_BYTES.0..=LENGTHS_BYTES.1, duty.seed);
    let (image, cached) = prepared(place, image_bytes(duty), Files::Used, |root| {
        let mut server = Server::at(root);
        (0..files).try_for_each(|_| server.carry(pool.create()))
    })?;
    let way = Way { lines: &design.lines(), caches: true, is_synchronous: false, memory_bytes: None };
    let outcome = over_iscsi(place, site_of(place)?, image, way, |mounted, _| {
        let mut server = Server::at(mounted.root());
        let begun = Instant::now();
        for _ in 0..transactions {
            let operations = pool.transaction();
            operations
                .into_iter()
                .try_for_each(|operation| server.carry(operation))
                .map_err(LabError::system("a mail server's file"))?;
        }
        // What this side still keeps would be nobody's figure.
        mounted.sync()?;
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        Ok(vec![
            (Figure::Transactions, f64::from(transactions) / seconds),
            (Figure::Read, server.read_bytes as f64 / 1e6 / seconds),
            (Figure::Written, server.written_bytes as f64 / 1e6 / seconds),
        ])
    })?;
    Ok((outcome, cached))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_created_read_appended_to_and_deleted() {
        let root = tempfile::tempdir().expect("a directory");
        let mut pool = MailPool::new(LENGTHS_BYTES.0..=LENGTHS_BYTES.1, 7);
        let mut server = Server::at(root.path());
        for _ in 0..50 {
            server.carry(pool.create()).expect("a file");
        }
        let first = server.written_bytes;
        for operation in (0..500).flat_map(|_| pool.transaction()) {
            server.carry(operation).expect("an operation");
        }
        assert!(server.read_bytes > 0 && server.written_bytes > first, "{}", server.written_bytes);
        let there = fs::read_dir(root.path()).expect("a directory");
        let bytes: u64 =
            there.map(|entry| entry.and_then(|entry| entry.metadata()).expect("a file").len()).sum();
        // Some were deleted.
        assert!(bytes > 0 && bytes < server.written_bytes, "{bytes}");
        assert!(server.carry(FileOperation::Read { file: u64::MAX }).is_err());
        assert!(server.carry(FileOperation::Append { file: u64::MAX, length_bytes: 1 }).is_err());
    }
}
