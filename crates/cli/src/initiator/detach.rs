//! `lunette detach`: ends a `lunette attach` and tells how that went, or lists what is attached.

use std::path::Path;

use clap::Args;
use lunette_initiator::without_secrets;
use serde::Serialize;

use super::attached::{Attached, Holder};
use super::report::{table, tell};
use crate::banner::printable;
use crate::failure::{Failure, say};

/// How a socket in the file system is told from a directory.
const UNIX: &str = "unix:";

#[derive(Debug, Args)]
pub(crate) struct DetachOptions {
    /// The directory where a disk is attached, or the address of its NBD export; without it, all that are attached are listed
    #[arg(value_name = "PLACE")]
    pub(crate) place: Option<String>,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Serialize)]
struct List {
    attached: Vec<Attached>,
}

#[derive(Debug, Serialize)]
struct Detached {
    detached: Attached,
}

/// Detaches one, or lists all.
pub(crate) fn run(options: &DetachOptions) -> Result<(), Failure> {
    let holders =
        Holder::all().map_err(|error| Failure::new("what is attached cannot be found out", &error))?;
    let Some(place) = &options.place else {
        let list = List { attached: holders.into_iter().map(|holder| holder.what).collect() };
        return tell(options.json, &list, text);
    };
    let wanted = canonical(place);
    let mut found: Vec<Holder> =
        holders.into_iter().filter(|holder| is_at(&holder.what.place, place, &wanted)).collect();
    let Some(holder) = found.pop() else {
        return Err(Failure::local(format!("nothing of this user's is attached at {}", shown(place)))
            .with_help("`lunette detach` alone lists what is; a directory whose process was killed is unmounted by umount or fusermount3 -u"));
    };
    if !found.is_empty() {
        return Err(Failure::local(format!("several disks are attached at {}", shown(place))).with_help(
            "`lunette detach` alone lists them with their processes; SIGTERM detaches that of a process",
        ));
    }
    let what = holder.what.clone();
    let end =
        holder.detach(|| say("lunette: waiting until it is not in use any more, everything is stable, and no lost path can bring back old blocks"))?;
    match end.error {
        None => tell(options.json, &Detached { detached: what }, |done| {
            format!("detached {}; everything is stable\n", done.detached.url)
        }),
        Some(error) => Err(Failure::elsewhere(end.status, error, end.help)),
    }
}

/// A place as it was typed, which may be a disk's URL by mistake.
fn shown(place: &str) -> String {
    // A path may have an @, and has no secret.
    let is_path = [UNIX, "/", "."].iter().any(|start| place.starts_with(start));
    if is_path { printable(place) } else { printable(&without_secrets(place)) }
}

/// The one name of what is in the file system, however it is called: a directory, the file in it, or the socket of `unix:PATH`.
pub(super) fn canonical(place: &str) -> String {
    let (kind, path) = place.strip_prefix(UNIX).map_or(("", place), |path| (UNIX, path));
    let found = std::fs::canonicalize(path).map(|path| format!("{kind}{}", path.display()));
    found.unwrap_or_else(|_| place.to_owned())
}

fn is_at(held: &str, place: &str, canonical: &str) -> bool {
    let file = Path::new(canonical);
    let is_file = file.file_name().is_some_and(|name| name == lunette_attach::file::NAME)
        && file.parent().is_some_and(|parent| parent == Path::new(held));
    held == place || held == canonical || is_file
}

fn text(list: &List) -> String {
    if list.attached.is_empty() {
        return "nothing is attached\n".to_owned();
    }
    let row =
        |what: &Attached| vec![printable(&what.place), printable(&what.url), format!("process {}", what.pid)];
    table(0, &list.attached.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_by_each_of_its_names() {
        assert!(is_at("/mnt/disk0", "/mnt/disk0", "/mnt/disk0"));
        assert!(is_at("/mnt/disk0", "disk0", "/mnt/disk0"));
        assert!(is_at("/mnt/disk0", "/mnt/disk0/disk", "/mnt/disk0/disk"));
        assert!(!is_at("/mnt/disk0", "/mnt/disk0/other", "/mnt/disk0/other"));
        assert!(!is_at("/mnt/disk0", "/mnt/disk0/mydisk", "/mnt/disk0/mydisk"));
        assert!(!is_at("/mnt/disk0", "/mnt", "/mnt"));
        assert!(is_at("127.0.0.1:10809", "127.0.0.1:10809", "127.0.0.1:10809"));
        assert!(is_at("unix:/run/vm", "unix:/run/vm", "unix:/run/vm"));
    }

    #[test]
    fn a_socket_is_known_by_where_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (real, linked) = (directory.path().join("vm"), directory.path().join("link"));
        std::fs::write(&real, []).unwrap();
        std::os::unix::fs::symlink("vm", &linked).unwrap();
        let real = std::fs::canonicalize(&real).unwrap();
        assert_eq!(canonical(&format!("unix:{}", linked.display())), format!("unix:{}", real.display()));
        assert_eq!(canonical(&linked.display().to_string()), real.display().to_string());
        assert_eq!(canonical("unix:/not/there"), "unix:/not/there");
    }
}
