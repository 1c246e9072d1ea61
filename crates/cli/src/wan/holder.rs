//! The process that carries the packets of a network that is up, and answers for it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Instant;

use clap::Args;
use lunette_link::Link;
use lunette_wan::Emulator;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::control::{Answer, Directory, Line, NetworkName, OwnSocket, Request, State};
use super::report::Report;
use super::witness::{Current, SharedLink};
use super::{LinkOptions, connections, start, witness};
use crate::failure::Failure;

/// What it says when the network is there.
pub(super) const READY: &str = "ready\n";

/// What `lunette wan hold` is told.
#[derive(Debug, Args)]
pub(crate) struct HoldOptions {
    #[arg(long)]
    name: NetworkName,
    #[command(flatten)]
    network: LinkOptions,
}

struct Holder {
    name: NetworkName,
    link: SharedLink,
    seed: u64,
    emulator: Emulator,
    namespaces: [u64; 2],
    began: Instant,
}

/// Holds a network until it is told to end.
pub(super) fn hold(options: &HoldOptions) -> Result<(), Failure> {
    let emulator = start(&options.network)?;
    let failed = |what: &'static str| move |error: io::Error| Failure::network(what, &error);
    let inode = |entrance: lunette_wan::Entrance| File::from(entrance.network).metadata();
    let ends = [emulator.near(), emulator.far()].map(|end| end.entrance().and_then(inode));
    let [near, far] = ends.map(|end| end.map_err(failed("a namespace")));
    let holder = Holder {
        name: options.name.clone(),
        link: SharedLink::new(&options.network.link),
        seed: options.network.seed,
        namespaces: [near?.ino(), far?.ino()],
        emulator,
        began: Instant::now(),
    };
    witness::listen(&holder.emulator, &holder.link).map_err(failed("nobody can ask how the link is kept"))?;
    let directory = Directory::open()?;
    let (listener, socket) = listen(&directory, &options.name)?;
    let is_ready = end_on_signals(socket.clone())
        .map_err(failed("signals cannot be received"))
        .and_then(|()| detach().map_err(failed("the process cannot go into the background")));
    if is_ready.is_err() {
        socket.remove();
    }
    is_ready?;
    for stream in connections(&listener) {
        let mut line = Line::new(stream);
        // Whoever does not ask, or goes without the answer, is no matter.
        let Ok(request) = line.receive() else { continue };
        if matches!(request, Request::Down) {
            socket.remove();
            let _ = line.send(&Answer::Done);
            // The line ends with the process.
            std::process::exit(0);
        }
        let _ = holder.answer(&mut line, request);
    }
    Ok(())
}

/// A socket of that name, which nobody else has.
fn listen(directory: &Directory, name: &NetworkName) -> Result<(UnixListener, OwnSocket), Failure> {
    let bind = || {
        let _lock = directory.lock()?;
        let listener = match UnixListener::bind(directory.socket(name)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && directory.remove_stale(name)? => {
                UnixListener::bind(directory.socket(name))
            }
            bound => bound,
        }?;
        Ok((listener, OwnSocket::of(directory, name)?))
    };
    bind().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => Failure::wan(format!("the network {name} is up already"))
            .with_help("`lunette wan set` changes its link, `lunette wan down` ends it"),
        _ => Failure::network(format!("no socket {}", directory.socket(name).display()), &error),
    })
}

fn end_on_signals(socket: OwnSocket) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.forever().next().is_some() {
            socket.remove();
            std::process::exit(0);
        }
    })?;
    Ok(())
}

/// Says that the network is there, and leaves the terminal and the directory of whoever started it.
fn detach() -> io::Result<()> {
    // It fails where the process leads its session already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let mut output = io::stdout();
    output.write_all(READY.as_bytes())?;
    output.flush()?;
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(nothing.as_fd())?;
    rustix::stdio::dup2_stderr(nothing.as_fd())?;
    Ok(())
}

impl Holder {
    fn answer(&self, line: &mut Line, request: Request) -> io::Result<()> {
        let answer = match request {
            Request::Show => self.state().map(|state| Answer::State(Box::new(state))),
            Request::Set(link) => self.set(&link).map(|()| Answer::Done),
            Request::Enter { far } => {
                let end = if far { self.emulator.far() } else { self.emulator.near() };
                return line.send_entrance(&end.entrance()?);
            }
            Request::Down => Ok(Answer::Done),
        };
        line.send(&answer.unwrap_or_else(|error| Answer::Refused(error.to_string())))
    }

    fn state(&self) -> io::Result<State> {
        let statistics = self.emulator.statistics()?;
        let Current { link, changes } = self.link.current();
        Ok(State {
            name: self.name.to_string(),
            pid: std::process::id(),
            up_for_s: self.began.elapsed().as_secs(),
            carries: self.emulator.carries(),
            namespaces: self.namespaces,
            changes,
            report: Report::new(&link, self.seed, self.emulator.offloads(), &statistics),
        })
    }

    fn set(&self, link: &str) -> io::Result<()> {
        let link: Link = link.parse().map_err(io::Error::other)?;
        self.link.change(link, |link| self.emulator.reshape(link))
    }
}
