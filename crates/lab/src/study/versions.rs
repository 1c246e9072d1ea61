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

/// A name that results have, the program that is asked, and how. Who does not say his own version is asked for by his package.
const PROGRAMS: [(&str, &str, &[&str]); 9] = [
    ("tgtd", "tgtd", &["--version"]),
    ("istgt", "istgt", &["-V"]),
    ("samba", "smbd", &["--version"]),
    ("smbclient", "smbclient", &["--version"]),
    ("nfs-ganesha", "ganesha.nfsd", &["-v"]),
    ("rpcbind", "dpkg-query", &["--show", "rpcbind"]),
    ("postmark", "dpkg-query", &["--show", "postmark"]),
    ("qemu", "qemu-system-x86_64", &["--version"]),
    ("e2fsprogs", "mke2fs", &["-V"]),
];
/// Longer than a program takes to say its version.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest version that is told, in characters.
const VERSION_MAX: usize = 120;
/// What names begin with that virtual machines tell, and how many of them there may be.
const OF_GUEST: &str = "guest-";
const GUEST_VERSIONS_MAX: usize = 8;
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

/// The versions of these programs by their names, and nothing of all others that could take part; beside them what virtual machines
/// say of theirs.
pub(super) fn versions(
    named: &[&str],
    of_guests: BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let of = |(name, program, words): (&str, &str, &[&str])| {
        let version = if named.contains(&name) { version(program, words) } else { None };
        (name.to_owned(), version)
    };
    let of_guests = of_guests.into_iter().map(|(name, version)| (name, Some(version)));
    PROGRAMS.into_iter().map(of).chain(of_guests).collect()
}

/// What a virtual machine says of versions: a line for each, the name first.
pub(super) fn told(text: &str) -> BTreeMap<String, String> {
    let version = |line: &str| {
        let (name, version) = line.split_once(' ')?;
        let version = in_a_line(version)?;
        name.starts_with(OF_GUEST).then(|| (name.to_owned(), version))
    };
    text.lines().take(GUEST_VERSIONS_MAX).filter_map(version).collect()
}

/// The first line that says something, as results have it.
fn in_a_line(said: &str) -> Option<String> {
    let blank = |character: char| if character.is_control() { ' ' } else { character };
    let plain = |line: &str| line.chars().map(blank).collect::<String>();
    let line = said.lines().map(plain).find(|line| !line.trim().is_empty())?;
    Some(line.trim().chars().take(VERSION_MAX).collect())
}

/// The first line that a program says of its version; nothing where it is not here, or does not say.
fn version(program: &str, words: &[&str]) -> Option<String> {
    let mut command = Command::new(find(program)?);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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
    in_a_line(&String::from_utf8_lossy(&said))
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
        let of_guest = ("guest-kernel".to_owned(), "6.1".to_owned());
        let mut told = versions(&["e2fsprogs"], BTreeMap::from([of_guest]));
        assert_eq!(
            (told.len(), told.remove("guest-kernel")),
            (PROGRAMS.len() + 1, Some(Some("6.1".to_owned())))
        );
        assert!(told.iter().all(|(name, version)| name == "e2fsprogs" || version.is_none()), "{told:?}");
        let here = find("mke2fs").is_some();
        assert_eq!(told["e2fsprogs"].as_ref().is_some_and(|version| version.contains('.')), here, "{told:?}");
    }

    #[test]
    fn a_version_is_one_line_of_a_program_that_ends_well() {
        assert_eq!(version("echo", &["\u{7}  1.2\n3"]), Some("1.2".to_owned()));
        assert_eq!(version("echo", &["a-package\t1.2-3"]), Some("a-package 1.2-3".to_owned()));
        for (program, option) in [("false", "--version"), ("lunette-no-such-program", "-v")] {
            assert_eq!(version(program, &[option]), None, "{program}");
        }
    }

    #[test]
    fn all_programs_of_a_study_have_a_version_that_is_asked_for() {
        for study in super::super::studies() {
            for cell in (study.cells)(1) {
                for name in cell.probe.programs() {
                    assert!(PROGRAMS.iter().any(|program| program.0 == *name), "{}: {name}", study.name);
                }
            }
        }
        let programs = |name: &str| {
            let study = super::super::study(name).expect("a study");
            let cells = (study.cells)(1);
            cells.iter().flat_map(|cell| cell.probe.programs().iter().copied()).collect::<Vec<_>>()
        };
        assert!(
            programs("fujita-postmark").contains(&"postmark") && programs("lu-files").contains(&"rpcbind")
        );
    }

    #[test]
    fn a_virtual_machine_tells_its_versions_and_nobody_elses() {
        let text = "guest-kernel 6.1.0-37-amd64\nguest-lio Datera Inc.\u{1b} iSCSI Target v4.1.0\nqemu 1\nguest-fio\nguest-x  \n";
        let told: Vec<(String, String)> = told(text).into_iter().collect();
        let told: Vec<(&str, &str)> = told.iter().map(|(name, version)| (&**name, &**version)).collect();
        assert_eq!(
            told,
            [("guest-kernel", "6.1.0-37-amd64"), ("guest-lio", "Datera Inc.  iSCSI Target v4.1.0")]
        );
        for script in [include_str!("guest/initiator.sh"), include_str!("guest/lio.sh")] {
            assert!(script.contains("/mnt/host/versions\ntouch /mnt/host/told-ready"), "before it is ready");
            assert!(script.matches("echo \"guest-").count() >= 2);
        }
    }
}
