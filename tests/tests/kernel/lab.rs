//! The lab's cells that have an end in a virtual machine: the kernel's initiator with fio, and its target. Their figures are those of
//! an emulated processor, and are only to be there.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_tests::lunette::binary;
use lunette_tests::need_guest;
use lunette_tests::process::run;
use serde_json::Value;

/// The guest boots and measures in less than a minute, and may be slower.
const LIMIT: Duration = Duration::from_secs(600);

/// The one cell of a short run with these parameters besides, and the versions of what took part.
fn measured(parameters: &[&str]) -> Result<(Value, Value)> {
    let mut command = Command::new(binary());
    command.args(["lab", "run", "trinkle-profiles", "--quick", "--quiet", "--json"]);
    command.args(["--only", "profile=max-throughput", "--only", "frames=standard"]).args(parameters);
    let mut result = Value::Null;
    // On a host that is busy for a moment nobody knows the limit; not each time.
    for _ in 0..3 {
        let finished = run(&mut command, LIMIT)?;
        ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
        result = serde_json::from_str(finished.output.trim()).context("JSON")?;
        let cells = result["cells"].as_array().context("cells")?;
        ensure!(cells.len() == 1, "{result}");
        if cells[0]["limit"] != "unexplained" {
            break;
        }
    }
    let versions = result["versions"].take();
    Ok((result["cells"][0].take(), versions))
}

fn ensure_figure(cell: &Value) -> Result<()> {
    ensure!(cell["measured"].as_f64() > Some(0.0) && cell["unit"] == "MiB/s", "{cell}");
    // A processor that is emulated is the limit, and where one is not, the link may be.
    ensure!(cell["limit"] != "unexplained" && cell["published"].is_number(), "{cell}");
    Ok(())
}

/// What the guest says of itself, which is some version.
fn ensure_versions(versions: &Value, names: &[&str]) -> Result<()> {
    for name in names {
        let version = versions[*name].as_str().unwrap_or_default();
        ensure!(version.contains(|character: char| character.is_ascii_digit()), "{name}: {versions}");
    }
    Ok(())
}

#[test]
fn the_lab_measures_the_kernels_initiator() {
    let _network = need_guest!();
    let of_initiator = || -> Result<()> {
        let (cell, versions) = measured(&["--only", "initiator=virtual", "--only", "target=lunette"])?;
        ensure_figure(&cell)?;
        ensure_versions(&versions, &["qemu", "guest-kernel", "guest-open-iscsi", "guest-fio"])
    };
    of_initiator().expect("a figure");
}

#[test]
fn the_lab_measures_the_kernels_target() {
    let _network = need_guest!();
    let of_target = || -> Result<()> {
        let only = ["--only", "initiator=physical", "--only", "target=lio"];
        let (cell, versions) = measured(&[&["--peers", "lio"], &only[..]].concat())?;
        ensure_figure(&cell)?;
        ensure_versions(&versions, &["qemu", "guest-kernel", "guest-lio"])?;
        ensure!(versions["guest-fio"].is_null(), "{versions}");
        Ok(())
    };
    of_target().expect("a figure");
}
