//! The initiator's commands, run as their user does, and what any target has to let them do to a disk.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::engine::pattern;
use crate::lunette::binary;

/// How a command ended, and what it said.
#[derive(Debug)]
pub struct Said {
    /// Its exit status.
    pub status: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Said {
    /// What it said with `--json`.
    ///
    /// # Panics
    /// That is no JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command to its end.
///
/// # Panics
/// It cannot be started, or says what is no text.
pub fn command(arguments: &[&str]) -> Said {
    let output = Command::new(binary()).args(arguments).output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Said { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs a command that must end well.
///
/// # Panics
/// It does not.
pub fn good(arguments: &[&str]) -> Said {
    let said = command(arguments);
    assert_eq!(said.status, Some(0), "{arguments:?}: {said:?}");
    said
}

/// Runs a command that must fail with this status; what it says on its standard error.
///
/// # Panics
/// It ends with another, or does not begin with what is wrong.
pub fn refused(status: i32, arguments: &[&str]) -> String {
    let said = command(arguments);
    assert_eq!(said.status, Some(status), "{arguments:?}: {said:?}");
    assert!(
        said.err.starts_with("error: ") || said.err.starts_with("{\"error\":"),
        "{arguments:?}: {said:?}"
    );
    said.err
}

/// Reads, writes, verifies, copies, erases and adds up the disk of this URL, without digests and with them.
///
/// # Panics
/// A command fails, or other data is read than was written.
pub fn exercise_commands(url: &str, block_bytes: u32) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    for (seed, digests) in [(1, "none"), (2, "crc32c")] {
        let url = format!("{url}?header_digest={digests}&data_digest={digests}");
        let info = good(&["info", &url, "--json"]).json();
        assert_eq!(info["block_bytes"], block_bytes, "{info}");
        let size_bytes = info["size_bytes"].as_u64().expect("a size");
        let agreed = good(&["login-trace", &url, "--json"]).json();
        let keys = agreed["attempts"][0]["keys"].as_array().cloned().unwrap_or_default();
        for name in ["HeaderDigest", "DataDigest"] {
            let key = keys.iter().find(|key| key["name"] == name).unwrap_or_else(|| panic!("{agreed}"));
            let result = key["result"].as_str().unwrap_or_default();
            assert!(result.eq_ignore_ascii_case(digests), "{key}");
        }

        // The whole disk from a pattern, a part of it from a file.
        let random = format!("random:{seed}");
        good(&["write", &url, "--pattern", &random]);
        good(&["verify", &url, "--pattern", &random]);
        let (part, offset) = (pattern(seed, 160 * block_bytes as usize), 3 * block_bytes);
        let (from, at) = (path(&format!("part {seed}")), offset.to_string());
        std::fs::write(&from, &part).expect("a file");
        good(&["write", &url, "--input", &from, "--offset", &at]);
        good(&["verify", &url, "--input", &from, "--offset", &at]);
        let differs = refused(6, &["verify", &url, "--pattern", &random]);
        assert!(differs.contains(&format!("{offset}")), "{differs}");

        // Out, erased, and in again.
        let sum = || good(&["checksum", &url, "--json"]).json()["checksum"].clone();
        let (image, before) = (path(&format!("image {seed}")), sum());
        good(&["copy", &url, &image, "--quiet"]);
        assert_eq!(std::fs::metadata(&image).expect("the image").len(), size_bytes);
        assert!(read_at(Path::new(&image), offset.into(), part.len()) == part, "{url}");
        good(&["erase", &url, "--yes"]);
        good(&["verify", &url, "--pattern", "zeros"]);
        good(&["copy", &image, &url, "--verify", "--quiet"]);
        assert_eq!(sum(), before, "{url}");
        let back = path(&format!("back {seed}"));
        good(&["read", &url, "--offset", &at, "--length", "160b", "--output", &back]);
        assert!(std::fs::read(&back).expect("a file") == part, "{url}");
    }
}

fn read_at(path: &Path, offset: u64, length: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; length];
    std::fs::File::open(path).and_then(|file| file.read_exact_at(&mut bytes, offset)).expect("a part");
    bytes
}
