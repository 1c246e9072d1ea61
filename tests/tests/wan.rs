//! `lunette wan`: the whole system over an emulated link, and how it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunette_tests::lunette::binary;
use lunette_tests::process::{Finished, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(120);

const NO_NETWORK: &str = "there is no emulated network";

fn wan(arguments: &[&str]) -> Result<Finished> {
    Ok(run(Command::new(binary()).arg("wan").args(arguments), LIMIT)?)
}

/// Whether this user may make a network; if not, the test is skipped.
fn may() -> Result<bool> {
    let finished = wan(&["run", "--quiet", "--link", "local", "--", "true"])?;
    if finished.output.contains(NO_NETWORK) {
        lunette_skip::record_lacking(finished.output.trim());
        return Ok(false);
    }
    ensure!(finished.success(), "{}", finished.output);
    Ok(true)
}

#[test]
fn a_disk_at_the_far_end_is_written_and_verified_over_a_lossy_link() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let report = directory.path().join("report.json");
    let (lunette, report_path) = (binary().display(), report.display().to_string());
    let far =
        format!("{lunette} serve --portal 198.18.0.2:3260 --target iqn.2026-11.io.lunette:far --lun mem:8M");
    let near = format!(
        "set -e; url=iscsi://$LUNETTE_FAR/iqn.2026-11.io.lunette:far/0; {lunette} write $url --pattern random:3; \
         {lunette} verify $url --pattern random:3"
    );
    let finished = wan(&[
        "run",
        "--link",
        "gige,rtt=4ms,loss=0.2%,reserve=60%",
        "--seed",
        "7",
        "--far",
        &far,
        "--far-port",
        "3260",
        "--report",
        &report_path,
        "--",
        "sh",
        "-c",
        &near,
    ])?;
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    let report: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    assert_eq!(report["seed"], 7);
    // 8 MiB each way, and some was lost on the way.
    for direction in ["up", "down"] {
        let bytes = report[direction]["arrived_bytes"].as_u64().context("a number")?;
        ensure!(bytes > 8 << 20, "{direction}: {report}");
        ensure!(report[direction]["lost"].as_u64() > Some(0), "{direction}: {report}");
    }
    Ok(())
}

#[test]
fn it_ends_as_its_command_does() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let ending = |arguments: &[&str]| -> Result<(String, String)> {
        let finished = wan(&[&["run", "--link", "local"], arguments].concat())?;
        Ok((finished.ending(), finished.output))
    };
    assert_eq!(ending(&["--", "sh", "-c", "exit 7"])?.0, "exit status 7");
    assert_eq!(ending(&["--", "sh", "-c", "kill -KILL $$"])?.0, "exit status 137");
    let (status, output) = ending(&["--", "/no/such/command"])?;
    assert_eq!(status, "exit status 125");
    ensure!(output.contains("cannot run /no/such/command: No such file"), "{output}");
    let (status, output) = ending(&["--far", "exit 3", "--far-port", "1", "--", "true"])?;
    assert_eq!(status, "exit status 125");
    ensure!(
        output.contains("the command of the far end ended before it listened: exit status: 3"),
        "{output}"
    );
    // The shell may start more than one command, and none of them is left.
    let directory = tempfile::tempdir()?;
    let pid = directory.path().join("pid");
    let far = format!("true && sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", pid.display());
    let near = format!("while ! test -e {}; do sleep 0.05; done", pid.display());
    assert_eq!(ending(&["--far", &far, "--", "sh", "-c", &near])?.0, "exit status 0");
    wait_until_gone([fs::read_to_string(&pid)?.trim().parse()?])?;
    Ok(())
}

#[test]
fn what_is_wrong_with_a_link_is_said() -> Result<()> {
    for (link, says) in [
        ("oc4", "\"oc4\" is no named link; there are local, lan-100"),
        ("rate=fast", "rate=fast: a rate is a number of bits per second"),
        ("oc3-2,colour=red", "\"colour\" is no property of a link"),
    ] {
        let finished = wan(&["run", "--link", link, "--", "true"])?;
        assert_eq!(finished.ending(), "exit status 2", "{}", finished.output);
        ensure!(finished.output.contains(says), "{link}: {}", finished.output);
    }
    let rows: Value = serde_json::from_str(&wan(&["links", "--json"])?.output)?;
    ensure!(rows.as_array().is_some_and(|rows| rows.iter().any(|row| row["name"] == "oc3-50")), "{rows}");
    Ok(())
}

/// A network whose near command says its number and that of the far one, and waits.
fn waiting(directory: &Path) -> Result<(Child, [i32; 2])> {
    let far_pid = directory.join("far");
    let far = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", far_pid.display());
    let near = format!(
        "while ! test -e {0}; do sleep 0.05; done; echo $$ $(cat {0}); exec sleep 1000",
        far_pid.display()
    );
    let mut child = Command::new(binary())
        .args(["wan", "run", "--link", "local", "--quiet", "--far", &far, "--", "sh", "-c", &near])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let pids: Vec<i32> = line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    Ok((child, pids.try_into().map_err(|_| anyhow::anyhow!("two numbers, not {line:?}"))?))
}

/// Whether the process is there and is no zombie.
fn lives(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status
        .rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty())
}

fn wait_until_gone<const COUNT: usize>(pids: [i32; COUNT]) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while pids.into_iter().any(lives) {
        ensure!(Instant::now() < deadline, "{pids:?} are left");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn nothing_is_left_when_it_is_killed_or_terminated() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    for (signal, code) in [(Signal::KILL, None), (Signal::TERM, Some(143))] {
        let directory = tempfile::tempdir()?;
        let (mut child, pids) = waiting(directory.path())?;
        ensure!(pids.into_iter().all(lives), "{pids:?}");
        kill_process(Pid::from_child(&child), signal)?;
        assert_eq!(child.wait()?.code(), code);
        wait_until_gone(pids)?;
    }
    Ok(())
}
