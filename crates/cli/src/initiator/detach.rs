//! `lunette detach`: ends a `lunette attach` and tells how that went, or lists what is attached.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::attached::{Attached, Holder};
use super::report::{table, tell};
use crate::banner::printable;
use crate::failure::{Failure, say};

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
    let Some(holder) = holders.into_iter().find(|holder| is_at(&holder.what.place, place, &wanted)) else {
        return Err(Failure::local(format!("nothing of this user's is attached at {}", printable(place)))
            .with_help("`lunette detach` alone lists what is; a directory whose process was killed is unmounted by umount or fusermount3 -u"));
    };
    let what = holder.what.clone();
    let end =
        holder.detach(|| say("lunette: waiting until it is not in use any more and everything is stable"))?;
    match end.error {
        None => tell(options.json, &Detached { detached: what }, |done| {
            format!("detached {}; everything is stable\n", done.detached.url)
        }),
        Some(error) => Err(Failure::elsewhere(end.status, error, end.help)),
    }
}

/// The directory that is meant, however it is named: by the file in it, too.
fn canonical(place: &str) -> String {
    let path = std::fs::canonicalize(place).unwrap_or_else(|_| Path::new(place).to_owned());
    path.display().to_string()
}

fn is_at(held: &str, place: &str, canonical: &str) -> bool {
    let file = Path::new(canonical).parent().is_some_and(|parent| parent == Path::new(held));
    held == place || held == canonical || (file && canonical.ends_with(lunette_attach::file::NAME))
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
        assert!(!is_at("/mnt/disk0", "/mnt", "/mnt"));
        assert!(is_at("127.0.0.1:10809", "127.0.0.1:10809", "127.0.0.1:10809"));
        assert!(is_at("unix:/run/vm", "unix:/run/vm", "unix:/run/vm"));
    }
}
