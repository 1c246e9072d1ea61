//! What the commands and attached disks make of several paths.

use lunette_tests::attach::Attached;
use lunette_tests::engine::pattern;
use lunette_tests::lunette::binary;

use super::World;

fn url(world: &World, at: usize) -> String {
    format!("iscsi://{}/{}/0", world.relays[at].address, world.target.name())
}

/// What the command line does with two paths, one of which is not there.
#[test]
fn the_command_line_uses_and_tells_all_paths() {
    let world = World::new(&["mem:16M"], &[1, 2]);
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(binary()).args(arguments).output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let (one, other) = (url(&world, 0), url(&world, 1));
    run(&["write", &one, "--path", &other, "--pattern", "address", "--policy", "round-robin"]);
    run(&["verify", &other, "--pattern", "address", "--multipath"]);
    let told = run(&["info", &one, "--path", &other]);
    assert_eq!(told.matches("up, active/optimized, in use").count(), 2, "{told}");
    world.relays[1].close();
    run(&["verify", &one, "--path", &other, "--pattern", "address"]);
    let told = run(&["info", &one, "--path", &other, "--json"]);
    assert!(told.contains(r#""state":"down""#) && told.contains(r#""state":"up""#), "{told}");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("disk.img").display().to_string();
    run(&["copy", &one, "--source-path", &other, &file]);
}

#[test]
fn an_attached_disk_outlives_its_paths_one_by_one() {
    let world = World::new(&["mem:16M,write=back"], &[1, 2]);
    let arguments = ["--path", &url(&world, 1), "--failback", "0"];
    let attached = Attached::start(&url(&world, 0), &arguments).expect("a disk");
    let mut client = attached.client().expect("a client");
    let data = |seed: u64| pattern(seed, 1 << 20);
    for (round, lost) in [(1, Some(0)), (2, Some(1)), (3, None)] {
        let at = |part: u64| part << 20;
        for part in 0..4 {
            assert_eq!(client.write(at(part), &data(round * 10 + part)).expect("an answer"), 0);
        }
        for (path, relay) in world.relays.iter().enumerate() {
            if lost == Some(path) { relay.close() } else { relay.open() }
        }
        // Over the other path, or as soon as that is back.
        assert_eq!(client.write(at(4), &data(round * 10 + 4)).expect("an answer"), 0);
        assert_eq!(client.flush().expect("an answer"), 0);
        for part in 0..5 {
            assert!(
                client.read(at(part), 1 << 20).expect("an answer") == data(round * 10 + part),
                "{round}: {part}"
            );
        }
    }
    drop(client);
    attached.detach().expect("a clean end");
}
