//! `lunette wan up`, `show`, `set`, `down` and `list`: networks that stay.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use lunette_link::Link;
use lunette_wan::{FAR, NEAR, inhabitants, leftovers};
use serde::Serialize;

use super::control::{Answer, Directory, Line, NetworkName, Request, State};
use super::holder::READY;
use super::ward::Left;
use super::{LINK_HELP, LinkOptions, json, print};
use crate::failure::{Failure, say};

pub(super) const UP_EXAMPLES: &str = "\
Examples:
  lunette wan up --name lab --link oc3-50
  lunette wan exec lab --far -- lunette serve --portal 198.18.0.2:3260 --target iqn.2026-11.io.lunette:far --lun mem:1G &
  lunette wan exec lab -- ping -c 3 198.18.0.2
  lunette wan set lab --link oc3-50,loss=0.1%
  lunette wan down lab";

/// What `lunette wan up` is told.
#[derive(Debug, Args)]
pub(crate) struct UpOptions {
    /// What the network is called: 1 to 32 letters, digits, hyphens and underscores
    #[arg(long, value_name = "NAME")]
    name: NetworkName,
    #[command(flatten)]
    network: LinkOptions,
}

/// What `lunette wan show` is told.
#[derive(Debug, Args)]
pub(crate) struct ShowOptions {
    /// The network's name
    name: NetworkName,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `lunette wan set` is told.
#[derive(Debug, Args)]
pub(crate) struct SetOptions {
    /// The network's name
    name: NetworkName,
    /// The link that it has from now on: a name, properties, or both; see the end of this help
    #[arg(long, value_name = "LINK", long_help = LINK_HELP)]
    link: Link,
}

/// What `lunette wan down` is told.
#[derive(Debug, Args)]
pub(crate) struct DownOptions {
    /// The network's name
    name: NetworkName,
    /// End its process by SIGKILL, as where that is stopped and does not answer
    #[arg(long)]
    force: bool,
}

/// Starts the process that holds the network, and says how it is used.
pub(super) fn up(options: &UpOptions) -> Result<ExitCode, Failure> {
    let (name, link) = (&options.name, &options.network.link);
    let failed = |error: std::io::Error| Failure::network("the network's process cannot be started", &error);
    let mut holder = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["wan", "hold", "--name", &name.to_string(), "--link", &link.to_string()])
        .args(["--seed", &options.network.seed.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = holder.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    if line != READY {
        // It has said why.
        let status = holder.wait().map_err(failed)?.code().unwrap_or(1);
        return Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)));
    }
    print(&format!(
        "{name} is up: {link}\n\
         near {} and {}: lunette wan exec {name} -- COMMAND\n\
         far  {} and {}: lunette wan exec {name} --far -- COMMAND\n",
        NEAR.ipv4, NEAR.ipv6, FAR.ipv4, FAR.ipv6
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What `show` prints as JSON.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    state: State,
    /// The processes at its ends.
    processes: Vec<u32>,
}

fn state(directory: &Directory, name: &NetworkName) -> Result<Shown, Failure> {
    match Line::call(directory, name)?.ask(name, &Request::Show)? {
        Answer::State(state) => Ok(Shown { processes: inhabitants(&state.namespaces), state: *state }),
        _ => Err(Failure::internal("a network does not say what it is")),
    }
}

fn duration(seconds: u64) -> String {
    match (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// Processes, for people.
pub(super) fn listed(processes: &[u32]) -> String {
    match processes {
        [] => "nobody".to_owned(),
        pids => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!("processes {}", pids.join(", "))
        }
    }
}

/// Says what a network is and what it has carried.
pub(super) fn show(options: &ShowOptions) -> Result<(), Failure> {
    let shown = state(&Directory::open()?, &options.name)?;
    if options.json {
        return print(&json(&shown)?);
    }
    let Shown { state, processes } = shown;
    let mut text = format!(
        "{}: {}\nup for {}, carried by process {}, seed {}\n",
        state.name,
        state.report.link,
        duration(state.up_for_s),
        state.pid,
        state.report.seed
    );
    if state.changes > 0 {
        let times = if state.changes == 1 { "once" } else { &format!("{} times", state.changes) };
        text += &format!("its link was changed {times}\n");
    }
    for line in state.report.lines() {
        text += &format!("{line}\n");
    }
    text += &format!("in it: {}\n", listed(&processes));
    if !state.carries {
        text += "it carries nothing any more: a network device has failed\n";
    }
    if let Some(doubt) = &state.report.doubt {
        text += &format!("warning: {doubt}\n");
    }
    print(&text)
}

/// Gives a network another link.
pub(super) fn set(options: &SetOptions) -> Result<(), Failure> {
    let request = Request::Set(options.link.to_string());
    Line::call(&Directory::open()?, &options.name)?.ask(&options.name, &request)?;
    print(&format!("{}: {}\n", options.name, options.link))
}

/// Ends a network.
pub(super) fn down(options: &DownOptions) -> Result<(), Failure> {
    let (directory, name) = (Directory::open()?, &options.name);
    if options.force {
        return force_down(&directory, name);
    }
    let processes = state(&directory, name)?.processes;
    let mut line = Line::call(&directory, name)?;
    line.ask(name, &Request::Down)?;
    line.wait_for_end(name)?;
    say_who_is_left(&processes);
    Ok(())
}

/// Ends a network that may not answer.
fn force_down(directory: &Directory, name: &NetworkName) -> Result<(), Failure> {
    let holder = Line::kill_holder(directory, name)?;
    let failed = |error: std::io::Error| Failure::network(format!("the socket of {name} stays"), &error);
    {
        let _lock = directory.lock().map_err(failed)?;
        match directory.remove_stale(name) {
            // Somebody else may have removed it.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let left = leftovers().into_iter().map(Left::from);
    left.filter(|left| left.pid == holder).for_each(|left| say_who_is_left(&left.processes));
    Ok(())
}

fn say_who_is_left(processes: &[u32]) {
    if !processes.is_empty() {
        say(&format!(
            "still in it, without a network: {}; `lunette wan clean` ends those that have LUNETTE_NETWORK in their environment",
            listed(processes)
        ));
    }
}

/// A row of the list.
#[derive(Serialize)]
#[serde(untagged)]
enum Row {
    Up(Up),
    Silent(Silent),
    Left(Left),
}

/// A network that is up.
#[derive(Serialize)]
struct Up {
    name: String,
    link: String,
    pid: u32,
    up_for_s: u64,
    processes: Vec<u32>,
}

/// A network whose process is there, and does not answer: it may have been stopped.
#[derive(Serialize)]
struct Silent {
    name: String,
    answers: bool,
}

/// Lists the networks that are up.
pub(super) fn list(as_json: bool) -> Result<(), Failure> {
    let directory = Directory::open()?;
    let unreadable = |error: std::io::Error| Failure::network("the networks cannot be listed", &error);
    let mut rows = Vec::new();
    for name in directory.names().map_err(unreadable)? {
        {
            let _lock = directory.lock().map_err(unreadable)?;
            if directory.remove_stale(&name).map_err(unreadable)? {
                say(&format!("{name} was left by a crash; it is removed"));
                continue;
            }
        }
        match state(&directory, &name) {
            Ok(Shown { state, processes }) => rows.push(Row::Up(Up {
                name: state.name,
                link: state.report.link,
                pid: state.pid,
                up_for_s: state.up_for_s,
                processes,
            })),
            Err(failure) => {
                say(&failure.to_string());
                // It may have ended meanwhile.
                if directory.names().map_err(unreadable)?.contains(&name) {
                    rows.push(Row::Silent(Silent { name: name.to_string(), answers: false }));
                }
            }
        }
    }
    rows.extend(leftovers().into_iter().map(|left| Row::Left(left.into())));
    if as_json {
        return print(&json(&rows)?);
    }
    print(&rows.iter().map(line).collect::<String>())
}

fn line(row: &Row) -> String {
    match row {
        Row::Up(up) => format!(
            "{:<14} {}\n{:14} up for {}, in it: {}\n",
            up.name,
            up.link,
            "",
            duration(up.up_for_s),
            listed(&up.processes)
        ),
        Row::Silent(silent) => format!("{:<14} its process is there, and does not answer\n", silent.name),
        Row::Left(left) => format!(
            "{:<14} process {} carried it and is gone, in it: {}; `lunette wan clean` ends them\n",
            "-",
            left.pid,
            listed(&left.processes)
        ),
    }
}
