//! CHAP from outside (RFC 7143, 9.2, 12.1.3): libiscsi's tools, QEMU, the tests' own initiator, and who tries to get in
//! without.

mod guessing;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use lunette_iscsi::chap::Secret;
use lunette_target::config::{ChapCredential, ChapUser, Config};
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::{ChapOptions, Initiator, LoginOptions};
use lunette_tests::lunette::{Lunette, TARGET_NAME};
use lunette_tests::need_programs;
use lunette_tests::packages::find_program;
use lunette_tests::process::{Finished, run};
use lunette_tests::tool::{tool, tool_output};
use lunette_wire::Cid;

const SECRET: &str = "A9_secret-of-ali";
const TARGET_SECRET: &str = "T1_secret-of-tar";
const SEEKER_SECRET: &str = "S4_secret-of-see";

/// A directory with the three secrets.
fn secrets() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, secret) in [("alice", SECRET), ("target", TARGET_SECRET), ("seeker", SEEKER_SECRET)] {
        write_secret(&directory.path().join(name), secret, 0o600);
    }
    directory
}

fn write_secret(path: &Path, secret: &str, mode: u32) {
    fs::write(path, format!("{secret}\n")).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

fn file(directory: &tempfile::TempDir, name: &str) -> String {
    format!("file:{}", directory.path().join(name).display())
}

/// A target for Alice that can prove itself as "storage".
fn guarded(directory: &tempfile::TempDir) -> Lunette {
    let user = format!("alice={}", file(directory, "alice"));
    let mutual = format!("storage={}", file(directory, "target"));
    Lunette::serve()
        .luns(["0=mem:8M"])
        .args(["--chap-user", &user, "--chap-mutual", &mutual, "--log", "trace"])
        .start()
        .expect("a target")
}

/// The URL of unit 0 for a user.
fn url(target: &Lunette, user: &str, secret: &str) -> String {
    format!("iscsi://{user}%{secret}@{}/{TARGET_NAME}/0", target.portal())
}

/// A tool of libiscsi with the target's name and secret to be proven, in libiscsi's variables.
fn mutual(program: &str, arguments: &[&str], name: &str, secret: &str) -> Finished {
    let mut command = Command::new(find_program(program).expect("the program"));
    command.args(arguments).env("LC_ALL", "C");
    command.env("LIBISCSI_CHAP_TARGET_USERNAME", name).env("LIBISCSI_CHAP_TARGET_PASSWORD", secret);
    run(&mut command, Duration::from_secs(60)).expect("a run")
}

/// RFC 7143: 9.1.
#[test]
fn libiscsi_logs_in_with_the_secret_and_not_without() {
    need_programs!("iscsi-inq");
    let directory = secrets();
    let target = guarded(&directory);
    let output = tool_output("iscsi-inq", [&url(&target, "alice", SECRET)]);
    assert!(output.contains("Type:DIRECT_ACCESS"), "{output}");
    for wrong in [
        target.url(0),
        url(&target, "alice", "A9_secret-of-bob"),
        url(&target, "bob", SECRET),
        url(&target, "alice", TARGET_SECRET),
    ] {
        assert!(!tool("iscsi-inq", [&wrong]).success(), "{wrong}");
    }
    for line in [
        "user=\"alice\"",
        "there is no CHAP user \"bob\"",
        "gave a wrong response",
        "offers no authentication",
        "the response that this target would give",
    ] {
        let found = target.wait_for_log(Duration::from_secs(20), |logged| logged.contains(line));
        assert!(found.is_some(), "{line}: {}", target.log());
    }
    // Not even at the level "trace".
    let log = target.log();
    for secret in [SECRET, TARGET_SECRET, "A9_secret-of-bob"] {
        assert!(!log.contains(secret), "{log}");
    }
    target.stop().expect("a clean end");
}

/// RFC 7143: 9.2.1.
#[test]
fn libiscsi_has_the_target_prove_itself() {
    need_programs!("iscsi-inq");
    let directory = secrets();
    let target = guarded(&directory);
    let arguments = [&*url(&target, "alice", SECRET)];
    let good = mutual("iscsi-inq", &arguments, "storage", TARGET_SECRET);
    assert!(good.success(), "{}", good.output);
    let bad = mutual("iscsi-inq", &arguments, "storage", "T1_secret-of-rog");
    assert!(!bad.success(), "libiscsi took a target that proved nothing: {}", bad.output);
    target.stop().expect("a clean end");
}

#[test]
fn qemu_reads_and_writes_with_chap() {
    need_programs!("qemu-img", "qemu-io");
    let directory = secrets();
    let target = guarded(&directory);
    let url = url(&target, "alice", SECRET);
    let info = tool_output("qemu-img", ["info", &url]);
    assert!(info.contains("8 MiB"), "{info}");
    tool_output("qemu-io", ["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "read -P 0x5a 1M 64k", &url]);
    // The secret as QEMU should be given it.
    let secret = format!("secret,id=s0,file={}", directory.path().join("plain").display());
    write_secret(&directory.path().join("plain"), SECRET, 0o600);
    // QEMU takes a line end for a part of the secret.
    fs::write(directory.path().join("plain"), SECRET).expect("a file");
    let image = format!(
        "driver=iscsi,transport=tcp,portal={},target={TARGET_NAME},lun=0,user=alice,password-secret=s0",
        target.portal()
    );
    let arguments = ["--object", &secret, "--image-opts", "-c", "read -P 0x5a 1M 64k", &image];
    tool_output("qemu-io", arguments);
    assert!(!tool("qemu-img", ["info", &target.url(0)]).success());
    target.stop().expect("a clean end");
}

#[test]
fn discovery_has_users_of_its_own() {
    need_programs!("iscsi-ls");
    let directory = secrets();
    let seeker = format!("seeker={}", file(&directory, "seeker"));
    let target =
        Lunette::serve().luns(["0=mem:8M"]).args(["--discovery-user", &seeker]).start().expect("a target");
    let portal = target.portal();
    let found = tool_output("iscsi-ls", [format!("iscsi://seeker%{SEEKER_SECRET}@{portal}")]);
    assert!(found.contains(TARGET_NAME), "{found}");
    for wrong in [format!("iscsi://{portal}"), format!("iscsi://seeker%{SECRET}@{portal}")] {
        let finished = tool("iscsi-ls", [&wrong]);
        assert!(!finished.output.contains(TARGET_NAME), "{wrong}: {}", finished.output);
    }
    // The target itself is open to everybody.
    Initiator::login(portal, &LoginOptions::default()).expect("a login").logout().expect("a logout");
    target.stop().expect("a clean end");
}

#[test]
fn a_secret_may_come_from_the_environment() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(lunette_tests::lunette::binary());
    command.args(["serve", "--json", "--portal", "127.0.0.1:0", "--target", TARGET_NAME, "--lun", "mem:8M"]);
    command.args(["--chap-user", "alice=env:ALICE_S_SECRET"]).env("ALICE_S_SECRET", SECRET);
    let target = lunette_tests::lunette::Launch::of(command).start().expect("a target");
    login(&target, &chap("5", SECRET, None)).expect("a login");
    // What others can see of the process has no secret in it.
    let shown = fs::read(format!("/proc/{}/cmdline", target.pid())).expect("a command line");
    assert!(!String::from_utf8_lossy(&shown).contains(SECRET));
    assert!(!target.log().contains(SECRET));
    target.stop().expect("a clean end");
    drop(directory);
}

fn chap(algorithms: &str, secret: &str, target: Option<&str>) -> ChapOptions {
    ChapOptions {
        algorithms: algorithms.to_owned(),
        user: ("alice".to_owned(), secret.to_owned()),
        target: target.map(|secret| ("storage".to_owned(), secret.to_owned())),
    }
}

fn login(target: &Lunette, chap: &ChapOptions) -> Result<()> {
    let options = LoginOptions { chap: Some(chap.clone()), ..LoginOptions::default() };
    Initiator::login(target.portal(), &options)?.logout()
}

/// RFC 7143: 4.2.4.
#[test]
fn every_algorithm_works_one_way_and_mutual() {
    let directory = secrets();
    let target = guarded(&directory);
    for algorithms in ["5", "6", "7", "8", "8,7,6,5"] {
        login(&target, &chap(algorithms, SECRET, None)).expect("one-way");
        login(&target, &chap(algorithms, SECRET, Some(TARGET_SECRET))).expect("mutual");
        let error = login(&target, &chap(algorithms, SECRET, Some(SECRET))).expect_err("a rogue").to_string();
        assert!(error.contains("does not prove itself"), "{error}");
    }
    let error = login(&target, &chap("5", "A9_secret-of-bob", None)).expect_err("a guess").to_string();
    assert!(error.contains("status 0201"), "{error}");
    target.stop().expect("a clean end");
}

/// RFC 7143: 9.2.1.
#[test]
fn what_is_wrong_with_a_secret_is_said_without_it() {
    let directory = tempfile::tempdir().expect("a directory");
    write_secret(&directory.path().join("open"), SECRET, 0o644);
    write_secret(&directory.path().join("short"), "hunter2", 0o600);
    write_secret(&directory.path().join("good"), SECRET, 0o600);
    let good = file(&directory, "good");
    for (arguments, said) in [
        (vec![format!("--chap-user=alice={}", file(&directory, "open"))], "chmod 600"),
        (vec![format!("--chap-user=alice={}", file(&directory, "short"))], "96 random bits"),
        (vec![format!("--chap-user=alice={}", file(&directory, "missing"))], "cannot read the secret file"),
        (vec!["--chap-user=alice=hunter2hunter2".to_owned()], "file:PATH or env:VARIABLE"),
        (vec!["--discovery-user=hunter2hunter2".to_owned()], "NAME=file:PATH"),
        (vec!["--chap-user=alice=env:NOT_SET_ANYWHERE".to_owned()], "is not set"),
        (vec![format!("--chap-user=a={good}"), format!("--chap-mutual=t={good}")], "have one secret"),
        (vec![format!("--chap-user=a={good}"), format!("--chap-user=a={good}")], "two users named a"),
    ] {
        let mut command = Command::new(lunette_tests::lunette::binary());
        command.args(["serve", "--portal", "127.0.0.1:0", "--lun", "mem:8M"]).args(&arguments);
        let finished = run(&mut command, Duration::from_secs(30)).expect("a run");
        assert!(!finished.success() && finished.output.contains(said), "{arguments:?}: {}", finished.output);
        assert!(
            !finished.output.contains("hunter2") && !finished.output.contains(SECRET),
            "{}",
            finished.output
        );
    }
}

/// RFC 7143: 9.2.1.
#[test]
fn made_secrets_are_good_and_never_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let made = |name: &str| {
        let path = directory.path().join(name);
        let mut command = Command::new(lunette_tests::lunette::binary());
        command.arg("secret").arg("--out").arg(&path);
        assert!(run(&mut command, Duration::from_secs(30)).expect("a run").success());
        fs::read_to_string(path).expect("a secret")
    };
    assert_ne!(made("first"), made("second"));
    let user = format!("alice={}", file(&directory, "first"));
    let target = Lunette::serve().luns(["0=mem:8M"]).args(["--chap-user", &user]).start().expect("a target");
    let secret = fs::read_to_string(directory.path().join("first")).expect("a secret");
    login(&target, &chap("8,5", secret.trim_end(), None)).expect("a login");
    target.stop().expect("a clean end");
}

/// A target for Alice and Bob in this process.
fn in_process(change: impl FnOnce(&mut Config)) -> InProcess {
    InProcess::start_with(&["mem:8M"], |config| {
        let credential =
            |name: &str, secret: &str| ChapCredential { name: name.to_owned(), secret: Secret::new(secret) };
        let user = |name, secret| ChapUser { credential: credential(name, secret), initiators: Vec::new() };
        let chap = &mut config.targets[0].chap;
        chap.users = vec![user("alice", SECRET), user("bob", SEEKER_SECRET)];
        chap.mutual = Some(credential("storage", TARGET_SECRET));
        change(config);
    })
}

/// RFC 7143: 9.2.
#[test]
fn all_connections_of_a_session_are_one_users() {
    let target = in_process(|_| ());
    let keys = [("MaxConnections", "4")];
    let as_user = |chap| LoginOptions { chap: Some(chap), ..target.options_with(1, &keys) };
    let first =
        Initiator::login(target.portal(), &as_user(chap("5", SECRET, None))).expect("a first connection");
    let bob = ChapOptions { user: ("bob".to_owned(), SEEKER_SECRET.to_owned()), ..chap("5", "", None) };
    // A new connection, and one in place of the first.
    for cid in [Cid(1), Cid(0)] {
        let options = LoginOptions { tsih: first.tsih(), cid, ..as_user(bob.clone()) };
        let error = Initiator::login(target.portal(), &options).expect_err("another user").to_string();
        assert!(error.contains("status 0201"), "{error}");
    }
    let options = LoginOptions { tsih: first.tsih(), cid: Cid(1), ..as_user(chap("7", SECRET, None)) };
    let _second = Initiator::login(target.portal(), &options).expect("a second connection");
    first.logout().expect("the session is untouched");
}

/// RFC 7143: 9.2.
#[test]
fn no_user_ends_anothers_session() {
    let target = in_process(|_| ());
    let as_user = |chap| LoginOptions { chap: Some(chap), ..target.options(1) };
    let bob = ChapOptions { user: ("bob".to_owned(), SEEKER_SECRET.to_owned()), ..chap("5", "", None) };
    let first = Initiator::login(target.portal(), &as_user(chap("5", SECRET, None))).expect("a session");
    // Of the same initiator name and ISID.
    let error = Initiator::login(target.portal(), &as_user(bob.clone())).expect_err("Alice's").to_string();
    assert!(error.contains("status 0201"), "{error}");
    let again = Initiator::login(target.portal(), &as_user(chap("5", SECRET, None))).expect("her own again");
    drop(first);
    again.logout().expect("a logout");
    wait_until("it is nobody's any more", || {
        Initiator::login(target.portal(), &as_user(bob.clone())).is_ok()
    });
}
