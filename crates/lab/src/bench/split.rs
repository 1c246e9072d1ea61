//! Where the time of operations went, with what a target of ours tells of its tasks: `TARGET.LUN.times`, which `lunette serve
//! --task-times` writes. Both sides' times are joined by session and initiator task tag.
//!
//! Of the target only durations are taken, so that its clock need not be this one. Every operation's parts add up to its whole.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lunette_wire::{InitiatorTaskTag, Isid, Tsih};

use super::recorder::histogram;
use crate::LabError;
use crate::endpoint::Moments;

/// Operations of one worker that are kept to be joined: the last ones.
const KEPT_MAX: usize = 1 << 20;
/// How long the target may take to write down what it has done.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it is left alone in between.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The longest line that is read: twice what a target writes.
const LINE_BYTES_MAX: u64 = 256;

/// A session, by the names that both sides have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionName {
    pub(crate) isid: Isid,
    pub(crate) tsih: Tsih,
}

/// This side's times of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Own {
    /// Until its first byte left.
    pub(crate) window: Duration,
    /// Until the first byte of the answer.
    pub(crate) away: Duration,
    /// Until the answer was complete.
    pub(crate) reply: Duration,
}

impl Own {
    pub(crate) fn of(moments: &Moments) -> Option<Self> {
        let (sent, first) = (moments.sent?, moments.first_byte?);
        Some(Self {
            window: sent.checked_sub(moments.queued)?,
            away: first.checked_sub(sent)?,
            reply: moments.done.checked_sub(first)?,
        })
    }
}

/// The target's times of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Theirs {
    pub(crate) data: Duration,
    pub(crate) store: Duration,
    pub(crate) rest: Duration,
}

/// The parts of an operation's time, in the order of [`PARTS`].
pub(crate) type Parts = [Duration; 6];

/// What they are called in results.
pub(crate) const PARTS: [&str; 6] =
    ["command_window", "network", "r2t_wait", "target_queue", "store", "reply"];

/// Puts both sides' times together. None where the target says that it took longer than the answer: they are not of the same operation.
/// A write that needs no R2Ts waits for its data as long as the network takes.
pub(crate) fn parts(own: Own, theirs: Theirs, needs_r2t: bool) -> Option<Parts> {
    let network = own.away.checked_sub(theirs.data)?.checked_sub(theirs.store)?.checked_sub(theirs.rest)?;
    let (network, r2t_wait) =
        if needs_r2t { (network, theirs.data) } else { (network + theirs.data, Duration::ZERO) };
    Some([own.window, network, r2t_wait, theirs.rest, theirs.store, own.reply])
}

/// An operation of this side.
#[derive(Debug, Clone, Copy)]
struct Kept {
    tag: InitiatorTaskTag,
    own: Own,
    needs_r2t: bool,
    /// It is of those that are measured.
    counts: bool,
}

/// The last operations of one worker.
#[derive(Debug, Default)]
pub(crate) struct Log {
    kept: VecDeque<Kept>,
    /// Operations that count, kept or not.
    of: u64,
}

impl Log {
    /// An operation ended well.
    pub(crate) fn add(&mut self, tag: InitiatorTaskTag, own: Own, needs_r2t: bool, counts: bool) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Kept { tag, own, needs_r2t, counts });
        self.of += u64::from(counts);
    }

    /// Some operations are not waited for, so that the target may tell of more tasks than ended here: none can be told apart from the end.
    pub(crate) fn give_up(&mut self) {
        self.kept.clear();
    }
}

/// Parts of all operations that could be joined.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) parts: [Sum; 6],
    pub(crate) whole: Sum,
    /// How many operations were to be joined.
    pub(crate) of: u64,
    /// Nothing that is still to come would change it.
    is_final: bool,
}

/// One part.
#[derive(Debug)]
pub(crate) struct Sum {
    pub(crate) sum: Duration,
    pub(crate) ns: Histogram<u64>,
}

impl Sum {
    fn new() -> Self {
        Self { sum: Duration::ZERO, ns: histogram() }
    }

    fn add(&mut self, time: Duration) {
        self.sum += time;
        self.ns.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

impl Split {
    fn new() -> Self {
        Self { parts: PARTS.map(|_| Sum::new()), whole: Sum::new(), of: 0, is_final: false }
    }

    fn add(&mut self, parts: Parts) {
        for (sum, part) in self.parts.iter_mut().zip(parts) {
            sum.add(part);
        }
        self.whole.add(parts.into_iter().sum());
    }
}

/// What a target has written of its tasks, from some moment on.
#[derive(Debug)]
pub(crate) struct TargetTimes {
    path: PathBuf,
    from: u64,
}

/// What was read of it.
#[derive(Debug, Default)]
struct Read {
    tasks: HashMap<SessionName, HashMap<InitiatorTaskTag, Vec<Theirs>>>,
    /// The target had to leave some out.
    has_gaps: bool,
}

impl TargetTimes {
    /// What is written from now on.
    ///
    /// # Errors
    /// There is no such file, or it is none of a target's times.
    pub(crate) fn from_now(path: &Path) -> Result<Self, LabError> {
        let failed = LabError::times(path);
        // Whoever opens a pipe may wait for ever.
        let metadata = std::fs::metadata(path).map_err(&failed)?;
        if !metadata.is_file() {
            return Err(failed(invalid("it is no regular file")));
        }
        let mut first = Vec::new();
        let file = File::open(path).map_err(&failed)?;
        line(&mut BufReader::new(file), &mut first).map_err(&failed)?;
        let is_known = |line: &[u8]| {
            line.starts_with(b"#") || std::str::from_utf8(line).is_ok_and(|line| parse(line).is_some())
        };
        if first.strip_suffix(b"\n").is_some_and(|line| !is_known(line)) {
            return Err(failed(invalid("its first line is none that a target writes of its tasks")));
        }
        Ok(Self { path: path.to_owned(), from: metadata.len() })
    }

    /// Joins what is there with this side's; waits until the target has written all of it, but not for ever.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn join(&self, sessions: &[(SessionName, Log)]) -> Result<Split, LabError> {
        let began = Instant::now();
        loop {
            let split = self.read().map(|read| join(&read, sessions));
            let split = split.map_err(LabError::times(&self.path))?;
            if split.is_final || began.elapsed() > PATIENCE {
                return Ok(split);
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    fn read(&self) -> io::Result<Read> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.from))?;
        let (mut file, mut read, mut text) = (BufReader::new(file), Read::default(), Vec::new());
        while line(&mut file, &mut text)? {
            read.has_gaps |= text.starts_with(b"#");
            // A line of which the end is not there yet is read the next time.
            if let Some((session, tag, theirs)) = std::str::from_utf8(&text).ok().and_then(parse) {
                read.tasks.entry(session).or_default().entry(tag).or_default().push(theirs);
            }
        }
        Ok(read)
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads the next line with its end; false if there is none.
fn line(file: &mut impl BufRead, text: &mut Vec<u8>) -> io::Result<bool> {
    text.clear();
    let length = file.take(LINE_BYTES_MAX).read_until(b'\n', text)?;
    if length as u64 == LINE_BYTES_MAX && !text.ends_with(b"\n") {
        return Err(invalid("a line is longer than any that a target writes"));
    }
    Ok(length > 0)
}

/// `ISID TSIH TAG DATA STORE REST`: hexadecimal names, then nanoseconds.
fn parse(line: &str) -> Option<(SessionName, InitiatorTaskTag, Theirs)> {
    let mut words = line.split_ascii_whitespace();
    let mut hex = |digits: usize| {
        words.next().filter(|word| word.len() == digits).and_then(|word| u64::from_str_radix(word, 16).ok())
    };
    let (isid, tsih, tag) = (hex(12)?, hex(4)?, hex(8)?);
    let mut time = || words.next()?.parse().ok().map(Duration::from_nanos);
    let theirs = Theirs { data: time()?, store: time()?, rest: time()? };
    // Whoever writes ends a line by this word, so that none is read by half.
    if words.next() != Some("ns") || words.next().is_some() {
        return None;
    }
    let [_, _, isid @ ..] = isid.to_be_bytes();
    // As many digits as the numbers have.
    let session = SessionName { isid: Isid(isid), tsih: Tsih(tsih as u16) };
    Some((session, InitiatorTaskTag(tag as u32), theirs))
}

/// A tag comes again when a session has had many tasks. Both sides end with the same one, so they are told apart from the end.
fn join(read: &Read, sessions: &[(SessionName, Log)]) -> Split {
    let mut split = Split::new();
    // Those that do not fit together are seen, too: waiting makes them fit no better.
    let mut unseen: usize = sessions.iter().map(|(_, log)| log.kept.len()).sum();
    for (session, log) in sessions {
        split.of += log.of;
        let Some(tasks) = read.tasks.get(session).filter(|_| !read.has_gaps) else { continue };
        let mut seen: HashMap<InitiatorTaskTag, usize> = HashMap::new();
        for kept in log.kept.iter().rev() {
            let Some(of_tag) = tasks.get(&kept.tag) else { continue };
            let back = seen.entry(kept.tag).or_default();
            *back += 1;
            let Some(theirs) = of_tag.len().checked_sub(*back).and_then(|at| of_tag.get(at)) else {
                continue;
            };
            unseen -= 1;
            if let Some(parts) = parts(kept.own, *theirs, kept.needs_r2t)
                && kept.counts
            {
                split.add(parts);
            }
        }
    }
    split.is_final = unseen == 0 || read.has_gaps;
    split
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: fn(u64) -> Duration = Duration::from_micros;
    const SESSION: SessionName = SessionName { isid: Isid([0x40, 0, 1, 0x37, 0, 0]), tsih: Tsih(7) };

    #[test]
    fn lines_are_taken_whole_or_not_at_all() {
        let line = "400001370000 0007 00010002 5 60 700 ns";
        let theirs = Theirs {
            data: Duration::from_nanos(5),
            store: Duration::from_nanos(60),
            rest: Duration::from_nanos(700),
        };
        assert_eq!(parse(line), Some((SESSION, InitiatorTaskTag(0x10002), theirs)));
        for length in 0..line.len() {
            assert_eq!(parse(&line[..length]), None, "{length}");
        }
        assert_eq!(parse(&line.replace("0007", "7")), None);
        assert_eq!(parse("# 3 operations of all units are missing here"), None);
    }

    #[test]
    fn what_the_network_takes_is_what_nobody_else_says() {
        let own = Own { window: US(3), away: US(100), reply: US(10) };
        let theirs = Theirs { data: US(40), store: US(20), rest: US(5) };
        assert_eq!(parts(own, theirs, true), Some([3, 35, 40, 5, 20, 10].map(US)));
        assert_eq!(parts(own, theirs, false), Some([3, 75, 0, 5, 20, 10].map(US)));
        assert_eq!(parts(Own { away: US(64), ..own }, theirs, true), None, "it is another operation");
    }

    fn log(tags: &[(u32, u64)]) -> Log {
        let mut log = Log::default();
        for &(tag, away) in tags {
            let own = Own { window: US(0), away: US(away), reply: US(0) };
            log.add(InitiatorTaskTag(tag), own, false, away != 1000);
        }
        log
    }

    #[test]
    fn operations_are_joined_by_session_and_tag_from_the_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t.0.times");
        std::fs::write(&path, "400001370000 0007 00000001 0 999000 0 ns\n").expect("a file");
        let times = TargetTimes::from_now(&path).expect("it is there");
        let mut text = std::fs::read_to_string(&path).expect("a text");
        for (session, tag, store_us) in
            [("0007", 1, 90_u64), ("0007", 2, 10), ("0008", 1, 70), ("0007", 1, 20), ("0007", 2, 30)]
        {
            text += &format!("400001370000 {session} {tag:08x} 0 {} 0 ns\n", store_us * 1000);
        }
        std::fs::write(&path, &text).expect("a file");
        // The first two are from before the measurement, and tag 3 is nowhere in the file.
        let sessions = [(SESSION, log(&[(1, 1000), (2, 1000), (1, 100), (2, 100), (3, 100)]))];
        let split = join(&times.read().expect("lines"), &sessions);
        assert_eq!((split.whole.ns.len(), split.of, split.whole.sum), (2, 3, US(200)));
        assert_eq!((split.parts[4].sum, split.parts[1].sum), (US(50), US(150)));
        assert!(!split.is_final, "tag 3 may still come");
        // What is not whole cannot be joined.
        std::fs::write(&path, text + "# 1 operations of all units are missing here\n").expect("a file");
        let split = join(&times.read().expect("lines"), &sessions);
        assert_eq!((split.whole.ns.len(), split.is_final), (0, true));
    }

    #[test]
    fn what_is_none_of_a_target_s_times_is_refused_before_anything_is_measured() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t.0.times");
        let refused = |path: &Path| TargetTimes::from_now(path).err().map(|error| error.to_string());
        for device in [Path::new("/dev/zero"), directory.path()] {
            assert!(refused(device).is_some_and(|told| told.contains("no regular file")), "{device:?}");
        }
        let whole = "400001370000 0007 00000001 0 999000 0 ns\n";
        for (text, what) in [("0 R 0 512\n", "first line"), (&*"x".repeat(300), "longer than any")] {
            std::fs::write(&path, text).expect("a file");
            assert!(refused(&path).is_some_and(|told| told.contains(what)), "{text}");
        }
        for text in ["", &whole[..20], whole, "# 3 records of all units are missing here\n"] {
            std::fs::write(&path, text).expect("a file");
            assert_eq!(refused(&path), None, "{text}");
        }
        // A line that does not end is not gathered.
        let times = TargetTimes { path: path.clone(), from: 0 };
        let sparse = File::create(&path).and_then(|file| file.set_len(1 << 40));
        sparse.expect("a file of zeroes");
        assert_eq!(times.read().map(|_| ()).map_err(|error| error.kind()), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn nobody_waits_for_what_does_not_fit_together() {
        let tasks = |store_us: &[u64]| {
            let theirs = |&us: &u64| Theirs { data: Duration::ZERO, store: US(us), rest: Duration::ZERO };
            let of_tag = HashMap::from([(InitiatorTaskTag(1), store_us.iter().map(theirs).collect())]);
            Read { tasks: HashMap::from([(SESSION, of_tag)]), has_gaps: false }
        };
        let sessions = [(SESSION, log(&[(1, 1000), (1, 100), (1, 100)]))];
        let of = |store_us: &[u64]| {
            let split = join(&tasks(store_us), &sessions);
            (split.whole.ns.len(), split.is_final)
        };
        // The target says that one took longer than its answer.
        assert_eq!(of(&[900, 200, 50]), (1, true));
        // The first was before the measurement, and its line is not to be taken for that of the last.
        assert!(!of(&[50, 50]).1);
    }

    #[test]
    fn of_a_session_that_was_abandoned_nothing_is_joined() {
        let theirs = |us| Theirs { data: Duration::ZERO, store: US(us), rest: Duration::ZERO };
        // The last one has not ended on this side.
        let of_tag = HashMap::from([(InitiatorTaskTag(1), vec![theirs(10), theirs(20)])]);
        let read = Read { tasks: HashMap::from([(SESSION, of_tag)]), has_gaps: false };
        let mut abandoned = log(&[(1, 100)]);
        abandoned.give_up();
        let split = join(&read, &[(SESSION, abandoned)]);
        assert_eq!((split.whole.ns.len(), split.of, split.is_final), (0, 1, true));
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(256))]

        #[test]
        fn parts_add_up_to_the_whole(
            own in any::<[u32; 3]>(),
            theirs in any::<[u32; 3]>(),
            needs_r2t in any::<bool>(),
        ) {
            let [window, away, reply] = own.map(|ns| Duration::from_nanos(ns.into()));
            let [data, store, rest] = theirs.map(|ns| Duration::from_nanos(ns.into()));
            let parts = parts(Own { window, away, reply }, Theirs { data, store, rest }, needs_r2t);
            prop_assert_eq!(parts.is_some(), data + store + rest <= away);
            if let Some(parts) = parts {
                prop_assert_eq!(parts.iter().sum::<Duration>(), window + away + reply);
                prop_assert!(needs_r2t || parts[2].is_zero());
            }
        }
    }
}
