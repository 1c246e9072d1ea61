//! rustfmt, clippy and rustdoc, each with warnings denied.

use std::time::Duration;

use crate::cargo::{cargo, check};
use crate::report::Report;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(15 * 60);

/// All three.
pub(crate) fn steps(workspace: &Workspace, report: &mut Report) {
    format(workspace, report);
    clippy(workspace, report);
    documentation(workspace, report);
}

/// `cargo fmt --check`: what it would change is printed, nothing is changed.
pub(crate) fn format(workspace: &Workspace, report: &mut Report) {
    report.step("rustfmt", |failures| {
        check(&mut cargo(workspace, &["fmt", "--all", "--check", "--", "--color", "never"]), LIMIT, failures)
    });
}

/// Clippy over libraries, binaries, tests and benches.
pub(crate) fn clippy(workspace: &Workspace, report: &mut Report) {
    let arguments =
        ["clippy", "--quiet", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    report.step("clippy", |failures| check(&mut cargo(workspace, &arguments), LIMIT, failures));
}

/// rustdoc for the workspace's own crates.
pub(crate) fn documentation(workspace: &Workspace, report: &mut Report) {
    let mut command = cargo(workspace, &["doc", "--quiet", "--workspace", "--all-features", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    report.step("rustdoc", |failures| check(&mut command, LIMIT, failures));
}
