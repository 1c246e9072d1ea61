//! A study is run: what is to be measured, link by link, and what is to be said of it besides.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use super::collected::Collected;
use super::group::Group;
use super::peer::Peer;
use super::result::{Lacking, StudyResult};
use super::selection::{Aimed, divided};
use super::setting::{self, Key, Setting};
use super::site::Site;
use super::{Cell, Metric, Probe, Study, expected, guest, scratch};
use crate::bench::plan::REQUESTS_BYTES_MAX;
use crate::{Host, LabError};

/// Runs of each cell, unless it is to be quick.
const RUNS: usize = 3;

/// The one that systems had when these papers were written; each kernel has it, for every network.
pub(super) const CONGESTION_CONTROL: &str = "reno";

/// What is to be said where exchanges or a cache are the model.
const EXPECTED_DIFFERS: &str = " The model of logins and of files by NFS is round trips and bytes alone, that of a hit rate how much of the files fits into \
                                the memory: what processors and disks do besides is not in it.";

/// What is to be said where others are measured that nobody has asked for, in little time.
const QUICK_PEERS_DIFFER: &str = " In a quick run other targets than ours have the profiles with the maximum and standard frames alone, unless --peers asks for more.";

/// How studies are run.
#[derive(Debug, Clone, Copy)]
pub struct Laboratory<'a> {
    /// The program `lunette`, which serves at the far end.
    pub binary: &'a Path,
    /// Where chance begins.
    pub seed: u64,
    /// One short run a cell.
    pub is_quick: bool,
    /// Ends it when it becomes true; what was measured by then is kept.
    pub stops: &'a AtomicBool,
    /// A directory for the files of studies that need some; it is to be on a disk, not in memory.
    pub scratch: &'a Path,
    /// Only cells that have all these parameters with these values; all cells where there is none.
    pub only: &'a [(String, String)],
    /// What all cells over a link have in the place of what the study chooses: keys of their sessions, and more (`Setting`). Cells
    /// that have not all of it are left out.
    pub set: &'a [Setting],
    /// TCP's congestion control at both ends, by the name that Linux has for it; none: that of the papers where this system lets a network
    /// have it, which is Reno's, and else the system's own.
    pub congestion_control: Option<&'a str>,
    /// Targets that are measured beside ours, in turns, wherever a cell asks for one over a link. Where there is none, those that the study
    /// compares and that are installed.
    pub peers: &'a [Peer],
    /// A proxy with delay and rate in the place of each network: for systems where nobody may make one. Cells that need more are left out,
    /// and every link says so.
    pub is_proxied: bool,
    /// What runs of each link may take that are done again because the host of this virtual machine gave processors to others meanwhile,
    /// as often as it takes until there is no such run, or that cells have more than others. Where there is none, each is done again
    /// once, in a twentieth of the study's time, and a tenth of it is for more runs.
    pub patience: Option<Duration>,
}

/// What is told while a study runs.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// Runs that are over, those that have failed as well.
    pub done: usize,
    /// Runs that there are.
    pub of: usize,
    /// The parameters of the cell that was measured last.
    pub parameters: &'a [(&'static str, String)],
    /// Why that has failed, as a clause, if it has.
    pub failed: Option<&'a str>,
}

/// The cells of a study that are measured, and what is to be said of the others.
struct Chosen {
    cells: Vec<Aimed>,
    /// Others have not all that is set.
    leaves_out: bool,
    /// So many others are left to runs that have more time.
    wide: usize,
    /// What this machine lacks for others.
    lacking: Vec<Lacking>,
    /// How many there are of all, but for those that have not all that is set.
    of: usize,
}

impl Laboratory<'_> {
    /// Runs a study; `told` hears of each run, also of those that are done again. A run that fails is one run less of its cell, which the
    /// result names; the others go on, over a new network with a new target. The process must have the privileges for a network
    /// ([`lunette_wan::acquire_privileges`]).
    ///
    /// # Errors
    /// What was asked for cannot be had here, or no network or target of ours for the first cell: nothing was measured.
    pub fn run(&self, study: &Study, told: &(dyn Fn(Told<'_>) + Sync)) -> Result<StudyResult, LabError> {
        let (peers, absent) = self.peers_of(study);
        let are_asked_for = !self.peers.is_empty();
        let laboratory = Laboratory { peers: &peers, ..*self };
        let mut result = laboratory.run_beside(study, are_asked_for, told)?;
        for lack in absent {
            result.differs +=
                &format!(" A target that the study compares is left out on this machine: {lack}.");
        }
        Ok(result)
    }

    /// Runs it beside these peers.
    fn run_beside(
        &self,
        study: &Study,
        are_asked_for: bool,
        told: &(dyn Fn(Told<'_>) + Sync),
    ) -> Result<StudyResult, LabError> {
        // What was left by who was killed.
        [self.scratch, &env::temp_dir()].into_iter().for_each(scratch::sweep);
        let host = Host::look();
        let Chosen { cells, leaves_out, wide, lacking, of } = self.chosen(study, are_asked_for)?;
        let planned = cells.iter().map(|aimed| self.runs(&aimed.cell)).collect();
        let mut collected = Collected::of(planned, self.patience);
        for group in self.groups(study, &cells, are_asked_for, told)? {
            let (name, own) = (group.name(), group.own());
            // A thread of its own: it stays in the namespace of the target, which ends with it.
            let into = &mut collected;
            let measure = move || {
                let mut group = group;
                group.measure(into)
            };
            let joined = thread::scope(|scope| scope.spawn(measure).join());
            let Err(error) = joined.unwrap_or(Err(LabError::Panicked)) else { continue };
            if collected.is_untouched() {
                return Err(error);
            }
            let reason = error.to_string();
            collected.give_up(own.iter().copied(), &reason);
            let (done, of) = (collected.done(&cells), collected.failures.planned());
            let failed = format!("all that is left of {}: {reason}", name.unwrap_or("what has no link"));
            told(Told { done, of: of.max(done), parameters: &[], failed: Some(&failed) });
        }
        let told_of_others = [collected.told_of_again(&cells), collected.told_of_more()];
        let left_out: Vec<String> = collected
            .failures
            .left_out()
            .map(|(peer, reason)| {
                format!("{peer}, which nobody has asked for, is left out, for it has failed: {reason}.")
            })
            .collect();
        let has_peers =
            cells.iter().any(|aimed| aimed.peer.is_some() && !collected.failures.is_left_out(aimed.peer));
        let mut result = self.conclude(study, host, (&cells, of), collected);
        if self.is_quick && !are_asked_for && has_peers {
            result.differs += QUICK_PEERS_DIFFER;
        }
        for told in told_of_others.into_iter().flatten().chain(left_out) {
            result.differs += &format!(" {told}");
        }
        if !self.set.is_empty() {
            result.differs += &format!(" For all cells over a link is set: {}.", setting::text(self.set));
        }
        if leaves_out {
            result.differs += &format!(
                " Cells over a link that have not all of {} are left out.",
                setting::names(self.set)
            );
        }
        if wide > 0 {
            result.differs += &format!(
                " {wide} cells are left to the whole run, and to quick ones that --only names them for."
            );
        }
        for Lacking { what, cells } in &lacking {
            let are = if *cells == 1 { "cell is" } else { "cells are" };
            result.differs += &format!(" {cells} {are} left out on this machine, for it lacks {what}.");
        }
        result.lacking = lacking;
        if cells.iter().any(|aimed| expected::expected(&aimed.cell, self.is_quick, None).is_some()) {
            result.differs += EXPECTED_DIFFERS;
        }
        let emulated = |peer: Option<Peer>| {
            (peer == Some(Peer::Lio) && !guest::is_accelerated()).then_some(guest::EMULATED)
        };
        let caveats = |aimed: &Aimed| [aimed.cell.probe.caveat(self.is_quick), emulated(aimed.peer)];
        for caveat in cells.iter().flat_map(caveats).flatten().collect::<BTreeSet<_>>() {
            result.differs += &format!(" {caveat}");
        }
        Ok(result)
    }

    /// Looks whether a study can be run here with what was asked for, as far as that is known before anything is measured.
    ///
    /// # Errors
    /// It cannot: what [`Laboratory::run`] would fail with.
    pub fn check(&self, study: &Study) -> Result<(), LabError> {
        let (peers, _) = self.peers_of(study);
        let laboratory = Laboratory { peers: &peers, ..*self };
        laboratory.chosen(study, !self.peers.is_empty()).map(drop)
    }

    /// Which of its cells are measured, where all that was asked for can be had.
    fn chosen(&self, study: &Study, are_asked_for: bool) -> Result<Chosen, LabError> {
        // Targets are told in a text where it is, and know no directory of this process.
        if !self.scratch.is_absolute() || self.scratch.to_str().is_none() {
            let scratch = self.scratch.display();
            return Err(LabError::Plan(format!(
                "a study's files are to be in a whole path in UTF-8, and not in {scratch}"
            )));
        }
        Peer::check_all(self.peers)?;
        setting::check(self.set)?;
        self.check_peers()?;
        let chosen = self.choose(study, are_asked_for)?;
        self.check_scratch(&chosen.cells)?;
        Ok(chosen)
    }

    /// Which of its cells are measured, in order.
    fn choose(&self, study: &Study, are_asked_for: bool) -> Result<Chosen, LabError> {
        let mut leaves_out = false;
        let cells = (study.cells)(self.seed).into_iter().filter_map(|cell| {
            let cell = self.with_keys(cell);
            leaves_out |= cell.is_none();
            cell
        });
        let cells: Vec<Aimed> = cells.flat_map(|cell| self.beside_peers(cell)).collect();
        let of = cells.len();
        let why = self.why_none(&cells).map(|why| format!(": {why}")).unwrap_or_default();
        let is_wanted = |aimed: &Aimed| self.wants(&aimed.cell) && self.has_time_for(aimed, are_asked_for);
        let (wide, cells): (Vec<Aimed>, Vec<Aimed>) =
            cells.into_iter().filter(is_wanted).partition(|aimed| self.is_too_wide(&aimed.cell));
        if cells.is_empty() {
            let that_has = if leaves_out {
                format!(" that has all of {}", setting::names(self.set))
            } else {
                String::new()
            };
            return Err(LabError::Plan(format!("{} has no such cell{that_has}{why}", study.name)));
        }
        let request_bytes = cells.iter().map(|aimed| aimed.cell.probe.request_bytes()).max();
        if request_bytes.is_some_and(|bytes| bytes > REQUESTS_BYTES_MAX) {
            let (name, gib) = (study.name, REQUESTS_BYTES_MAX >> 30);
            return Err(LabError::Plan(format!(
                "cells of {name} would have requests of more than {gib} GiB under way: set a lesser depth or request_bytes"
            )));
        }
        let (cells, lacking) = divided(cells, self.is_proxied);
        if cells.is_empty() {
            let all: Vec<String> = lacking.into_iter().map(|lacking| lacking.what).collect();
            return Err(LabError::Needs(all.join("; ")));
        }
        Ok(Chosen { cells, leaves_out, wide: wide.len(), lacking, of })
    }

    /// The parameters of the cells that [`Laboratory::run`] would measure, in order.
    ///
    /// # Errors
    /// What was asked for cannot be had here.
    pub fn planned(&self, study: &Study) -> Result<Vec<Vec<(&'static str, String)>>, LabError> {
        let (peers, _) = self.peers_of(study);
        let laboratory = Laboratory { peers: &peers, ..*self };
        let chosen = laboratory.choose(study, !self.peers.is_empty())?;
        Ok(chosen.cells.into_iter().map(|aimed| aimed.cell.parameters).collect())
    }

    /// The cells by their links. Those over a network come first: where there is none, nothing else was measured for nothing.
    fn groups<'a>(
        &'a self,
        study: &'a Study,
        cells: &'a [Aimed],
        are_asked_for: bool,
        told: &'a (dyn Fn(Told<'_>) + Sync),
    ) -> Result<Vec<Group<'a>>, LabError> {
        let mut links: Vec<Option<&str>> = Vec::new();
        for link in cells.iter().map(Aimed::link) {
            if !links.contains(&link) {
                links.push(link);
            }
        }
        links.sort_by_key(Option::is_none);
        links.into_iter().map(|link| Group::new(self, study, (cells, link), are_asked_for, told)).collect()
    }

    /// What was asked for is had, or nothing is measured.
    pub(super) fn check_control(&self, site: &Site) -> Result<(), LabError> {
        let Some(wanted) = self.congestion_control else { return Ok(()) };
        let has = site.congestion_control()?;
        if has == wanted {
            return Ok(());
        }
        Err(LabError::Plan(format!(
            "this system lets no network have the congestion control {wanted}, and has {has} \
             (net.ipv4.tcp_allowed_congestion_control names the others)"
        )))
    }

    /// Cells that have files can have them, or nothing is measured.
    fn check_scratch(&self, cells: &[Aimed]) -> Result<(), LabError> {
        let has_files = |aimed: &Aimed| match &aimed.cell.probe {
            // Of a time, the target writes down its part.
            Probe::Disk(disk) => {
                let tells = disk.metric == Metric::MeanMilliseconds && !self.is_proxied;
                aimed.link().is_some() && (disk.design.is_some() || tells)
            }
            Probe::Login(_) | Probe::Transfer(_) | Probe::Files(_) => true,
            Probe::Tcp { .. } | Probe::Recovery(_) | Probe::Shared(_) | Probe::Virtual(_) => false,
        };
        if !cells.iter().any(has_files) {
            return Ok(());
        }
        scratch::Directory::make(self.scratch).map(drop).map_err(|error| {
            let scratch = self.scratch.display();
            LabError::Plan(format!("no files can be made in {scratch}, where --scratch has them: {error}"))
        })
    }

    /// Other targets than ours can have what is set.
    fn check_peers(&self) -> Result<(), LabError> {
        let refused = |why: &str| Err(LabError::Plan(why.to_owned()));
        if setting::find(self.set, Key::Write).is_some() && !self.peers.is_empty() {
            return refused(
                "write= is set for our own target; those of --peers have write modes of their own",
            );
        }
        if setting::tcp_buffer(self.set).is_some() && self.peers.contains(&Peer::Lio) {
            return refused(
                "tcp_buffer_bytes= is set at both ends of a link, and TCP of lio is in a virtual machine",
            );
        }
        Ok(())
    }

    pub(super) fn runs(&self, cell: &Cell) -> usize {
        let quick = cell.probe.quick_runs();
        if self.is_quick { quick } else { quick.max(RUNS) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::selection::tests::with_peers;
    use super::*;
    use crate::study::study;

    #[test]
    fn what_is_chosen_is_counted_beside_all() {
        let only = [("configuration".to_owned(), "direct".to_owned())];
        with_peers(&[], |laboratory| {
            let laboratory = Laboratory { only: &only, ..*laboratory };
            let study = study("lu-trace").expect("a study");
            let chosen = laboratory.choose(study, false).expect("some");
            assert_eq!((chosen.cells.len(), chosen.of), (2, study.size()));
            assert_eq!(laboratory.planned(study).expect("the same").len(), 2);
        });
    }

    #[test]
    fn what_nobody_has_is_named_with_what_there_is() {
        let refused = |name: &str, only: &[(&str, &str)]| {
            let only: Vec<_> = only.iter().map(|&(name, value)| (name.into(), value.into())).collect();
            with_peers(&[], |laboratory| {
                let laboratory = Laboratory { only: &only, ..*laboratory };
                laboratory.check(study(name).expect("a study")).expect_err("it has no such cell").to_string()
            })
        };
        for (only, told) in [
            (&[("rtt", "50")][..], "there is no rtt; there are mode, request_kib, window, rtt_ms"),
            (&[("mode", "read"), ("rtt_ms", "7")], "no cell has rtt_ms=7; there are 0, 2, 10, 50"),
            (&[("rtt_ms", "2"), ("rtt_ms", "10")], "no cell has all of rtt_ms=2, rtt_ms=10 together"),
            (&[("target", "lunette"), ("target", "tgtd")], "no cell has target=tgtd; there is lunette"),
        ] {
            assert_eq!(refused("dalgic-sweep", only), format!("dalgic-sweep has no such cell: {told}"));
        }
    }

    #[test]
    fn targets_are_not_told_of_directories_that_they_would_look_for_elsewhere() {
        let laboratory = |scratch| {
            with_peers(&[], |laboratory| {
                Laboratory { scratch, ..*laboratory }.run(study("dr-local").expect("a study"), &|_| ())
            })
        };
        let refused = laboratory(Path::new("images")).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.contains("whole path")));
    }

    #[test]
    fn who_can_have_no_files_measures_nothing_that_has_some() {
        let refused = |name: &str| {
            with_peers(&[], |laboratory| {
                let cells = laboratory.choose(study(name).expect("a study"), false).expect("some").cells;
                laboratory.check_scratch(&cells).map_err(|error| error.to_string()).err()
            })
        };
        for name in ["dr-local", "fujita-micro", "lu-light", "lu-login"] {
            assert!(
                refused(name).is_some_and(|text| text.contains("no files can be made in /nowhere, ")),
                "{name}"
            );
        }
        for name in ["dalgic-tcp", "dalgic-sweep", "dr-wan", "dr-shared"] {
            assert_eq!(refused(name), None, "{name} has none");
        }
    }
}
