//! Who reads and writes whole files: through a mounted file system, by Samba's `smbclient`, or as a client of NFS version 3 (RFC 1813).
//! None of them keeps anything of a file that it has closed.

use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, ChildStdin, Stdio};
use std::task::{Context, Poll, Waker};

use lunette_wan::FAR;
use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::net::Connector;
use nfs3_client::nfs3_types::nfs3::{
    ACCESS3_READ, ACCESS3args, CREATE3args, FSINFO3args, LOOKUP3args, Nfs3Option, Nfs3Result, READ3args,
    WRITE3args, createhow3, diropargs3, filename3, nfs_fh3, nfsstat3, sattr3, stable_how,
};
use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_client::nfs3_types::xdr_codec::Opaque;
use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
use rustix::fs::OFlags;

use super::server::{MOUNT_PORT, ShareKind};
use crate::LabError;
use crate::study::peer::command;
use crate::study::site::Site;

/// Reads and writes whole files.
pub(crate) trait Client: Send {
    /// Opens a file, reads so many bytes, which is all of it, and closes it.
    fn read(&mut self, name: &str, length_bytes: usize) -> io::Result<()>;

    /// Makes ready for files with these data, before any time is taken. Who has not been told of them may refuse to write them.
    ///
    /// # Errors
    /// This machine's own file system.
    fn prepare(&mut self, _data: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Makes a file, writes to it and closes it; all of it is stable when this returns.
    fn write(&mut self, name: &str, data: &[u8]) -> io::Result<()>;
}

fn lost(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

/// What came is not what is there.
fn other_length(name: &str) -> io::Error {
    lost(format!("{name} has another length"))
}

/// A directory of a file system that is mounted here. A file's data are stable when they are written; its name is where the file
/// system is mounted so.
#[derive(Debug)]
pub(crate) struct Directory(pub(crate) PathBuf);

impl Client for Directory {
    fn read(&mut self, name: &str, length_bytes: usize) -> io::Result<()> {
        let mut file = File::open(self.0.join(name))?;
        let mut data = vec![0; length_bytes];
        file.read_exact(&mut data)
    }

    fn write(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        let stable = OFlags::SYNC.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(stable);
        options.open(self.0.join(name))?.write_all(data)
    }
}

/// One `smbclient` for all files: it is told what to do line by line, and says so when it has done it.
#[derive(Debug)]
pub(crate) struct Smb {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<PipeReader>,
    /// The directory of what is written.
    own: PathBuf,
    /// How long the files are that are there.
    prepared: Vec<usize>,
}

impl Smb {
    /// Logs in to the far end as a guest; `own` is a directory for files of its own.
    pub(crate) fn connect(site: &Site, own: &Path) -> Result<Self, LabError> {
        let failed = LabError::system("smbclient at the near end");
        let (answers, told) = io::pipe().map_err(&failed)?;
        // Else it keeps what it says of failures until there is a page of it.
        let mut started = command("stdbuf");
        started
            .args(["--output=L", "smbclient"])
            .args(["--no-pass", "--configfile=/dev/null", "--debuglevel=1"])
            .arg(format!("//{}/files", FAR.ipv4))
            .stdin(Stdio::piped())
            .stdout(told.try_clone().map_err(&failed)?)
            .stderr(told)
            .process_group(0);
        let mut child = site.emulator()?.near().spawn_mortal(&mut started).map_err(&failed)?;
        // It is to have the only writing ends of the pipe, so that its end is the end of what it says.
        drop(started);
        let Some(commands) = child.stdin.take() else {
            return Err(LabError::NotReady("smbclient has no standard input".to_owned()));
        };
        let (answers, own) = (BufReader::new(answers), own.to_owned());
        Ok(Self { child, commands, answers, own, prepared: Vec::new() })
    }

    /// Where as many bytes come from that are written.
    fn source(&self, length_bytes: usize) -> PathBuf {
        self.own.join(format!("source-{length_bytes}"))
    }

    /// Waits until it has logged in: it says then that there is no such file.
    pub(crate) fn log_in(&mut self) -> io::Result<()> {
        self.carry("get no-such-file /dev/null", "NT_STATUS_OBJECT_NAME_NOT_FOUND").map(drop)
    }

    /// Has it do something, and waits for the line that says so.
    fn carry(&mut self, wanted: &str, told: &str) -> io::Result<String> {
        writeln!(self.commands, "{wanted}")?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.answers.read_line(&mut line)? == 0 {
                return Err(lost("smbclient has ended"));
            }
            if line.contains(told) {
                return Ok(line);
            }
            if line.contains("NT_STATUS") {
                return Err(lost(format!("smbclient says: {}", line.trim())));
            }
        }
    }
}

impl Client for Smb {
    fn read(&mut self, name: &str, length_bytes: usize) -> io::Result<()> {
        let line = self.carry(&format!("get {name} /dev/null"), "getting file")?;
        if line.contains(&format!(" of size {length_bytes} ")) { Ok(()) } else { Err(other_length(name)) }
    }

    /// `smbclient` sends files alone: one of each length, the same again and again, so that it is in this machine's memory.
    fn prepare(&mut self, data: &[u8]) -> io::Result<()> {
        if !self.prepared.contains(&data.len()) {
            fs::write(self.source(data.len()), data)?;
            self.prepared.push(data.len());
        }
        Ok(())
    }

    fn write(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        if !self.prepared.contains(&data.len()) {
            return Err(lost(format!("nothing of the length of {name} is there to be sent")));
        }
        let source = self.source(data.len());
        self.carry(&format!("put {} {name}", source.display()), "putting file").map(drop)
    }
}

impl Drop for Smb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A TCP connection that waits where others would be polled: one call is under way at a time, and the thread has nothing else to do.
#[derive(Debug)]
struct Waiting(TcpStream);

impl AsyncRead for Waiting {
    async fn async_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(lost("the NFS server has closed the connection")),
            length => Ok(length),
        }
    }
}

impl AsyncWrite for Waiting {
    async fn async_write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer)
    }
}

/// Connects from the namespace of the calling thread.
#[derive(Debug)]
struct Here;

impl Connector for Here {
    type Connection = Waiting;

    async fn connect(&self, address: SocketAddr) -> io::Result<Waiting> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Waiting(stream))
    }

    /// The server asks for no privileged port.
    async fn connect_with_port(&self, address: SocketAddr, _: u16) -> io::Result<Waiting> {
        self.connect(address).await
    }
}

/// What a future answers that waits for nothing but [`Waiting`].
fn answer<T, E: std::error::Error>(future: impl Future<Output = Result<T, E>>) -> io::Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.map_err(|error| lost(error.to_string())),
        Poll::Pending => Err(lost("an NFS call waits for nothing")),
    }
}

/// What a call came to, of which RFC 1813 names the failures.
fn good<T, E>(what: &str, result: Nfs3Result<T, E>) -> io::Result<T> {
    match result {
        Nfs3Result::Ok(good) => Ok(good),
        Nfs3Result::Err((status, _)) => Err(lost(format!("{what}: {}", name_of(status)))),
    }
}

fn name_of(status: nfsstat3) -> String {
    format!("{status:?}")
}

/// A client of NFS version 3 over TCP, as root.
pub(crate) struct Nfs {
    connection: Nfs3Connection<Waiting>,
    root: nfs_fh3,
    /// The longest READ and WRITE, in bytes.
    lengths_bytes: (usize, usize),
}

impl Nfs {
    /// Mounts a directory of the far end. The calling thread is at the near end.
    pub(crate) fn connect(served: &Path) -> io::Result<Self> {
        let builder = Nfs3ConnectionBuilder::new(Here, FAR.ipv4.to_string(), served.to_string_lossy())
            .connect_from_privileged_port(false)
            .mount_port(MOUNT_PORT)
            .nfs3_port(ShareKind::Nfs.port())
            .credential(opaque_auth::auth_unix(&auth_unix::default()));
        let mut connection = answer(builder.mount())?;
        let root = connection.root_nfs_fh3();
        let facts = answer(connection.fsinfo(&FSINFO3args { fsroot: root.clone() }))?;
        let facts = good("FSINFO", facts)?;
        let length = |preferred: u32| (preferred as usize).clamp(4096, 1 << 20);
        let lengths_bytes = (length(facts.rtpref), length(facts.wtpref));
        Ok(Self { connection, root, lengths_bytes })
    }

    fn place<'a>(&self, name: &'a str) -> diropargs3<'a> {
        diropargs3 { dir: self.root.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) }
    }
}

impl Client for Nfs {
    /// LOOKUP and ACCESS are what it takes to open a file here; there is nothing to be closed.
    fn read(&mut self, name: &str, length_bytes: usize) -> io::Result<()> {
        let what = self.place(name);
        let file = good("LOOKUP", answer(self.connection.lookup(&LOOKUP3args { what }))?)?.object;
        let asked = ACCESS3args { object: file.clone(), access: ACCESS3_READ };
        let allowed = good("ACCESS", answer(self.connection.access(&asked))?)?;
        if allowed.access & ACCESS3_READ == 0 {
            return Err(lost(format!("{name} may not be read")));
        }
        let mut offset = 0;
        while offset < length_bytes {
            let length = (length_bytes - offset).min(self.lengths_bytes.0);
            let asked = READ3args { file: file.clone(), offset: offset as u64, count: length as u32 };
            let came = good("READ", answer(self.connection.read(&asked))?)?.data.len();
            if came == 0 || came > length {
                return Err(other_length(name));
            }
            offset += came;
        }
        Ok(())
    }

    /// CREATE is stable when it is answered, as RFC 1813 has it; so is a WRITE that asks for it (FILE_SYNC).
    fn write(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        let how = createhow3::GUARDED(sattr3 { mode: Nfs3Option::Some(0o644), ..sattr3::default() });
        let made = CREATE3args { where_: self.place(name), how };
        let Nfs3Option::Some(file) = good("CREATE", answer(self.connection.create(&made))?)?.obj else {
            return Err(lost("CREATE tells no file handle"));
        };
        let mut left = data;
        while !left.is_empty() {
            let piece = &left[..left.len().min(self.lengths_bytes.1)];
            let asked = WRITE3args {
                file: file.clone(),
                offset: (data.len() - left.len()) as u64,
                count: piece.len() as u32,
                stable: stable_how::FILE_SYNC,
                data: Opaque::borrowed(piece),
            };
            let written = good("WRITE", answer(self.connection.write(&asked))?)?;
            let count = written.count as usize;
            if count == 0 || count > piece.len() || written.committed != stable_how::FILE_SYNC {
                return Err(lost("WRITE is not stable"));
            }
            left = &left[count..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Says what it was told to do, and that it has done it.
    const OBEDIENT: &str = "while read -r line; do echo \"putting file: $line\"; done";

    #[test]
    fn nothing_is_written_here_while_a_file_is_written_there() {
        let own = tempfile::tempdir().expect("a directory");
        let (answers, told) = io::pipe().expect("a pipe");
        let mut started = Command::new("sh");
        started.args(["-c", OBEDIENT]).stdin(Stdio::piped()).stdout(told);
        let mut child = started.spawn().expect("sh");
        let commands = child.stdin.take().expect("its input");
        let (answers, own_path) = (BufReader::new(answers), own.path().to_owned());
        let mut smb = Smb { child, commands, answers, own: own_path, prepared: Vec::new() };
        let sizes = [1 << 10, 4 << 10];
        for size in sizes {
            assert!(smb.write("early", &vec![1; size]).is_err(), "what would be sent is not there");
            smb.prepare(&vec![1; size]).expect("a file");
            assert_eq!(fs::read(smb.source(size)).expect("it"), vec![1; size]);
        }
        // Where it is gone nothing could be written to it.
        drop(own);
        for number in 0..2 {
            for size in sizes {
                smb.write(&format!("new-{number}"), &vec![1; size]).expect("it says that it was done");
            }
        }
    }
}
