//! CHAP names and secrets: those from flags, written as `lunette serve` takes them, and what is said of short ones.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use lunette_initiator::{
    ChapCredential, Credentials, SECRET_LENGTH_SOUND, secret_from_environment, secret_from_file,
};

use crate::banner::printable;
use crate::failure::{Failure, say};

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

/// Says once of each name that its secret is too short to be safe without IPsec (RFC 7143, 9.2.1). It is used nevertheless: the
/// target's administrator has chosen it, and may have IPsec.
pub(crate) fn warn_of_short_secrets(credentials: Option<&Credentials>) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let Some(credentials) = credentials else { return };
    for known in std::iter::once(&credentials.own).chain(&credentials.target) {
        let is_news = || TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(known.name.clone());
        if known.secret.is_short() && is_news() {
            let name = printable(&known.name);
            say(&format!(
                "lunette: the secret of CHAP name {name} has less than {SECRET_LENGTH_SOUND} bytes: it can be guessed from \
                 what passes on the network unless IPsec encrypts it (RFC 7143, 9.2.1)"
            ));
        }
    }
}
