//! What initiators read and write, a file for each logical unit (docs/guide/bench.md). `TARGET.LUN.trace` is in the form that
//! `lunette bench --trace` replays: `MICROSECONDS R|W OFFSET LENGTH`. The times count from 1970, so that later starts write on.
//! Where that is asked for, `TARGET.LUN.times` tells where the time of each task went: `ISID TSIH TAG DATA STORE REST ns`, names in
//! hexadecimal. `logins` tells of each login that went well how much of it was the target's: `ISID TSIH CID ANSWERS OWN ns`.
//!
//! A reactor puts a record into a queue with an end, and goes on; what finds the queue full is counted and told, never waited for. A
//! thread takes them from there to the files.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::iter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lunette_scsi::Io;
use lunette_wire::Cid;
use tracing::{info, warn};

use crate::failure::StartError;
use crate::server::make_directory;
use crate::task_times::{LoginTimes, SessionName, Spent, TaskName};
use crate::units::ServedTarget;

/// Records that wait for the thread: 5 MiB, or more than any target here does between two of its looks.
const QUEUE_RECORDS: usize = 1 << 16;
const _: () = assert!(QUEUE_RECORDS * size_of::<Record>() <= 5 << 20);
/// How long the thread sleeps between its looks. It is never woken, which would cost a reactor a system call.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The longest file, in bytes: about as many operations as can be replayed.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// The last line of such a file, for whoever would take it for whole.
const FULL: &str = "# nothing more is recorded here: the file is as long as it may be\n";

/// The file of the logins, which are no unit's.
const LOGINS: &str = "logins";

/// What is written down.
#[derive(Debug, Clone, Copy)]
enum Record {
    /// One operation on a unit.
    Transfer { time_us: u64, naa: u64, offset_bytes: u64, length_bytes: u32, is_read: bool },
    /// A task is over.
    Task(TaskName, Spent),
    /// A connection has logged in.
    Login(SessionName, Cid, LoginTimes),
}

/// The reactors' side.
#[derive(Debug)]
pub(crate) struct Recorder {
    queue: SyncSender<Record>,
    /// Those that found the queue full.
    lost: Arc<AtomicU64>,
    /// Where the time of tasks goes is recorded as well.
    has_times: bool,
}

/// The thread; dropping this has it write what is left, and ends it.
#[derive(Debug)]
pub(crate) struct Recording {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Opens the files, those of the times only where they are wanted, and starts the thread.
    ///
    /// # Errors
    /// The directory or a file cannot be had, or a thread.
    pub(crate) fn start(
        directory: &Path,
        has_times: bool,
        targets: &[Arc<ServedTarget>],
    ) -> Result<(Self, Recording), StartError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StartError::TraceDirectory { path, source }
        };
        make_directory(directory).map_err(failed(directory))?;
        let mut files = HashMap::new();
        for target in targets {
            for (volume, unit) in target.volumes.iter().zip(&target.report.units) {
                let open = |what| {
                    let path = directory.join(format!("{}.{}.{what}", target.name, unit.lun));
                    TraceFile::open(path.clone()).map_err(failed(&path))
                };
                let times = has_times.then(|| open("times")).transpose()?;
                files.insert(volume.identity().naa, UnitFiles { trace: open("trace")?, times });
            }
        }
        let open_logins = || {
            let path = directory.join(LOGINS);
            TraceFile::open(path.clone()).map_err(failed(&path))
        };
        let logins = has_times.then(open_logins).transpose()?;
        let (queue, records) = sync_channel(QUEUE_RECORDS);
        let (lost, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut writer = Writer { records, files, logins, lost: Arc::clone(&lost), told: 0 };
        let over = Arc::clone(&ends);
        let run = move || {
            // What comes before the end is told is looked at once more after it.
            while !over.load(Ordering::Acquire) {
                writer.look();
                thread::park_timeout(LOOK_INTERVAL);
            }
            writer.look();
        };
        let thread = thread::Builder::new().name("trace".into()).spawn(run)?;
        Ok((Self { queue, lost, has_times }, Recording { ends, thread: Some(thread) }))
    }

    /// Whether [`Recorder::record_times`] is to be told.
    pub(crate) const fn has_times(&self) -> bool {
        self.has_times
    }

    /// Records an operation, if it is a read or a write.
    #[cold]
    pub(crate) fn record(&self, naa: u64, io: &Io) {
        let (is_read, offset_bytes, length_bytes) = match *io {
            Io::Read { offset_bytes, length_bytes, .. } => (true, offset_bytes, length_bytes),
            Io::WriteMedium { offset_bytes, length_bytes, .. }
            | Io::WriteDataOut { offset_bytes, length_bytes, .. }
            | Io::WriteAtomic { offset_bytes, length_bytes, .. } => (false, offset_bytes, length_bytes),
            _ => return,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Microseconds fill 64 bits in half a million years.
        let time_us = now.as_micros() as u64;
        self.send(Record::Transfer { time_us, naa, offset_bytes, length_bytes, is_read });
    }

    /// Records where the time of a task went.
    #[cold]
    pub(crate) fn record_times(&self, name: TaskName, spent: Spent) {
        self.send(Record::Task(name, spent));
    }

    /// Records what the target took of a connection's login.
    #[cold]
    pub(crate) fn record_login(&self, name: SessionName, cid: Cid, times: LoginTimes) {
        self.send(Record::Login(name, cid, times));
    }

    fn send(&self, record: Record) {
        if self.queue.try_send(record).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there has been told.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Writer {
    records: Receiver<Record>,
    files: HashMap<u64, UnitFiles>,
    logins: Option<TraceFile>,
    lost: Arc<AtomicU64>,
    /// How many of those have been told.
    told: u64,
}

impl Writer {
    /// Writes what has come.
    fn look(&mut self) {
        while let Ok(record) = self.records.try_recv() {
            let naa = match record {
                Record::Transfer { naa, .. } | Record::Task(_, Spent { naa, .. }) => naa,
                Record::Login(name, cid, times) => {
                    self.add_login(name, cid, times);
                    continue;
                }
            };
            if let Some(files) = self.files.get_mut(&naa) {
                files.add(&record);
            }
        }
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > self.told {
            let more = lost - self.told;
            self.told = lost;
            warn!("{more} records came too fast for the trace and are not in it");
            self.each_file(|file| file.add(&format!("# {more} records of all units are missing here\n")));
        }
        self.each_file(TraceFile::flush);
    }

    fn add_login(&mut self, name: SessionName, cid: Cid, times: LoginTimes) {
        let Some(logins) = &mut self.logins else { return };
        let (answers, own) = (times.answers, times.own.as_nanos());
        logins.add(&format!("{name} {:04x} {answers} {own} ns\n", cid.0));
    }

    fn each_file(&mut self, work: impl Fn(&mut TraceFile)) {
        let of_units = self.files.values_mut().flat_map(|of| iter::once(&mut of.trace).chain(&mut of.times));
        of_units.chain(&mut self.logins).for_each(work);
    }
}

/// The files of one unit.
struct UnitFiles {
    trace: TraceFile,
    times: Option<TraceFile>,
}

impl UnitFiles {
    fn add(&mut self, record: &Record) {
        match *record {
            Record::Transfer { time_us, offset_bytes, length_bytes, is_read, .. } => {
                let kind = if is_read { 'R' } else { 'W' };
                self.trace.add(&format!("{time_us} {kind} {offset_bytes} {length_bytes}\n"));
            }
            Record::Task(name, Spent { data, store, rest, .. }) => {
                let Some(times) = &mut self.times else { return };
                let [data, store, rest] = [data, store, rest].map(|time| time.as_nanos());
                let (session, tag) = (name.session, name.tag.0);
                times.add(&format!("{session} {tag:08x} {data} {store} {rest} ns\n"));
            }
            // Of no unit.
            Record::Login(..) => {}
        }
    }
}

/// One file, which closes for good when it is full or cannot be written.
struct TraceFile {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    length_bytes: u64,
}

impl TraceFile {
    /// Opens a file to write on, which only its owner may read.
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        let length_bytes = file.metadata()?.len();
        info!(path = %path.display(), "what is read and written is recorded");
        Ok(Self { path, file: Some(BufWriter::new(file)), length_bytes })
    }

    fn add(&mut self, line: &str) {
        let Some(file) = &mut self.file else { return };
        let length_bytes = self.length_bytes + line.len() as u64;
        let is_full = length_bytes > FILE_BYTES_MAX;
        let line = if is_full { FULL } else { line };
        if let Err(error) = file.write_all(line.as_bytes()) {
            self.give_up(&error);
        } else if is_full {
            warn!(path = %self.path.display(), "the trace is as long as it may be; nothing more is recorded");
            self.flush();
            self.file = None;
        } else {
            self.length_bytes = length_bytes;
        }
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.file.as_mut().map(BufWriter::flush) {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &io::Error) {
        warn!(path = %self.path.display(), %error, "the trace cannot be written; nothing more is recorded");
        // What is in its buffer would fail again when it is dropped.
        if let Some(file) = self.file.take() {
            let _ = file.into_parts();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_wire::{InitiatorTaskTag, Isid, Tsih};

    fn writer(directory: &Path) -> (Recorder, Writer) {
        let [trace, times] =
            ["a.0.trace", "a.0.times"].map(|name| TraceFile::open(directory.join(name)).unwrap());
        let (queue, records) = sync_channel(2);
        let lost = Arc::new(AtomicU64::new(0));
        let files = HashMap::from([(7, UnitFiles { trace, times: Some(times) })]);
        let recorder = Recorder { queue, lost: Arc::clone(&lost), has_times: true };
        let logins = Some(TraceFile::open(directory.join(LOGINS)).unwrap());
        (recorder, Writer { records, files, logins, lost, told: 0 })
    }

    const SESSION: SessionName = SessionName { isid: Isid([0x40, 0, 1, 0x37, 0, 0xff]), tsih: Tsih(7) };

    const READ: Io = Io::Read { offset_bytes: 4096, length_bytes: 512, inspected: false };

    fn text(directory: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(directory.join("a.0.trace")).unwrap();
        // The times are of this moment.
        let without_time = |line: &str| match line.split_once(' ') {
            Some((time, rest)) if time.parse::<u64>().is_ok() => rest.to_owned(),
            _ => line.to_owned(),
        };
        text.lines().map(without_time).collect()
    }

    #[test]
    fn reads_and_writes_are_written_and_what_was_lost_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let (recorder, mut writer) = writer(directory.path());
        recorder.record(7, &READ);
        recorder.record(7, &Io::WriteDataOut { offset_bytes: 0, start: 0, length_bytes: 1024, stable: true });
        recorder.record(7, &READ);
        recorder.record(7, &READ);
        writer.look();
        recorder.record(7, &Io::SaveState);
        recorder.record(8, &READ);
        writer.look();
        let missing = "# 2 records of all units are missing here";
        assert_eq!(text(directory.path()), ["R 4096 512", "W 0 1024", missing]);
    }

    #[test]
    fn the_times_of_a_task_have_its_names_beside_them() {
        let directory = tempfile::tempdir().unwrap();
        let (recorder, mut writer) = writer(directory.path());
        let name = TaskName { session: SESSION, tag: InitiatorTaskTag(0xa) };
        let [data, store, rest] = [1, 20, 300].map(Duration::from_nanos);
        recorder.record_times(name, Spent { naa: 7, data, store, rest });
        recorder.record_times(name, Spent { naa: 8, data, store, rest });
        writer.look();
        let text = std::fs::read_to_string(directory.path().join("a.0.times")).unwrap();
        assert_eq!(text, "4000013700ff 0007 0000000a 1 20 300 ns\n");
    }

    #[test]
    fn a_login_has_its_session_and_connection_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let (recorder, mut writer) = writer(directory.path());
        recorder.record_login(SESSION, Cid(1), LoginTimes { answers: 2, own: Duration::from_nanos(34_567) });
        writer.look();
        let text = std::fs::read_to_string(directory.path().join(LOGINS)).unwrap();
        assert_eq!(text, "4000013700ff 0007 0001 2 34567 ns\n");
    }

    #[test]
    fn later_starts_write_on_and_a_full_file_says_so_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let (recorder, mut writer) = writer(directory.path());
            recorder.record(7, &READ);
            writer.look();
        }
        let (recorder, mut writer) = writer(directory.path());
        let file = &mut writer.files.get_mut(&7).unwrap().trace;
        assert!(file.length_bytes > 0);
        file.length_bytes = FILE_BYTES_MAX - 1;
        recorder.record(7, &READ);
        writer.look();
        assert!(writer.files[&7].trace.file.is_none());
        let full = FULL.trim_end();
        assert_eq!(text(directory.path()), ["R 4096 512", "R 4096 512", full]);
    }

    #[test]
    fn a_file_that_cannot_be_written_ends_its_trace_only() {
        let directory = tempfile::tempdir().unwrap();
        let (recorder, mut writer) = writer(directory.path());
        // Everything written there is refused.
        let full = || TraceFile::open(PathBuf::from("/dev/full")).unwrap();
        writer.files.insert(9, UnitFiles { trace: full(), times: Some(full()) });
        recorder.record(9, &READ);
        recorder.record(7, &READ);
        writer.look();
        assert!(writer.files[&9].trace.file.is_none() && writer.files[&7].trace.file.is_some());
        assert_eq!(text(directory.path()), ["R 4096 512"]);
    }
}
