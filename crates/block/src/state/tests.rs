//! Files that are damaged, in the way, of another version, or half written.

use super::*;

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = StateFile::beside(&directory.path().join("vm.img"));
    (directory, path)
}

fn essential(path: &Path) -> Vec<u8> {
    StateFile::open(path.to_owned()).unwrap().1.expect("a file").essential
}

#[test]
fn the_last_content_is_there_after_a_restart() {
    let (_directory, path) = place();
    let (file, content) = StateFile::open(path.clone()).unwrap();
    assert_eq!(content, None);
    file.check_writable().unwrap();
    for (essential, replaceable) in [(&b"first"[..], &b"part"[..]), (b"second, and longer", b""), (b"", b"x")]
    {
        file.replace(essential, replaceable).unwrap();
        let content = StateFile::open(path.clone()).unwrap().1.expect("a file");
        assert_eq!((&content.essential[..], content.replaceable.as_deref()), (essential, Some(replaceable)));
    }
    let long = vec![0; STATE_BYTES_MAX];
    file.replace(&long, &[]).unwrap();
    let too_long = file.replace(&long, &[0]).unwrap_err();
    assert!(
        matches!(too_long, ReplaceError::Unchanged(error) if error.kind() == io::ErrorKind::FileTooLarge)
    );
}

/// The kernel, watched; from its `fails`th call on nothing is done any more, as after a crash.
struct Watched {
    calls: Vec<&'static str>,
    fails: usize,
    path: PathBuf,
}

impl Watched {
    fn step(&mut self, call: &'static str, step: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.calls.push(call);
        if self.calls.len() > self.fails { Err(Errno::IO.into()) } else { step() }
    }
}

impl Steps for Watched {
    fn sync(&mut self, file: &fs::File) -> io::Result<()> {
        // All of it is there by now, and under another name.
        let content = HEAD_BYTES + b"second".len();
        assert_eq!(file.metadata()?.len(), content as u64);
        assert_eq!(essential(&self.path), b"first");
        self.step("sync", || Kernel.sync(file))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        assert_eq!(to, self.path);
        self.step("rename", || Kernel.rename(from, to))
    }

    fn sync_directory_of(&mut self, path: &Path) -> io::Result<()> {
        assert_eq!(path, self.path);
        self.step("sync directory", || Kernel.sync_directory_of(path))
    }
}

/// SPC-4, APTPL: who is told that it is stored can rely on that, whenever the machine stops.
#[test]
fn the_content_is_stable_before_its_name_and_its_name_before_anybody_is_told() {
    const ORDER: [&str; 3] = ["sync", "rename", "sync directory"];
    for fails in 0..=ORDER.len() {
        let (_directory, path) = place();
        let (file, _) = StateFile::open(path.clone()).unwrap();
        file.replace(b"first", b"").unwrap();
        let mut watched = Watched { calls: Vec::new(), fails, path: path.clone() };
        let outcome = file.replace_by(&mut watched, (b"second", b""));
        assert_eq!(watched.calls, ORDER[..ORDER.len().min(fails + 1)]);
        match outcome {
            Ok(()) => assert_eq!(fails, ORDER.len(), "one call fails: nobody is told that it is stored"),
            Err(ReplaceError::Unchanged(_)) => assert_eq!(fails, 0, "the name may be another's"),
            Err(ReplaceError::InDoubt(_)) => assert!((1..ORDER.len()).contains(&fails), "it was not reached"),
        }
        let left: &[u8] = if fails < 2 { b"first" } else { b"second" };
        assert_eq!(essential(&path), left, "whole, whenever it stops");
    }
}

#[test]
fn what_a_crash_left_behind_is_replaced() {
    let (_directory, path) = place();
    let (file, _) = StateFile::open(path.clone()).unwrap();
    fs::write(path.with_extension("lunette-state.new"), "half of it").unwrap();
    file.replace(b"whole", b"").unwrap();
    assert_eq!(essential(&path), b"whole");
}

/// Who may write to the directory of an image must not have the target write elsewhere.
#[test]
fn a_link_in_the_way_is_replaced_and_not_followed() {
    let (directory, path) = place();
    let (file, _) = StateFile::open(path.clone()).unwrap();
    let elsewhere = directory.path().join("elsewhere");
    fs::write(&elsewhere, "precious").unwrap();
    std::os::unix::fs::symlink(&elsewhere, path.with_extension("lunette-state.new")).unwrap();
    file.replace(b"state", b"").unwrap();
    assert_eq!(fs::read(&elsewhere).unwrap(), b"precious");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(essential(&path), b"state");
}

/// Every bit and every length: what is essential is whole, or the file is refused; what is replaceable is whole, or told
/// to be lost.
#[test]
fn damage_is_told_from_absence_and_from_the_loss_of_one_part() {
    let (_directory, path) = place();
    let (file, _) = StateFile::open(path.clone()).unwrap();
    let (essential, replaceable) = (&b"settings"[..], &b"reservations"[..]);
    file.replace(essential, replaceable).unwrap();
    let good = fs::read(&path).unwrap();
    let after = HEAD_BYTES + essential.len();
    let damaged = |bad: &[u8], at: usize| match checked(bad) {
        None => assert!(at < after, "{at}"),
        Some(content) => {
            assert!(at >= after, "{at}");
            assert_eq!((&content.essential[..], content.replaceable), (essential, None), "{at}");
        }
    };
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            damaged(&bad, at);
        }
        damaged(&good[..at], at);
    }
    damaged(&[&good[..], b"more"].concat(), good.len());
    fs::write(&path, [&good[..], &vec![0; 2 * STATE_BYTES_MAX]].concat()).unwrap();
    let long = StateFile::open(path.clone()).unwrap().1.expect("a file");
    assert_eq!((&long.essential[..], long.replaceable), (essential, None), "longer than any");
    fs::write(&path, b"").unwrap();
    let error = StateFile::open(path.clone()).unwrap_err();
    assert!(matches!(error, StateError::Damaged { .. }));
    assert!(error.to_string().contains("vm.img.lunette-state"), "{error}");
}

#[test]
fn what_was_found_damaged_is_kept_once_and_never_written_over() {
    let (_directory, path) = place();
    let (file, _) = StateFile::open(path.clone()).unwrap();
    let aside = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        file.copy_aside().unwrap()
    };
    let first = aside(b"one");
    assert_eq!(aside(b"one"), first, "it is there already");
    let second = aside(b"two");
    assert_eq!(aside(b"two"), second);
    assert_eq!((fs::read(first).unwrap(), fs::read(second).unwrap()), (b"one".to_vec(), b"two".to_vec()));
    assert_eq!(fs::read(&path).unwrap(), b"two", "the file itself stays");
}

/// Nothing is wrong with a file of another version, and it is not told so.
#[test]
fn another_version_is_told_from_damage() {
    let (_directory, path) = place();
    for (first_line, is_another) in [("1", true), ("3", true), ("2", false)] {
        fs::write(&path, format!("lunette unit state {first_line}\nwhat it has")).unwrap();
        let error = StateFile::open(path.clone()).unwrap_err();
        assert_eq!(matches!(error, StateError::Version { .. }), is_another, "{error}");
        assert_eq!(matches!(error, StateError::Damaged { .. }), !is_another, "{error}");
    }
}

/// Each start would leave another one.
#[test]
fn a_copy_that_cannot_be_written_leaves_nothing() {
    let (directory, _) = place();
    let aside = directory.path().join("aside");
    let failed = create(&aside, |file| {
        file.write_all(b"half of it")?;
        Err(Errno::NOSPC.into())
    });
    assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(!aside.exists());
    fs::write(&aside, "of somebody else").unwrap();
    assert!(create(&aside, |_| Ok(())).is_err());
    assert_eq!(fs::read(&aside).unwrap(), b"of somebody else");
}

/// A pipe without a writer would hold the start up for ever.
#[test]
fn what_is_no_file_is_not_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let (_directory, path) = place();
    let pipe = |path: &Path| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    pipe(&path);
    assert!(matches!(StateFile::open(path.clone()), Err(StateError::Read { .. })));
    fs::remove_file(&path).unwrap();
    let (file, _) = StateFile::open(path.clone()).unwrap();
    fs::write(&path, "damaged").unwrap();
    pipe(&path.with_extension("lunette-state.damaged"));
    assert_eq!(file.copy_aside().unwrap(), path.with_extension("lunette-state.damaged.2"));
}

#[test]
fn a_place_that_is_not_there_is_not_writable() {
    let (file, _) = StateFile::open("/nonexistent/disk.lunette-state".into()).unwrap();
    assert_eq!(file.check_writable().unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(matches!(file.replace(b"x", b""), Err(ReplaceError::Unchanged(_))));
    assert!(file.copy_aside().is_err());
}

#[test]
fn one_at_a_time_has_the_lock_whatever_becomes_of_the_file() {
    let (directory, path) = place();
    let lock = StateLock::take(&path).unwrap().expect("nobody has it");
    let file = StateFile::open(path.clone()).unwrap().0.locked_by(lock);
    for _ in 0..2 {
        assert!(StateLock::take(&path).unwrap().is_none());
        file.replace(b"a", b"b").unwrap();
    }
    file.release();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the state alone");
    assert!(file.replace(b"c", b"d").is_err(), "it is somebody else's");
    assert_eq!(essential(&path), b"a");
    // What a process that was killed has left is in nobody's way.
    fs::write(directory.path().join("unit.lunette-state.lock"), b"").unwrap();
    assert!(StateLock::take(&path).unwrap().is_some());
    assert!(StateLock::take(&path).unwrap().is_some());
}

#[test]
fn many_who_come_and_go_never_have_the_lock_together() {
    let (_directory, path) = place();
    let holders = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let Some(lock) = StateLock::take(&path).unwrap() else { continue };
                    assert_eq!(holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(lock);
                }
            });
        }
    });
}
