//! How a network that is up is found and spoken to: a socket in a directory of the user's, which speaks a line of JSON each way.
//!
//! The socket is the only thing that a network has in the file system. One that nobody listens on is what a crash has left; all
//! else went with the process.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use lunette_wan::Entrance;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::failure::Failure;
use crate::runtime::directory;

/// The longest line that is read. A report has about 1 KiB.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// How long a network has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The name of a network that is up: 1 to 32 letters, digits, hyphens and underscores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NetworkName(String);

impl FromStr for NetworkName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > 32 || !text.bytes().all(is_fit) {
            return Err("a name has 1 to 32 letters, digits, hyphens and underscores");
        }
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Display for NetworkName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a network is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// What it is and what it has carried.
    Show,
    /// To have another link, which is described.
    Set(String),
    /// For the way to an end: two descriptors come with the answer.
    Enter { far: bool },
    /// To end.
    Down,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    State(Box<State>),
    Done,
    Refused(String),
}

/// A network that is up.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) name: String,
    /// The process that carries its packets.
    pub(super) pid: u32,
    pub(super) up_for_s: u64,
    /// False when a device has failed.
    pub(super) carries: bool,
    /// The inode numbers of its namespaces, by which the processes in it are found.
    pub(super) namespaces: [u64; 2],
    /// How often its link was changed.
    pub(super) changes: u64,
    #[serde(flatten)]
    pub(super) report: Report,
}

/// Where this user's networks are.
#[derive(Debug, Clone)]
pub(super) struct Directory(PathBuf);

/// A socket that a network has made, and nobody else: after it another one may have that name.
#[derive(Debug, Clone)]
pub(super) struct OwnSocket {
    directory: Directory,
    path: PathBuf,
    /// Its device and inode.
    identity: (u64, u64),
}

impl OwnSocket {
    /// Of a socket that has just been made while the directory was locked.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn of(directory: &Directory, name: &NetworkName) -> io::Result<Self> {
        let path = directory.socket(name);
        let identity = identity(&path)?;
        Ok(Self { directory: directory.clone(), path, identity })
    }

    /// Removes it, unless it is gone already.
    pub(super) fn remove(&self) {
        // Without a lock it is as it was: a moment is too short for another one to come.
        let _lock = self.directory.lock();
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // What cannot be removed is found by `list`.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Directory {
    /// Finds or makes it.
    ///
    /// # Errors
    /// It cannot be made, or belongs to somebody else.
    pub(super) fn open() -> Result<Self, Failure> {
        directory("wan").map(Self).map_err(|error| Failure::wan(error.to_string()))
    }

    /// The socket of a network.
    pub(super) fn socket(&self, name: &NetworkName) -> PathBuf {
        self.0.join(format!("{name}.socket"))
    }

    /// Nobody else begins or removes a network as long as the file is open.
    ///
    /// # Errors
    /// The file system has no locks.
    pub(super) fn lock(&self) -> io::Result<File> {
        let file = File::options().create(true).append(true).open(self.0.join("lock"))?;
        file.lock()?;
        Ok(file)
    }

    /// The names of all networks that have a socket, in order.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn names(&self) -> io::Result<Vec<NetworkName>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(".socket"));
            names.extend(name.and_then(|name| name.parse::<NetworkName>().ok()));
        }
        names.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(names)
    }

    /// Removes the socket of a network whose process is gone; false if there is one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn remove_stale(&self, name: &NetworkName) -> io::Result<bool> {
        let path = self.socket(name);
        match UnixStream::connect(&path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(&path).map(|()| true)
            }
            _ => Ok(false),
        }
    }
}

/// A conversation with a network.
pub(super) struct Line {
    stream: UnixStream,
    /// The process at the other end, where this side has called.
    holder: Option<Pid>,
}

impl Line {
    /// Calls a network.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn call(directory: &Directory, name: &NetworkName) -> Result<Self, Failure> {
        let help = "`lunette wan list` shows the networks that are up, `lunette wan up` makes one";
        let stream = UnixStream::connect(directory.socket(name)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::wan(format!("there is no network {name}")).with_help(help),
            io::ErrorKind::ConnectionRefused => {
                Failure::wan(format!("the process of the network {name} is gone")).with_help(help)
            }
            _ => Failure::network(format!("the network {name} cannot be spoken to"), &error),
        })?;
        // Who enters a namespace is at the mercy of its owner.
        let holder = socket_peercred(&stream).map_err(|errno| gone(name, None, &errno.into()))?;
        if holder.uid != rustix::process::getuid() {
            return Err(Failure::wan(format!("the network {name} is another user's")));
        }
        Ok(Self { holder: Some(holder.pid), ..Self::new(stream) })
    }

    /// Ends the process of a network, whatever it does, and answers its number.
    ///
    /// # Errors
    /// There is none of that name, or it does not end.
    pub(super) fn kill_holder(directory: &Directory, name: &NetworkName) -> Result<u32, Failure> {
        let failed = |errno: rustix::io::Errno| gone(name, None, &errno.into());
        let nobody = || Failure::internal("nobody is called");
        let holder = Self::call(directory, name)?.holder.ok_or_else(nobody)?;
        let process = pidfd_open(holder, PidfdFlags::empty()).map_err(failed)?;
        // As long as it is called by that number, nobody else has it.
        if Self::call(directory, name)?.holder != Some(holder) {
            return Err(Failure::wan(format!("the network {name} has another process now")));
        }
        pidfd_send_signal(&process, Signal::KILL).map_err(failed)?;
        let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)).map_err(failed)? == 0 {
            return Err(Failure::wan(format!(
                "the process {} of the network {name} does not end",
                holder.as_raw_pid()
            )));
        }
        Ok(holder.as_raw_pid().cast_unsigned())
    }

    pub(super) fn new(stream: UnixStream) -> Self {
        // Whoever is silent must not hold up the others. A socket takes any time limit but zero.
        let _ = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
        Self { stream, holder: None }
    }

    /// Sends a line.
    pub(super) fn send<T: Serialize>(&mut self, what: &T) -> io::Result<()> {
        self.stream.write_all((serde_json::to_string(what)? + "\n").as_bytes())
    }

    /// Receives one.
    pub(super) fn receive<T: for<'de> Deserialize<'de>>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        BufReader::new(Read::take(&self.stream, LINE_BYTES_MAX)).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The network refuses, or is gone.
    pub(super) fn ask(&mut self, name: &NetworkName, request: &Request) -> Result<Answer, Failure> {
        let answer = self.send(request).and_then(|()| self.receive());
        match answer.map_err(|error| gone(name, self.holder, &error))? {
            Answer::Refused(why) => Err(Failure::wan(format!("the network {name} refuses: {why}"))),
            answer => Ok(answer),
        }
    }

    /// Sends the way to an end.
    pub(super) fn send_entrance(&self, entrance: &Entrance) -> io::Result<()> {
        let descriptors = [entrance.user.as_fd(), entrance.network.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        // A descriptor needs a byte to travel with.
        sendmsg(&self.stream, &[IoSlice::new(b"\n")], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Asks for the way to an end.
    ///
    /// # Errors
    /// The network refuses, or is gone.
    pub(super) fn ask_entrance(&mut self, name: &NetworkName, far: bool) -> Result<Entrance, Failure> {
        let received = self.send(&Request::Enter { far }).and_then(|()| self.receive_entrance());
        received.map_err(|error| gone(name, self.holder, &error))
    }

    fn receive_entrance(&self) -> io::Result<Entrance> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(&self.stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let [user, network] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it has sent no descriptors"))?;
        Ok(Entrance { user, network })
    }

    /// Waits until the other side has gone.
    ///
    /// # Errors
    /// It does not go.
    pub(super) fn wait_for_end(mut self, name: &NetworkName) -> Result<(), Failure> {
        self.read_end().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => gone(name, self.holder, &error),
            _ => Failure::network(format!("the network {name} does not end"), &error),
        })
    }

    fn read_end(&mut self) -> io::Result<()> {
        match self.stream.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it says more than it should")),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn gone(name: &NetworkName, holder: Option<Pid>, error: &io::Error) -> Failure {
    let Some(pid) = holder.map(Pid::as_raw_pid).filter(|_| error.kind() == io::ErrorKind::WouldBlock) else {
        return Failure::network(format!("the network {name} does not answer"), error);
    };
    let seconds = PATIENCE.as_secs();
    Failure::wan(format!("the process {pid} of the network {name} did not answer within {seconds} s"))
        .with_help(&format!(
            "if it is stopped, `kill -CONT {pid}` lets it go on; `lunette wan down {name} --force` ends it"
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_name_of_a_file_and_nothing_else() {
        for good in ["lab", "oc3-50_b", "0"] {
            assert_eq!(good.parse::<NetworkName>().map(|name| name.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", ".", "../lab", "a/b", "a b", "a\0", "ä", &"a".repeat(33)] {
            assert!(bad.parse::<NetworkName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_its_own_socket_is_removed() {
        use std::os::unix::net::UnixListener;

        let place = tempfile::tempdir().expect("a directory");
        let directory = Directory(place.path().to_owned());
        let name: NetworkName = "lab".parse().expect("a name");
        let path = directory.socket(&name);
        let first = UnixListener::bind(&path).expect("a socket");
        let own = OwnSocket::of(&directory, &name).expect("it is there");
        // It is removed, and before that is heard of, somebody else has the name. The first one keeps its inode.
        fs::remove_file(&path).expect("it is there");
        let _second = UnixListener::bind(&path).expect("a socket");
        own.remove();
        assert!(path.exists(), "it is another one's");
        OwnSocket::of(&directory, &name).expect("it is there").remove();
        assert!(!path.exists());
        own.remove();
        drop(first);
    }
}
