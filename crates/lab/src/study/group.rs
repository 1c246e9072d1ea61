//! The cells of one link: each as often as it takes, their runs interleaved. A run that fails is told, and the others go on.

use std::cell::OnceCell;
use std::mem;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunette_link::Link;
use lunette_wan::isolate_mounts;

use super::Study;
use super::collected::{Collected, STOLEN_MAX};
use super::conclusion::so_far;
use super::image::Image;
use super::judgement::HELD;
use super::peer::Peer;
use super::probe::{self, Duty, Kept, Place, Probe, Run};
use super::runner::{CONGESTION_CONTROL, Laboratory, Told};
use super::selection::{Aimed, order};
use super::setting::Ends;
use super::site::Site;
use super::stand::Stand;
use super::versions;
use crate::LabError;

/// What is measured over one link, and by whom.
pub(super) struct Group<'a> {
    laboratory: &'a Laboratory<'a>,
    study: &'a Study,
    /// All cells of the study; those of this link are measured.
    cells: &'a [Aimed],
    /// Somebody has asked for the targets beside ours.
    are_asked_for: bool,
    told: &'a (dyn Fn(Told<'_>) + Sync),
    name: Option<&'a str>,
    link: Option<Link>,
    ends: Ends,
    image: OnceCell<Image>,
    kept: Kept,
    /// Each target has a link of its own, and all are there at the same time, so that they can take turns. Without a network there
    /// is nothing in the one that there is.
    stands: Vec<Stand<Option<Site>>>,
}

impl<'a> Group<'a> {
    /// Those of this link; none: those without a network.
    ///
    /// # Errors
    /// The link is none.
    pub(super) fn new(
        laboratory: &'a Laboratory<'a>,
        study: &'a Study,
        (cells, name): (&'a [Aimed], Option<&'a str>),
        are_asked_for: bool,
        told: &'a (dyn Fn(Told<'_>) + Sync),
    ) -> Result<Self, LabError> {
        let link = name.map(str::parse::<Link>).transpose();
        let link = link.map_err(|error| LabError::Plan(error.to_string()))?;
        let mut stands: Vec<Stand<_>> = Vec::new();
        for aimed in cells.iter().filter(|aimed| aimed.link() == name) {
            if !stands.iter().any(|stand| stand.peer == aimed.peer) {
                stands.push(Stand::new(aimed.peer));
            }
        }
        let (ends, image, kept) = (Ends::of(laboratory.set), OnceCell::new(), Kept::default());
        Ok(Self { laboratory, study, cells, are_asked_for, told, name, link, ends, image, kept, stands })
    }

    /// Measures all of them. The calling thread stays in the namespace of a target, which ends with it.
    ///
    /// # Errors
    /// Nothing has been measured of the study so far, and what was asked for, or our own target, cannot be had on this machine.
    pub(super) fn measure(&mut self, collected: &mut Collected) -> Result<(), LabError> {
        if self.is_stopped() {
            return Ok(());
        }
        let own = self.own();
        if own.iter().any(|&at| matches!(self.cells[at].cell.probe, Probe::Files(_))) {
            isolate_mounts().map_err(LabError::system("a mount namespace"))?;
        }
        for number in 0..self.stands.len() {
            let peer = self.stands[number].peer;
            if collected.failures.is_left_out(peer) {
                continue;
            }
            if let Err(error) = self.enter(number, collected) {
                if collected.is_untouched() && (peer.is_none() || error.is_of_plan()) {
                    return Err(error);
                }
                let first = own.iter().find(|&&at| self.cells[at].peer == peer);
                first.iter().for_each(|&&at| self.lose(at, None, &error, collected));
            }
        }
        let turns =
            own.iter().map(|&at| self.laboratory.runs(&self.cells[at].cell)).max().unwrap_or_default();
        for turn in 0..turns {
            for at in order(self.cells, turn).into_iter().filter(|at| own.contains(at)) {
                self.look_after(at, collected);
                let aimed = &self.cells[at];
                let is_over = !collected.is_short(at) || collected.failures.is_left_out(aimed.peer);
                if is_over || turn >= self.laboratory.runs(&aimed.cell) {
                    continue;
                }
                if self.is_stopped() {
                    break;
                }
                let (run, took) = self.carry(at, turn, collected);
                match run {
                    Ok(run) => {
                        collected.add(at, turn, run, took);
                        self.tell(at, None, collected);
                    }
                    Err(error) if collected.is_untouched() && error.is_of_plan() => return Err(error),
                    Err(error) => self.lose(at, Some(true), &error, collected),
                }
            }
        }
        self.measure_more(collected);
        self.look_after_all(collected);
        for stand in &self.stands {
            if let Some(site) = stand.site().and_then(Option::as_ref) {
                self.note_facts(stand.peer, site, collected);
            }
        }
        Ok(())
    }

    /// Runs that are done again, and more of those that nobody can explain, while there is time. There is a figure already: who has
    /// time tries others where one fails.
    fn measure_more(&mut self, collected: &mut Collected) {
        let (study, is_quick) = (self.study, self.laboratory.is_quick);
        let comes_to = |aimed: &Aimed, runs: &[Run]| so_far(study, aimed, runs, is_quick);
        let is_puzzling = |aimed: &Aimed, runs: &[Run]| {
            let cell = comes_to(aimed, runs)?;
            let is_of_echo = cell.exceeds_model() && cell.echo_stolen > STOLEN_MAX;
            (cell.is_unexplained() || is_of_echo).then(|| cell.distance_from_model())
        };
        let falls_short = |aimed: &Aimed, runs: &[Run]| {
            let cell = comes_to(aimed, runs).filter(|cell| HELD.contains(&study.name) && cell.is_ours())?;
            (cell.reaches_model() == Some(false)).then(|| cell.distance_from_model())
        };
        let (cells, name) = (self.cells, self.name);
        let mut goes_on = true;
        while goes_on && !self.is_stopped() {
            let again = collected.next_again(cells, name);
            let more = || collected.next_more(cells, name, is_puzzling);
            let more = || more().or_else(|| collected.next_more(cells, name, falls_short));
            let (at, turn) = match again {
                Some((at, place)) => (at, collected.turn(at, place)),
                None => match more() {
                    Some(at) => (at, collected.next_turn(at)),
                    None => break,
                },
            };
            self.look_after(at, collected);
            if collected.failures.is_left_out(cells[at].peer) {
                continue;
            }
            let (run, took) = self.carry(at, turn, collected);
            let (run, error) = run.map_or_else(|error| (None, Some(error)), |run| (Some(run), None));
            match again {
                Some((at, place)) => collected.choose(at, place, run, took),
                None => collected.add_more(at, turn, run, took),
            }
            match error {
                None => self.tell(at, None, collected),
                Some(error) => {
                    self.lose(at, Some(false), &error, collected);
                    let is_gone = self.stands.iter().any(|stand| stand.gone().is_some());
                    goes_on = self.laboratory.patience.is_some() && !is_gone;
                }
            }
        }
    }

    /// The link; none: there is no network.
    pub(super) const fn name(&self) -> Option<&'a str> {
        self.name
    }

    /// The places of this link's cells.
    pub(super) fn own(&self) -> Vec<usize> {
        (0..self.cells.len()).filter(|&at| self.cells[at].link() == self.name).collect()
    }

    fn is_stopped(&self) -> bool {
        self.laboratory.stops.load(Ordering::Relaxed)
    }

    fn tell(&self, at: usize, failed: Option<&str>, collected: &Collected) {
        let done = collected.done(self.cells);
        let of = collected.failures.planned().max(done);
        (self.told)(Told { done, of, parameters: &self.cells[at].cell.parameters, failed });
    }

    /// Nobody comes any more who would notice that a target has ended, as one that crashes at the last logout.
    fn look_after_all(&mut self, collected: &mut Collected) {
        for number in 0..self.stands.len() {
            let last = self.own().into_iter().rfind(|&at| self.number(at) == number);
            if let Some(at) = last.filter(|_| !self.is_stopped()) {
                self.look_after(at, collected);
            }
        }
    }

    /// Sees to it that a stand has its site.
    fn enter(&mut self, number: usize, collected: &mut Collected) -> Result<(), LabError> {
        let Self { laboratory, link, ends, stands, .. } = self;
        let stand = &mut stands[number];
        let peer = stand.peer;
        let is_new = stand.enter(|| {
            let Some(link) = link.as_ref() else { return Ok(None) };
            let controls = [laboratory.congestion_control.unwrap_or(CONGESTION_CONTROL)];
            let (seed, binary) = (laboratory.seed, laboratory.binary);
            let site = match peer {
                None if laboratory.is_proxied => Site::open_proxied(link, seed, binary, ends),
                None => Site::open(link, seed, &controls, binary, ends),
                Some(peer) => Site::open_peer(link, seed, &controls, binary, peer, ends),
            }?;
            laboratory.check_control(&site)?;
            Ok(Some(site))
        })?;
        if let Some(Some(site)) = stand.site().filter(|_| is_new) {
            let target = peer.map_or("lunette", Peer::name);
            // What it is called is not what is measured.
            if !collected.targets.contains_key(target)
                && let Ok(identity) = versions::identity(site)
            {
                collected.targets.insert(target.to_owned(), identity);
            }
        }
        Ok(())
    }

    /// One run of a cell, and how long it took. Where it fails, the next one there has a new site and new images.
    fn carry(
        &mut self,
        at: usize,
        turn: usize,
        collected: &mut Collected,
    ) -> (Result<Run, LabError>, Duration) {
        let (cell, number) = (&self.cells[at].cell, self.number(at));
        let begun = Instant::now();
        if let Err(error) = self.enter(number, collected) {
            return (Err(error), begun.elapsed());
        }
        let begun = Instant::now();
        let seed = self.laboratory.seed.wrapping_add(turn as u64);
        let stand = &self.stands[number];
        let over = stand.site().and_then(Option::as_ref).zip(self.link.as_ref());
        let round_trip = over.map(|(_, link)| link.round_trip()).unwrap_or_default();
        let grows = cell.probe.to_grow(over.map(|over| over.1));
        let duty = Duty::on(round_trip, grows, seed, self.laboratory.is_quick);
        let Laboratory { binary, scratch, set, .. } = *self.laboratory;
        let set = if over.is_some() { set } else { &[] };
        let place = Place { over, binary, scratch, set, image: &self.image, kept: &self.kept };
        let done = probe::run_once(place, &cell.probe, duty);
        let took = begun.elapsed();
        match done {
            Ok(run) => {
                self.stands[number].has_carried();
                (Ok(run), took)
            }
            Err(error) => (Err(self.leave(number, took, error, collected)), took),
        }
    }

    /// Where a cell is measured; each has a stand.
    fn number(&self, at: usize) -> usize {
        let peer = self.cells[at].peer;
        self.stands.iter().position(|stand| stand.peer == peer).unwrap_or_default()
    }

    /// A target that has ended since the last run is a failure of its own: the next run, which it would have been the end of, is none.
    fn look_after(&mut self, at: usize, collected: &mut Collected) {
        let number = self.number(at);
        let site = self.stands[number].site_mut().and_then(Option::as_mut);
        if let Some(status) = site.and_then(Site::ended) {
            let error = LabError::TargetEnded { status, seen: None };
            let error = self.leave(number, Duration::ZERO, error, collected);
            self.lose(at, Some(false), &error, collected);
        }
    }

    /// Leaves the site of a run that has failed, and tells what is known of why.
    fn leave(
        &mut self,
        number: usize,
        took: Duration,
        error: LabError,
        collected: &mut Collected,
    ) -> LabError {
        let site = self.stands[number].has_failed(took, &error).flatten();
        let error = match site {
            Some(mut site) => {
                self.note_facts(self.stands[number].peer, &site, collected);
                if matches!(error, LabError::TargetEnded { .. }) { error } else { site.blamed(error) }
            }
            None => error,
        };
        // Something may still write to them.
        (self.image, self.kept) = (OnceCell::new(), mem::take(&mut self.kept).without_image());
        error
    }

    /// A run of a cell has not come: one that was planned or one beyond that, or a site before its first run. What nobody has
    /// asked for is left out, and where nothing more is tried, all cells there have failed.
    fn lose(&mut self, at: usize, planned: Option<bool>, error: &LabError, collected: &mut Collected) {
        let (peer, reason) = (self.cells[at].peer, error.to_string());
        if let Some(peer) = peer.filter(|_| !self.are_asked_for && error.may_be_of_a_target()) {
            collected.failures.leave_out(peer, &reason);
            collected.targets.remove(peer.name());
            self.tell(at, Some(&format!("{peer} is left out: {reason}")), collected);
            return;
        }
        if let Some(is_planned) = planned {
            collected.failures.add(at, &reason, is_planned);
        }
        let Some(gone) = self.stands[self.number(at)].gone() else {
            return self.tell(at, Some(&reason), collected);
        };
        let others = self.own().into_iter().filter(|&other| self.cells[other].peer == peer);
        collected.give_up(others, gone);
        self.tell(at, Some(&format!("{reason}; nothing more is measured there")), collected);
    }

    /// What took part in a virtual machine, and how a link was kept: of several networks in its place the worst is told.
    fn note_facts(&self, peer: Option<Peer>, site: &Site, collected: &mut Collected) {
        collected.guest_versions.extend(site.guest_versions());
        let Some((name, link)) = self.name.zip(self.link.as_ref()) else { return };
        // Each run has its own part of it.
        let Ok(facts) = site.facts(link) else { return };
        let known = collected.links.entry(name.to_owned()).or_insert_with(|| facts.clone());
        let mut read_back_bytes = known.read_back_bytes.clone();
        let bytes = site.written().read_back_bytes();
        if bytes > 0 {
            *read_back_bytes.entry(peer.map_or("lunette", Peer::name).to_owned()).or_default() += bytes;
        }
        // What commands are held against is the way to our own target.
        let echo_us = if peer.is_none() { facts.echo_us.or(known.echo_us) } else { known.echo_us };
        if (facts.is_doubtful, facts.late_us) > (known.is_doubtful, known.late_us) {
            *known = facts;
        }
        known.echo_us = echo_us;
        known.read_back_bytes = read_back_bytes;
    }
}
