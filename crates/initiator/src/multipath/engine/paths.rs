//! Paths that come and go: logins on threads of their own, and what is known of what is behind them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lunette_scsi::client::port_groups::PortGroup;
use lunette_scsi::client::{Sense, UnitIdentity};

use super::super::core::{Access, Path};
use super::super::open::{Failed, Opened, Told, open};
use super::super::{PathNews, PathOptions};
use super::commands::OwnReset;
use super::{Engine, Way};
use crate::connect::{Learnt, end_session_at};
use crate::{EngineEvent, Error};

/// What a thread has come to.
#[derive(Debug)]
pub(super) enum Job {
    Open(usize, Result<Box<Opened>, Failed>),
    /// The portal group in which the session of a path was ended.
    Fence(usize, Result<Option<u16>, Error>),
}

impl Way {
    pub(super) fn new(options: PathOptions) -> Self {
        Self {
            options: Arc::new(options),
            learnt: Learnt::default(),
            session: None,
            began: Duration::ZERO,
            errands: HashMap::new(),
            is_asked: false,
            look: None,
            doubt: None,
            left_for: None,
            own_reset: OwnReset::default(),
            reason: None,
            lost_at: None,
            wait: Duration::ZERO,
            relative_target_port: None,
            group: None,
        }
    }
}

impl Engine {
    /// Logs in on another thread.
    pub(super) fn open(&self, path: usize) {
        let (options, learnt) = (Arc::clone(&self.ways[path].options), self.ways[path].learnt.clone());
        self.run(path, Job::Open, move || open(&options, learnt).map(Box::new));
    }

    /// Ends the old session of a path from another portal of its group.
    pub(super) fn fence(&self, path: usize, via: usize) {
        let (options, isid) = (Arc::clone(&self.ways[path].options), self.ways[path].options.session.isid);
        let (portals, learnt) =
            (self.ways[via].options.session.portals.clone(), self.ways[via].learnt.clone());
        self.run(path, Job::Fence, move || {
            let there = crate::Options { portals, ..options.session.clone() };
            isid.ok_or(Error::Ended).and_then(|isid| end_session_at(&there, &learnt, isid))
        });
    }

    /// Has a thread do this, and tells what it has come to as such a job, or that there was no thread.
    fn run<T: 'static, E: From<Error> + 'static>(
        &self,
        path: usize,
        job: fn(usize, Result<T, E>) -> Job,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) {
        let (sender, waker) = (self.jobs.0.clone(), self.waker());
        let run = move || {
            // Where the engine has gone meanwhile, the session is closed.
            let _ = sender.send(job(path, work()));
            waker.wake();
        };
        if let Err(source) = std::thread::Builder::new().name("iscsi-path".into()).spawn(run) {
            let error = Error::System { what: "a thread", source };
            let _ = self.jobs.0.send(job(path, Err(error.into())));
            self.waker.wake();
        }
    }

    /// Takes what threads have come to. `failed` takes the first error of each path.
    pub(super) fn take_jobs(&mut self, failed: &mut [Option<Error>]) {
        while let Ok(job) = self.jobs.1.try_recv() {
            match job {
                Job::Fence(path, ended) => {
                    let nexus = self.core.ghosts.nexus_of(path);
                    let group = ended.as_ref().ok().copied().flatten();
                    let is_done =
                        group.is_some() && nexus.is_some_and(|nexus| nexus.portal_group_tag == group);
                    tracing::info!(path, ?ended, is_done, "a login to end what a lost path has left");
                    self.core.fenced(self.now, path, is_done);
                }
                Job::Open(path, result) => {
                    // A unit that says nothing of use may do so a little later; one that is another hardly.
                    let may_change = matches!(&result, Err(Failed { error: Error::Path { .. }, .. }));
                    let told = self.told(&result);
                    let reset_told_at = told.reset_at.map(|at| at.saturating_duration_since(self.start));
                    self.hear_of_medium(told);
                    let opened = result.map_err(|failed| failed.error);
                    if let Err(error) = opened.and_then(|opened| self.join(path, *opened)) {
                        let is_final = !may_change && !error.is_temporary();
                        self.not_opened(path, &error, is_final, reset_told_at);
                        if let Some(first) = failed.get_mut(path) {
                            first.get_or_insert(error);
                        }
                    }
                }
            }
        }
    }

    /// What a login was told. What another unit has told does not matter.
    fn told(&self, result: &Result<Box<Opened>, Failed>) -> Told {
        match result {
            Ok(opened) => {
                let is_it = |known: &UnitIdentity| known.is_same_unit(&opened.identity);
                if self.identity.as_ref().is_none_or(is_it) { opened.told } else { Told::default() }
            }
            Err(failed) => failed.told,
        }
    }

    /// A login was told that the medium may be another one. A path that is there is told so itself; where there was one, and is none any
    /// more, nobody knows what was there in between.
    fn hear_of_medium(&mut self, told: Told) {
        let was_there = self.core.paths.iter().any(|path| path.was_lost);
        if told.of_medium && was_there && self.core.paths.iter().all(|path| !path.is_up()) {
            self.is_exchanged = true;
            self.unit_changed("its medium may have been changed".to_owned());
        }
    }

    fn unit_changed(&mut self, what: String) {
        self.changed = Some(what.clone());
        let lun = self.lun();
        self.events.push_back(EngineEvent::UnitChanged { lun, what });
    }

    fn not_opened(&mut self, path: usize, error: &Error, is_final: bool, reset_told_at: Option<Duration>) {
        let reason = error.to_string();
        if self.core.paths[path].tries <= 1 {
            self.tell(path, PathNews::Failed { reason: reason.clone() });
        }
        self.ways[path].reason = Some(reason);
        self.core.open_failed(self.now, path, is_final, reset_told_at);
    }

    /// A path is there, if it leads to the right unit.
    fn join(&mut self, path: usize, opened: Opened) -> Result<(), Error> {
        if self.is_leaving || self.is_over() {
            return Err(Error::Ended);
        }
        if let Some(what) = self.changed.clone().filter(|_| self.is_exchanged) {
            return Err(Error::Path { portal: self.ways[path].options.portal(), what });
        }
        let is_whole = self.compare(path, &opened.identity, opened.not_ready.as_ref())?;
        self.watch(path, &opened.engine)?;
        let Opened { engine, told, asked_at, .. } = opened;
        let portal_group_tag = engine.portal_group_tag();
        if self.record.attempts.is_empty() {
            self.record = engine.login_record().clone();
            self.parameters = *engine.parameters();
        }
        self.changed = None;
        let way = &mut self.ways[path];
        way.began = self.start.elapsed().saturating_sub(engine.elapsed());
        let asked_at = way.began + asked_at;
        way.wait = Duration::from_secs(engine.parameters().default_time2wait_s.into());
        way.session = Some(engine);
        (way.reason, way.is_asked, way.own_reset) = (None, false, OwnReset::default());
        way.doubt = opened.not_ready.filter(|_| !is_whole).map(|sense| sense.to_string());
        (way.relative_target_port, way.group) = (opened.relative_target_port, opened.group);
        let after = way.lost_at.take().map(|lost_at| self.now.saturating_sub(lost_at));
        self.tell(path, PathNews::Up { after });
        // Its state first, so that nothing is sent where it cannot be carried out.
        if opened.groups.is_empty() {
            self.core.has_access(self.now, asked_at, path, (Access::Optimized, false));
        }
        self.take_groups(&opened.groups, asked_at);
        if !is_whole {
            self.core.doubted(self.now, path);
        }
        self.core.opened(self.now, path, portal_group_tag, told.reset_at.is_some());
        Ok(())
    }

    /// All paths lead to one unit. False: by its names this one does, but it does not tell the capacity now, as a path without the medium.
    pub(super) fn compare(
        &mut self,
        path: usize,
        found: &UnitIdentity,
        not_ready: Option<&Sense>,
    ) -> Result<bool, Error> {
        let target = &self.ways[path].options.session.target;
        let Some(known) = &mut self.identity else {
            (self.identity, self.target) = (Some(found.clone()), Some(target.clone()));
            return Ok(true);
        };
        // Names that anybody may give tell the units of one target apart, and not those of two.
        let first = self.target.get_or_insert_with(|| target.clone());
        if first != target && !known.shares_unique_name(found) {
            let what = format!(
                "its target is {target} and that of the first path {first}, and their units have no name in common that is unique in the world"
            );
            return Err(Error::Path { portal: self.ways[path].options.portal(), what });
        }
        let Some(difference) = known.difference(found) else {
            if known.grow(found) {
                let lun = self.lun();
                self.events.push_back(EngineEvent::UnitGrown { lun });
            }
            return Ok(true);
        };
        if known.is_same_unit(found) && !known.has_capacity() {
            self.identity = Some(found.clone());
            return Ok(true);
        }
        if known.is_same_unit(found) && !found.has_capacity() {
            return Ok(not_ready.is_some_and(|sense| difference.is_of_work(sense)));
        }
        let of_path = &self.core.paths[path];
        if of_path.is_up() && known.is_same_unit(found) && known.shares_unique_name(found) {
            // Its size has changed in a session that goes on, and it tells so to the caller by itself.
            return Ok(true);
        }
        let was_used = of_path.is_up() || of_path.was_lost;
        let (what, portal) = (difference.to_string(), self.ways[path].options.portal());
        let is_other = |(at, other): (usize, &Path)| at != path && other.is_up();
        // One that never led to the unit says nothing of it.
        if was_used && !self.core.paths.iter().enumerate().any(is_other) {
            self.unit_changed(what.clone());
        }
        Err(Error::Path { portal, what: format!("it leads to another logical unit: {what}") })
    }

    /// Takes the states of all port groups, as they are told to who asked then.
    pub(super) fn take_groups(&mut self, groups: &[PortGroup], asked_at: Duration) {
        for path in 0..self.ways.len() {
            let of_path = |group: &&PortGroup| Some(group.group) == self.ways[path].group;
            let Some(group) = groups.iter().find(of_path) else { continue };
            let before = self.core.paths[path].access;
            let told = (Access::from_code(group.state_code), group.preferred);
            self.core.has_access(self.now, asked_at, path, told);
            let access = self.core.paths[path].access;
            if access != before {
                self.tell(path, PathNews::Access(access));
            }
        }
    }

    /// The session of a path is over, and all its commands have ended.
    pub(super) fn path_lost(&mut self, path: usize) {
        let way = &mut self.ways[path];
        way.session = None;
        way.errands.clear();
        (way.is_asked, way.lost_at, way.look, way.doubt) = (false, Some(self.now), None, None);
        if self.is_leaving {
            return;
        }
        let reason = way.reason.clone().unwrap_or_default();
        self.core.lost(self.now, path, way.wait);
        self.forget_reset(path);
        let left = self.core.paths.iter().filter(|path| path.rank().is_some()).count();
        self.tell(path, PathNews::Lost { reason, left });
    }
}
