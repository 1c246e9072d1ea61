//! Another configuration while the server runs: who may log in, what they see, and how well it is reached, change at once;
//! everything else waits for a restart, and is named.

mod granting;

use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use lunette_scsi::{AccessState, ConfigError, TargetPort};
use tracing::warn;

use crate::admission::{Admission, Discovery};
use crate::config::{Config, Invalid, Limits, TargetConfig, UnitConfig};
use crate::handle::ServerHandle;
use crate::reactor::Message;
use crate::server::chap_names;
use crate::units::ServedTarget;

/// What has become of another configuration, as phrases for people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reloaded {
    /// What is another than before, and holds from now on.
    pub applied: Vec<String>,
    /// What is another than it was at the start, and waits for a restart.
    pub waiting: Vec<String>,
}

/// Why another configuration is not taken. Everything stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A rule between its values is broken.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// An access rule cannot be held to. What it grants may be there after a restart.
    #[error("target {target}: {source}")]
    Access {
        /// The target's name.
        target: String,
        /// Why.
        source: ConfigError,
    },
    /// Something is said of a portal group that the target does not have.
    #[error("target {target}: port_group: there is no portal group {tag}")]
    PortGroup {
        /// The target's name.
        target: String,
        /// The tag.
        tag: u16,
    },
    /// A unit changes with a restart, and who may have it at once: somebody could get a disk that neither configuration grants.
    #[error(
        "target {target}: LUN {lun} {difference}, which takes a restart, but the new access rules, users or redirection would hold at \
         once, for the disk that is served now; restart, or reload them alone before the disk is changed"
    )]
    Unit {
        /// The target's name.
        target: String,
        /// The unit's number.
        lun: u16,
        /// What becomes of it, as the end of a sentence.
        difference: &'static str,
    },
    /// The same with the ways to a target, which its rules are about.
    #[error(
        "target {target}: the portals or groups through which it is reached change, which takes a restart, but the new access rules, \
         users or redirection would hold at once, for the portals of now; restart, or reload them alone before the portals are changed"
    )]
    Way {
        /// The target's name.
        target: String,
    },
}

/// One target's part of what is changed.
struct Change<'a> {
    served: &'a Arc<ServedTarget>,
    admission: Option<Admission>,
    groups: Vec<(TargetPort, AccessState, bool)>,
}

impl ServerHandle {
    /// Takes over what may change while the server runs: access rules, CHAP users and secrets, redirections, the states of portal
    /// groups, and MaxRecvDataSegmentLength. Sessions that would not get in again as they are, or would see other units, end;
    /// their initiators are told. Those of all others go on undisturbed. Rules that would open what is another disk after a restart
    /// are not taken.
    ///
    /// # Errors
    /// [`ReloadError`]; nothing has changed then.
    pub fn reload(&self, config: &Config) -> Result<Reloaded, ReloadError> {
        config.validate()?;
        let shared = &self.shared;
        let mut in_force = shared.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reloaded = Reloaded { applied: Vec::new(), waiting: waiting(&in_force, config) };
        let mut changes = Vec::new();
        for target in &config.targets {
            let before = in_force.targets.iter().find(|before| before.name == target.name);
            let served = shared.targets.iter().find(|served| served.name == target.name);
            if let (Some(before), Some(served)) = (before, served) {
                changes.push(change(served, (&in_force, before), (config, target))?);
            }
        }
        // Nothing can fail from here on.
        config.warnings().iter().for_each(|warning| warn!("{warning}"));
        let attempts = || shared.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts().set_names(chap_names(config));
        for Change { served, admission, groups } in changes {
            if let Some(admission) = admission {
                served.admission.set(admission);
                reloaded.applied.push(format!("target {}: who may log in, and what they see", served.name));
            }
            for (port, state, preferred) in groups {
                self.change_units(served, |unit| unit.begin_access_anew(port, state, preferred));
                reloaded.applied.push(format!("target {}: portal group {}", served.name, port.id()));
            }
        }
        let of_discovery =
            |config: &Config| (config.discovery.clone(), config.discovery_scope, config.chap.clone());
        if of_discovery(&in_force) != of_discovery(config) {
            shared.discovery.set(Discovery::new(config));
            let what = "who may discover targets, how they prove who they are, and what they are told";
            reloaded.applied.push(what.to_owned());
        }
        let segment_max = config.limits.max_recv_data_segment_length_bytes;
        if shared.segment_max.swap(segment_max, Ordering::AcqRel) != segment_max {
            shared.reactors.iter().for_each(|reactor| reactor.send(Message::DeclareAnew));
            reloaded.applied.push(format!("initiators may send {segment_max} bytes in one PDU"));
        }
        in_force.take_over(config);
        shared.reactors.iter().for_each(|reactor| reactor.send(Message::Reconsider));
        Ok(reloaded)
    }
}

/// What has to change for a target that is being served.
fn change<'a>(
    served: &'a Arc<ServedTarget>,
    (before, old): (&Config, &TargetConfig),
    (after, new): (&Config, &TargetConfig),
) -> Result<Change<'a>, ReloadError> {
    granting::check((before, old), (after, new))?;
    let target = || served.name.clone();
    let looked_at =
        |config: &TargetConfig| (config.access.clone(), config.chap.clone(), config.redirect.clone());
    let is_same = looked_at(old) == looked_at(new) && before.chap == after.chap;
    let admission = (!is_same).then(|| Admission::new(new, &after.chap, &served.device));
    let admission =
        admission.transpose().map_err(|source| ReloadError::Access { target: target(), source })?;
    let is_there = |tag| new.is_in(tag) && after.portals.iter().any(|portal| portal.group == tag);
    if let Some(group) = new.port_groups.iter().find(|group| !is_there(group.tag)) {
        return Err(ReloadError::PortGroup { target: target(), tag: group.tag });
    }
    let ports = served.device.ports().iter().copied();
    let groups = ports.filter(|&port| beginning(old, port) != beginning(new, port)).map(|port| {
        let (state, preferred) = beginning(new, port);
        (port, state, preferred)
    });
    Ok(Change { served, admission, groups: groups.collect() })
}

/// What a configuration says of a portal group, or leaves unsaid.
fn beginning(target: &TargetConfig, port: TargetPort) -> (AccessState, bool) {
    let group = target.port_groups.iter().find(|group| group.tag == port.id());
    group.map_or_else(Default::default, |group| (group.state, group.preferred))
}

/// What is different between two configurations and takes a restart.
fn waiting(old: &Config, new: &Config) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |what: &str, is_same: bool| {
        if !is_same {
            found.push(what.to_owned());
        }
    };
    look("the portals", old.portals == new.portals);
    let of_others = |limits: &Limits| Limits { max_recv_data_segment_length_bytes: 0, ..limits.clone() };
    look("[limits]", of_others(&old.limits) == of_others(&new.limits));
    look("[reactors]", old.reactors == new.reactors);
    look("large_pages", old.large_pages == new.large_pages);
    look("[isns]", old.isns == new.isns);
    look("state_directory", old.state_directory == new.state_directory);
    look("trace_directory", old.trace_directory == new.trace_directory);
    look("task_times", old.task_times == new.task_times);
    let targets = listed(&old.targets, &new.targets, |target| target.name.as_str());
    found.extend(targets.flat_map(|(name, pair)| match pair {
        (Some(old), Some(new)) => waiting_in(name, old, new),
        (None, _) => vec![format!("target {name}, which is new")],
        (_, None) => vec![format!("target {name}, which is gone")],
    }));
    found
}

fn waiting_in(name: &str, old: &TargetConfig, new: &TargetConfig) -> Vec<String> {
    let target = format!("target {name}");
    let mut found = Vec::new();
    if old.alias != new.alias {
        found.push(format!("{target}: alias"));
    }
    if old.groups != new.groups {
        found.push(format!("{target}: groups"));
    }
    if old.scsi_events != new.scsi_events {
        found.push(format!("{target}: scsi_events"));
    }
    let number = |unit: &UnitConfig| unit.lun;
    found.extend(listed(&old.units, &new.units, number).filter_map(|(number, pair)| match pair {
        (Some(old), Some(new)) => (old != new).then(|| format!("{target}: LUN {number}")),
        (None, _) => Some(format!("{target}: LUN {number}, which is new")),
        (_, None) => Some(format!("{target}: LUN {number}, which is gone")),
    }));
    found
}

/// What two lists have under each key, those of the first list first.
fn listed<'a, T, K: PartialEq + Copy + Debug>(
    old: &'a [T],
    new: &'a [T],
    key: impl Fn(&'a T) -> K + Copy + 'a,
) -> impl Iterator<Item = (K, (Option<&'a T>, Option<&'a T>))> {
    let find = move |list: &'a [T], wanted: K| list.iter().find(|item| key(item) == wanted);
    let stays = old.iter().map(move |item| (key(item), (Some(item), find(new, key(item)))));
    let is_new = new.iter().filter(move |item| find(old, key(item)).is_none());
    stays.chain(is_new.map(move |item| (key(item), (None, Some(item)))))
}

impl Config {
    /// Takes over what a reload has applied from `new`.
    fn take_over(&mut self, new: &Config) {
        self.discovery = new.discovery.clone();
        self.discovery_scope = new.discovery_scope;
        self.chap = new.chap.clone();
        self.limits.max_recv_data_segment_length_bytes = new.limits.max_recv_data_segment_length_bytes;
        for target in &mut self.targets {
            let Some(new) = new.targets.iter().find(|new| new.name == target.name) else { continue };
            target.access.clone_from(&new.access);
            target.chap = new.chap.clone();
            target.port_groups.clone_from(&new.port_groups);
            target.redirect.clone_from(&new.redirect);
        }
    }
}
