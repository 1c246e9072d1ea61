//! `lunette lab`'s studies of files: file systems on attached disks and behind servers, and that nothing of them is left behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunette_tests::lunette::binary;
use lunette_tests::need_programs;
use lunette_tests::process::{Finished, run, started_by};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Far more than a short study takes.
const LIMIT: Duration = Duration::from_secs(900);
/// What says that this machine cannot do it at all.
const LACKS: [&str; 3] =
    ["there is no emulated network", "it needs ", "are in memory, where nothing is cold"];

/// A directory on a disk, whatever the tests' temporary directory is.
fn scratch() -> Result<TempDir> {
    Ok(tempfile::tempdir_in("/var/tmp")?)
}

fn study(name: &str, scratch: &Path, only: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["lab", "run", name, "--quiet", "--json", "--scratch"]).arg(scratch);
    for parameter in only {
        command.args(["--only", parameter]);
    }
    command
}

/// What comes of a short run; nothing where this machine cannot have any.
fn result(name: &str, only: &[&str]) -> Result<Option<Value>> {
    let scratch = scratch()?;
    let finished = run(study(name, scratch.path(), only).arg("--quick"), LIMIT)?;
    if is_lacking(&finished) {
        return Ok(None);
    }
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    assert_eq!(fs::read_dir(scratch.path())?.count(), 0, "nothing is left behind");
    Ok(Some(serde_json::from_str(finished.output.trim())?))
}

fn is_lacking(finished: &Finished) -> bool {
    let is = !finished.success() && LACKS.iter().any(|lack| finished.output.contains(lack));
    if is {
        lunette_skip::record_lacking(finished.output.trim());
    }
    is
}

/// A cell's parameters, by their names.
fn parameters(cell: &Value) -> BTreeMap<&str, &str> {
    let pairs = cell["parameters"].as_array().into_iter().flatten();
    pairs.filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_str()?))).collect()
}

#[test]
fn files_are_measured_over_every_scheme() -> Result<()> {
    let Some(result) = result("lu-files", &["network=gige"])? else { return Ok(()) };
    let (cells, differs) = (result["cells"].as_array().context("cells")?, &result["differs"]);
    let mut schemes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for cell in cells {
        let own = parameters(cell);
        let measured = cell["measured"].as_f64().unwrap_or(-1.0);
        ensure!(cell["unit"] == "ms" && (measured > 0.0 || own["figure"] == "deviation"), "{cell}");
        let is_published = own["scheme"] != "iscsi-sync";
        assert_eq!(cell["published"].is_number(), is_published, "{cell}");
        // Only iSCSI has keys.
        assert_eq!(cell["negotiated"].is_number(), own["scheme"].starts_with("iscsi"), "{cell}");
        schemes.entry(own["scheme"]).or_default().push(measured);
    }
    for scheme in ["iscsi", "iscsi-sync", "nfs", "smb"] {
        match schemes.get(scheme) {
            Some(figures) => assert_eq!(figures.len(), 20, "{scheme}"),
            None if differs.as_str().is_some_and(|text| text.contains("it lacks ")) && scheme.len() == 3 => {
                lunette_skip::record_lacking(&format!("the server and client of {scheme}"));
            }
            None => bail!("no figure of {scheme}: {differs}"),
        }
    }
    Ok(())
}

#[test]
fn postmark_tells_every_figure_of_one_run() {
    need_programs!("postmark");
    figures_of_postmark().expect("PostMark is run");
}

fn figures_of_postmark() -> Result<()> {
    let Some(result) = result("fujita-postmark", &["design=threads"])? else { return Ok(()) };
    let cells = result["cells"].as_array().context("cells")?;
    let units: Vec<_> = cells.iter().map(|cell| cell["unit"].as_str().unwrap_or_default()).collect();
    assert_eq!(units, ["1/s", "MB/s", "MB/s"]);
    for cell in cells {
        ensure!(cell["measured"].as_f64() > Some(0.0), "{cell}");
        // The image was cold, where the kernel can tell.
        ensure!(cell["cached"].as_f64().is_none_or(|share| share <= 0.01), "{cell}");
        ensure!(cell["idle"].as_f64() < Some(1.0), "nobody has looked: {cell}");
        ensure_paper_keys(&result, cell)?;
    }
    // By the clock, which is no more than a second off the whole ones of its report, or by these.
    let further = cells[0]["further"].as_array().into_iter().flatten();
    let mut reported = further.filter(|one| one["name"] == "by its report");
    let reported = reported.find_map(|one| one["measured"].as_f64()).context("what PostMark says")?;
    let measured = cells[0]["measured"].as_f64().context("a figure")?;
    ensure!(measured <= (reported + 1.0) * 2.0 && measured >= reported / 2.0, "{}", cells[0]);
    Ok(())
}

/// InitialR2T=Yes, ImmediateData=Yes, and the lengths of Fujita and Ogawara.
fn ensure_paper_keys(result: &Value, cell: &Value) -> Result<()> {
    let place = cell["negotiated"].as_u64().context("a session that has agreed on something")?;
    let agreed = &result["negotiated"][usize::try_from(place)?];
    ensure!(agreed["initial_r2t"] == true && agreed["immediate_data"] == true, "{agreed}");
    for (key, value) in [
        ("first_burst_length", 64 << 10),
        ("max_burst_length", 256 << 10),
        ("max_recv_data_segment_length", 128 << 10),
        ("target_max_recv_data_segment_length", 128 << 10),
        ("max_outstanding_r2t", 1),
        ("max_connections", 1),
    ] {
        ensure!(agreed[key] == value, "{key}: {agreed}");
    }
    Ok(())
}

#[test]
fn only_designs_with_a_page_cache_have_hits() -> Result<()> {
    let Some(result) = result("fujita-netserver", &["figure=hit-rate", "files=512"])? else {
        return Ok(());
    };
    let cells = result["cells"].as_array().context("cells")?;
    cells.iter().try_for_each(|cell| ensure_paper_keys(&result, cell))?;
    let hits: BTreeMap<_, _> = cells
        .iter()
        .map(|cell| (parameters(cell)["design"], cell["measured"].as_f64().unwrap_or(-1.0)))
        .collect();
    // What a disk has in memory is no hit, and neither is what the kernel reads ahead.
    ensure!(hits.len() == 4 && hits["diskio"] < 1.0 && hits["uring"] < 1.0, "{hits:?}");
    ensure!(hits["fileio"] > 1.0 && hits["threads"] > 1.0, "{hits:?}");
    Ok(())
}

/// The agreements of a short run of a study's cells with these settings, each with what is told of one of its cells.
fn agreed_with(name: &str, only: &[&str], set: &[&str]) -> Result<Vec<(String, Value)>> {
    let scratch = scratch()?;
    let mut command = study(name, scratch.path(), only);
    command.arg("--quick").args(set.iter().flat_map(|one| ["--set", one]));
    let finished = run(&mut command, LIMIT)?;
    if is_lacking(&finished) {
        return Ok(Vec::new());
    }
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    let result: Value = serde_json::from_str(finished.output.trim())?;
    let mut agreed = Vec::new();
    for cell in result["cells"].as_array().context("cells")? {
        let own = parameters(cell);
        for one in set {
            let (key, value) = one.split_once('=').context("a setting")?;
            assert_eq!(own.get(key), Some(&value), "{cell}");
        }
        ensure!(cell["measured"].as_f64() > Some(0.0), "{cell}");
        let place = usize::try_from(cell["negotiated"].as_u64().context("a session")?)?;
        agreed.push((cell["parameters"].to_string(), result["negotiated"][place].clone()));
    }
    Ok(agreed)
}

#[test]
fn keys_are_set_for_file_systems_and_transfers() -> Result<()> {
    let only = ["disk=iscsi-gige", "file_mib=1"];
    let set =
        ["InitialR2T=Yes", "FirstBurstLength=32768", "MaxRecvDataSegmentLength=65536", "DataDigest=CRC32C"];
    let agreed = agreed_with("dr-local", &only, &set)?;
    // Transfers need no privileges; with them there are as many cells with a file system.
    ensure!(agreed.is_empty() || agreed.iter().any(|(cell, _)| cell.contains("blocks")), "{agreed:?}");
    for (cell, agreed) in agreed {
        let told = ["initial_r2t", "data_digest", "header_digest", "immediate_data"].map(|key| &agreed[key]);
        assert_eq!(told, [true, true, false, true], "{cell}: {agreed}");
        let lengths =
            ["first_burst_length", "max_recv_data_segment_length", "target_max_recv_data_segment_length"];
        assert_eq!(lengths.map(|key| &agreed[key]), [32768, 65536, 65536], "{cell}: {agreed}");
    }
    // What is not set stays the study's.
    let only = ["design=threads", "figure=hit-rate", "files=512"];
    let set = ["InitialR2T=No", "MaxOutstandingR2T=4", "MaxConnections=2"];
    for (cell, agreed) in agreed_with("fujita-netserver", &only, &set)? {
        assert_eq!([&agreed["initial_r2t"], &agreed["immediate_data"]], [false, true], "{cell}: {agreed}");
        let told = ["max_outstanding_r2t", "max_connections", "first_burst_length", "max_burst_length"];
        assert_eq!(told.map(|key| &agreed[key]), [4, 2, 64 << 10, 256 << 10], "{cell}: {agreed}");
    }
    // Neither NFS nor SMB has them, and what is under way is the file system's affair.
    let scratch = scratch()?;
    for (only, set) in [("scheme=nfs", "DataDigest=CRC32C"), ("scheme=iscsi", "depth=4")] {
        let refused = run(study("lu-files", scratch.path(), &[only]).args(["--set", set]), LIMIT)?;
        if is_lacking(&refused) {
            continue;
        }
        let key = set.split('=').next().context("a key")?;
        ensure!(
            refused.output.contains(&format!("no such cell that has all of {key}")),
            "{}",
            refused.output
        );
    }
    Ok(())
}

/// A running study, killed with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The mounts below a directory that any thread of a process sees: where, and on which device.
fn mounts(process: &Path, below: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let tables = tasks.filter_map(|task| fs::read_to_string(task.path().join("mountinfo")).ok());
    let mut found = Vec::new();
    for table in tables {
        for line in table.lines().filter(|line| line.contains(below)) {
            // Number, parent, device, root, place (proc(5)).
            let words: Vec<_> = line.split(' ').collect();
            found.push((words[4].to_owned(), words[2].to_owned()));
        }
    }
    found
}

/// What any process has of a directory: mounts in it, or its name among the arguments.
fn left(below: &str) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let path = entry.path();
        if path.file_name().is_none_or(|name| name.to_string_lossy().parse::<u32>().is_err()) {
            continue;
        }
        left.extend(mounts(&path, below).into_iter().map(|mount| mount.0));
        let arguments = fs::read_to_string(path.join("cmdline")).unwrap_or_default().replace('\0', " ");
        if arguments.contains(below) {
            left.push(arguments);
        }
    }
    Ok(left)
}

/// The devices below loop devices.
fn backing() -> Result<String> {
    let arguments = ["--list", "--noheadings", "--output", "NAME,BACK-MAJ:MIN"];
    let output = Command::new("losetup").args(arguments).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(begun.elapsed() < LIMIT, "{what} does not come");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a study while a file system of a scheme is mounted and used, and waits until nothing is left.
fn kill_in_the_middle(scheme: &str, mounted: &str) -> Result<()> {
    let scratch = scratch()?;
    let below = scratch.path().to_str().context("a name")?;
    let only = [&format!("scheme={scheme}"), "network=gige"];
    let mut command = study("lu-files", scratch.path(), &only.map(|text| text as &str));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut running = Running(child);
    let process = format!("/proc/{}", running.0.id());
    let is_it = |mount: &(String, String)| mount.0.ends_with(mounted) && mount.1.starts_with("7:");
    let found = until("a mounted file system", || {
        let found = mounts(Path::new(&process), below).into_iter().find(is_it);
        Ok(if running.0.try_wait()?.is_some() { Some(None) } else { found.map(Some) })
    })?;
    let Some((_, device)) = found else {
        let Running(child) = &mut running;
        let mut said = String::new();
        std::io::Read::read_to_string(child.stderr.as_mut().context("a stream")?, &mut said)?;
        ensure!(said.contains("lack") || LACKS.iter().any(|lack| said.contains(lack)), "{said}");
        lunette_skip::record_lacking(said.trim());
        return Ok(());
    };
    let device = device.replace("7:", "/dev/loop");
    let row =
        backing()?.lines().find(|line| line.split_whitespace().next() == Some(&device)).map(str::to_owned);
    ensure!(row.is_some() && !left(below)?.is_empty(), "{device}: {row:?}");
    kill_process(Pid::from_child(&running.0), Signal::KILL)?;
    running.0.wait()?;
    until("the end of all mounts and processes", || Ok(left(below)?.is_empty().then_some(())))?;
    // Whatever the next study is, it finds what is left of the files.
    ensure!(fs::read_dir(scratch.path())?.next().is_some(), "they cannot have been removed");
    let next = ["session=normal", "targets=1", "authentication=none", "digests=none", "phase=total"];
    let next = run(study("lu-login", scratch.path(), &next).arg("--quick"), LIMIT)?;
    ensure!(next.success(), "{}: {}", next.ending(), next.output);
    assert_eq!(fs::read_dir(scratch.path())?.count(), 0, "it is left");
    // Somebody else may have the loop device now.
    let row = row.unwrap_or_default();
    until("the end of the loop device", || Ok((row.is_empty() || !backing()?.contains(&row)).then_some(())))
}

/// Kills what a study has on its way to a disk while a file system there is used. That run has failed; all others find everything
/// new, and nothing is left.
fn fail_in_the_middle(victim: &str) -> Result<()> {
    let scratch = scratch()?;
    let below = scratch.path().to_str().context("a name")?;
    let mut command = study("lu-files", scratch.path(), &["scheme=iscsi", "network=gige"]);
    let results = tempfile::tempdir()?;
    command.arg("--quick").arg("--output").arg(results.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut running = Running(child);
    let process = format!("/proc/{}", running.0.id());
    let is_it = |mount: &(String, String)| mount.0.ends_with("/root") && mount.1.starts_with("7:");
    let is_used = until("a mounted file system", || {
        let found = mounts(Path::new(&process), below).iter().any(is_it);
        Ok(if running.0.try_wait()?.is_some() { Some(false) } else { found.then_some(true) })
    })?;
    let said = |running: &mut Running| -> Result<String> {
        let mut said = String::new();
        std::io::Read::read_to_string(running.0.stderr.as_mut().context("a stream")?, &mut said)?;
        Ok(said)
    };
    if !is_used {
        let said = said(&mut running)?;
        ensure!(said.contains("lack") || LACKS.iter().any(|lack| said.contains(lack)), "{said}");
        lunette_skip::record_lacking(said.trim());
        return Ok(());
    }
    let victims = started_by(running.0.id())?;
    let victims: Vec<_> = victims.iter().filter(|(_, arguments)| arguments.contains(victim)).collect();
    ensure!(!victims.is_empty(), "nobody is called {victim}");
    for (id, _) in victims {
        let id = Pid::from_raw((*id).cast_signed()).context("a process")?;
        kill_process(id, Signal::KILL)?;
    }
    let status = until("the end of the study", || Ok(running.0.try_wait()?))?;
    let said = said(&mut running)?;
    ensure!(
        status.code() == Some(1) && said.contains("lu-files: runs of a cell have failed"),
        "{status}: {said}"
    );
    let result: Value = serde_json::from_str(&fs::read_to_string(results.path().join("lu-files.json"))?)?;
    let cells = result["cells"].as_array().context("cells")?;
    // One piece of work gives all of them a figure; the first one that wanted it has none.
    let failed = &result["failed"];
    ensure!(cells.len() == 19 && failed.as_array().is_some_and(|failed| failed.len() == 1), "{result}");
    assert_eq!((&failed[0]["is_measured"], &failed[0]["runs"]), (&false.into(), &1.into()), "{failed}");
    let names: Vec<_> = fs::read_dir(scratch.path())?.flatten().map(|entry| entry.path()).collect();
    ensure!(names.is_empty(), "{names:?} is left of a study that says: {said}");
    until("the end of all mounts and processes", || Ok(left(below)?.is_empty().then_some(())))?;
    until("the end of the loop device", || Ok((!backing_files()?.contains(below)).then_some(())))
}

/// The files below loop devices.
fn backing_files() -> Result<String> {
    let output =
        Command::new("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn nothing_is_left_of_file_systems_when_a_study_fails() -> Result<()> {
    for victim in [" attach ", " serve "] {
        fail_in_the_middle(victim).with_context(|| format!("killed:{victim}"))?;
    }
    Ok(())
}

#[test]
fn nothing_is_left_of_file_systems_when_a_study_is_killed() -> Result<()> {
    for (scheme, mounted) in [("iscsi", "/root"), ("nfs", "/served"), ("smb", "/served")] {
        kill_in_the_middle(scheme, mounted).context(scheme)?;
    }
    Ok(())
}
