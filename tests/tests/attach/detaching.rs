//! `lunette detach`: it waits until everything is stable, and says what went wrong at the end of another process.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Rule, When};
use lunette_tests::attach::{Attached, can_mount};
use lunette_tests::commands::{command, good, refused};
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::{Lunette, binary};

use super::{pattern, serve};

#[test]
fn an_export_is_detached_by_its_address_and_everything_is_stable() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let address = attached.address().to_string();
    let mut client = attached.client().expect("a client");
    let data = pattern(1, 100_000);
    assert_eq!(client.write(0, &data).expect("an answer"), 0);
    let listed = good(&["detach", "--json"]).json();
    let places = listed["attached"].as_array().expect("a list");
    assert!(places.iter().any(|held| held["place"] == address.as_str()), "{listed}");
    let done = good(&["detach", &address, "--json"]).json();
    assert_eq!(done["detached"]["place"], address.as_str());
    attached.end().expect("all is stable");
    assert!(client.is_closed());
    assert!(fs::read(&image).expect("the image")[..100_000] == data);
    let gone = refused(1, &["detach", &address]);
    assert!(gone.contains("nothing of this user's is attached at"), "{gone}");
    assert!(!command(&["detach"]).out.contains(&address));
    target.stop().expect("a clean end");
}

#[test]
fn a_directory_is_detached_by_any_of_its_names() {
    if !can_mount() {
        return;
    }
    let target = Lunette::serve().luns(["0=mem:4M"]).start().expect("a target");
    let directory = tempfile::tempdir().expect("a directory");
    let named = directory.path().display().to_string();
    for place in [named.clone(), format!("{named}/disk"), format!("{named}/.")] {
        let attached = Attached::mount(&target.url(0), directory.path(), &[]).expect("attached");
        let file = fs::File::options().write(true).open(attached.file()).expect("the file");
        file.write_all_at(place.as_bytes(), 77).expect("written");
        drop(file);
        good(&["detach", &place]);
        attached.end().expect("all is stable");
        assert_eq!(fs::read_dir(directory.path()).expect("a list").count(), 0, "it is not there any more");
    }
    target.stop().expect("a clean end");
}

#[test]
fn who_detaches_is_told_that_the_last_flush_failed() {
    let target = InProcess::start(&["mem:4M,write=back"]);
    let url = format!("iscsi://{}/{}/0", target.portal(), target.name());
    let attached = Attached::start(&url, &[]).expect("attached");
    let address = attached.address().to_string();
    let mut client = attached.client().expect("a client");
    assert_eq!(client.write(0, &[7; 4096]).expect("an answer"), 0);
    let broken = Effect::Fail(rustix::io::Errno::IO);
    target.faults(0).add(Rule::new(OperationKind::Flush, When::Every, broken));
    // Where it takes long, it says before that it waits.
    let said = command(&["detach", &address]);
    assert_eq!(said.status, Some(5), "{said:?}");
    let told = said.err.lines().find_map(|line| line.strip_prefix("error: "));
    assert!(told.is_some_and(|error| error.starts_with("the last flush failed")), "{said:?}");
    assert!(said.err.contains("help: "), "{said:?}");
    let error = attached.end().expect_err("it is no clean end");
    assert!(error.to_string().contains("exit status: 5"), "{error:#}");
}

/// How long something that comes soon is waited for.
const SOON: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// As when a service manager stops a service that somebody has asked to detach.
#[test]
fn the_first_signal_after_a_detach_that_waits_loses_nothing() {
    if !can_mount() {
        return;
    }
    let [images, directory] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let image = images.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let attached = Attached::mount(&target.url(0), directory.path(), &[]).expect("attached");
    let file = fs::File::options().write(true).open(attached.file()).expect("the file");
    let place = directory.path().display().to_string();
    thread::scope(|scope| {
        let detach = scope.spawn(|| good(&["detach", &place]));
        wait_until("it leaves the tree", || {
            fs::read_dir(directory.path()).is_ok_and(|list| list.count() == 0)
        });
        attached.terminate().expect("it is there");
        wait_until("it says what a second one does", || {
            attached.log().contains("a second signal ends at once")
        });
        file.write_all_at(b"as ever", 77).expect("written");
        drop(file);
        assert!(detach.join().expect("its end").out.contains("everything is stable"));
    });
    attached.end().expect("all is stable");
    assert!(&fs::read(&image).expect("the image")[77..84] == b"as ever");
    target.stop().expect("a clean end");
}

#[test]
fn a_relative_name_of_a_socket_is_that_of_its_directory() {
    let target = Lunette::serve().luns(["0=mem:4M", "1=mem:4M"]).start().expect("a target");
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let within = |directory: &Path, arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.current_dir(directory).args(arguments);
        command
    };
    let mut attached = [0, 1].map(|lun| {
        let arguments = ["attach", &target.url(lun), "--json", "--nbd", "unix:vm.sock"];
        Some(Attached::of(within(directories[lun].path(), &arguments)).expect("attached"))
    });
    let detach = |directory: usize| {
        within(directories[directory].path(), &["detach", "unix:vm.sock"]).output().expect("it runs")
    };
    assert_eq!(detach(2).status.code(), Some(1), "nothing is here");
    for this in [1, 0] {
        let output = detach(this);
        assert!(output.status.success(), "{output:?}");
        attached[this].take().expect("attached").end().expect("the one in this directory ends");
    }
    target.stop().expect("a clean end");
}
