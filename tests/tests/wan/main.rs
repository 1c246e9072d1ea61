//! `lunette wan`: the whole system over an emulated link, and how it ends.

mod clean;
mod pace;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunette_tests::attach::Attached;
use lunette_tests::lunette::{Lunette, TARGET_NAME, binary};
use lunette_tests::packages::find_program;
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

/// The same where bash is needed, which every Debian has.
fn may_in_bash() -> Result<bool> {
    if find_program("bash").is_none() {
        lunette_skip::record_lacking("there is no bash");
        return Ok(false);
    }
    may()
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
    let report = json(&report)?;
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
fn what_fails_or_is_interrupted_before_it_begins_leaves_nothing() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let pid = directory.path().join("pid");
    let far = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", pid.display());
    let started = || -> Result<i32> {
        let deadline = Instant::now() + LIMIT;
        while !pid.exists() {
            ensure!(Instant::now() < deadline, "the far command does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(fs::read_to_string(&pid)?.trim().parse()?)
    };
    // There is no such command.
    let finished = wan(&["run", "--link", "local", "--far", &far, "--", "/no/such/command"])?;
    assert_eq!(finished.ending(), "exit status 125", "{}", finished.output);
    // It may have been ended before it began.
    if pid.exists() {
        wait_until_gone([started()?])?;
        fs::remove_file(&pid)?;
    }
    // Nobody listens, and somebody has enough of waiting.
    let mut child = Command::new(binary())
        .args(["wan", "run", "--link", "local", "--far", &far, "--far-port", "1", "--", "false"])
        .spawn()?;
    let sleep = started()?;
    kill_process(Pid::from_child(&child), Signal::INT)?;
    assert_eq!(child.wait()?.code(), Some(130));
    wait_until_gone([sleep])
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

/// A command for a shell that starts another one, which leaves the shell's group, and writes down its number in a file.
fn with_child(file: &Path) -> String {
    format!("setsid sleep 1000 & echo $! > {0}.new; mv {0}.new {0}", file.display())
}

/// The number in a file, when it is there.
fn told_in(file: &Path) -> Result<i32> {
    let deadline = Instant::now() + LIMIT;
    while !file.exists() {
        ensure!(Instant::now() < deadline, "{} is not written", file.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(fs::read_to_string(file)?.trim().parse()?)
}

/// What networks have left that the process has made, which is gone.
fn left_by(owner: u32) -> Result<Vec<i64>> {
    left_in(&wan(&["list", "--json"])?.output, owner)
}

/// The same by what `wan list --json` has said.
fn left_in(listed: &str, owner: u32) -> Result<Vec<i64>> {
    let listed: Value = serde_json::from_str(listed)?;
    let rows = listed.as_array().context("an array")?;
    let row = rows.iter().find(|row| row["name"].is_null() && row["pid"] == owner);
    Ok(row
        .and_then(|row| row["processes"].as_array())
        .map(|pids| pids.iter().filter_map(Value::as_i64).collect())
        .unwrap_or_default())
}

/// The process that watches over a network.
fn warden_of(pid: u32) -> Result<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok());
    let is_warden = |child: &i32| {
        let line = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.ends_with("\0wan\0ward\0")
    };
    children.into_iter().find(is_warden).and_then(Pid::from_raw).context("a warden")
}

/// A run with commands of shells at its ends.
fn begin(far: &str, more: &[&str], near: &str) -> Result<Child> {
    let mut command = Command::new(binary());
    command.arg("wan");
    run_with(command, far, more, near)
}

/// The same by a command that is to be told the rest.
fn run_with(mut command: Command, far: &str, more: &[&str], near: &str) -> Result<Child> {
    command.args(["run", "--link", "local", "--quiet", "--far", far]).args(more);
    Ok(command.args(["--", "sh", "-c", near]).spawn()?)
}

/// The commands' own children are in groups of their own, so that nobody but the network tells what they belong to.
#[test]
fn what_the_commands_have_started_is_gone_at_whichever_stage_it_is_killed() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let kill = |mut child: Child, pids: &[i32]| -> Result<()> {
        ensure!(pids.iter().copied().all(lives), "{pids:?}");
        child.kill()?;
        child.wait()?;
        pids.iter().try_for_each(|pid| wait_until_gone([*pid]))
    };
    // The near one has not begun: nobody listens.
    let far = format!("{}; wait", with_child(&file("waiting")));
    kill(begin(&far, &["--far-port", "1"], "false")?, &[told_in(&file("waiting"))?])?;
    // Both are there.
    let (far, near) = (with_child(&file("far")), with_child(&file("near")));
    let child = begin(&format!("{far}; wait"), &[], &format!("{near}; wait"))?;
    kill(child, &[told_in(&file("far"))?, told_in(&file("near"))?])?;
    // The near one has ended, and the far one does not do what it is asked to.
    let far = format!("trap '' TERM; {}; while true; do sleep 1; done", with_child(&file("stubborn")));
    let near = format!(
        "while ! test -e {}; do sleep 0.05; done; {}",
        file("stubborn").display(),
        with_child(&file("ended"))
    );
    let child = begin(&far, &[], &near)?;
    let pids = [told_in(&file("stubborn"))?, told_in(&file("ended"))?];
    std::thread::sleep(Duration::from_millis(100));
    kill(child, &pids)?;
    // At any time while it begins.
    for wait_ms in [0, 3, 6, 10, 15, 20, 30, 50] {
        let child = begin("setsid sleep 1000 & wait", &[], "setsid sleep 1000 & wait")?;
        std::thread::sleep(Duration::from_millis(wait_ms));
        let owner = child.id();
        kill(child, &[])?;
        let deadline = Instant::now() + LIMIT;
        while !left_by(owner)?.is_empty() {
            ensure!(Instant::now() < deadline, "{:?} are left", left_by(owner)?);
        }
    }
    Ok(())
}

#[test]
fn what_the_near_command_leaves_behind_is_gone_when_it_has_ended() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("near");
    let near = format!("{}; exit 7", with_child(&file));
    let finished = wan(&["run", "--link", "local", "--quiet", "--", "sh", "-c", &near])?;
    assert_eq!(finished.ending(), "exit status 7", "{}", finished.output);
    ensure!(!lives(told_in(&file)?), "it is there after its network");
    Ok(())
}

/// A report that cannot be written is found before the command begins where that can be; behind one that has failed its status says more.
#[test]
fn a_report_that_cannot_be_written_takes_no_commands_place() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let run = |report: &str, command: &str| {
        wan(&["run", "--link", "local", "--quiet", "--report", report, "--", "sh", "-c", command])
    };
    let directory = tempfile::tempdir()?;
    let begun = directory.path().join("begun");
    let missing = directory.path().join("none/report.json").display().to_string();
    let finished = run(&missing, &format!("touch {}", begun.display()))?;
    assert_eq!(finished.ending(), "exit status 125", "{}", finished.output);
    ensure!(finished.output.contains(&missing) && !begun.exists(), "{}", finished.output);
    for (command, ending) in [("exit 7", "exit status 7"), ("true", "exit status 125")] {
        let finished = run("/dev/full", command)?;
        assert_eq!(finished.ending(), ending, "{}", finished.output);
        ensure!(finished.output.contains("cannot write /dev/full"), "{}", finished.output);
    }
    Ok(())
}

/// Whether the figures are good depends on the machine; that they are those of the link does not. What is early, or more than the
/// rate, no machine excuses; what is late, or less, is excused up to twice and half as much. A figure that is farther off is not
/// the link's, unless the tool itself says that this machine could not tell. A machine that was busy just when something was
/// counted may be farther off, and not each time.
#[test]
fn a_check_measures_what_the_link_does() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    for _ in 0..5 {
        if checked_within_bounds()? {
            return Ok(());
        }
    }
    bail!("of five looks none was the link's")
}

/// Whether all figures of a check are as near to the link's as a machine may be off.
fn checked_within_bounds() -> Result<bool> {
    let link = "up.rate=2M,up.delay=40ms,down.rate=4M,down.loss=30%,mtu=1400";
    let finished = wan(&["check", "--link", link, "--json"])?;
    let line = finished.output.lines().next().context("a line")?;
    let checked: Value = serde_json::from_str(line)?;
    ensure!(checked["ceiling"]["tcp_gbit_per_s"].as_f64() > Some(0.0), "{checked}");
    let figures = checked["links"][0]["figures"].as_array().context("figures")?;
    assert_eq!(figures.len(), 5, "{checked}");
    // What a link should do is told always; what it did, where this machine could ask so much of it.
    let (mut are_good, mut are_within_bounds) = (true, true);
    let mut figure = |what: &str, expected: f64, bounds: std::ops::Range<f64>| {
        let figure = figures.iter().find(|figure| figure["what"] == what).context("a figure")?;
        let told = figure["expected"].as_f64().with_context(|| format!("{what}: {figure}"))?;
        ensure!((told - expected).abs() < 1e-6, "{what} is to be {expected}: {figure}");
        let tolerance = figure["tolerance"].as_f64().with_context(|| format!("{what}: {figure}"))?;
        let measured = figure["measured"].as_f64();
        let is_within = measured.is_some_and(|measured| (measured - expected).abs() <= tolerance);
        // Of so many losses chance makes more of the rate than it is to be right within, in any time that it is looked at.
        let is_hidden = what == "rate, far to near";
        assert_eq!(figure["needs"].is_string(), is_hidden, "{figure}");
        assert_eq!(figure["good"], is_within && !is_hidden, "{figure}");
        if is_within && is_hidden {
            assert_eq!(figure["verdict"], "cannot-tell", "{figure}");
        }
        are_good &= is_within;
        match measured {
            Some(measured) if bounds.contains(&measured) => {}
            Some(measured) => {
                let is_early = what == "round trip" && measured < bounds.start;
                ensure!(!is_early, "sooner than its delay: {figure}");
                eprintln!("{what}, not in {bounds:?}: {figure}");
                are_within_bounds = false;
            }
            None => lunette_skip::record_lacking(&format!(
                "{what}: this machine was too busy to send so much: {figure}"
            )),
        }
        Ok(())
    };
    // 64 bytes at 2 and at 4 Mb/s are in it.
    figure("round trip", 40.0 + 0.256 + 0.128, 40.0..80.0)?;
    figure("rate, near to far", 2.0, 1.0..2.1)?;
    // What is lost has used the rate.
    figure("rate, far to near", 2.8, 1.4..3.0)?;
    figure("loss, near to far", 0.0, 0.0..2.0)?;
    figure("loss, far to near", 30.0, 28.0..32.0)?;
    assert_eq!(checked["good"], are_good, "{checked}");
    // The status is what the figures say.
    assert_eq!(finished.ending(), if are_good { "exit status 0" } else { "exit status 6" }, "{checked}");
    Ok(are_within_bounds)
}

/// A shell's commands for bash: a bench of a file, and what happens as soon as it has begun, which the socket shows that it asks.
fn while_measured(disk: &Path, result: &Path, seconds: u32, happens: &str) -> String {
    format!(
        "{} bench {} --time {seconds} --output {} >&2 & measurement=$!; \
         for ((n = 0; n < 600; n++)); do test $(grep -c @lunette-wan-link /proc/net/unix) -ge 2 && break; sleep 0.05; done; \
         sleep 1; {happens}; wait $measurement",
        binary().display(),
        disk.display(),
        result.display()
    )
}

fn json(path: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// Nobody's machine carries 400 Gb/s packet by packet: what comes is this machine's, and each result says so.
#[test]
fn a_link_that_is_faster_than_this_machine_is_doubted_and_not_measured() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let (report, result) = (file("report"), file("result"));
    let lunette = binary().display();
    let far = format!("{lunette} serve --lun 0=mem:64M --portal 0.0.0.0:3260 --target {TARGET_NAME}");
    let near = format!(
        "{lunette} bench iscsi://$LUNETTE_FAR/{TARGET_NAME}/0 --size 512K --random 0 --depth 32 --time 1 --output {}",
        result.display()
    );
    let report_path = report.display().to_string();
    let at_far = ["--far", &far, "--far-port", "3260", "--", "sh", "-c", &near];
    let finished = wan(&[&["run", "--link", "rate=400G", "--report", &report_path], &at_far[..]].concat())?;
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    let (report, result) = (json(&report)?, json(&result)?);
    for doubt in [&report["doubt"], &result["link_doubt"]] {
        let is_doubted = doubt.as_str().is_some_and(|doubt| doubt.starts_with("this machine is too "));
        ensure!(is_doubted, "{report} {result}");
    }
    // However quick it is: where it has several segments at once, it takes longer for them than this link.
    let is_slower = report["down"]["outpaced"].as_u64() >= Some(1000);
    ensure!(is_slower || report["offload"] == false, "{report}");
    ensure!(finished.output.contains("warning: this machine is too "), "{}", finished.output);

    let finished = wan(&["check", "--json", "--link", "rate=400G"])?;
    assert_eq!(finished.ending(), "exit status 6", "{}", finished.output);
    let checked: Value = serde_json::from_str(finished.output.lines().next().context("a line")?)?;
    let figures = checked["links"][0]["figures"].as_array().context("figures")?;
    let rates: Vec<&Value> = figures
        .iter()
        .filter(|figure| figure["what"].as_str().is_some_and(|what| what.starts_with("rate")))
        .collect();
    ensure!(rates.len() == 2 && rates.iter().all(|rate| rate["good"] == false), "{checked}");
    ensure!(
        checked["ceiling"]["tcp_gbit_per_s"].as_f64().is_some_and(|ceiling| ceiling < 400.0),
        "{checked}"
    );
    Ok(())
}

/// Whoever carries the packets is stopped while more of them come than the kernel keeps.
#[test]
fn what_this_machine_loses_is_told_and_is_in_the_results_of_that_time() -> Result<()> {
    if !may_in_bash()? {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let (disk, report, result, later) = (file("disk"), file("report"), file("result"), file("later"));
    fs::File::create(&disk)?.set_len(8 << 20)?;
    let flood = "kill -STOP $PPID; for ((n = 0; n < 4000; n++)); do echo >/dev/udp/$LUNETTE_FAR/9; done; kill -CONT $PPID";
    let near =
        [while_measured(&disk, &result, 5, flood), while_measured(&disk, &later, 2, "true")].join("; ");
    let report_path = report.display().to_string();
    let finished = wan(&["run", "--link", "delay=1ms", "--report", &report_path, "--", "bash", "-c", &near])?;
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    let (report, result, later) = (json(&report)?, json(&result)?, json(&later)?);
    // The kernel keeps 2000 at most, and some go on before the stop is heeded.
    ensure!(report["up"]["overrun"].as_u64() >= Some(500), "{report}");
    let says = "this machine is too slow for this link: ";
    for doubt in [&report["doubt"], &result["link_doubt"]] {
        ensure!(doubt.as_str().is_some_and(|doubt| doubt.starts_with(says)), "{report} {result}");
    }
    ensure!(finished.output.contains(&format!("warning: {says}")), "{}", finished.output);
    ensure!(finished.output.contains(" dropped by this machine; "), "{}", finished.output);
    assert_eq!((&result["link"], &later["link"]), (&report["link"], &report["link"]));
    let names_losses = later["link_doubt"].as_str().is_some_and(|doubt| doubt.contains("were lost"));
    ensure!(!names_losses, "what was lost before is no matter: {later}");
    Ok(())
}

/// Whoever carries the packets is stopped while a few come, and has nothing to send that would be late.
#[test]
fn that_packets_were_not_taken_in_for_a_while_is_told() -> Result<()> {
    if !may_in_bash()? {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let report = directory.path().join("report");
    let near = "kill -STOP $PPID; sleep 0.1; for ((n = 0; n < 3; n++)); do echo >/dev/udp/$LUNETTE_FAR/9; done; \
                sleep 0.3; kill -CONT $PPID; sleep 3";
    let path = report.display().to_string();
    let finished = wan(&["run", "--link", "delay=1ms", "--report", &path, "--", "bash", "-c", near])?;
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    let report = json(&report)?;
    // The last sleep before the stop may have been to be as long as 20 ms.
    ensure!(report["up"]["intake_lateness_max_us"].as_u64() >= Some(300_000), "{report}");
    Ok(())
}

/// No answer is not the answer that nothing is wrong.
#[test]
fn that_nobody_tells_of_a_link_is_a_doubt_itself() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);
    let (disk, result) = (file("disk"), file("result"));
    fs::File::create(&disk)?.set_len(1 << 20)?;
    let bench =
        format!("{} bench {} --count 3 --output {}", binary().display(), disk.display(), result.display());
    let mut command = Command::new("sh");
    let finished = run(command.args(["-c", &bench]).env("LUNETTE_LINK", "oc3-2"), LIMIT)?;
    ensure!(finished.success(), "{}", finished.output);
    let told = json(&result)?;
    let says = "nobody says how the link was kept: ";
    let is_told = |told: &Value| told["link_doubt"].as_str().is_some_and(|doubt| doubt.starts_with(says));
    ensure!(told["link"] == "oc3-2" && is_told(&told), "{told}");
    ensure!(finished.output.contains(says), "{}", finished.output);
    if !may()? {
        return Ok(());
    }
    // Whoever carries the packets is there, and does not answer.
    let stopped = format!("kill -STOP $PPID; {bench}; status=$?; kill -CONT $PPID; exit $status");
    let finished = wan(&["run", "--link", "delay=1ms", "--", "sh", "-c", &stopped])?;
    ensure!(finished.success(), "{}", finished.output);
    let told = json(&result)?;
    ensure!(told["link"] == "up.delay=1ms,down.delay=1ms,mtu=1500" || is_told(&told), "{told}");
    ensure!(is_told(&told), "{told}");
    Ok(())
}

#[test]
fn a_proxy_needs_no_network_and_says_what_it_is() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let report = directory.path().join("report.json");
    let result = directory.path().join("result.json");
    let target = Lunette::serve().luns(["0=mem:1M"]).start()?;
    let (lunette, to) = (binary().display(), target.portal().to_string());
    let near = format!(
        "set -e; url=iscsi://$LUNETTE_PROXY/{TARGET_NAME}/0; {lunette} write $url --pattern random:3; {lunette} verify $url --pattern random:3; \
         {lunette} bench $url --count 3 --output {}",
        result.display()
    );
    let report_path = report.display().to_string();
    let proxy = |link: &str| {
        wan(&["proxy", "--link", link, "--to", &to, "--report", &report_path, "--", "sh", "-c", &near])
    };
    let finished = proxy("oc3-2")?;
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    ensure!(finished.output.contains("TCP does not see them"), "{}", finished.output);
    let carried = json(&report)?;
    assert_eq!(carried["mode"], "proxy");
    for direction in ["up_bytes", "down_bytes"] {
        ensure!(carried[direction].as_u64() > Some(1 << 20), "{carried}");
    }
    let result = json(&result)?;
    let link = carried["link"].as_str().context("a link")?;
    assert_eq!(result["link"], format!("proxy {link}"));
    // A busy machine is late; then both say so.
    for doubt in [&carried["doubt"], &result["link_doubt"]] {
        let is_known =
            doubt.is_null() || doubt.as_str().is_some_and(|doubt| doubt.starts_with("this machine is too "));
        ensure!(is_known, "{carried} {result}");
    }
    ensure!(carried["late_us"].is_u64() && carried["up_outpaced"].is_u64(), "{carried}");
    let lossy = proxy("transatlantic")?;
    assert_eq!(lossy.ending(), "exit status 125");
    ensure!(lossy.output.contains("this link has loss"), "{}", lossy.output);
    target.stop()?;
    Ok(())
}

/// Its command is not left at a line that is gone, and what was carried is told.
#[test]
fn a_proxy_that_is_told_to_end_passes_that_on() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let report = directory.path().join("report.json");
    let report_path = report.display().to_string();
    let command = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done";
    let mut proxy = Command::new(binary())
        .args(["wan", "proxy", "--link", "rate=80M,rtt=2ms", "--to", "127.0.0.1:9", "--report", &report_path])
        .args(["--", "sh", "-c", command])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().context("a pipe")?).read_line(&mut line)?;
    assert_eq!(line, "ready\n");
    kill_process(Pid::from_child(&proxy), Signal::TERM)?;
    assert_eq!(proxy.wait()?.code(), Some(7));
    assert_eq!(json(&report)?["mode"], "proxy");
    Ok(())
}

/// Nothing but the address says that it is one.
#[test]
fn a_proxy_that_stays_is_named_in_the_results() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("result");
    let target = Lunette::serve().luns(["0=mem:16M"]).start()?;
    let url = |at: &str| format!("iscsi://{at}/{TARGET_NAME}/0");
    let by = |arguments: &[&str]| -> Result<String> {
        let finished = run(Command::new(binary()).args(arguments).env_remove("LUNETTE_LINK"), LIMIT)?;
        ensure!(finished.success(), "{}", finished.output);
        Ok(finished.output)
    };
    let bench = |at: &str| -> Result<Value> {
        by(&["bench", &url(at), "--count", "3", "--output", &file.display().to_string()])?;
        Ok(json(&file)?["link"].clone())
    };
    let seen_by_advise = |at: &str| -> Result<Value> {
        let output = by(&["advise", &url(at), "--size", "4K", "--json"])?;
        let told = output.lines().find(|line| line.starts_with('{')).context("no advice")?;
        Ok(serde_json::from_str::<Value>(told)?["seen"].clone())
    };
    let mut proxy = Command::new(binary())
        .args(["wan", "proxy", "--link", "rate=80M,rtt=2ms", "--to", &target.portal().to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let at = line.trim().strip_prefix("listening on ").context("an address")?;
    let (told, seen) = (bench(at), seen_by_advise(at));
    // Nothing is left of it, not even then.
    proxy.kill()?;
    proxy.wait()?;
    let (told, seen) = (told?, seen?);
    ensure!(told.as_str().is_some_and(|link| link.starts_with("proxy rate=80M,")), "{told}");
    assert_eq!((&seen["link"], &seen["is_proxy"]), (&told, &Value::Bool(true)), "{seen}");
    assert_eq!(bench(&target.portal().to_string())?, Value::Null);
    target.stop()
}

/// Networks that stay, in a directory of the test's own.
struct Networks(tempfile::TempDir);

impl Networks {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn wan(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new(binary());
        command.arg("wan").args(arguments).env("XDG_RUNTIME_DIR", self.0.path());
        Ok(run(&mut command, LIMIT)?)
    }

    /// What a command says that goes well.
    fn good(&self, arguments: &[&str]) -> Result<String> {
        let finished = self.wan(arguments)?;
        ensure!(finished.success(), "{arguments:?}: {}: {}", finished.ending(), finished.output);
        Ok(finished.output)
    }

    fn shown(&self, name: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.good(&["show", name, "--json"])?)?)
    }

    fn pid(&self, name: &str) -> Result<i32> {
        Ok(self.shown(name)?["pid"].as_i64().context("a number")?.try_into()?)
    }

    fn listed(&self) -> Result<Vec<String>> {
        let rows: Value = serde_json::from_str(&self.good(&["list", "--json"])?)?;
        let rows = rows.as_array().context("an array")?;
        // Other tests leave something as well, which has no name.
        Ok(rows.iter().filter_map(|row| Some(row["name"].as_str()?.to_owned())).collect())
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in self.listed().unwrap_or_default() {
            let _ = self.wan(&["down", &name]);
        }
    }
}

#[test]
fn a_network_stays_until_it_is_ended() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let networks = Networks::new()?;
    networks.good(&["up", "--name", "lab", "--link", "delay=1ms", "--seed", "5"])?;
    networks.good(&["up", "--name", "other", "--link", "local"])?;
    let again = networks.wan(&["up", "--name", "lab", "--link", "local"])?;
    assert_eq!(again.ending(), "exit status 125");
    ensure!(again.output.contains("the network lab is up already"), "{}", again.output);
    assert_eq!(networks.listed()?, ["lab", "other"]);

    // Both ends are in it, and the commands' statuses come through.
    let lunette = binary().display().to_string();
    let portal = "198.18.0.2:3260";
    let target = "iqn.2026-11.io.lunette:far";
    let mut far = Command::new(binary())
        .args(["wan", "exec", "lab", "--far", "--", &lunette, "serve", "--portal", portal])
        .args(["--target", target, "--lun", "mem:1M"])
        .env("XDG_RUNTIME_DIR", networks.0.path())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(far.stdout.take().context("a pipe")?);
    output.read_line(&mut String::new())?;
    let url = format!("iscsi://{portal}/{target}/0");
    networks.good(&["exec", "lab", "--", &lunette, "write", &url, "--pattern", "random:5"])?;
    networks.good(&["exec", "lab", "--", &lunette, "verify", &url, "--pattern", "random:5"])?;
    assert_eq!(networks.wan(&["exec", "lab", "--", "sh", "-c", "exit 7"])?.ending(), "exit status 7");
    let unreachable = networks.wan(&["exec", "other", "--", &lunette, "info", &url])?;
    ensure!(!unreachable.success(), "{}", unreachable.output);

    let shown = networks.shown("lab")?;
    assert_eq!((&shown["seed"], &shown["processes"]), (&Value::from(5), &Value::from([far.id()])));
    ensure!(shown["up"]["arrived_bytes"].as_u64() > Some(1 << 20), "{shown}");

    assert_eq!((&shown["up"]["overrun"], &shown["up"]["refused"]), (&Value::from(0), &Value::from(0)));
    let named = networks.good(&["exec", "lab", "--", "sh", "-c", "echo $LUNETTE_LINK"])?;
    assert_eq!(Some(named.trim()), shown["link"].as_str());

    // Another link, with the session of the target's end alive.
    networks.good(&["set", "lab", "--link", "loss=100%"])?;
    ensure!(networks.shown("lab")?["link"].as_str().is_some_and(|link| link.contains("loss=100%")));
    networks.good(&["set", "lab", "--link", "rate=100M"])?;
    networks.good(&["exec", "lab", "--", &lunette, "verify", &url, "--pattern", "random:5"])?;

    let pid = networks.pid("lab")?;
    let down = networks.good(&["down", "lab"])?;
    ensure!(down.contains(&format!("still in it, without a network: processes {}", far.id())), "{down}");
    wait_until_gone([pid])?;
    assert_eq!(networks.listed()?, ["other"]);
    kill_process(Pid::from_child(&far), Signal::TERM)?;
    far.wait()?;
    Ok(())
}

#[test]
fn a_measurement_is_told_that_its_link_was_changed() -> Result<()> {
    if !may_in_bash()? {
        return Ok(());
    }
    let networks = Networks::new()?;
    networks.good(&["up", "--name", "lab", "--link", "delay=1ms"])?;
    let (disk, result) = (networks.0.path().join("disk"), networks.0.path().join("result"));
    fs::File::create(&disk)?.set_len(8 << 20)?;
    let changed = Value::from("the link was changed while this was measured");
    for (links, seconds, changes, doubt) in [
        // The same one again.
        (&["delay=1ms"][..], 2, 0, Value::Null),
        // Long enough for it to be changed in that time, and changed back, however late that is.
        (&["delay=2ms", "delay=1ms"], 10, 2, changed),
        (&["delay=1ms"], 2, 2, Value::Null),
    ] {
        let before = networks.shown("lab")?["link"].clone();
        let set = links.iter().map(|link| format!("{} wan set lab --link {link}", binary().display()));
        let set = set.collect::<Vec<_>>().join("; ");
        let near = while_measured(&disk, &result, seconds, &set);
        networks.good(&["exec", "lab", "--", "bash", "-c", &near])?;
        let result = json(&result)?;
        assert_eq!((&result["link"], &result["link_doubt"]), (&before, &doubt), "{links:?}: {result}");
        assert_eq!(networks.shown("lab")?["changes"], changes, "{links:?}");
    }
    ensure!(networks.good(&["show", "lab"])?.contains("its link was changed 2 times"));
    Ok(())
}

#[test]
fn what_a_crash_has_left_is_found_and_removed() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let networks = Networks::new()?;
    for name in ["one", "two", "three"] {
        networks.good(&["up", "--name", name, "--link", "local"])?;
        let pid = networks.pid(name)?;
        kill_process(Pid::from_raw(pid).context("a process")?, Signal::KILL)?;
        wait_until_gone([pid])?;
    }
    // A name whose network crashed may be taken at once.
    networks.good(&["up", "--name", "one", "--link", "local"])?;
    let gone = networks.wan(&["show", "two"])?;
    assert_eq!(gone.ending(), "exit status 125");
    ensure!(gone.output.contains("the process of the network two is gone"), "{}", gone.output);
    let list = networks.good(&["list"])?;
    for left in ["two", "three"] {
        ensure!(list.contains(&format!("{left} was left by a crash; it is removed")), "{list}");
    }
    assert_eq!(networks.listed()?, ["one"]);
    // One that is asked to end leaves nothing.
    let pid = networks.pid("one")?;
    kill_process(Pid::from_raw(pid).context("a process")?, Signal::TERM)?;
    wait_until_gone([pid])?;
    assert_eq!(networks.listed()?, [""; 0]);
    let unknown = networks.wan(&["down", "one"])?;
    ensure!(unknown.output.contains("there is no network one"), "{}", unknown.output);
    Ok(())
}

#[test]
fn of_several_that_want_one_name_one_has_it() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let networks = Networks::new()?;
    let mut up = Command::new(binary());
    up.args(["wan", "up", "--name", "lab", "--link", "local"]).env("XDG_RUNTIME_DIR", networks.0.path());
    up.stdout(Stdio::null()).stderr(Stdio::piped());
    let all: Vec<Child> = (0..4).map(|_| up.spawn()).collect::<Result<_, _>>()?;
    let mut successes = 0;
    for one in all {
        let ended = one.wait_with_output()?;
        let said = String::from_utf8_lossy(&ended.stderr);
        successes += usize::from(ended.status.success());
        let is_refused = ended.status.code() == Some(125) && said.contains("the network lab is up already");
        ensure!(ended.status.success() || is_refused, "{:?}: {said}", ended.status);
    }
    assert_eq!((successes, networks.listed()?), (1, vec!["lab".to_owned()]));
    // Who has started it goes before it is ready: nothing is left that a list would have to find.
    let mut hold = Command::new(binary());
    hold.args(["wan", "hold", "--name", "other", "--link", "local"]);
    let (nobody, output) = std::io::pipe()?;
    drop(nobody);
    hold.env("XDG_RUNTIME_DIR", networks.0.path()).stdout(output).stderr(Stdio::null());
    ensure!(!hold.status()?.success(), "nobody has heard that it is ready");
    ensure!(!networks.0.path().join("lunette/wan/other.socket").exists(), "a socket is left");
    Ok(())
}

#[test]
fn a_network_is_not_disturbed_by_who_speaks_otherwise() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let networks = Networks::new()?;
    networks.good(&["up", "--name", "lab", "--link", "local"])?;
    let socket = networks.0.path().join("lunette/wan/lab.socket");
    for nonsense in ["", "\n", "{}\n", "\"Set\"\n", "{\"set\":\"no link\"}\n", &"x".repeat(100_000)] {
        let mut stream = UnixStream::connect(&socket)?;
        // It may be gone before all has been said.
        let _ = stream.write_all(nonsense.as_bytes());
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        ensure!(answer.is_empty() || answer.contains("refused"), "{nonsense:?}: {answer}");
    }
    ensure!(networks.shown("lab")?["carries"] == true);
    Ok(())
}

/// A process that is stopped says nothing for ever.
#[test]
fn a_network_whose_process_is_stopped_is_named_and_ended_by_force() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let networks = Networks::new()?;
    networks.good(&["up", "--name", "lab", "--link", "local"])?;
    let pid = networks.pid("lab")?;
    let process = rustix::process::Pid::from_raw(pid).context("a process")?;
    rustix::process::kill_process(process, rustix::process::Signal::STOP)?;
    let silent = networks.wan(&["down", "lab"])?;
    assert_eq!(silent.ending(), "exit status 125", "{}", silent.output);
    let told = format!("the process {pid} of the network lab did not answer within 10 s");
    ensure!(silent.output.contains(&told) && silent.output.contains("--force"), "{}", silent.output);
    let listed = networks.wan(&["list", "--json"])?;
    let row = "[{\"name\":\"lab\",\"answers\":false}]";
    ensure!(listed.output.lines().any(|line| line == row), "{}", listed.output);
    networks.good(&["down", "lab", "--force"])?;
    ensure!(networks.listed()?.is_empty() && !networks.0.path().join("lunette/wan/lab.socket").exists());
    let gone = networks.wan(&["down", "lab", "--force"])?;
    ensure!(gone.output.contains("there is no network lab"), "{}", gone.output);
    Ok(())
}

/// Who enters a namespace is at the mercy of whoever has made it. An NBD server of `nobody` stands for his network: it
/// is not spoken to.
#[test]
fn another_users_network_is_not_entered() -> Result<()> {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        lunette_skip::record_lacking("only root can be two users");
        return Ok(());
    }
    let networks = Networks::new()?;
    let (program, sockets) = (networks.0.path().join("lunette.copy"), networks.0.path().join("lunette/wan"));
    // The binary may lie where only root can look.
    fs::copy(binary(), &program)?;
    fs::create_dir_all(&sockets)?;
    fs::set_permissions(networks.0.path(), fs::Permissions::from_mode(0o755))?;
    chown(&sockets, Some(NOBODY), Some(NOBODY))?;
    let target = Lunette::serve().luns(["0=mem:1M"]).start()?;
    let mut attach = Command::new(&program);
    attach.uid(NOBODY).gid(NOBODY).current_dir("/").args(["attach", &target.url(0), "--json", "--nbd"]);
    attach.arg(format!("unix:{}", sockets.join("lab.socket").display()));
    let attached = Attached::of(attach)?;
    for arguments in [&["exec", "lab", "--", "true"][..], &["show", "lab"], &["down", "lab"]] {
        let refused = networks.wan(arguments)?;
        assert_eq!(refused.ending(), "exit status 125", "{}", refused.output);
        ensure!(refused.output.contains("the network lab is another user's"), "{}", refused.output);
    }
    attached.detach()?;
    target.stop()?;
    Ok(())
}
