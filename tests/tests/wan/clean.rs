//! `lunette wan clean`: what it ends, and what it leaves alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lunette_tests::lunette::binary;
use lunette_tests::process::{Finished, run};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use super::{
    LIMIT, NO_NETWORK, Networks, begin, left_by, left_in, lives, may, run_with, told_in, wan, warden_of,
    with_child,
};

/// Somebody else.
const NOBODY: u32 = 65534;

/// Each of these tests is alone: one would end what is left over for another one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn what_even_the_warden_could_not_end_is_listed_and_ended() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let (far, near) = (directory.path().join("far"), directory.path().join("near"));
    let mut child = begin(&with_child(&far), &[], &format!("{}; wait", with_child(&near)))?;
    let mut pids = [told_in(&far)?, told_in(&near)?];
    pids.sort_unstable();
    let owner = child.id();
    assert_eq!(left_by(owner)?, [0; 0], "it is there");
    kill_process(warden_of(owner)?, Signal::KILL)?;
    child.kill()?;
    child.wait()?;
    // The shells are asked to end by the kernel; what they have started is not.
    let deadline = Instant::now() + LIMIT;
    while left_by(owner)? != pids.map(i64::from) {
        ensure!(Instant::now() < deadline, "{pids:?}, and not {:?}", left_by(owner)?);
    }
    let said = wan(&["list"])?.output;
    let says = format!("process {owner} carried it and is gone, in it: processes {}, {}", pids[0], pids[1]);
    ensure!(said.contains(&says), "{said}");
    let cleaned = wan(&["clean"])?.output;
    let says = format!("ended, of the network of process {owner}: processes {}, {}", pids[0], pids[1]);
    ensure!(cleaned.contains(&says), "{cleaned}");
    ensure!(!pids.into_iter().any(lives), "they are there");
    assert_eq!(left_by(owner)?, [0; 0]);

    // A network that stays has no warden: who is in it has been put there one by one.
    let networks = Networks::new()?;
    networks.good(&["up", "--name", "lab", "--link", "local"])?;
    let holder = networks.pid("lab")?;
    let mut exec = Command::new(binary());
    exec.args(["wan", "exec", "lab", "--", "sleep", "1000"]).env("XDG_RUNTIME_DIR", networks.0.path());
    let mut inside = exec.spawn()?;
    while networks.shown("lab")?["processes"] != Value::from([inside.id()]) {
        ensure!(Instant::now() < deadline, "{} is not there", inside.id());
    }
    kill_process(Pid::from_raw(holder).context("a process")?, Signal::KILL)?;
    while left_by(holder.unsigned_abs())? != [i64::from(inside.id())] {
        ensure!(Instant::now() < deadline, "{} is not told", inside.id());
    }
    networks.good(&["clean"])?;
    assert_eq!(inside.wait()?.signal(), Some(Signal::TERM.as_raw()));
    Ok(())
}

/// A user who makes networks, and has a directory to write into.
struct User {
    /// None: whoever runs this.
    id: Option<u32>,
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl User {
    fn new(id: Option<u32>) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        // The binary may lie where only root can look.
        let program = directory.path().join("lunette.copy");
        fs::copy(binary(), &program)?;
        chown(directory.path(), id, id)?;
        Ok(Self { id, program, directory })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("wan").args(arguments).current_dir("/");
        if let Some(id) = self.id {
            command.uid(id).gid(id);
        }
        command
    }

    fn wan(&self, arguments: &[&str]) -> Result<Finished> {
        Ok(run(&mut self.command(arguments), LIMIT)?)
    }

    fn clean(&self) -> Result<String> {
        let finished = self.wan(&["clean"])?;
        ensure!(finished.success(), "{}", finished.output);
        Ok(finished.output)
    }

    /// A network with a process at each end that nobody but the network knows.
    fn network(&self, name: &str) -> Result<(Child, [i32; 2])> {
        let file = |end: &str| self.directory.path().join(format!("{name}-{end}"));
        let (far, near) = (file("far"), file("near"));
        let child =
            run_with(self.command(&[]), &with_child(&far), &[], &format!("{}; wait", with_child(&near)))?;
        Ok((child, [told_in(&far)?, told_in(&near)?]))
    }

    /// The processes of a network that is gone, and its warden with it.
    fn leftover(&self, name: &str) -> Result<[i32; 2]> {
        let (mut owner, mut pids) = self.network(name)?;
        kill_process(warden_of(owner.id())?, Signal::KILL)?;
        owner.kill()?;
        owner.wait()?;
        pids.sort_unstable();
        let deadline = Instant::now() + LIMIT;
        while left_in(&self.wan(&["list", "--json"])?.output, owner.id())? != pids.map(i64::from) {
            ensure!(Instant::now() < deadline, "{pids:?} are not told");
        }
        Ok(pids)
    }
}

#[test]
fn networks_whose_owner_lives_are_left_alone() -> Result<()> {
    if !may()? {
        return Ok(());
    }
    let _alone = alone();
    let user = User::new(None)?;
    let (mut running, at_its_ends) = user.network("running")?;
    let networks = Networks::new()?;
    networks.good(&["up", "--name", "lab", "--link", "local"])?;
    let mut exec = Command::new(binary());
    exec.args(["wan", "exec", "lab", "--", "sleep", "1000"]).env("XDG_RUNTIME_DIR", networks.0.path());
    let mut inside = exec.spawn()?;
    let deadline = Instant::now() + LIMIT;
    while networks.shown("lab")?["processes"] != Value::from([inside.id()]) {
        ensure!(Instant::now() < deadline, "{} is not there", inside.id());
    }
    let left = user.leftover("gone")?;

    let cleaned = user.clean()?;
    ensure!(!left.into_iter().any(lives), "{left:?} are there: {cleaned}");
    ensure!(at_its_ends.into_iter().all(lives) && running.try_wait()?.is_none(), "{cleaned}");
    ensure!(inside.try_wait()?.is_none(), "{cleaned}");
    assert_eq!(networks.shown("lab")?["processes"], Value::from([inside.id()]));
    networks.good(&["exec", "lab", "--", "true"])?;
    assert_eq!(networks.listed()?, ["lab"]);

    running.kill()?;
    running.wait()?;
    inside.kill()?;
    inside.wait()?;
    Ok(())
}

#[test]
fn what_is_another_users_is_left_alone() -> Result<()> {
    if !geteuid().is_root() {
        lunette_skip::record_lacking("only root can be two users");
        return Ok(());
    }
    if !may()? {
        return Ok(());
    }
    let (own, other) = (User::new(None)?, User::new(Some(NOBODY))?);
    let tried = other.wan(&["run", "--quiet", "--link", "local", "--", "true"])?;
    if tried.output.contains(NO_NETWORK) {
        lunette_skip::record_lacking(&format!("networks of users: {}", tried.output.trim()));
        return Ok(());
    }
    ensure!(tried.success(), "{}", tried.output);
    let _alone = alone();
    let (mut own_running, own_ends) = own.network("running")?;
    let (mut other_running, other_ends) = other.network("running")?;
    let others_left = other.leftover("gone")?;
    let own_left = own.leftover("gone")?;
    let mut both_run = |said: &str| -> Result<()> {
        let ends = [own_ends, other_ends];
        ensure!(ends.into_iter().flatten().all(lives), "{ends:?}: {said}");
        ensure!(own_running.try_wait()?.is_none() && other_running.try_wait()?.is_none(), "{said}");
        Ok(())
    };

    let cleaned = own.clean()?;
    ensure!(!own_left.into_iter().any(lives), "{own_left:?} are there: {cleaned}");
    ensure!(others_left.into_iter().all(lives), "{others_left:?} are not this user's: {cleaned}");
    both_run(&cleaned)?;

    let own_left = own.leftover("gone-too")?;
    let cleaned = other.clean()?;
    ensure!(!others_left.into_iter().any(lives), "{others_left:?} are there: {cleaned}");
    ensure!(own_left.into_iter().all(lives), "{own_left:?} are not that user's: {cleaned}");
    both_run(&cleaned)?;

    own.clean()?;
    ensure!(!own_left.into_iter().any(lives), "{own_left:?} are there");
    for mut running in [own_running, other_running] {
        running.kill()?;
        running.wait()?;
    }
    Ok(())
}
