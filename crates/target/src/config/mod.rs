//! The configuration of a target as typed values, read from flags (`--lun`) or from `lunette.toml`.
//!
//! Not here: whether a volume can be opened or a port is free; that shows when a [`crate::Server`] starts.

mod access;
mod access_table;
mod address_range;
mod chap;
mod credentials;
mod discovery_scope;
mod excerpt;
mod file;
mod isns;
mod limits;
mod lun;
mod port_group;
mod portal;
mod reactors;
mod secret;
mod size;
mod store;
mod value;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use lunette_block::{EngineKind, Provisioning, StoreSpec};

pub use access::{AccessRule, Grant, NamePattern, UnitGrant, parse_allow_flag};
pub use address_range::AddressRange;
pub use chap::{ChapConfig, ChapRules, SECRET_LENGTH_MIN, parse_chap_flag};
pub use discovery_scope::DiscoveryScope;
pub use excerpt::Excerpt;
pub use file::FileError;
pub use isns::{IsnsConfig, IsnsNotifications, IsnsServer};
pub use limits::Limits;
pub use lun::{LunError, LunFlag};
pub use lunette_iscsi::chap::{ChapAlgorithm, ChapCredential, ChapUser, Secret};
pub use lunette_iscsi::login::{Redirection, TargetAddress};
pub use lunette_iscsi::parameters::DigestPolicy;
pub use lunette_scsi::{AccessState, ProtectionType};
pub use port_group::{PortGroupConfig, parse_access_state};
pub use portal::{DEFAULT_GROUP, PortalConfig};
pub use reactors::{Cores, Poll, Reactors};
pub use secret::{SecretError, SecretFault, SecretSource, parse_chap_name};
pub use size::{Size, SizeError};
pub use store::{StoreText, StoreTextError};
pub use value::{
    DEFAULT_PORT, LUN_MAX, ValueError, WriteMode, default_portals, default_target_name, parse_portal,
    parse_target_name,
};

/// All that a server needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen. See [`default_portals`].
    pub portals: Vec<PortalConfig>,
    /// The targets, with different names.
    pub targets: Vec<TargetConfig>,
    /// Who may discover targets.
    pub discovery: ChapConfig,
    /// Which of a target's portals an initiator is told of that asks for them.
    pub discovery_scope: DiscoveryScope,
    /// What holds for CHAP everywhere.
    pub chap: ChapRules,
    /// What is granted to initiators.
    pub limits: Limits,
    /// The threads that serve connections.
    pub reactors: Reactors,
    /// Buffers and disks in memory are in large pages, where the kernel gives them.
    pub large_pages: bool,
    /// Name servers.
    pub isns: IsnsConfig,
    /// The directory that keeps the state of all logical units over restarts; it is made if it is missing. `None`: beside
    /// each image, and for block devices nowhere.
    pub state_directory: Option<PathBuf>,
    /// The directory where what initiators read and write is recorded, a file for each logical unit; it is made if it is
    /// missing. `None`: nothing is.
    pub trace_directory: Option<PathBuf>,
    /// It is also recorded there how long each task waited for its data, was in its store, and was at the target besides. Costs
    /// each command some looks at the clock.
    pub task_times: bool,
}

/// One target: a name, and the logical units that are found under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetConfig {
    /// The iSCSI name, as [`parse_target_name`] spells it. See [`default_target_name`].
    pub name: String,
    /// A name for people, which initiators show and never compare.
    pub alias: Option<String>,
    /// The logical units, with different numbers.
    pub units: Vec<UnitConfig>,
    /// Who may log in.
    pub chap: ChapConfig,
    /// What who gets of it, the first rule that fits; without rules everybody gets all.
    pub access: Vec<AccessRule>,
    /// How well the units can be reached through each portal group; those that are left out are active and optimized.
    pub port_groups: Vec<PortGroupConfig>,
    /// The portal groups through which it is reached; empty: all.
    pub groups: Vec<u16>,
    /// Initiators are told of unit attentions as they come up, by Asynchronous Messages.
    pub scsi_events: bool,
    /// Where initiators are sent instead. Such a target needs no logical units.
    pub redirect: Option<Redirection>,
}

/// One logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitConfig {
    /// Its number, 0 to [`LUN_MAX`].
    pub lun: u16,
    /// Where its bytes are.
    pub store: StoreSpec,
    /// Every change is refused.
    pub read_only: bool,
    /// The medium is removable: initiators may eject it, load it again, and prevent that.
    pub removable: bool,
    /// 512 or 4096. `None`: 512 for files, memory and null, the device's own for block devices.
    pub block_length_bytes: Option<u32>,
    /// The type of the protection information that is kept with each block. `None`: there is none.
    pub protection: Option<ProtectionType>,
    /// When space is taken. Thick units do not unmap.
    pub provisioning: Provisioning,
    /// When a write is answered.
    pub write_mode: WriteMode,
    /// Who does the blocking calls.
    pub engine: EngineKind,
    /// The serial number, 1 to 64 printable ASCII characters; the volume's whole identity then derives from it. `None`:
    /// the identity that is stored with the volume.
    pub serial: Option<String>,
    /// T10 vendor identification, 1 to 8 printable ASCII characters. `None`: `LUNETTE`.
    pub vendor: Option<String>,
    /// Product identification, 1 to 16 printable ASCII characters. `None`: `VOLUME`.
    pub product: Option<String>,
}

impl Config {
    /// Checks the rules between values: that something is served, that names, numbers, paths and portals differ, and
    /// that limits fit each other. What [`Config::read`] returns has been checked.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.validate_portals()?;
        if self.targets.is_empty() {
            return Err(Invalid::new(
                [],
                "there is no target; add [[target]] with a name and a [[target.lun]]",
            ));
        }
        let mut names = HashSet::new();
        let mut paths = HashMap::new();
        for (index, target) in self.targets.iter().enumerate() {
            let at = |key: &str| ["target".into(), index.into(), key.into()];
            if let Err(error) = parse_target_name(&target.name) {
                return Err(Invalid::new(at("name"), error));
            }
            if !names.insert(&target.name) {
                return Err(Invalid::new(at("name"), format!("there are two targets named {}", target.name)));
            }
            target.validate(index, &mut paths, &self.portals)?;
            target.validate_groups(&["target".into(), index.into()], &self.portals)?;
        }
        self.validate_chap()?;
        self.validate_isns()?;
        if self.task_times && self.trace_directory.is_none() {
            return Err(Invalid::new(["task_times".into()], "trace_directory is to say where"));
        }
        self.limits.validate()?;
        self.reactors.validate()
    }
}

impl TargetConfig {
    /// `paths`: where every image and device of all targets is served.
    fn validate(
        &self,
        index: usize,
        paths: &mut HashMap<PathBuf, String>,
        portals: &[PortalConfig],
    ) -> Result<(), Invalid> {
        if self.units.is_empty() && self.redirect.is_none() {
            let message = format!(
                "target {} has no logical unit; add a [[target.lun]] with number and store",
                self.name
            );
            return Err(Invalid::new(["target".into(), index.into()], message));
        }
        let mut tags = HashSet::new();
        for (position, group) in self.port_groups.iter().enumerate() {
            if !tags.insert(group.tag) {
                let place =
                    ["target".into(), index.into(), "port_group".into(), position.into(), "tag".into()];
                return Err(Invalid::new(place, format!("portal group {} is given twice", group.tag)));
            }
        }
        let mut numbers = HashSet::new();
        for (position, unit) in self.units.iter().enumerate() {
            let at = |key: &str| ["target".into(), index.into(), "lun".into(), position.into(), key.into()];
            if !numbers.insert(unit.lun) {
                let message =
                    format!("LUN {} is given twice; each logical unit has its own number", unit.lun);
                return Err(Invalid::new(at("number"), message));
            }
            let (StoreSpec::File { path, .. } | StoreSpec::BlockDevice { path }) = &unit.store else {
                continue;
            };
            // Links and copies are found when the volumes are opened; this one gives the better message.
            let full = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let here = format!("LUN {} of {}", unit.lun, self.name);
            if let Some(there) = paths.insert(full, here.clone()) {
                let path = path.display();
                let message =
                    format!("{path} is served twice, as {there} and as {here}; initiators would spoil it");
                return Err(Invalid::new(at("store"), message));
            }
        }
        self.validate_access(&["target".into(), index.into()], portals)
    }
}

/// One step on the way to a value in a file: a key, or a place in an array.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// A rule between values that is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// Where the value is in a file.
    place: Vec<Step>,
    message: String,
}

impl Invalid {
    fn new(place: impl IntoIterator<Item = Step>, message: impl fmt::Display) -> Self {
        Self { place: place.into_iter().collect(), message: message.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(flags: &[&str]) -> Vec<UnitConfig> {
        LunFlag::number_all(flags.iter().map(|flag| flag.parse().unwrap()).collect()).unwrap()
    }

    fn target(name: &str, flags: &[&str]) -> TargetConfig {
        TargetConfig {
            name: name.to_owned(),
            alias: None,
            units: units(flags),
            chap: ChapConfig::default(),
            access: Vec::new(),
            port_groups: Vec::new(),
            groups: Vec::new(),
            scsi_events: false,
            redirect: None,
        }
    }

    fn config(targets: Vec<TargetConfig>) -> Config {
        Config {
            portals: default_portals(),
            targets,
            discovery: ChapConfig::default(),
            discovery_scope: DiscoveryScope::default(),
            chap: ChapRules::default(),
            limits: Limits::default(),
            reactors: Reactors::default(),
            large_pages: false,
            state_directory: None,
            trace_directory: None,
            task_times: false,
            isns: IsnsConfig::default(),
        }
    }

    fn fault(config: &Config) -> String {
        config.validate().unwrap_err().to_string()
    }

    const A: &str = "iqn.2026-11.io.lunette:a";
    const B: &str = "iqn.2026-11.io.lunette:b";

    #[test]
    fn what_differs_is_taken() {
        let config = Config {
            portals: vec!["127.0.0.1:0".parse().unwrap(); 2],
            ..config(vec![target(A, &["a.img", "mem:1G", "mem:1G"]), target(B, &["b.img", "/dev/loop0"])])
        };
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn what_is_given_twice_is_refused() {
        assert_eq!(
            fault(&config(vec![target(A, &["3=a.img", "3=mem:1G"])])),
            "LUN 3 is given twice; each logical unit has its own number"
        );
        assert_eq!(
            fault(&config(vec![target(A, &["a.img"]), target(B, &["./a.img,ro"])])),
            format!(
                "./a.img is served twice, as LUN 0 of {A} and as LUN 0 of {B}; initiators would spoil it"
            )
        );
        assert_eq!(
            fault(&config(vec![target(A, &["a.img"]), target(A, &["b.img"])])),
            format!("there are two targets named {A}")
        );
        let twice = Config { portals: default_portals().repeat(2), ..config(vec![target(A, &["a.img"])]) };
        assert_eq!(fault(&twice), "portal 127.0.0.1:3260 is given twice");
    }

    #[test]
    fn all_addresses_and_one_of_them_are_refused() {
        let with = |portals: &[&str]| Config {
            portals: portals.iter().map(|portal| portal.parse().unwrap()).collect(),
            ..config(vec![target(A, &["mem:1G"])])
        };
        assert_eq!(
            fault(&with(&["127.0.0.1:3260", "0.0.0.0:3260"])),
            "portals 127.0.0.1:3260 and 0.0.0.0:3260 overlap: 0.0.0.0 is all addresses of its family; leave one of them out, \
             or give it another port"
        );
        assert!(fault(&with(&["[::]:3260", "[::1]:3260"])).contains(":: is all addresses"));
        for good in [
            ["0.0.0.0:3260", "[::]:3260"],
            ["0.0.0.0:3260", "[::1]:3260"],
            ["0.0.0.0:3260", "127.0.0.1:3261"],
            ["0.0.0.0:0", "127.0.0.1:0"],
            ["127.0.0.1:3260", "127.0.0.2:3260"],
        ] {
            assert_eq!(with(&good).validate(), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn something_must_be_served_somewhere() {
        assert!(fault(&config(vec![])).contains("there is no target"));
        assert!(fault(&config(vec![target(A, &[])])).contains("has no logical unit"));
        let nowhere = Config { portals: vec![], ..config(vec![target(A, &["a.img"])]) };
        assert!(fault(&nowhere).contains("no portal"));
        assert!(fault(&config(vec![target("disk", &["a.img"])])).contains("a good name is"));
    }
}
