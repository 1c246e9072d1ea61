//! `discover`, `login-trace` and `info`: what a target has, and how one gets in.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::host::{Said, Served, TARGET, good, path, refused, run, run_in};

#[test]
fn discovery_lists_targets_units_and_sizes() {
    let served = Served::start(&["mem:64M", "7=mem:1M,block=4096,ro"], &[]);
    let text = good(&["discover", served.portal()]).text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(format!("{TARGET}  at {},1", served.portal()).as_str()));
    let first = lines.next().expect("a unit");
    assert!(first.starts_with("  LUN 0  64 MiB, 512-byte blocks"), "{text}");
    assert!(first.ends_with(&served.url(0)), "{text}");
    assert!(lines.next().expect("a unit").contains("LUN 7  1 MiB, 4096-byte blocks, read-only"), "{text}");

    let found = good(&["discover", served.portal(), "--json"]).json();
    let units = found["targets"][0]["units"].as_array().expect("units");
    assert_eq!(
        (units[0]["size_bytes"].as_u64(), units[1]["block_bytes"].as_u64()),
        (Some(64 << 20), Some(4096))
    );
    assert_eq!(units[1]["read_only"], true);
    let url = units[1]["url"].as_str().expect("a URL");
    assert_eq!(good(&["checksum", url, "--algorithm", "crc32c"]).status, Some(0), "the URL can be used");

    let names = good(&["discover", served.portal(), "--targets-only"]).text();
    assert_eq!(names.lines().count(), 1, "{names}");
    let known = good(&["discover", served.portal(), "--static", TARGET]).text();
    assert!(known.contains("LUN 7"), "{known}");
}

#[test]
fn a_target_that_is_not_there_is_told_in_the_list_and_by_the_status() {
    let served = Served::start(&["mem:1M"], &[]);
    let said = run(&["discover", served.portal(), "--static", "iqn.x:no", "--static", TARGET]);
    assert_eq!(said.status, Some(3), "{said:?}");
    let text = said.text();
    assert!(text.contains("iqn.x:no") && text.contains("LUN 0"), "the other one is listed: {text}");
    assert!(said.err.contains("error: login at "), "{said:?}");
}

#[test]
fn nobody_there() {
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let url = format!("iscsi://{free}/{TARGET}/0");
    for arguments in [vec!["discover", &url[8..8 + free.to_string().len()]], vec!["info", &url]] {
        let message = refused(3, &arguments);
        assert!(message.contains(&format!("cannot connect to {free}")), "{message}");
        assert!(message.contains("\nhelp: check the port (iSCSI's is 3260)"), "{message}");
    }
    let failure: serde_json::Value =
        serde_json::from_str(&refused(3, &["info", &url, "--json"])).expect("JSON");
    assert_eq!(failure["status"], 3);
    assert!(failure["help"].as_str().is_some_and(|help| help.contains("3260")), "{failure}");
}

#[test]
fn a_trace_has_every_phase_and_every_key() {
    let served = Served::start(&["mem:1M"], &[]);
    let text = good(&["login-trace", &served.url_with("", 0, "header_digest=crc32c")]).text();
    for part in [
        "connected",
        "initiator  operational, then full feature",
        "target     operational, then full feature",
        "InitiatorName=",
        "HeaderDigest              CRC32C",
        "the target agrees",
        "logged in",
        "Logged out again.",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let trace = good(&["login-trace", &served.url(0), "--json"]).json();
    let attempt = &trace["attempts"][0];
    let keys = attempt["keys"].as_array().expect("keys");
    let first_burst = keys.iter().find(|key| key["name"] == "FirstBurstLength").expect("the key");
    assert!(first_burst["why"].as_str().is_some() && first_burst["result"].as_str().is_some());
    assert_eq!(
        attempt["pdus"].as_array().map(Vec::len),
        Some(2),
        "who has no secret leaves out the security stage"
    );

    let said = run(&["login-trace", &served.url(0).replace(":cli", ":other")]);
    assert_eq!(said.status, Some(3), "{said:?}");
    assert!(said.text().contains("status 0203h"), "what was said until then: {said:?}");
    assert!(said.err.contains("error: login at "), "{said:?}");
}

#[test]
fn who_fails_to_authenticate_is_told_apart() {
    let directory = tempfile::tempdir().expect("a directory");
    let secret = directory.path().join("host.secret");
    good(&["secret", "--out", path(&secret)]);
    let user = format!("host-a=file:{}", path(&secret));
    let served = Served::start(&["mem:1M"], &["--chap-user", &user]);

    let right = served.url_with("host-a@", 0, &format!("password_file={}", path(&secret)));
    let text = good(&["login-trace", &right]).text();
    for part in ["initiator  security", "CHAP with ", "CHAP_R=("] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let word = std::fs::read_to_string(&secret).expect("a secret");
    assert!(!text.contains(word.trim()));
    assert!(good(&["info", &right]).text().starts_with("iscsi://host-a@127.0.0.1:"));
    good(&["discover", served.portal(), "--chap-user", &user]);

    let wrong = served.url_with("host-a%wrong-secret-16b@", 0, "");
    for url in [wrong.as_str(), &served.url(0)] {
        let message = refused(4, &["info", url]);
        assert!(!message.contains("wrong-secret"), "{message}");
    }
    let message = refused(4, &["discover", served.portal()]);
    assert!(message.starts_with("error: login at "), "{message}");
}

#[test]
fn secrets_come_from_the_environment() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, secret: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, secret).expect("room");
        // The target takes no secret that others could read.
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("it is ours");
        format!("{name}=file:{}", path(&file))
    };
    let (own, of_target) = ("the host's 16 by", "the disk's own 16");
    let flags = ["--chap-user", &file("host-a", own), "--chap-mutual", &file("disk", of_target)];
    let served = Served::start(&["mem:1M"], &flags);
    let variables = |own, of_target| [("LUNETTE_TEST_OWN", own), ("LUNETTE_TEST_TARGET", of_target)];
    let url = served.url_with("host-a@", 0, "password_env=LUNETTE_TEST_OWN");
    let mutual = format!("{url}&target_user=disk&target_password_env=LUNETTE_TEST_TARGET");
    for url in [&url, &mutual] {
        let said = run_in(&variables(own, of_target), &["info", url]);
        assert!(said.status == Some(0) && said.text().contains("1 MiB"), "{said:?}");
    }
    // A secret that is not the right one, of either side.
    for (variables, url) in
        [(variables(of_target, own), &url), (variables(own, "not the disk's 16"), &mutual)]
    {
        let said = run_in(&variables, &["info", url]);
        assert_eq!(said.status, Some(4), "{said:?}");
        assert!(variables.iter().all(|(_, secret)| !said.err.contains(secret)), "{said:?}");
    }
    let discover = ["discover", served.portal(), "--chap-user", "host-a=env:LUNETTE_TEST_OWN"];
    let said = run_in(&variables(own, of_target), &discover);
    assert!(said.status == Some(0) && said.text().contains("LUN 0"), "{said:?}");
}

/// RFC 7143, 9.2.1: it is used, since the target's administrator may have IPsec.
#[test]
fn a_secret_that_is_short_is_told_once_and_not_shown() {
    let served = Served::start(&["mem:1M", "mem:1M"], &[]);
    let told = |said: &Said, name: &str| {
        assert!(!said.err.contains("hunter"), "{said:?}");
        said.err.matches(&format!("the secret of CHAP name {name} has less than 12 bytes")).count()
    };
    let short = |lun, keys| served.url_with("host-a%hunter2@", lun, keys);
    // Both ends of a copy have it.
    assert_eq!(told(&good(&["copy", &short(0, ""), &short(1, ""), "--quiet"]), "host-a"), 1);
    // A target that does not prove itself is refused.
    let said = run(&["info", &short(0, "target_user=disk&target_password=hunter3")]);
    assert_eq!((said.status, told(&said, "host-a"), told(&said, "disk")), (Some(4), 1, 1), "{said:?}");
    let sound = served.url_with("host-a%twelve-bytes@", 0, "");
    for command in ["info", "login-trace"] {
        assert_eq!(good(&[command, &sound]).err, "");
        assert_eq!(told(&good(&[command, &short(0, "")]), "host-a"), 1);
    }
}

#[test]
fn a_disk_tells_about_itself() {
    let served = Served::start(&["mem:64M,serial=S-77,vendor=ACME,product=Disk"], &[]);
    let text = good(&["info", &served.url(0)]).text();
    for part in [
        "  kind          disk\n",
        "  model         ACME Disk ",
        "  serial        S-77\n",
        "  name          naa.3",
        "  size          64 MiB: 131072 blocks of 512 bytes, physical ",
        "  read-only     no\n",
        "  provisioning  thin, UNMAP",
        "  port group    1: active/optimized, ports 1\n",
        "  reservation   none\n",
        "  VPD pages     00 80 83",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let info = good(&["info", &served.url(0), "--json"]).json();
    assert_eq!((info["serial"].as_str(), info["blocks"].as_u64()), (Some("S-77"), Some(131_072)));
    assert_eq!(info["port_groups"][0]["state"], "active/optimized");

    let message = refused(5, &["info", &served.url(9)]);
    assert!(message.contains("no logical unit with this number"), "{message}");
    assert!(message.contains("\nhelp: `lunette discover`"), "{message}");
}
