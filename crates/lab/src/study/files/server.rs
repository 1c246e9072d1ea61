//! Servers of files at the far end of a site: Debian's smbd (SMB), and nfs-ganesha (NFS version 3, with rpcbind, where it has to be known).
//!
//! Each is in a process namespace of its own, so that nothing is left of what it starts when the first process there is killed.
//! That is a shell: a server that becomes another user would forget with whom it is to end (prctl(2), PR_SET_PDEATHSIG).

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::LabError;
use crate::study::peer::command;
use crate::study::site::Site;

/// How long a server may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Where nfs-ganesha keeps what it remembers of its clients.
const NFS_STATE: &str = "/var/lib/nfs";
/// Where rpcbind is asked by programs of the same machine.
const RPCBIND_SOCKET: &str = "/run/rpcbind.sock";

/// The protocol of a server of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShareKind {
    /// SMB 3.1.1, by Samba.
    Smb,
    /// NFS version 3 over TCP, by nfs-ganesha.
    Nfs,
}

impl ShareKind {
    /// What is run for it, with Debian's packages that have it.
    pub(crate) const fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Smb => &[
                ("unshare", "util-linux"),
                ("stdbuf", "coreutils"),
                ("smbd", "samba"),
                ("smbclient", "smbclient"),
            ],
            Self::Nfs => &[
                ("unshare", "util-linux"),
                ("rpcbind", "rpcbind"),
                ("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs"),
            ],
        }
    }

    /// Its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Smb => "smb",
            Self::Nfs => "nfs",
        }
    }

    /// The port that the server listens on.
    pub(crate) const fn port(self) -> u16 {
        match self {
            Self::Smb => 445,
            Self::Nfs => 2049,
        }
    }
}

/// The port of the MOUNT protocol, by which NFS clients begin.
pub(crate) const MOUNT_PORT: u16 = 20048;

/// A running server. It is killed when it is dropped, and when the thread ends that has started it.
#[derive(Debug)]
pub(crate) struct Share {
    /// The server last, behind what it needs.
    children: Vec<Child>,
}

impl Share {
    /// Serves a directory, with files of its own in another one, and waits until it listens.
    pub(crate) fn start(site: &Site, kind: ShareKind, served: &Path, own: &Path) -> Result<Self, LabError> {
        let failed = LabError::system("what a server of files needs");
        fs::create_dir_all(own).map_err(&failed)?;
        let mut share = Self { children: Vec::new() };
        match kind {
            ShareKind::Smb => {
                let file = configure_smbd(served, own).map_err(&failed)?;
                share.add(site, "smbd", &["--foreground", "--no-process-group", "--configfile", &file])?;
            }
            ShareKind::Nfs => {
                cover(Path::new(NFS_STATE))?;
                share.add(site, "rpcbind", &["-f"])?;
                share.wait("rpcbind", || Path::new(RPCBIND_SOCKET).exists())?;
                let file = configure_ganesha(served, own).map_err(&failed)?;
                let (log, id) = (own.join("log"), own.join("pid"));
                let (log, id) = (log.to_string_lossy(), id.to_string_lossy());
                share.add(site, "ganesha.nfsd", &["-F", "-f", &file, "-L", &log, "-p", &id])?;
            }
        }
        let listens = || site.far(|| TcpStream::connect(Site::address(kind.port()))).is_ok();
        share.wait(if kind == ShareKind::Smb { "smbd" } else { "ganesha.nfsd" }, listens)?;
        Ok(share)
    }

    fn add(&mut self, site: &Site, program: &str, arguments: &[&str]) -> Result<(), LabError> {
        let mut started = command("unshare");
        started
            .args(["--pid", "--fork", "--kill-child", "--", "sh", "-c", "\"$@\"; exit", "sh"])
            .arg(command(program).get_program())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let child = site.emulator()?.far().spawn_mortal(&mut started);
        self.children.push(child.map_err(LabError::system("a server of files at the far end"))?);
        Ok(())
    }

    /// Waits for the process that was started last.
    fn wait(&mut self, program: &str, is_ready: impl Fn() -> bool) -> Result<(), LabError> {
        let started = Instant::now();
        while !is_ready() {
            let ended = self.children.last_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || started.elapsed() > START_LIMIT {
                return Err(LabError::NotReady(format!("{program} at the far end does not start")));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends it at once: whoever waits for it gets errors.
    pub(crate) fn kill(&mut self) {
        for child in &mut self.children {
            // It may have ended before.
            let _ = child.kill();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.kill();
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Hides a directory of the system's below an empty one, which this thread's namespace alone sees. One that is not there nobody writes to.
fn cover(directory: &Path) -> Result<(), LabError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    match mount("lunette", directory, "tmpfs", flags, None) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(LabError::system(
            "to keep a server of files away from what others have remembered",
        )(error.into())),
    }
}

/// One share, `files`, for whoever comes; each write is stable before it is answered.
fn configure_smbd(served: &Path, own: &Path) -> io::Result<String> {
    let mut directories = String::new();
    for name in ["lock", "state", "cache", "private", "pid", "ncalrpc"] {
        let directory = own.join(name);
        fs::create_dir_all(&directory)?;
        let parameter = match name {
            "private" | "ncalrpc" => format!("{name} dir"),
            _ => format!("{name} directory"),
        };
        directories += &format!("{parameter} = {}\n", in_smbd(&directory)?);
    }
    let text = format!(
        "[global]\nserver role = standalone server\nmap to guest = Bad User\nguest account = root\ndisable netbios = yes\n\
         smb ports = {port}\nload printers = no\nprintcap name = /dev/null\n\
         disable spoolss = yes\nlog file = {log}\n{directories}strict sync = yes\nsync always = yes\n\
         [files]\npath = {served}\nguest ok = yes\nguest only = yes\nread only = no\n",
        port = ShareKind::Smb.port(),
        log = in_smbd(&own.join("log"))?,
        served = in_smbd(served)?,
    );
    write(own.join("smb.conf"), &text)
}

/// One export by its path, for whoever comes.
fn configure_ganesha(served: &Path, own: &Path) -> io::Result<String> {
    let text = format!(
        "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {port}; MNT_Port = {MOUNT_PORT}; Enable_NLM = false; Enable_RQUOTA = false; \
         Enable_UDP = false; }}\nNFSv4 {{ Graceless = true; }}\nEXPORT {{ Export_Id = 1; Path = {served}; Pseudo = \"/files\"; \
         Access_Type = RW; Squash = No_Root_Squash; Protocols = 3; Transports = TCP; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
        port = ShareKind::Nfs.port(),
        served = in_ganesha(served)?,
    );
    write(own.join("ganesha.conf"), &text)
}

/// A path as a value of smb.conf(5), which has no escapes: `%` begins a variable, a `\` at the end joins lines, and lines end the value.
fn in_smbd(path: &Path) -> io::Result<&str> {
    plain(path, &['%', '\\', '"'])
}

/// A path as a string of ganesha-config(8). What a `\` means in one depends on the quotes, and is better not asked.
fn in_ganesha(path: &Path) -> io::Result<String> {
    Ok(format!("\"{}\"", plain(path, &['"', '\'', '\\'])?))
}

/// A path that has none of these characters, and no control characters.
fn plain<'a>(path: &'a Path, none_of: &[char]) -> io::Result<&'a str> {
    let is_plain = |text: &&str| !text.contains(|c: char| c.is_control() || none_of.contains(&c));
    path.to_str().filter(is_plain).ok_or_else(|| {
        let path = path.to_string_lossy();
        io::Error::new(
            io::ErrorKind::InvalidFilename,
            format!("the configuration of a server of files cannot name {}", path.escape_debug()),
        )
    })
}

fn write(path: PathBuf, text: &str) -> io::Result<String> {
    fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_never_becomes_another_line_of_a_configuration() {
        let own = tempfile::tempdir().expect("a directory");
        for path in ["/var/tmp/a b", "/var/tmp/it;is#{fine}=/é"] {
            let file = configure_smbd(Path::new(path), own.path()).expect("a configuration");
            let text = fs::read_to_string(file).expect("a file");
            assert!(text.contains(&format!("\npath = {path}\n")), "{text}");
            let file = configure_ganesha(Path::new(path), own.path()).expect("a configuration");
            let text = fs::read_to_string(file).expect("a file");
            assert!(text.contains(&format!(" Path = \"{path}\"; ")), "{text}");
        }
        for path in ["/a\npath = /", "/a\"; FSAL { Name = MEM; } #", "/a\\"] {
            let refused = [
                configure_smbd(Path::new(path), own.path()).map_err(|error| error.to_string()),
                configure_ganesha(Path::new(path), own.path()).map_err(|error| error.to_string()),
            ];
            for refused in refused {
                assert!(refused.is_err_and(|text| text.contains("cannot name /a")), "{path}");
            }
        }
        // A variable of Samba's alone.
        assert!(in_smbd(Path::new("/a%u")).is_err() && in_ganesha(Path::new("/a%u")).is_ok());
        assert!(configure_smbd(Path::new("/a"), Path::new("/no%such")).is_err());
    }

    #[test]
    fn what_cannot_be_hidden_is_not_left_open() {
        assert!(cover(Path::new("/no/such/directory")).is_ok(), "there is nothing to be hidden");
        // A file is no place for a mount, whatever this process may do.
        let refused = cover(Path::new("/proc/self/status")).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.contains("others have remembered")));
    }
}
