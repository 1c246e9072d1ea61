//! Where CHAP secrets come from when not from a URL, which `ps` shows to everybody: a file or the environment.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use lunette_iscsi::chap::{SECRET_LENGTH_MAX, Secret};

/// Why a secret cannot be had. It does not show what was found.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret from {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Nothing is there, or too much.
    #[error(
        "the secret from {from} has {length} bytes; a secret has 1 to {SECRET_LENGTH_MAX}, and 12 to 16 suit everybody"
    )]
    Length {
        /// The file or the variable.
        from: String,
        /// Its length; for a file, at most one more than there may be.
        length: usize,
    },
    /// There is no such variable.
    #[error("the environment has no variable {0}")]
    Unset(String),
}

/// Reads a secret from a file: its first line, without the line's end.
///
/// # Errors
/// [`SecretError`].
pub fn secret_from_file(path: &Path) -> Result<Secret, SecretError> {
    let fault = |source| SecretError::File { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    // A secret and its line's end; what is longer is not read.
    let limit = SECRET_LENGTH_MAX as u64 + 2;
    File::open(path).map_err(fault)?.take(limit).read_to_end(&mut bytes).map_err(fault)?;
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    checked(line.strip_suffix(b"\r").unwrap_or(line), &path.display().to_string())
}

/// Takes a secret from a variable of the environment.
///
/// # Errors
/// [`SecretError`].
pub fn secret_from_environment(variable: &str) -> Result<Secret, SecretError> {
    let value = std::env::var_os(variable).ok_or_else(|| SecretError::Unset(variable.to_owned()))?;
    checked(bytes_of(&value), &format!("the variable {variable}"))
}

fn bytes_of(value: &OsStr) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(value)
}

fn checked(bytes: &[u8], from: &str) -> Result<Secret, SecretError> {
    if bytes.is_empty() || bytes.len() > SECRET_LENGTH_MAX {
        return Err(SecretError::Length { from: from.to_owned(), length: bytes.len() });
    }
    Ok(Secret::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_file_is_the_secret() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        for text in ["a secret of 16 b", "a secret of 16 b\n", "a secret of 16 b\r\nmore\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(secret_from_file(&path).unwrap(), Secret::new("a secret of 16 b"));
        }
        std::fs::write(&path, "x".repeat(SECRET_LENGTH_MAX)).unwrap();
        assert!(secret_from_file(&path).is_ok());
    }

    #[test]
    fn what_is_no_secret_is_said_without_showing_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        assert!(secret_from_file(&path).unwrap_err().to_string().contains("cannot read"));
        for text in [String::new(), "\nsecret\n".to_owned(), "s".repeat(SECRET_LENGTH_MAX + 1)] {
            std::fs::write(&path, &text).unwrap();
            let message = secret_from_file(&path).unwrap_err().to_string();
            assert!(message.contains("a secret has 1 to 255") && !message.contains("ssss"), "{message}");
        }
        let message = secret_from_environment("LUNETTE_NO_SUCH_VARIABLE").unwrap_err().to_string();
        assert_eq!(message, "the environment has no variable LUNETTE_NO_SUCH_VARIABLE");
    }
}
