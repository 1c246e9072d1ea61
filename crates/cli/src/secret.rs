//! `lunette secret`: random secrets for CHAP (RFC 7143, 9.2.1: from a random generator and from nothing else).

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::failure::Failure;
use crate::options::SecretOptions;

/// Six bits a character; none of them means anything to a shell, in a URL or in a configuration file.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Characters of the longest secret that is made.
const LENGTH_MAX: usize = 22;

/// Makes a secret and prints it, or writes it to a new file.
pub(crate) fn secret(options: &SecretOptions) -> Result<(), Failure> {
    let mut random = [0; LENGTH_MAX];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::new("no random numbers", &io::Error::from(error)))?;
    let line = format!("{}\n", from_random(&random, options.bits));
    match &options.out {
        Some(path) => write_new(path, line.as_bytes())
            .map_err(|error| Failure::new(format!("cannot create {}", path.display()), &error)),
        None => io::stdout()
            .write_all(line.as_bytes())
            .map_err(|error| Failure::new("cannot write to the standard output", &error)),
    }
}

/// As many characters as carry `bits`. 64 divides 256, so all are equally likely.
fn from_random(random: &[u8; LENGTH_MAX], bits: u16) -> String {
    let length = usize::from(bits).div_ceil(6).min(LENGTH_MAX);
    random[..length].iter().map(|byte| char::from(ALPHABET[usize::from(byte % 64)])).collect()
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_secret_has_the_length_that_its_bits_need() {
        let random = std::array::from_fn(|index| (index * 67) as u8);
        assert_eq!(from_random(&random, 96).len(), 16);
        assert_eq!(from_random(&random, 128).len(), 22);
        assert_eq!(from_random(&[63; LENGTH_MAX], 96), "_".repeat(16));
        assert_ne!(from_random(&random, 96), from_random(&[0; LENGTH_MAX], 96));
    }

    #[test]
    fn a_file_is_the_owners_alone_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("host-a.secret");
        let options = SecretOptions { bits: 128, out: Some(path.clone()) };
        secret(&options).unwrap();
        let first = std::fs::read_to_string(&path).unwrap();
        assert_eq!(first.trim_end().len(), 22);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert!(secret(&options).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    }
}
