//! A process that outlives the one that made a network, and then ends whoever is left at its ends.
//!
//! The kernel ends the direct children of a process that is killed, and not what these have started. The warden holds both namespaces
//! open, so that their numbers stay theirs, and waits for the end of a socket, which nobody but the network's process has: that end
//! comes however the process ends. It is in a namespace of its own, where no other warden looks for it.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::inhabitants::{end_all, inhabitants, network_of};
use crate::namespace::{Namespace, spawn_apart};

/// The arguments with which the program `lunette` does what [`keep_watch`] says.
pub const WARD: [&str; 2] = ["wan", "ward"];

/// What is said before the line ends by itself, and by nobody who is killed.
const IN_ORDER: &[u8] = b".";

/// A running warden. Dropping it has it end who is left, and waits for that.
#[derive(Debug)]
pub(crate) struct Warden {
    /// What it waits for the end of.
    line: Option<UnixStream>,
    child: Child,
}

impl Warden {
    /// Starts one by a command that calls [`keep_watch`] on its standard input.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(command: &mut Command, ends: [&Namespace; 2]) -> io::Result<Self> {
        let (line, other) = UnixStream::pair()?;
        let descriptors = ends.map(Namespace::descriptor);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        // They are on their way before it is there: it needs nothing of this process but its end.
        sendmsg(&line, &[IoSlice::new(b"\n")], &mut ancillary, SendFlags::NOSIGNAL)?;
        command.stdin(OwnedFd::from(other)).stdout(Stdio::null()).stderr(Stdio::null());
        // An interrupt of the terminal is not for it.
        command.current_dir("/").process_group(0);
        let child = spawn_apart(command)?;
        // The command has the other end of the line until it is given something else.
        command.stdin(Stdio::null());
        Ok(Self { line: Some(line), child })
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        if let Some(mut line) = self.line.take() {
            // It may have ended.
            let _ = line.write_all(IN_ORDER);
        }
        // It ends by itself.
        let _ = self.child.wait();
    }
}

/// What a warden does: waits for the end of the line, and then ends all processes in the namespaces that have come by it. True if the
/// network was ended in order, and false if its process has gone.
///
/// # Errors
/// No namespaces have come.
pub fn keep_watch(mut line: UnixStream) -> io::Result<bool> {
    let namespaces = receive(&line)?.map(File::from);
    let [near, far] = namespaces.each_ref().map(|file| file.metadata().map(|metadata| metadata.ino()));
    let inodes = [near?, far?];
    let mut last = Vec::new();
    while line.read_to_end(&mut last).is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
    let is_there = |pid| network_of(pid).is_some_and(|network| inodes.contains(&network));
    end_all(|| inhabitants(&inodes), is_there);
    drop(namespaces);
    Ok(last == IN_ORDER)
}

fn receive(line: &UnixStream) -> io::Result<[OwnedFd; 2]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(line.as_fd(), &mut [IoSliceMut::new(&mut [0])], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = rights.flatten().collect();
    descriptors
        .try_into()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "two namespaces are to come by the line"))
}
