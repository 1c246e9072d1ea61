//! A study is run: link by link, each cell as often as it takes, the runs of a link's cells interleaved.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::Link;
use lunette_wan::isolate_mounts;

use super::collected::{Collected, STOLEN_MAX};
use super::conclusion::so_far;
use super::judgement::HELD;
use super::peer::Peer;
use super::probe::{self, Duty, Kept, Place, Probe, Run};
use super::result::StudyResult;
use super::selection::{Aimed, divided, order};
use super::setting::{self, Ends, Key, Setting};
use super::site::Site;
use super::versions;
use super::{Cell, Study, expected, guest, scratch};
use crate::bench::plan::REQUESTS_BYTES_MAX;
use crate::{Host, LabError};

/// Runs of each cell, unless it is to be quick.
const RUNS: usize = 3;

/// The one that systems had when these papers were written; each kernel has it, for every network.
const CONGESTION_CONTROL: &str = "reno";

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
    /// Runs that are over.
    pub done: usize,
    /// Runs that there are.
    pub of: usize,
    /// The parameters of the cell that was measured last.
    pub parameters: &'a [(&'static str, String)],
}

impl Laboratory<'_> {
    /// Runs a study; `told` hears of each run, also of those that are done again. The process must have the privileges for a network
    /// ([`lunette_wan::acquire_privileges`]).
    ///
    /// # Errors
    /// A network, a target or a session could not be had, or a cell failed.
    pub fn run(&self, study: &Study, told: &(dyn Fn(Told<'_>) + Sync)) -> Result<StudyResult, LabError> {
        let (peers, absent) = self.peers_of(study);
        let are_asked_for = !self.peers.is_empty();
        let laboratory = Laboratory { peers: &peers, ..*self };
        let beside = laboratory.run_beside(study, are_asked_for, told);
        let mut result = match beside {
            // Nobody has asked for them, and our own cells do not need them.
            Err(error) if !are_asked_for && !peers.is_empty() && error.may_be_of_a_target() => {
                let mut alone = self.run_beside(study, are_asked_for, told)?;
                alone.differs +=
                    &format!(" Beside other targets it failed, so it was run again without them: {error}.");
                alone
            }
            beside => {
                let mut result = beside?;
                if self.is_quick && !are_asked_for && !peers.is_empty() {
                    result.differs += QUICK_PEERS_DIFFER;
                }
                result
            }
        };
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
        // Targets are told in a text where it is, and know no directory of this process.
        if !self.scratch.is_absolute() || self.scratch.to_str().is_none() {
            let scratch = self.scratch.display();
            return Err(LabError::Plan(format!(
                "a study's files are to be in a whole path in UTF-8, and not in {scratch}"
            )));
        }
        // What was left by who was killed.
        [self.scratch, &env::temp_dir()].into_iter().for_each(scratch::sweep);
        let host = Host::look();
        self.peers.iter().try_for_each(|peer| peer.check())?;
        setting::check(self.set)?;
        self.check_peers()?;
        let mut leaves_out = false;
        let cells = (study.cells)(self.seed).into_iter().filter_map(|cell| {
            let cell = self.with_keys(cell);
            leaves_out |= cell.is_none();
            cell
        });
        let cells = cells.flat_map(|cell| self.beside_peers(cell));
        let is_wanted = |aimed: &Aimed| self.wants(&aimed.cell) && self.has_time_for(aimed, are_asked_for);
        let (wide, cells): (Vec<Aimed>, Vec<Aimed>) =
            cells.filter(is_wanted).partition(|aimed| self.is_too_wide(&aimed.cell));
        if cells.is_empty() {
            let that_has = if leaves_out {
                format!(" that has all of {}", setting::names(self.set))
            } else {
                String::new()
            };
            return Err(LabError::Plan(format!("{} has no such cell{that_has}", study.name)));
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
            return Err(LabError::Needs(lacking.join("; ")));
        }
        let mut collected = Collected::of(cells.len(), self.patience);
        let mut links: Vec<Option<&str>> = Vec::new();
        for link in cells.iter().map(Aimed::link) {
            if !links.contains(&link) {
                links.push(link);
            }
        }
        for link in links {
            // A thread of its own: it stays in the namespace of the target, which ends with it.
            let group = || self.group(link, study, &cells, &mut collected, told);
            let joined = thread::scope(|scope| scope.spawn(group).join());
            joined.unwrap_or(Err(LabError::Panicked))?;
        }
        let told_of_others = [collected.told_of_again(&cells), collected.told_of_more()];
        let mut result = self.conclude(study, host, &cells, collected);
        for told in told_of_others.into_iter().flatten() {
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
        if !wide.is_empty() {
            result.differs += &format!(
                " {} cells are left to the whole run, and to quick ones that --only names them for.",
                wide.len()
            );
        }
        for lack in lacking {
            result.differs += &format!(" Cells are left out on this machine, for it lacks {lack}.");
        }
        if cells.iter().any(|aimed| expected::expected(&aimed.cell, self.is_quick).is_some()) {
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

    /// What was asked for is had, or nothing is measured.
    fn check_control(&self, site: &Site) -> Result<(), LabError> {
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

    /// All cells of one link.
    fn group(
        &self,
        name: Option<&str>,
        study: &Study,
        cells: &[Aimed],
        collected: &mut Collected,
        told: &(dyn Fn(Told<'_>) + Sync),
    ) -> Result<(), LabError> {
        if self.stops.load(Ordering::Relaxed) {
            return Ok(());
        }
        let own = |aimed: &&Aimed| aimed.link() == name;
        if cells.iter().filter(own).any(|aimed| matches!(aimed.cell.probe, Probe::Files(_))) {
            isolate_mounts().map_err(LabError::system("a mount namespace"))?;
        }
        let described = name.map(|name| name.parse::<Link>().map(|link| (name, link))).transpose();
        let described = described.map_err(|error| LabError::Plan(error.to_string()))?;
        // Each target has a link of its own, and all are there at the same time, so that they can take turns.
        let mut sites: Vec<(Option<Peer>, Site)> = Vec::new();
        let controls = [self.congestion_control.unwrap_or(CONGESTION_CONTROL)];
        let ends = Ends::of(self.set);
        if let Some((_, link)) = &described {
            for aimed in cells.iter().filter(|aimed| aimed.link() == name) {
                if !sites.iter().any(|site| site.0 == aimed.peer) {
                    let site = match aimed.peer {
                        None if self.is_proxied => Site::open_proxied(link, self.seed, self.binary, &ends),
                        None => Site::open(link, self.seed, &controls, self.binary, &ends),
                        Some(peer) => Site::open_peer(link, self.seed, &controls, self.binary, peer, &ends),
                    }?;
                    self.check_control(&site)?;
                    let target = aimed.peer.map_or("lunette", Peer::name);
                    // What it is called is not what is measured.
                    if !collected.targets.contains_key(target)
                        && let Ok(identity) = versions::identity(&site)
                    {
                        collected.targets.insert(target.to_owned(), identity);
                    }
                    sites.push((aimed.peer, site));
                }
            }
        }
        let (image, kept) = (OnceCell::new(), Kept::default());
        let all_runs: usize = cells.iter().map(|aimed| self.runs(&aimed.cell)).sum();
        let turns = cells.iter().filter(own).map(|aimed| self.runs(&aimed.cell)).max().unwrap_or_default();
        let run = |at: usize, turn: usize| {
            let Aimed { cell, peer } = &cells[at];
            let seed = self.seed.wrapping_add(turn as u64);
            let site = sites.iter().find(|site| site.0 == *peer).map(|site| &site.1);
            let over = site.zip(described.as_ref().map(|described| &described.1));
            let round_trip = over.map(|(_, link)| link.round_trip()).unwrap_or_default();
            let duty = Duty::on(round_trip, cell.probe.to_grow(over.map(|over| over.1)), seed, self.is_quick);
            let place =
                Place { over, binary: self.binary, scratch: self.scratch, image: &image, kept: &kept };
            probe::run_once(place, &cell.probe, duty)
        };
        let is_stopped = || self.stops.load(Ordering::Relaxed);
        let tell = |collected: &Collected, at: usize| {
            let done = collected.done();
            told(Told { done, of: all_runs.max(done), parameters: &cells[at].cell.parameters });
        };
        for turn in 0..turns {
            for at in order(cells, turn) {
                let aimed = &cells[at];
                if !own(&aimed) || turn >= self.runs(&aimed.cell) {
                    continue;
                }
                if is_stopped() {
                    break;
                }
                let begun = Instant::now();
                let done = run(at, turn)?;
                collected.add(at, done, begun.elapsed());
                tell(collected, at);
            }
        }
        let comes_to = |aimed: &Aimed, runs: &[Run]| so_far(study, aimed, runs, self.is_quick);
        let is_puzzling = |aimed: &Aimed, runs: &[Run]| {
            let cell = comes_to(aimed, runs)?;
            let is_of_echo = cell.exceeds_model() && cell.echo_stolen > STOLEN_MAX;
            (cell.is_unexplained() || is_of_echo).then(|| cell.distance_from_model())
        };
        let falls_short = |aimed: &Aimed, runs: &[Run]| {
            let cell = comes_to(aimed, runs).filter(|cell| HELD.contains(&study.name) && cell.is_ours())?;
            (cell.reaches_model() == Some(false)).then(|| cell.distance_from_model())
        };
        // There is a figure already: that another one cannot be had is told, and no more. Who has time may try others.
        let mut goes_on = true;
        while goes_on && !is_stopped() {
            let begun = Instant::now();
            if let Some((at, turn)) = collected.next_again(cells, name) {
                let again = run(at, turn);
                goes_on = again.is_ok() || self.patience.is_some();
                collected.choose(at, turn, again, begun.elapsed());
                tell(collected, at);
                continue;
            }
            let more = collected.next_more(cells, name, is_puzzling);
            let Some(at) = more.or_else(|| collected.next_more(cells, name, falls_short)) else { break };
            let more = run(at, collected.runs[at].len());
            goes_on = more.is_ok() || self.patience.is_some();
            collected.add_more(at, more, begun.elapsed());
            tell(collected, at);
        }
        if let Some((name, link)) = described {
            for (peer, site) in &sites {
                let facts = site.facts(&link)?;
                let known = collected.links.entry(name.to_owned()).or_insert_with(|| facts.clone());
                // What commands are held against is the way to our own target.
                let echo_us = if peer.is_none() { facts.echo_us } else { known.echo_us };
                // The worst of them is told.
                if (facts.is_doubtful, facts.late_us) > (known.is_doubtful, known.late_us) {
                    *known = facts;
                }
                known.echo_us = echo_us;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::selection::tests::with_peers;
    use super::*;
    use crate::study::study;

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
}
