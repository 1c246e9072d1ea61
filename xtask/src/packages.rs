//! Checks for the Debian packages that the tests use; as root, installs what is missing.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use lunette_tests::packages::{
    FILE_SERVER_PACKAGES, PACKAGES, Package, VM_PACKAGES, find_program, install_line, missing,
};
use lunette_tests::skip::is_ci;

use crate::cargo::check;
use crate::failures::Failures;
use crate::report::{Report, Tally};

const LIMIT: Duration = Duration::from_secs(10 * 60);

/// The step. Under `CI=true` a missing package is a failure; elsewhere the tests that need it skip, each with its reason.
/// Those of the virtual machine and the servers of files may be missing everywhere.
pub(crate) fn step(report: &mut Report) {
    report.step("Debian packages", |_| match present(PACKAGES, true)? {
        absent if absent.is_empty() => Ok(Tally::PASSED),
        absent if is_ci() => {
            bail!("packages that the tests need are missing; {}", advice(&absent));
        }
        absent => {
            println!("Tests that need them will be SKIPPED. To run them, {}", advice(&absent));
            Ok(Tally::SKIPPED)
        }
    });
    optional(report, "the virtual machine", VM_PACKAGES, true);
    // Whoever installs them by this command may not want that Debian starts them, open to the network.
    optional(report, "servers of files", FILE_SERVER_PACKAGES, is_ci());
}

fn optional(report: &mut Report, whose: &str, packages: &[Package], may_install: bool) {
    report.step(&format!("Debian packages: {whose}"), |_| {
        match present(packages, may_install) {
            Ok(absent) if absent.is_empty() => return Ok(Tally::PASSED),
            Ok(absent) => println!("SKIPPED {whose}. To have them tested, {}", advice(&absent)),
            Err(error) => println!("SKIPPED {whose}: the packages cannot be installed here: {error:#}"),
        }
        Ok(Tally::SKIPPED)
    });
}

/// Installs what is missing, as root and where it may; answers what still is.
fn present(packages: &[Package], may_install: bool) -> Result<Vec<&'static str>> {
    let absent = missing(packages);
    if absent.is_empty() {
        let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
        println!("all there: {}", names.join(" "));
        return Ok(absent);
    }
    println!("missing: {}", absent.join(" "));
    if may_install && is_root() && find_program("apt-get").is_some() {
        install(&absent)?;
    }
    Ok(missing(packages))
}

fn advice(absent: &[&str]) -> String {
    format!("install them with:  sudo {}", install_line(absent))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn install(names: &[&str]) -> Result<()> {
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        // The first of them may fail: what it says is in the log, and the last one says it again.
        check(&mut command, LIMIT, &mut Failures::default())
    };
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(names);
    // First without an update: where the lists are fresh that is enough, and works without a network.
    if apt_get(&install).is_ok() {
        return Ok(());
    }
    apt_get(&["update"])?;
    apt_get(&install)?;
    Ok(())
}
