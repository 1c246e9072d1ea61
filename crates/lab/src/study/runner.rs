//! A study is run: link by link, each cell as often as it takes, the runs of a link's cells interleaved.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lunette_link::Link;
use lunette_wan::{Proxy, isolate_mounts};
use lunette_workload::model::Limit;

use super::peer::Peer;
use super::probe::{self, Duty, Kept, Place, Probe, Run};
use super::result::{CellResult, Further, LinkFacts, StudyResult, Times, deviation, mean, median};
use super::setting::{self, Ends, Key, Setting};
use super::site::Site;
use super::versions::{self, Identity};
use super::{Cell, Study, UNEXPLAINED, expected, guest, limits, scratch, why};
use crate::{Host, LabError, Negotiated};

/// Runs of each cell, unless it is to be quick.
const RUNS: usize = 3;

/// The one that systems had when these papers were written; each kernel has it, for every network.
const CONGESTION_CONTROL: &str = "reno";

/// What may be under way of a session's requests at once, in bytes: both ends keep it in memory.
const REQUESTS_BYTES_MAX: u64 = 1 << 30;

/// What limits a cell of a peer that nothing else explains.
const OF_PEER: &str = "target";

/// What a cell is told by of which one run at least was not over in time.
const UNFINISHED: &str = "not-recovered";

/// Of the runs of a cell, where the published table has them.
const MEAN: &str = "mean";
pub(super) const DEVIATION: &str = "std";

/// What is to be said where exchanges or a cache are the model.
const EXPECTED_DIFFERS: &str = " The model of logins and of files by NFS is round trips and bytes alone, that of a hit rate how much of the files fits into \
                                the memory: what processors and disks do besides is not in it.";

/// What is to be said where there are peers.
const PEERS_DIFFER: &str = "tgtd and istgt are Debian's, with a disk of memory and otherwise as they come, each on a link of its own like \
                            ours; where the target is the limit, nothing else explains that less came. \
                            LIO is in a virtual machine, behind the far end as behind a router.";

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
    /// Targets that are measured beside ours, in turns, wherever a cell asks for one over a link.
    pub peers: &'a [Peer],
    /// A proxy with delay and rate in the place of each network: for systems where nobody may make one. Cells that need more are left out,
    /// and every link says so.
    pub is_proxied: bool,
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

/// A cell with its target, which is ours where it has no peer.
struct Aimed {
    cell: Cell,
    peer: Option<Peer>,
}

impl Aimed {
    fn link(&self) -> Option<&str> {
        self.cell.link.as_deref()
    }
}

/// What is collected over a study.
struct Collected {
    runs: Vec<Vec<Run>>,
    links: BTreeMap<String, LinkFacts>,
    targets: BTreeMap<String, Identity>,
    done: usize,
}

impl Laboratory<'_> {
    /// Runs a study; `told` hears of each run. The process must have the privileges for a network
    /// ([`lunette_wan::acquire_privileges`]).
    ///
    /// # Errors
    /// A network, a target or a session could not be had, or a cell failed.
    pub fn run(&self, study: &Study, told: &(dyn Fn(Told<'_>) + Sync)) -> Result<StudyResult, LabError> {
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
        let cells: Vec<Aimed> = cells.filter(|aimed| self.wants(&aimed.cell)).collect();
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
        let mut collected = Collected {
            runs: cells.iter().map(|_| Vec::new()).collect(),
            links: BTreeMap::new(),
            targets: BTreeMap::new(),
            done: 0,
        };
        let mut links: Vec<Option<&str>> = Vec::new();
        for link in cells.iter().map(Aimed::link) {
            if !links.contains(&link) {
                links.push(link);
            }
        }
        for link in links {
            // A thread of its own: it stays in the namespace of the target, which ends with it.
            let group = || self.group(link, &cells, &mut collected, told);
            let joined = thread::scope(|scope| scope.spawn(group).join());
            joined.unwrap_or(Err(LabError::Panicked))?;
        }
        let mut result = self.conclude(study, host, &cells, collected);
        if !self.set.is_empty() {
            result.differs += &format!(" For all cells over a link is set: {}.", setting::text(self.set));
        }
        if leaves_out {
            result.differs += &format!(
                " Cells over a link that have not all of {} are left out.",
                setting::names(self.set)
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

    fn wants(&self, cell: &Cell) -> bool {
        let has = |name: &str, value: &str| cell.parameters.iter().any(|own| own.0 == name && own.1 == value);
        self.only.iter().all(|(name, value)| has(name, value))
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

    /// A cell with what is set, which are parameters of it; nothing if it is over a link and has something of it not.
    fn with_keys(&self, mut cell: Cell) -> Option<Cell> {
        if self.set.is_empty() {
            return Some(cell);
        }
        let is_set = cell.link.is_some() && cell.probe.set(self.set);
        if cell.link.is_some() && !is_set {
            return None;
        }
        cell.link = cell.link.map(|link| setting::link(self.set, &link));
        let value = |setting: &Setting| if is_set { setting.value() } else { "-".to_owned() };
        cell.parameters.extend(self.set.iter().map(|setting| (setting.key.name(), value(setting))));
        Some(cell)
    }

    /// A cell, and the same with each peer. Peers have sessions of one connection.
    fn beside_peers(&self, cell: Cell) -> Vec<Aimed> {
        if self.peers.is_empty() {
            return vec![Aimed { cell, peer: None }];
        }
        let may_have = |peer: &Peer| match &cell.probe {
            Probe::Disk(disk) => disk.connections == 1 && disk.design.is_none() && disk.units == 1,
            // Both ends of a link in virtual machines measure nothing but these.
            Probe::Virtual(_) => *peer != Peer::Lio,
            _ => false,
        };
        let peers = self.peers.iter().copied().filter(|peer| cell.link.is_some() && may_have(peer));
        let peers: Vec<Peer> = peers.collect();
        let with = |peer: Option<Peer>| {
            let mut cell = cell.clone();
            let name = peer.map_or("lunette", Peer::name);
            cell.parameters.push(("target", name.to_owned()));
            match cell.of_peers.iter().find(|own| own.peer == name).cloned() {
                Some(own) => (cell.published, cell.beside) = (own.published, own.beside),
                // What was published of one target says nothing of another one.
                None if peer.is_some() => {
                    (cell.published, cell.published_times, cell.beside) = (None, None, Vec::new());
                }
                None => {}
            }
            Aimed { cell, peer }
        };
        std::iter::once(None).chain(peers.into_iter().map(Some)).map(with).collect()
    }

    fn runs(&self, cell: &Cell) -> usize {
        let quick = cell.probe.quick_runs();
        if self.is_quick { quick } else { quick.max(RUNS) }
    }

    /// All cells of one link.
    fn group(
        &self,
        name: Option<&str>,
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
        let all_runs = cells.iter().map(|aimed| self.runs(&aimed.cell)).sum();
        let turns = cells.iter().filter(own).map(|aimed| self.runs(&aimed.cell)).max().unwrap_or_default();
        for turn in 0..turns {
            for at in order(cells, turn) {
                let aimed = &cells[at];
                if !own(&aimed) || turn >= self.runs(&aimed.cell) {
                    continue;
                }
                let cell = &aimed.cell;
                if self.stops.load(Ordering::Relaxed) {
                    break;
                }
                let seed = self.seed.wrapping_add(turn as u64);
                let site = sites.iter().find(|site| site.0 == aimed.peer).map(|site| &site.1);
                let over = site.zip(described.as_ref().map(|described| &described.1));
                let round_trip = over.map(|(_, link)| link.round_trip()).unwrap_or_default();
                let duty =
                    Duty::on(round_trip, cell.probe.to_grow(over.map(|over| over.1)), seed, self.is_quick);
                let place =
                    Place { over, binary: self.binary, scratch: self.scratch, image: &image, kept: &kept };
                let run = probe::run_once(place, &cell.probe, duty);
                collected.runs[at].push(run?);
                collected.done += 1;
                told(Told { done: collected.done, of: all_runs, parameters: &cell.parameters });
            }
        }
        if let Some((name, link)) = described {
            for (_, site) in &sites {
                let facts = site.facts(&link)?;
                // The worst of them is told.
                let known = collected.links.entry(name.to_owned()).or_insert_with(|| facts.clone());
                if (facts.is_doubtful, facts.late_us) > (known.is_doubtful, known.late_us) {
                    *known = facts;
                }
            }
        }
        Ok(())
    }

    fn conclude(&self, study: &Study, host: Host, cells: &[Aimed], collected: Collected) -> StudyResult {
        let mut agreements: Vec<Negotiated> = Vec::new();
        let of_peer = |aimed: &Aimed| match aimed.peer {
            Some(Peer::Lio) => Some("qemu"),
            peer => peer.map(Peer::name),
        };
        let took_part =
            cells.iter().flat_map(|aimed| aimed.cell.probe.programs().iter().copied().chain(of_peer(aimed)));
        let took_part: Vec<&str> = took_part.collect();
        let is_partial =
            collected.runs.iter().zip(cells).any(|(runs, aimed)| runs.len() < self.runs(&aimed.cell));
        let results = cells.iter().zip(collected.runs);
        let results =
            results.filter_map(|(aimed, runs)| result(study, aimed, runs, &mut agreements, self.is_quick));
        let mut cells: Vec<CellResult> = results.collect();
        // What the study knows of the difference is of other keys.
        let is_set = |cell: &CellResult| {
            let mut set = self.set.iter().map(|setting| setting.key.name());
            set.any(|key| cell.parameters.iter().any(|(name, value)| name == key && value != "-"))
        };
        let is_concerned = |cell: &&mut CellResult| {
            is_set(cell) && cell.limit != UNEXPLAINED && cell.is_off_published() == Some(true)
        };
        for cell in cells.iter_mut().filter(is_concerned) {
            cell.why = Some(format!("{} is set", setting::text(self.set)));
        }
        StudyResult {
            form: 1,
            study: study.name.to_owned(),
            paper: study.paper.to_owned(),
            question: study.question.to_owned(),
            differs: if self.peers.is_empty() {
                study.differs.to_owned()
            } else {
                format!("{} {PEERS_DIFFER}", study.differs)
            },
            axes: study.axes.map(|(across, curves)| (across.to_owned(), curves.to_owned())),
            host,
            versions: versions::versions(&took_part),
            targets: collected.targets,
            link: collected.links,
            seed: self.seed,
            is_quick: self.is_quick,
            is_partial,
            negotiated: agreements,
            cells,
        }
    }
}

/// In which order cells are measured in a turn: one after the other, and the targets of a cell so that each of them comes first as often as the
/// others. Who comes first finds the machine as the cell before has left it.
fn order(cells: &[Aimed], turn: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cells.len()).collect();
    // Peers stand behind the cell of ours that they have.
    for (number, of_cell) in order.chunk_by_mut(|_, &next| cells[next].peer.is_some()).enumerate() {
        of_cell.rotate_left((turn + number) % of_cell.len());
    }
    order
}

/// The cells that this machine has everything for, and what it lacks for the others.
fn divided(cells: Vec<Aimed>, is_proxied: bool) -> (Vec<Aimed>, Vec<String>) {
    let mut lacking = Vec::new();
    let needs_network = |aimed: &Aimed| is_proxied && (aimed.peer.is_some() || !passes_a_proxy(&aimed.cell));
    let lacks = |aimed: &Aimed| {
        let network = needs_network(aimed).then(|| NETWORK.to_owned());
        network.or_else(|| aimed.cell.probe.lacks())
    };
    let has_all = |aimed: &Aimed| match lacks(aimed) {
        None => true,
        Some(lack) => {
            if !lacking.contains(&lack) {
                lacking.push(lack);
            }
            false
        }
    };
    let able = cells.into_iter().filter(has_all).collect();
    (able, lacking)
}

/// What a proxy is not.
const NETWORK: &str = "a network (through a proxy there are no losses, no reservations, no windows of TCP's, and nothing but our own target)";

/// Whether a cell's figure means something through a proxy: a workload on the target of ours that each site has.
fn passes_a_proxy(cell: &Cell) -> bool {
    let Some(link) = &cell.link else { return true };
    let is_plain = match &cell.probe {
        Probe::Disk(disk) => disk.is_plain(),
        _ => false,
    };
    is_plain && link.parse::<Link>().is_ok_and(|link| Proxy::lacks(&link).is_none())
}

/// The run with the figure that is nearest to this one, of those that will do.
fn near(runs: &[Run], measured: f64, will_do: impl Fn(&Run) -> bool) -> Option<&Run> {
    let distance = |run: &Run| (run.measured - measured).abs();
    runs.iter().filter(|run| will_do(run)).min_by(|one, other| distance(one).total_cmp(&distance(other)))
}

/// What limits the run whose model is the one that is told, or the nearest to it.
fn limit_of(models: &[(f64, Limit)], told: f64) -> Option<Limit> {
    let distance = |model: &(f64, Limit)| (model.0 - told).abs();
    models.iter().min_by(|one, other| distance(one).total_cmp(&distance(other))).map(|model| model.1)
}

/// Makes one figure of a cell's runs; nothing without any.
fn result(
    study: &Study,
    aimed: &Aimed,
    runs: Vec<Run>,
    agreements: &mut Vec<Negotiated>,
    is_quick: bool,
) -> Option<CellResult> {
    let cell = &aimed.cell;
    let figures: Vec<f64> = runs.iter().map(|run| run.measured).collect();
    let is_mean = cell.probe.is_mean();
    let middle = median(figures.clone())?;
    let measured = if is_mean { mean(&figures) } else { middle };
    let largest = figures.iter().copied().fold(f64::MIN, f64::max);
    let smallest = figures.iter().copied().fold(f64::MAX, f64::min);
    let models: Vec<(f64, Limit)> = runs.iter().filter_map(|run| run.model).collect();
    let model = median(models.iter().map(|model| model.0).collect());
    let limit = model.and_then(|model| limit_of(&models, model));
    let model = model.or_else(|| expected::expected(cell, is_quick));
    let middle = |of: &dyn Fn(&Run) -> f64| median(runs.iter().map(of).collect()).unwrap_or_default();
    let round_trips = middle(&|run| run.round_trips);
    let (idle, processor, busiest) =
        (middle(&|run| run.idle), middle(&|run| run.processor), middle(&|run| run.busy.busiest));
    let (loaded, processors) = (middle(&|run| run.busy.loaded), middle(&|run| run.processors));
    let together = middle(&|run| run.busy.together);
    // Far fewer of both than a double counts.
    let late_us = middle(&|run| run.keeping.lateness_median.as_micros() as f64) as u64;
    let packets = |of: fn(&Run) -> u64| middle(&|run| of(run) as f64) as u64;
    let overrun = packets(|run| run.keeping.overrun);
    let (lost, dropped) = (packets(|run| run.keeping.lost), packets(|run| run.keeping.dropped));
    let cached = runs.iter().filter_map(|run| run.cached).reduce(f64::max);
    let parts = near(&runs, measured, |run| run.parts.is_some()).and_then(|run| run.parts);
    let nearest_times = near(&runs, measured, |run| run.times.is_some()).and_then(|run| run.times);
    let times = if is_mean { Some(Times::of_few(&figures)) } else { nearest_times };
    let is_unfinished = runs.iter().any(|run| run.is_unfinished);
    let of_run = runs.iter().find_map(|run| run.limit);
    let told: Vec<&[Further]> = runs.iter().map(|run| run.further.as_slice()).collect();
    let mut further = Further::medians(&told, &cell.beside);
    if let Some((_, published)) = cell.beside.iter().find(|named| named.0 == DEVIATION)
        && figures.len() > 1
    {
        further.push(Further::new(MEAN, mean(&figures), ""));
        further.push(Further {
            published: Some(*published),
            ..Further::new(DEVIATION, deviation(&figures), "")
        });
    }
    let at_rest = runs.iter().find_map(|run| run.negotiated.as_ref()).map(Negotiated::idle_round_trip);
    let negotiated = runs.into_iter().find_map(|run| run.negotiated).map(|agreed| {
        let known = agreements.iter().position(|known| known.is_like(&agreed));
        known.unwrap_or_else(|| {
            agreements.push(agreed);
            agreements.len() - 1
        })
    });
    let own = |&(name, ref value): &(&str, String)| (name.to_owned(), value.clone());
    let mut result = CellResult {
        parameters: cell.parameters.iter().map(own).collect(),
        link: cell.link.clone(),
        model,
        model_absent: model.is_none().then(|| expected::absent(cell).to_owned()),
        published: cell.published.filter(|_| !(is_quick && cell.probe.differs_when_quick())),
        // A single run tells nothing of it.
        spread: (figures.len() > 1 && measured > 0.0).then(|| (largest - smallest) / measured),
        processor,
        idle,
        further,
        busiest,
        loaded,
        together,
        processors,
        late_us,
        overrun,
        lost,
        dropped,
        times,
        published_times: cell.published_times,
        round_trip_us: at_rest.filter(|time| !time.is_zero()).map(|time| time.as_secs_f64() * 1e6),
        negotiated,
        cached,
        parts,
        ..CellResult::of(figures, measured, cell.probe.unit())
    };
    let beside = if aimed.peer.is_some() { Some(OF_PEER) } else { cell.probe.beside() };
    let link = cell.link.as_deref().and_then(|link| link.parse::<Link>().ok());
    let turn = model.zip(link.as_ref());
    let turn =
        turn.and_then(|(model, link)| cell.probe.turn(model, link, at_rest.unwrap_or_default(), round_trips));
    result.judge(limit, turn.as_ref(), beside);
    if let Some(named) = limits::named(cell, &result, of_run) {
        named.tell(&mut result);
    }
    if is_unfinished {
        result.limit = UNFINISHED.to_owned();
    }
    result.above = why::above(cell, &result, limit);
    result.why = why::why(study, cell, &result);
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;

    /// What comes of runs with a figure, and what the model expects of each.
    fn concluded(
        name: &str,
        wanted: &[(&str, &str)],
        runs: &[(f64, Option<(f64, Limit)>)],
        is_quick: bool,
    ) -> CellResult {
        let study = study(name).expect("a study");
        let has =
            |cell: &Cell, pair: &(&str, &str)| cell.parameters.iter().any(|own| (own.0, &*own.1) == *pair);
        let mut cells = (study.cells)(1).into_iter();
        let cell = cells.find(|cell| wanted.iter().all(|pair| has(cell, pair))).expect("a cell");
        let runs = runs.iter().map(|&(measured, model)| Run::of(measured, model)).collect();
        result(study, &Aimed { cell, peer: None }, runs, &mut Vec::new(), is_quick).expect("runs")
    }

    #[test]
    fn the_limit_is_that_of_the_run_whose_model_is_told() {
        let wanted = [("request_kib", "64"), ("window", "32"), ("rtt_ms", "2"), ("mode", "read")];
        let (link, window) = (Limit::Link, Limit::Window);
        let runs = [(9.0, Some((9.1, window))), (18.6, Some((18.7, link))), (18.7, Some((18.8, link)))];
        let cell = concluded("dalgic-sweep", &wanted, &runs, false);
        assert_eq!((cell.measured, cell.model, &*cell.limit), (18.6, Some(18.7), "link-rate"));
        let cell = concluded("dalgic-sweep", &wanted, &[runs[1], runs[0], runs[0]], false);
        assert_eq!((cell.measured, cell.model, &*cell.limit), (9.0, Some(9.1), "command-window"));
    }

    #[test]
    fn logins_have_a_mean_as_the_papers_have() {
        let wanted =
            [("session", "normal"), ("phase", "total"), ("authentication", "none"), ("digests", "none")];
        let runs = [10.0, 11.0, 18.0].map(|measured| (measured, None));
        let cell = concluded("lu-login", &wanted, &runs, true);
        let times = cell.times.expect("of all logins");
        assert_eq!((cell.measured, times.of, times.min, times.max), (13.0, Some(3), Some(10.0), Some(18.0)));
        let published = cell.published_times.expect("the paper's");
        assert_eq!((cell.published, published.min), (Some(10_136.0), Some(10_014.0)));
    }

    #[test]
    fn what_has_no_limit_of_a_network_has_its_own_and_what_has_no_model_says_why() {
        let of = |phase, measured| {
            let wanted =
                [("session", "normal"), ("phase", phase), ("authentication", "chap"), ("digests", "none")];
            concluded("lu-login", &wanted, &[(measured, None)], true)
        };
        let security = of("security", 6.3);
        assert_eq!(security.reaches_model(), Some(true));
        assert_eq!(
            (security.model, &*security.limit, security.model_absent),
            (Some(6.0), "round-trips", None)
        );
        let initiator = of("initiator", 0.4);
        assert_eq!((initiator.model, &*initiator.limit), (None, "initiator"));
        assert!(initiator.model_absent.is_some_and(|why| why.contains("between its exchanges")));
    }

    #[test]
    fn what_does_less_stands_beside_no_published_figure() {
        let wanted = [("figure", "hit-rate"), ("files", "512"), ("design", "threads")];
        let published =
            |is_quick| concluded("fujita-netserver", &wanted, &[(99.0, None)], is_quick).published;
        assert_eq!((published(false), published(true)), (Some(85.4), None));
    }

    #[test]
    fn a_single_run_has_no_spread() {
        let wanted = [("request_kib", "64"), ("window", "32"), ("rtt_ms", "2"), ("mode", "read")];
        let spread = |runs: &[(f64, Option<(f64, Limit)>)]| {
            concluded("dalgic-sweep", &wanted, runs, false).spread.map(|spread| (spread * 100.0).round())
        };
        assert_eq!(
            (spread(&[(9.0, None)]), spread(&[(9.0, None), (10.0, None), (12.0, None)])),
            (None, Some(30.0))
        );
    }

    /// A laboratory with peers, which measures nothing.
    fn with_peers<T>(peers: &[Peer], told: impl FnOnce(&Laboratory<'_>) -> T) -> T {
        told(&Laboratory {
            binary: Path::new("/bin/false"),
            seed: 1,
            is_quick: false,
            stops: &AtomicBool::new(false),
            scratch: Path::new("/nowhere"),
            only: &[],
            set: &[],
            congestion_control: None,
            peers,
            is_proxied: false,
        })
    }

    #[test]
    fn each_target_comes_first_as_often_as_the_others() {
        let peers = [Peer::Tgtd, Peer::Istgt];
        let cells: Vec<Aimed> = with_peers(&peers, |laboratory| {
            let cells = (study("dalgic-lan").expect("a study").cells)(1).into_iter().take(2);
            cells.flat_map(|cell| laboratory.beside_peers(cell)).collect()
        });
        assert_eq!(
            [0, 1, 2].map(|turn| order(&cells, turn)),
            [[0, 1, 2, 4, 5, 3], [1, 2, 0, 5, 3, 4], [2, 0, 1, 3, 4, 5]]
        );
        let alone: Vec<Aimed> = with_peers(&[], |laboratory| {
            let cells = (study("dalgic-lan").expect("a study").cells)(1).into_iter().take(3);
            cells.flat_map(|cell| laboratory.beside_peers(cell)).collect()
        });
        assert_eq!(order(&alone, 1), [0, 1, 2]);
    }

    #[test]
    fn published_figures_stand_beside_the_target_that_they_are_of() {
        let published = |name: &str| {
            with_peers(&[Peer::Tgtd], |laboratory| {
                let cell = (study(name).expect("a study").cells)(1).remove(0);
                let aimed = laboratory.beside_peers(cell);
                let told = |aimed: &Aimed| (aimed.peer, aimed.cell.published.is_some());
                aimed.iter().map(told).collect::<Vec<_>>()
            })
        };
        // Trinkle compares targets; Dalgic and others had one, which was none of these.
        assert_eq!(published("trinkle-profiles"), [(None, true), (Some(Peer::Tgtd), true)]);
        assert_eq!(published("dalgic-sweep"), [(None, true), (Some(Peer::Tgtd), false)]);
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
}
