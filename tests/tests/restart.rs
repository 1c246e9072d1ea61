//! What a logical unit keeps over a restart: reservations with APTPL after a crash, and what becomes of a state that was
//! damaged (SPC-4, APTPL; docs/decisions/0016).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lunette_tests::initiator::LoginOptions;
use lunette_tests::lunette::{Launch, Lunette, TARGET_NAME, binary};
use lunette_tests::process::run;
use lunette_tests::raw::Raw;
use lunette_tests::reservations::{Action, persistent_reserve_in, persistent_reserve_out};

const RESERVATION_CONFLICT: u8 = 0x18;
const EXCLUSIVE_ACCESS: u8 = 3;
/// DATA PROTECT, PERSISTENT RESERVATION INFORMATION LOST.
const LOST: (u8, u8, u8) = (7, 0x44, 0x01);
const LIMIT: Duration = Duration::from_secs(60);
const KEY: u64 = 0x0123_4567_89ab_cdef;

fn session(target: &Lunette, port: u8) -> Raw {
    let options = LoginOptions {
        target_name: Some(TARGET_NAME.to_owned()),
        isid_qualifier: port,
        ..LoginOptions::default()
    };
    let mut raw = Raw::login(target.portal(), &options).expect("a login");
    let first = raw.test_unit_ready(0).expect("an answer");
    assert_eq!(first.codes(), (6, 0x29, 0));
    raw
}

fn out(session: &mut Raw, action: Action, kind: u8, keys: (u64, u64)) {
    let ending = persistent_reserve_out(session, 0, action, kind, keys).expect("an answer");
    assert_eq!(ending.status, 0, "{action:?}: {:?}", ending.codes());
}

fn serve(image: &Path) -> Launch {
    Lunette::serve().luns([format!("0={},size=8M", image.display())])
}

/// The reservation of initiator port 1 is in effect.
fn expect_reserved(target: &Lunette) {
    let (mut holder, mut other) = (session(target, 1), session(target, 2));
    let keys = persistent_reserve_in(&mut holder, 0, 0).expect("READ KEYS");
    assert_eq!(keys[8..], KEY.to_be_bytes());
    let read = |session: &mut Raw| session.read(0, 0, 1).expect("sent");
    let tag = read(&mut holder);
    holder.data_in(tag).expect("the holder reads");
    let tag = read(&mut other);
    assert_eq!(other.ending(tag).expect("an answer").status, RESERVATION_CONFLICT);
}

/// Everybody is kept from the medium, and told why.
fn expect_lost(target: &Lunette) {
    for port in [1, 2] {
        let mut session = session(target, port);
        assert_eq!(session.test_unit_ready(0).expect("an answer").codes(), LOST);
        let tag = session.read(0, 0, 1).expect("sent");
        assert_eq!(session.ending(tag).expect("an answer").codes(), LOST);
    }
}

fn reserve_and_keep(target: &Lunette) {
    let mut holder = session(target, 1);
    out(&mut holder, Action::RegisterAndKeep, 0, (0, KEY));
    out(&mut holder, Action::Reserve, EXCLUSIVE_ACCESS, (KEY, 0));
}

#[test]
fn a_reservation_with_aptpl_survives_a_crash() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image).start().expect("a target");
    reserve_and_keep(&target);
    target.kill().expect("killed");
    assert!(directory.path().join("disk.img.lunette-state").exists(), "beside the image");
    let target = serve(&image).start().expect("a target");
    expect_reserved(&target);
    // Who registers nothing has nothing to say about it.
    out(&mut session(&target, 3), Action::Register, 0, (0, 0));
    target.kill().expect("killed");
    let target = serve(&image).start().expect("a target");
    expect_reserved(&target);
    // Without APTPL nothing of it is left after the next one.
    let mut holder = session(&target, 1);
    out(&mut holder, Action::Register, 0, (KEY, KEY));
    target.kill().expect("killed");
    let target = serve(&image).start().expect("a target");
    let keys = persistent_reserve_in(&mut session(&target, 1), 0, 0).expect("READ KEYS");
    assert_eq!(keys[4..], [0; 4]);
    target.stop().expect("a clean end");
}

/// The state is the image's, and not that of a link to it.
#[test]
fn a_reservation_is_there_whichever_way_the_image_is_served() {
    let directory = tempfile::tempdir().expect("a directory");
    let [image, link] = ["disk.img", "link.img"].map(|name| directory.path().join(name));
    std::fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("an image");
    std::os::unix::fs::symlink(&image, &link).expect("a link");
    let target = serve(&link).start().expect("a target");
    reserve_and_keep(&target);
    target.kill().expect("killed");
    let target = serve(&image).start().expect("a target");
    expect_reserved(&target);
    target.stop().expect("a clean end");
}

#[test]
fn states_are_kept_where_they_are_told_to() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, states) = (directory.path().join("disk.img"), directory.path().join("made/for/this"));
    let serve = || serve(&image).args(["--state-directory", &states.display().to_string()]);
    let target = serve().start().expect("a target");
    reserve_and_keep(&target);
    target.kill().expect("killed");
    let names: Vec<_> = std::fs::read_dir(&states)
        .expect("the directory was made")
        .map(|entry| entry.expect("a name").file_name().to_string_lossy().into_owned())
        .collect();
    let [name] = &names[..] else { panic!("{names:?}") };
    assert!(name.starts_with("naa.3") && name.ends_with(".state"), "{name}");
    let target = serve().start().expect("a target");
    expect_reserved(&target);
    target.stop().expect("a clean end");
}

/// A disk that nobody writes to may be served twice, its state kept by one (SPC-4, APTPL).
#[test]
fn the_state_of_a_disk_that_two_serve_is_kept_by_the_first_of_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    serve(&image).start().expect("a target").stop().expect("a clean end");
    for states in [None, Some(directory.path().join("states"))] {
        let serve = || {
            let launch = Lunette::serve().luns([format!("0={},ro", image.display())]);
            match &states {
                Some(states) => launch.args(["--state-directory", &states.display().to_string()]),
                None => launch,
            }
        };
        let (first, second) = (serve().start().expect("a target"), serve().start().expect("another one"));
        let register = |target: &Lunette, key| {
            let keys = (0, key);
            persistent_reserve_out(&mut session(target, 1), 0, Action::RegisterAndKeep, 0, keys)
                .expect("an answer")
        };
        assert_eq!(register(&second, 7).codes(), (5, 0x26, 0), "APTPL");
        assert!(second.log().contains("has its lock"), "{}", second.log());
        assert_eq!(register(&first, KEY).status, 0);
        first.kill().expect("killed");
        second.stop().expect("a clean end");
        let target = serve().start().expect("a target");
        let keys = persistent_reserve_in(&mut session(&target, 1), 0, 0).expect("READ KEYS");
        assert_eq!(keys[8..], KEY.to_be_bytes());
        assert!(!target.log().contains("has its lock"), "{}", target.log());
        out(&mut session(&target, 2), Action::RegisterAndKeep, 0, (0, KEY));
        target.stop().expect("a clean end");
        let place = states.as_deref().unwrap_or(directory.path());
        let names =
            std::fs::read_dir(place).expect("a directory").map(|entry| entry.expect("a name").file_name());
        let locks: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".lock")).collect();
        assert!(locks.is_empty(), "{locks:?}");
        if states.is_none() {
            std::fs::remove_file(directory.path().join("disk.img.lunette-state")).expect("removed");
        }
    }
}

/// A state directory that is new does not have what is still beside the image; and it is of use there once it was moved.
#[test]
fn a_reservation_is_not_dropped_where_a_directory_is_chosen_later() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, states) = (directory.path().join("disk.img"), directory.path().join("states"));
    let target = serve(&image).start().expect("a target");
    reserve_and_keep(&target);
    target.kill().expect("killed");
    let with_directory = || serve(&image).args(["--state-directory", &states.display().to_string()]);
    let error = format!("{:#}", with_directory().start().expect_err("the reservation would be lost"));
    let beside = directory.path().join("disk.img.lunette-state");
    assert!(error.contains(&format!("is in {}", beside.display())), "{error}");
    let (_, place) = error.split_once("move it to ").expect("the place");
    let (place, _) = place.split_once(", or remove it").expect("the other way");
    std::fs::rename(&beside, place).expect("moved");
    let target = with_directory().start().expect("a target");
    expect_reserved(&target);
    target.kill().expect("killed");
    // The way back, as the guide has it.
    std::fs::rename(place, &beside).expect("moved");
    let target = serve(&image).start().expect("a target");
    expect_reserved(&target);
    target.stop().expect("a clean end");
}

#[test]
fn a_damaged_state_stops_the_start_and_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let state = directory.path().join("disk.img.lunette-state");
    let target = serve(&image).start().expect("a target");
    reserve_and_keep(&target);
    target.kill().expect("killed");
    let good = std::fs::read(&state).expect("a state");
    let mut bad = good.clone();
    // Of the hash that all but the reservations is held against.
    bad[30] ^= 1;
    for content in [&bad[..], &good[..50], b""] {
        std::fs::write(&state, content).expect("written");
        let error = format!("{:#}", serve(&image).start().expect_err("no start with a damaged state"));
        assert!(error.contains("disk.img.lunette-state"), "{error}");
    }
    std::fs::write(&state, &good).expect("written");
    let target = serve(&image).start().expect("a target");
    expect_reserved(&target);
    target.stop().expect("a clean end");
}

/// SPC-4, 5.13.5.3: nobody reads or writes until an initiator has said what is reserved, however often the target starts; what was
/// damaged is kept, and nothing else of the state is lost.
#[test]
fn lost_reservations_keep_everybody_out_until_they_are_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let (state, copy) = ["", ".damaged"]
        .map(|suffix| directory.path().join(format!("disk.img.lunette-state{suffix}")))
        .into();
    let target = serve(&image).start().expect("a target");
    reserve_and_keep(&target);
    target.kill().expect("killed");
    let mut damaged = std::fs::read(&state).expect("a state");
    // The end of the holder's name.
    *damaged.last_mut().expect("content") ^= 1;
    std::fs::write(&state, &damaged).expect("written");
    for _ in 0..2 {
        let target = serve(&image).start().expect("a target");
        expect_lost(&target);
        let log = target.log();
        assert!(log.contains("--replace-lost") && log.contains("disk.img.lunette-state.damaged"), "{log}");
        assert_eq!(std::fs::read(&copy).expect("a copy"), damaged);
        target.kill().expect("killed");
    }
    let target = serve(&image).start().expect("a target");
    let mut holder = session(&target, 1);
    out(&mut holder, Action::ReplaceLostAndKeep, EXCLUSIVE_ACCESS, (0, KEY));
    drop(holder);
    expect_reserved(&target);
    target.kill().expect("killed");
    let target = serve(&image).start().expect("a target");
    expect_reserved(&target);
    target.stop().expect("a clean end");
    assert_eq!(std::fs::read(&copy).expect("the copy"), damaged);
}

/// As an operator does it, who knows that nobody uses the disk.
#[test]
fn an_operator_replaces_lost_reservations() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let state = directory.path().join("disk.img.lunette-state");
    let target = serve(&image).start().expect("a target");
    reserve_and_keep(&target);
    target.kill().expect("killed");
    let damaged = std::fs::read(&state).expect("a state");
    std::fs::write(&state, &damaged[..damaged.len() - 1]).expect("written");
    let target = serve(&image).start().expect("a target");
    let lunette = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.arg(arguments[0]).arg(target.url(0)).args(&arguments[1..]);
        run(&mut command, LIMIT).expect("run")
    };
    let refused = lunette(&["read", "--length", "1b"]);
    assert!(!refused.success() && refused.output.contains("--replace-lost"), "{}", refused.output);
    for arguments in [
        &["reserve", "--replace-lost", "--param-sark", "abc", "--prout-type", "3"][..],
        &["reserve", "--clear", "--param-rk", "abc"],
        &["read", "--length", "1b"],
    ] {
        let finished = lunette(arguments);
        assert!(finished.success(), "{arguments:?}: {}", finished.output);
    }
    target.stop().expect("a clean end");
}

#[test]
fn a_state_of_another_volume_stops_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, other) = (directory.path().join("disk.img"), directory.path().join("other.img"));
    let target = serve(&image).start().expect("a target");
    reserve_and_keep(&target);
    target.stop().expect("a clean end");
    let beside = |name: &str| directory.path().join(name);
    std::fs::copy(beside("disk.img.lunette-state"), beside("other.img.lunette-state")).expect("copied");
    let error = format!("{:#}", serve(&other).start().expect_err("a copied state"));
    assert!(error.contains("other.img.lunette-state") && error.contains("another volume"), "{error}");
}
