//! CHAP names and secrets from flags, written as `lunette serve` takes them.

use std::path::Path;

use lunette_initiator::{ChapCredential, Credentials, secret_from_environment, secret_from_file};

use crate::failure::Failure;

/// Reads `NAME=file:PATH` or `NAME=env:VARIABLE`.
///
/// # Errors
/// The text is neither, or the secret cannot be had.
pub(crate) fn of_flag(flag: &str, text: &str) -> Result<Credentials, Failure> {
    let form = || Failure::usage(format!("{flag}: give NAME=file:PATH or NAME=env:VARIABLE"));
    let (name, place) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(form)?;
    let secret = match place.split_once(':') {
        Some(("file", path)) => secret_from_file(Path::new(path)),
        Some(("env", variable)) => secret_from_environment(variable),
        _ => return Err(form()),
    };
    let secret = secret.map_err(|error| Failure::usage(format!("{flag} {name}: {error}")))?;
    Ok(Credentials::new(ChapCredential { name: name.to_owned(), secret }))
}
