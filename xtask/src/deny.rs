//! The rules of deny.toml over the dependency graph: by cargo-deny where it is installed, otherwise by the code below,
//! which reads the same file and knows every key that stands in it.
//!
//! Not here: security advisories; they need a database, which cargo-deny brings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use cargo_metadata::{Metadata, Package};
use serde::Deserialize;

use crate::cargo::{cargo, check};
use crate::report::{Report, Tally};
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(5 * 60);

/// deny.toml. Unknown keys are refused: a rule that nobody enforces must not look like one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Level,
    wildcards: Level,
    allow_wildcard_paths: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Level,
    unknown_git: Level,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Allow,
    Warn,
    Deny,
}

/// The step.
pub(crate) fn step(workspace: &Workspace, report: &mut Report) {
    report.step("dependency rules (deny.toml)", |failures| {
        if lunette_tests::packages::find_program("cargo-deny").is_some() {
            let arguments = ["deny", "--all-features", "check", "licenses", "bans", "sources"];
            let mut tally = check(&mut cargo(workspace, &arguments), LIMIT, failures)?;
            if advisory_database().is_some_and(|path| path.is_dir()) {
                let arguments = ["deny", "--offline", "check", "advisories"];
                tally.add(check(&mut cargo(workspace, &arguments), LIMIT, failures)?);
            }
            return Ok(tally);
        }
        println!("cargo-deny is not installed: xtask checks licences, sources and versions itself");
        let path = workspace.root().join("deny.toml");
        let rules = toml::from_str(&std::fs::read_to_string(&path)?).context("deny.toml")?;
        let faults = enforce(&rules, &workspace.metadata()?.into());
        let mut denied = 0;
        for (level, fault) in &faults {
            if *level == Level::Deny {
                failures.tell(format!("denied: {fault}"));
                denied += 1;
            } else {
                println!("warning: {fault}");
            }
        }
        Ok(if denied > 0 { Tally::FAILED } else { Tally::PASSED })
    });
}

/// Where cargo-deny keeps its advisories.
fn advisory_database() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
        .map(|home| home.join("advisory-dbs"))
}

/// One crate as the rules see it.
struct Crate {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for a path in this repository.
    source: Option<Source>,
    /// Names of dependencies with the requirement "*", and whether they are paths.
    wildcards: Vec<(String, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    DefaultRegistry,
    OtherRegistry,
    Git,
}

struct Graph(Vec<Crate>);

impl From<Metadata> for Graph {
    fn from(metadata: Metadata) -> Self {
        Self(metadata.packages.iter().map(Crate::from).collect())
    }
}

impl From<&Package> for Crate {
    fn from(package: &Package) -> Self {
        let source = package.source.as_ref().map(|source| {
            if source.is_crates_io() {
                Source::DefaultRegistry
            } else if source.repr.starts_with("git+") {
                Source::Git
            } else {
                Source::OtherRegistry
            }
        });
        let wildcards = package.dependencies.iter().filter(|dependency| dependency.req.to_string() == "*");
        Self {
            name: package.name.to_string(),
            version: package.version.to_string(),
            license: package.license.clone(),
            source,
            wildcards: wildcards
                .map(|dependency| (dependency.name.clone(), dependency.path.is_some()))
                .collect(),
        }
    }
}

/// All that the rules object to.
fn enforce(rules: &Rules, graph: &Graph) -> Vec<(Level, String)> {
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in &graph.0 {
        let Crate { name, version, .. } = package;
        versions.entry(name).or_default().push(version);
        if let Some(fault) = license_fault(&rules.licenses.allow, package.license.as_deref()) {
            faults.push((Level::Deny, format!("{name} {version}: {fault}")));
        }
        match package.source {
            Some(Source::Git) => {
                faults.push((rules.sources.unknown_git, format!("{name} {version} comes from git")));
            }
            Some(Source::OtherRegistry) => {
                faults.push((rules.sources.unknown_registry, format!("{name} {version}: unknown registry")));
            }
            Some(Source::DefaultRegistry) => {}
            // Only for our own manifests: what others require is theirs.
            None => {
                for (wanted, is_path) in &package.wildcards {
                    if !(*is_path && rules.bans.allow_wildcard_paths) {
                        faults.push((rules.bans.wildcards, format!("{name} requires {wanted} \"*\"")));
                    }
                }
            }
        }
    }
    for (name, versions) in versions.into_iter().filter(|(_, versions)| versions.len() > 1) {
        faults.push((rules.bans.multiple_versions, format!("{name} in versions {}", versions.join(", "))));
    }
    faults.retain(|(level, _)| *level != Level::Allow);
    faults
}

/// What is wrong with a licence expression, if anything.
fn license_fault(allow: &[String], license: Option<&str>) -> Option<String> {
    let Some(license) = license else { return Some("no licence is declared".to_owned()) };
    // Lax: older manifests write "MIT/Apache-2.0".
    let expression = match spdx::Expression::parse_mode(license, spdx::ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("licence {license:?} cannot be read: {}", error.reason)),
    };
    let satisfied = expression.evaluate(|requirement| allow.contains(&requirement.to_string()));
    (!satisfied).then(|| format!("licence {license:?} is not in the allow-list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        toml::from_str(include_str!("../../deny.toml")).expect("deny.toml as xtask knows it")
    }

    fn package(name: &str, license: Option<&str>, source: Option<Source>) -> Crate {
        Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            source,
            wildcards: Vec::new(),
        }
    }

    #[test]
    fn accepts_permissive_crates_of_the_default_registry() {
        let registry = Some(Source::DefaultRegistry);
        let graph = Graph(vec![
            package("a", Some("MIT OR GPL-3.0-only"), registry),
            package("b", Some("MIT/Apache-2.0"), registry),
            package("c", Some("(MIT OR Apache-2.0) AND Unicode-3.0"), registry),
            package("d", Some("Apache-2.0 WITH LLVM-exception"), registry),
        ]);
        assert_eq!(enforce(&rules(), &graph), []);
    }

    #[test]
    fn denies_licences_and_sources() {
        let registry = Some(Source::DefaultRegistry);
        let graph = Graph(vec![
            package("copyleft", Some("GPL-3.0-only"), registry),
            package("both", Some("MIT AND AGPL-3.0-only"), registry),
            package("silent", None, registry),
            package("from-git", Some("MIT"), Some(Source::Git)),
            package("elsewhere", Some("MIT"), Some(Source::OtherRegistry)),
        ]);
        let faults = enforce(&rules(), &graph);
        assert_eq!(faults.len(), 5, "{faults:?}");
        assert!(faults.iter().all(|(level, _)| *level == Level::Deny));
    }

    #[test]
    fn warns_of_two_versions_and_denies_wildcards_of_our_own() {
        let mut second = package("twice", Some("MIT"), Some(Source::DefaultRegistry));
        second.version = "2.0.0".to_owned();
        let mut ours = package("ours", Some("MIT"), None);
        ours.wildcards = vec![("a-path".to_owned(), true), ("anything".to_owned(), false)];
        let graph = Graph(vec![package("twice", Some("MIT"), Some(Source::DefaultRegistry)), second, ours]);
        assert_eq!(
            enforce(&rules(), &graph),
            [
                (Level::Deny, "ours requires anything \"*\"".to_owned()),
                (Level::Warn, "twice in versions 1.0.0, 2.0.0".to_owned()),
            ]
        );
    }

    #[test]
    fn refuses_a_rule_that_it_does_not_know() {
        assert!(toml::from_str::<Rules>("[licenses]\nallow = []\nmystery = 1\n").is_err());
    }
}
