//! The virtual machines with Debian kernels: builds their images from Debian's packages, once, and runs the tests that boot them.
//!
//! An image is two files in the target directory, named after what they were built from: a kernel, and a root file
//! system that stays in memory. `tests/vm/` has what goes into it, `lunette_tests::vm` boots it.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lunette_tests::packages::{find_program, package_of};
use lunette_tests::process::run;
use lunette_tests::vm;

use crate::report::{Report, Tally};
use crate::workspace::Workspace;

const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);

/// What an image is made of.
#[derive(Debug, Hash)]
struct Recipe {
    /// The variable that tells the tests where it is.
    variable: &'static str,
    /// The guest's release of Debian, whatever the host's is.
    suite: &'static str,
    /// What the guest's scripts use, and what they need from a system.
    packages: &'static str,
    /// The kernel's modules that are kept, with those that they need.
    modules: &'static str,
}

const RECIPES: [Recipe; 2] = [
    Recipe {
        variable: vm::IMAGE,
        suite: "bookworm",
        packages: "busybox-static,e2fsprogs,fio,iproute2,kmod,mount,multipath-tools,nbd-client,open-iscsi,procps,sg3-utils,udev,xfsprogs",
        modules: "9p 9pnet_virtio configfs crc32c_generic crc32c_intel dm_multipath dm_queue_length dm_round_robin \
            dm_service_time ext4 iscsi_target_mod iscsi_tcp loop nbd scsi_dh_alua sd_mod sg target_core_file target_core_mod \
            virtio_net virtio_pci virtio_rng xfs",
    },
    // For LIO alone.
    Recipe {
        variable: vm::IMAGE_OLD,
        suite: "bullseye",
        packages: "busybox-static,iproute2,kmod,mount,udev",
        modules: "9p 9pnet_virtio configfs crc32c_generic crc32c_intel iscsi_target_mod target_core_file target_core_mod \
            virtio_net virtio_pci virtio_rng",
    },
];

/// The images that there are: the variables that tell the tests where.
pub(crate) type Images = Vec<(&'static str, String)>;

/// What builds the image, beside what boots it.
const BUILDERS: [&str; 3] = ["mmdebstrap", "dpkg-deb", "cpio"];

/// Builds the images that are not there. Those that cannot be built are not in the answer; the report says why.
///
/// It needs a mirror of Debian, so a failure is a skip: the tests that boot the machine are then skipped, too.
pub(crate) fn images(workspace: &Workspace, report: &mut Report) -> Images {
    RECIPES.iter().filter_map(|recipe| image(workspace, report, recipe)).collect()
}

fn image(workspace: &Workspace, report: &mut Report, recipe: &Recipe) -> Option<(&'static str, String)> {
    let mut image = None;
    report.step(&format!("image of the virtual machine ({})", recipe.suite), |_| {
        match find_or_build(workspace, recipe) {
            Ok(directory) => {
                println!("{}", directory.display());
                image = Some((recipe.variable, directory.display().to_string()));
                Ok(Tally::PASSED)
            }
            Err(error) => {
                println!("SKIPPED the virtual machine: {error:#}");
                Ok(Tally::SKIPPED)
            }
        }
    });
    image
}

/// The usual image, built unless it is there, and the variable that tells programs where.
///
/// # Errors
/// Why it cannot be built or booted here.
pub(crate) fn usual_image(workspace: &Workspace) -> Result<(&'static str, PathBuf)> {
    let recipe = &RECIPES[0];
    Ok((recipe.variable, find_or_build(workspace, recipe)?))
}

fn find_or_build(workspace: &Workspace, recipe: &Recipe) -> Result<PathBuf> {
    let mut needed = BUILDERS.iter().chain(&vm::PROGRAMS);
    if let Some(program) = needed.find(|program| find_program(program).is_none()) {
        let package = package_of(program).unwrap_or(program);
        bail!("{program} is not installed (Debian package {package})");
    }
    build(workspace, recipe).context("its image cannot be built here")
}

fn build(workspace: &Workspace, recipe: &Recipe) -> Result<PathBuf> {
    let sources = workspace.root().join("tests/vm");
    let images = workspace.target_directory()?.join("vm");
    let image = images.join(name(&sources, recipe)?);
    if image.join(vm::ROOT).is_file() {
        return Ok(image);
    }
    std::fs::create_dir_all(&images)?;
    // Complete or not there.
    let unfinished = tempfile::tempdir_in(&images)?;
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--variant=essential", "--format=null", "--quiet", &format!("--include={}", recipe.packages)])
        .arg("--aptopt=Acquire::Languages \"none\"")
        .args(["--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/doc/*"])
        .args(["--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*"])
        .arg(format!("--customize-hook={} \"$1\"", sources.join("hook.sh").display()))
        .args([recipe.suite, "/dev/null"])
        .env("VM_IMAGE", unfinished.path())
        .env("VM_SOURCES", &sources)
        .env("VM_MODULES", recipe.modules);
    let finished = run(&mut command, BUILD_LIMIT)?;
    let end: Vec<&str> = finished.output.trim_end().lines().rev().take(5).collect();
    let end: Vec<&str> = end.into_iter().rev().collect();
    ensure!(finished.success(), "mmdebstrap: {}: {}", finished.ending(), end.join(" | "));
    std::fs::rename(unfinished.keep(), &image)
        .with_context(|| format!("cannot move the image to {}", image.display()))?;
    Ok(image)
}

/// A name that changes with whatever the image is built from.
fn name(sources: &Path, recipe: &Recipe) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    for file in ["hook.sh", "init"] {
        let path = sources.join(file);
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?.hash(&mut hasher);
    }
    Ok(format!("{}-{:016x}", recipe.suite, hasher.finish()))
}
