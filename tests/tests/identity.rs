//! A disk keeps its name: serial number and device identification survive a restart, another number and a move of its
//! image.

use lunette_tests::lunette::Lunette;
use lunette_tests::need_programs;
use lunette_tests::tool::tool_output;

#[test]
fn identities_survive_a_restart_a_new_number_and_a_move() {
    need_programs!("iscsi-inq");
    let directory = tempfile::tempdir().expect("a directory");
    let (first, moved) = (directory.path().join("first.img"), directory.path().join("moved.img"));
    let identity = |target: &Lunette, lun| {
        ["128", "131"].map(|page| tool_output("iscsi-inq", ["-e", "1", "-c", page, &target.url(lun)]))
    };
    let target = Lunette::serve().luns([format!("0={},size=8M", first.display())]).start().expect("a target");
    let before = identity(&target, 0);
    target.stop().expect("a clean end");
    let target = Lunette::serve()
        .luns(["0=mem:8M".to_owned(), format!("5={}", first.display())])
        .start()
        .expect("a target");
    assert_eq!(identity(&target, 5), before, "after a restart, with another number");
    target.stop().expect("a clean end");
    std::fs::rename(&first, &moved).expect("a move");
    let target = Lunette::serve().luns([format!("0={}", moved.display())]).start().expect("a target");
    assert_eq!(identity(&target, 0), before, "after a move");
    target.stop().expect("a clean end");
}
