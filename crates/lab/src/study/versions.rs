//! What took part in a study beside this program: the versions of other programs, and what targets say of themselves.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunette_initiator::{Command as ScsiCommand, blocking};
use lunette_scsi::client::inquiry;
use serde::{Deserialize, Serialize};

use super::peer::find;
use super::site::Site;
use crate::LabError;

/// A name that results have, the program that is asked, and how.
const PROGRAMS: [(&str, &str, &str); 7] = [
    ("tgtd", "tgtd", "--version"),
    ("istgt", "istgt", "-V"),
    ("samba", "smbd", "--version"),
    ("smbclient", "smbclient", "--version"),
    ("nfs-ganesha", "ganesha.nfsd", "-v"),
    ("qemu", "qemu-system-x86_64", "--version"),
    ("e2fsprogs", "mke2fs", "-V"),
];
/// Longer than a program takes to say its version.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest version that is told, in characters.
const VERSION_MAX: usize = 120;
/// A new nexus has unit attentions to tell first (SAM-5, 5.14).
const TRIES: usize = 4;

/// What a target says of its disk (SPC-4, 6.6.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// T10 VENDOR IDENTIFICATION
    pub vendor: String,
    /// PRODUCT IDENTIFICATION
    pub product: String,
    /// PRODUCT REVISION LEVEL
    pub revision: String,
}

/// The versions of these programs by their names, and nothing of all others that could take part.
pub(super) fn versions(named: &[&str]) -> BTreeMap<String, Option<String>> {
    let of = |(name, program, option): (&str, &str, &str)| {
        let version = if named.contains(&name) { version(program, option) } else { None };
        (name.to_owned(), version)
    };
    PROGRAMS.into_iter().map(of).collect()
}

/// The first line that a program says of its version; nothing where it is not here, or does not say.
fn version(program: &str, option: &str) -> Option<String> {
    let mut command = Command::new(find(program)?);
    command.arg(option).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let began = Instant::now();
    // What it says is far less than a pipe holds.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if began.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
            _ => break None,
        }
    };
    if !status.is_some_and(|status| status.success()) {
        // It may have ended by itself meanwhile.
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let mut said = Vec::new();
    // Some say it on one, some on the other.
    child.stdout.take()?.take(4096).read_to_end(&mut said).ok()?;
    child.stderr.take()?.take(4096).read_to_end(&mut said).ok()?;
    let said = String::from_utf8_lossy(&said);
    let plain = |line: &str| line.chars().filter(|character| !character.is_control()).collect::<String>();
    let line = said.lines().map(plain).find(|line| !line.trim().is_empty())?;
    Some(line.trim().chars().take(VERSION_MAX).collect())
}

/// Asks a site's target by INQUIRY.
///
/// # Errors
/// There is no session, or what is answered is none.
pub(super) fn identity(site: &Site) -> Result<Identity, LabError> {
    let (options, lun) = site.options()?;
    let query = inquiry::standard();
    let length_bytes = query.command().data_in_bytes() as usize;
    let said = site.near(|| {
        let session = blocking::Session::connect(options)?;
        let mut said = None;
        for _ in 0..TRIES {
            let asked = ScsiCommand::new(lun, query.command().cdb()).reading(vec![0; length_bytes]);
            let completion = session.execute(asked);
            if completion.is_good() {
                let received = completion.buffer.get(..completion.received as usize).unwrap_or_default();
                said = query.decode(received).ok();
                break;
            }
        }
        session.log_out();
        Ok::<_, LabError>(said)
    })??;
    let said = said.ok_or_else(|| LabError::NotReady("the target does not say what it is".to_owned()))?;
    Ok(Identity { vendor: said.vendor, product: said.product, revision: said.revision })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_took_part_is_asked_and_nobody_else() {
        let told = versions(&["e2fsprogs"]);
        assert_eq!(told.len(), PROGRAMS.len());
        assert!(told.iter().all(|(name, version)| name == "e2fsprogs" || version.is_none()), "{told:?}");
        let here = find("mke2fs").is_some();
        assert_eq!(told["e2fsprogs"].as_ref().is_some_and(|version| version.contains('.')), here, "{told:?}");
    }

    #[test]
    fn a_version_is_one_line_of_a_program_that_ends_well() {
        assert_eq!(version("echo", "\u{7}  1.2\n3"), Some("1.2".to_owned()));
        for (program, option) in [("false", "--version"), ("lunette-no-such-program", "-v")] {
            assert_eq!(version(program, option), None, "{program}");
        }
    }
}
