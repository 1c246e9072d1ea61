//! Where the secrets of CHAP come from: a file or an environment variable, never the configuration or the command line
//! itself, which backups, tickets and `ps` show.
//!
//! No message here has any part of a secret in it.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lunette_iscsi::chap::{CHAP_NAME_LENGTH_MAX, SECRET_LENGTH_MAX, Secret};

use super::value::ValueError;

/// More than a secret with its line end: reading a wrong file ends soon.
const FILE_LENGTH_MAX: u64 = 4096;

/// Modes that a secret file may not have: others may do nothing with it, and only the owner may write it.
const FORBIDDEN_MODE: u32 = 0o027;

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// The one line of this file.
    File(PathBuf),
    /// The value of this environment variable.
    Environment(String),
}

/// Why there is no secret. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Users other than the owner and its group have access to the file, or the group may write it.
    #[error(
        "the secret file {} has mode {mode:04o}: others must not read it and only its owner may write it; \
         chmod 600 it, or 640 where the service runs in the file's group",
        path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The environment variable is not set.
    #[error("the environment variable {0} is not set")]
    NotSet(String),
    /// What was found is no secret.
    #[error("{origin} {fault}")]
    Unfit {
        /// Where it was found.
        origin: SecretSource,
        /// What is wrong with it.
        fault: SecretFault,
    },
}

/// Why a text is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretFault {
    /// Nothing is there.
    #[error("is empty; `lunette secret` makes a secret")]
    Empty,
    /// There is more than one line, or a zero byte.
    #[error("has more than one line; a secret is one line")]
    Lines,
    /// White space at an end, which nobody sees.
    #[error("begins or ends with white space, which is easily lost on the way to an initiator; take it away")]
    Space,
    /// Too short for a safe secret.
    #[error(
        "holds a secret of {length} bytes, and {min} are the least: RFC 7143 (9.2.1) asks for 96 random bits unless \
         IPsec encrypts the connection; `lunette secret` makes a good one, chap.secret_length_min_bytes lowers the bound"
    )]
    Short {
        /// Its length in bytes.
        length: usize,
        /// The least length in bytes.
        min: usize,
    },
    /// Longer than initiators take.
    #[error("holds a secret of more than {SECRET_LENGTH_MAX} bytes")]
    Long,
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the secret file {}", path.display()),
            Self::Environment(name) => write!(f, "the environment variable {name}"),
        }
    }
}

impl SecretSource {
    /// Reads `file:PATH` or `env:VARIABLE`.
    ///
    /// # Errors
    /// It is neither. What it is instead is not repeated: it may be the secret itself.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        match text.split_once(':') {
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("env", name)) => parse_environment_name(name).map(Self::Environment),
            _ => Err(ValueError(
                "a secret is given as file:PATH or env:VARIABLE; what stands on the command line is seen by everybody"
                    .into(),
            )),
        }
    }

    /// Gets the secret, of at least `length_min` bytes.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn read(&self, length_min: usize) -> Result<Secret, SecretError> {
        let bytes = match self {
            Self::File(path) => read_file(path)?,
            Self::Environment(name) => match std::env::var_os(name) {
                Some(value) => value.as_bytes().to_vec(),
                None => return Err(SecretError::NotSet(name.clone())),
            },
        };
        fit(&bytes, length_min).map_err(|fault| SecretError::Unfit { origin: self.clone(), fault })
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, SecretError> {
    let failed = |source| SecretError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o7777;
    // A pipe or a descriptor is a good source too, and open to nobody else.
    if metadata.is_file() && mode & FORBIDDEN_MODE != 0 {
        return Err(SecretError::Open { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(FILE_LENGTH_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Takes one line end off and checks the rest.
fn fit(bytes: &[u8], length_min: usize) -> Result<Secret, SecretFault> {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err(SecretFault::Empty);
    }
    if line.iter().any(|byte| b"\n\r\0".contains(byte)) {
        return Err(SecretFault::Lines);
    }
    if line.trim_ascii().len() != line.len() {
        return Err(SecretFault::Space);
    }
    if line.len() < length_min {
        return Err(SecretFault::Short { length: line.len(), min: length_min });
    }
    if line.len() > SECRET_LENGTH_MAX {
        return Err(SecretFault::Long);
    }
    Ok(Secret::new(line))
}

/// Reads the name of an environment variable. A text that is none is not repeated: it may be the secret itself.
pub(super) fn parse_environment_name(text: &str) -> Result<String, ValueError> {
    let is_name = !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_name {
        return Ok(text.to_owned());
    }
    Err(ValueError(
        "an environment variable has a name of letters, digits and _; its value is the secret, not this text"
            .into(),
    ))
}

/// Reads a CHAP name: text that an initiator can send.
///
/// # Errors
/// A sentence.
pub fn parse_chap_name(text: &str) -> Result<String, ValueError> {
    if (1..=CHAP_NAME_LENGTH_MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(ValueError(format!("a CHAP name has 1 to {CHAP_NAME_LENGTH_MAX} bytes and no control characters")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GOOD: &[u8] = b"0123456789ab";

    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, SecretSource) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (directory, SecretSource::File(path))
    }

    #[test]
    fn a_secret_is_one_line() {
        for end in [&b""[..], b"\n", b"\r\n"] {
            assert_eq!(fit(&[GOOD, end].concat(), 12), Ok(Secret::new(GOOD)));
        }
        for (bytes, fault) in [
            (&b""[..], SecretFault::Empty),
            (b"\n", SecretFault::Empty),
            (b"0123456789ab\n\n", SecretFault::Lines),
            (b"0123456789ab\ncomment\n", SecretFault::Lines),
            (b"01234567\x0089ab", SecretFault::Lines),
            (b" 0123456789ab", SecretFault::Space),
            (b"0123456789ab\t\n", SecretFault::Space),
            (b"0123456789a", SecretFault::Short { length: 11, min: 12 }),
            (&[b'x'; 256], SecretFault::Long),
        ] {
            assert_eq!(fit(bytes, 12), Err(fault));
        }
        assert_eq!(fit(b"short", 5), Ok(Secret::new("short")));
        assert_eq!(fit(&[b'x'; 255], 12).unwrap().length(), 255);
    }

    #[test]
    fn a_file_that_others_can_reach_is_refused() {
        for mode in [0o600, 0o400, 0o640, 0o440] {
            let (_directory, source) = file(GOOD, mode);
            assert_eq!(source.read(12).unwrap(), Secret::new(GOOD), "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o660, 0o620, 0o602, 0o601, 0o777] {
            let (_directory, source) = file(GOOD, mode);
            let message = source.read(12).unwrap_err().to_string();
            assert!(
                message.contains(&format!("mode {mode:04o}")) && message.contains("chmod 600"),
                "{message}"
            );
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = SecretSource::File("/nowhere/secret".into());
        let message = missing.read(12).unwrap_err().to_string();
        assert!(message.starts_with("cannot read the secret file /nowhere/secret: "), "{message}");
        let unset = SecretSource::Environment("LUNETTE_TEST_THAT_NOBODY_SETS".into());
        assert_eq!(
            unset.read(12).unwrap_err().to_string(),
            "the environment variable LUNETTE_TEST_THAT_NOBODY_SETS is not set"
        );
        // Cargo sets this one for every test.
        let set = SecretSource::Environment("CARGO_MANIFEST_DIR".into());
        assert_eq!(set.read(1).unwrap(), Secret::new(env!("CARGO_MANIFEST_DIR")));
    }

    #[test]
    fn no_message_repeats_what_may_be_a_secret() {
        for text in ["hunter2hunter2", "env:hunter2-hunter2", "pass:hunter2", "env:", "file:", ""] {
            let message = SecretSource::parse(text).unwrap_err().to_string();
            assert!(!message.contains("hunter2"), "{message}");
        }
        let (_directory, source) = file(b"hunter2", 0o600);
        let error = source.read(12).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        assert!(error.to_string().contains("96 random bits"), "{error}");
    }

    #[test]
    fn sources_and_names_are_read() {
        assert_eq!(SecretSource::parse("file:a:b"), Ok(SecretSource::File("a:b".into())));
        assert_eq!(SecretSource::parse("env:CHAP_1"), Ok(SecretSource::Environment("CHAP_1".into())));
        assert_eq!(parse_chap_name("iqn.2026-11.io.lunette:a b"), Ok("iqn.2026-11.io.lunette:a b".into()));
        for name in ["", "a\nb", &"x".repeat(256)] {
            assert!(parse_chap_name(name).is_err());
        }
    }
}
