//! Where things are: the repository's root, Cargo's target directory, the dependency graph.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Metadata, MetadataCommand};
use lunette_tests::process::run;

const GIT_LIMIT: Duration = Duration::from_secs(20);

/// The checkout that xtask was built from.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the root from xtask's own manifest.
    pub(crate) fn find() -> Result<Self> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().context("xtask stands in the repository's root")?.to_owned();
        Ok(Self { root })
    }

    /// The repository's root.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The dependency graph with every external crate. Under `CI=true` a Cargo.lock that does not match is an error.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        let mut command = MetadataCommand::new();
        command.manifest_path(self.root.join("Cargo.toml"));
        if lunette_tests::skip::is_ci() {
            command.other_options(["--locked".to_owned()]);
        }
        command.exec().context("cargo metadata")
    }

    /// The commit, with a mark if the checkout has changes of its own; "unknown" where git does not say.
    pub(crate) fn commit(&self) -> String {
        self.git(&["describe", "--always", "--dirty"]).unwrap_or_else(|_| "unknown".to_owned())
    }

    /// The commit that changed this file last.
    ///
    /// # Errors
    /// The history is not there, as in an archive or a shallow clone.
    pub(crate) fn last_commit_of(&self, path: &str) -> Result<String> {
        let is_shallow = self.git(&["rev-parse", "--is-shallow-repository"])? == "true";
        ensure!(!is_shallow, "this is a shallow clone; `git fetch --unshallow` brings the rest");
        let commit = self.git(&["log", "-1", "--format=%H", "--", path])?;
        ensure!(!commit.is_empty(), "no commit here has changed {path}");
        Ok(commit)
    }

    /// What a `git` command in the repository prints.
    pub(crate) fn git(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("git");
        let finished = run(command.args(arguments).current_dir(&self.root), GIT_LIMIT)?;
        let output = finished.output.trim();
        ensure!(finished.success(), "git {}: {}: {output}", arguments.join(" "), finished.ending());
        Ok(output.to_owned())
    }

    /// Cargo's target directory.
    pub(crate) fn target_directory(&self) -> Result<PathBuf> {
        let mut command = MetadataCommand::new();
        command.manifest_path(self.root.join("Cargo.toml")).no_deps();
        Ok(command.exec().context("cargo metadata")?.target_directory.into_std_path_buf())
    }
}
