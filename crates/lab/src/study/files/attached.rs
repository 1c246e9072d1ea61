//! `lunette attach` at the near end of a site: the disk behind the network as a file.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunette_wan::FAR;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::study::ready;
use crate::study::service::PORT;
use crate::study::site::{Site, TARGET};
use crate::{LabError, Negotiated};

/// Longer than it takes to flush and to log out.
const PATIENCE: Duration = Duration::from_secs(300);

/// An attached disk. It is killed when it is dropped, which leaves no mount, and when the thread ends that has started it.
#[derive(Debug)]
pub(crate) struct Attached {
    child: Child,
    directory: PathBuf,
    file: PathBuf,
    negotiated: Option<Negotiated>,
}

impl Attached {
    /// Attaches the service's unit, at a directory that it makes, by a session with the keys that a query asks for. Without caching,
    /// nothing is read before it is asked for, and nothing is answered before the target has answered it.
    pub(crate) fn start(
        site: &Site,
        binary: &Path,
        directory: &Path,
        query: &str,
        caches: bool,
    ) -> Result<Self, LabError> {
        fs::create_dir_all(directory).map_err(LabError::system("a directory for an attached disk"))?;
        let mut command = Command::new(binary);
        command
            .arg("attach")
            .arg(format!("iscsi://{}:{PORT}/{TARGET}/0{query}", FAR.ipv4))
            .arg(directory)
            // A lost session is a lost figure.
            .args(["--json", "--recovery", "0"])
            // Its socket is to be below /run, which is this thread's own.
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // It tells how far its end is.
            .stderr(Stdio::null())
            .process_group(0);
        if !caches {
            command.args(["--no-read-ahead", "--no-write-behind"]);
        }
        let near = site.emulator()?.near();
        let child = near.spawn_mortal(&mut command).map_err(LabError::system("lunette attach"))?;
        let mut attached =
            Self { child, directory: directory.to_owned(), file: directory.join("disk"), negotiated: None };
        let line = ready::wait(&mut attached.child, "lunette attach at the near end", ready::PATIENCE)?;
        let ready: Ready = serde_json::from_str(&line).map_err(|error| {
            LabError::NotReady(format!("what lunette attach at the near end says cannot be read: {error}"))
        })?;
        attached.negotiated = Some(ready.negotiated);
        Ok(attached)
    }

    /// The disk.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// What its session has agreed on.
    pub(crate) const fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    /// Ends it at once: whoever waits for the disk gets errors.
    pub(crate) fn kill(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
    }

    /// Detaches it; nobody uses it any more. All that was written is stable on the target then.
    pub(crate) fn end(mut self) -> Result<(), LabError> {
        let failed = LabError::system("the end of lunette attach");
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(id, Signal::TERM).map_err(|error| failed(error.into()))?;
        }
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            match self.child.try_wait().map_err(&failed)? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(LabError::NotReady(format!(
                        "lunette attach at the near end has ended with {status}"
                    )));
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(LabError::NotReady("lunette attach at the near end does not end".to_owned()))
    }
}

/// What is taken from the line that says where the disk is.
#[derive(Debug, Deserialize)]
struct Ready {
    negotiated: Negotiated,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
        // Who is killed leaves his mount, in which nothing can be removed. One who has ended by himself has left none.
        let _ = unmount(&self.directory, UnmountFlags::DETACH);
    }
}
