//! Wrong input in every form: status 2, what is wrong, and nothing done.

use crate::host::{Served, refused, run};

/// A URL that nobody is asked for.
const URL: &str = "iscsi://127.0.0.1:1/iqn.x:a/0";

#[test]
fn command_lines_that_cannot_be() {
    for (arguments, part) in [
        (vec!["info"], "required"),
        (vec!["info", "127.0.0.1/iqn.x:a/0"], "iscsi://"),
        (vec!["info", "iscsi://127.0.0.1:99999/iqn.x:a/0"], "99999"),
        (vec!["info", "iscsi://127.0.0.1"], "names no target"),
        (vec!["info", "iscsi://127.0.0.1/iqn.x:a"], "names no target"),
        (vec!["info", "iscsi://127.0.0.1/not a name/0"], "name"),
        (vec!["info", "iscsi://127.0.0.1/iqn.x:a/x"], "logical unit number"),
        (vec!["info", "iscsi://127.0.0.1/iqn.x:a/0?color=red"], "none of"),
        (
            vec!["info", "iscsi://127.0.0.1/iqn.x:a/0?initiator_name=me"],
            "initiator_name=\"me\" is not an iSCSI name",
        ),
        (vec!["info", "iscsi://me@127.0.0.1/iqn.x:a/0"], "no secret"),
        (
            vec!["info", "iscsi://me@127.0.0.1/iqn.x:a/0?password_env=LUNETTE_UNSET"],
            "no variable LUNETTE_UNSET",
        ),
        (vec!["discover", "127.0.0.1:0"], "no address"),
        (vec!["discover", ""], "no address"),
        (vec!["discover", "127.0.0.1:1", "--static", "a b"], "no iSCSI name"),
        (vec!["discover", "127.0.0.1:1", "--initiator-name", "me"], "no iSCSI name"),
        (vec!["discover", "127.0.0.1:1", "--chap-user", "me"], "NAME=file:PATH"),
        (vec!["discover", "127.0.0.1:1", "--chap-user", "me=file:/no/where"], "cannot read the secret"),
        (vec!["discover", "127.0.0.1:1", "--static", "iqn.x:a", "--targets-only"], "cannot be used with"),
        (vec!["read", URL, "--length", "1k"], "give bytes"),
        (vec!["read", URL, "--offset=-1"], "give bytes"),
        (vec!["read", URL, "--depth", "0"], "from 1 to 1024"),
        (vec!["read", URL, "--depth", "1025"], "from 1 to 1024"),
        (vec!["write", URL], "required"),
        (vec!["write", URL, "--input", "a", "--pattern", "zeros"], "cannot be used with"),
        (vec!["write", URL, "--pattern", "noise"], "a pattern is"),
        (vec!["verify", URL, "--pattern", "hex:0"], "a pattern is"),
        (vec!["checksum", URL, "--algorithm", "md5"], "sha256, crc32c"),
        (vec!["erase", URL, "--method", "burn"], "sanitize-overwrite"),
        (vec!["copy", URL], "required"),
        (
            vec!["copy", "iscsi://127.0.0.1:1/iqn.x:a/0?isid=1", "iscsi://127.0.0.1:1/iqn.x:a/1?isid=2"],
            "both have an isid",
        ),
        (
            vec!["info", "iscsi://a/iqn.x:a/0?isid=7", "--path", "iscsi://b/iqn.x:a/0?isid=7"],
            "the same session identifier (isid)",
        ),
        (vec!["info", "iscsi://127.0.0.1/iqn.x:a/0?isid=8000000000001"], "up to 12 hexadecimal digits"),
        (vec!["copy", "http://a/b", "c"], "iscsi:// URL, or a file"),
        (vec!["copy", "iscsi:a", "c"], "iscsi://"),
        (vec!["reserve", URL], "required"),
        (vec!["reserve", URL, "-k", "-r"], "cannot be used with"),
        (vec!["reserve", URL, "-R", "-K", "1"], "--prout-type"),
        (vec!["reserve", URL, "-R", "-T", "1"], "--param-rk"),
        (vec!["reserve", URL, "-R", "-K", "1", "-T", "2"], "write exclusive"),
        (vec!["reserve", URL, "-z", "-S", "1"], "--prout-type"),
        (vec!["reserve", URL, "-z", "-S", "1", "-T", "1", "-K", "2"], "cannot be used with"),
        (vec!["reserve", URL, "-G", "-S", "12345678901234567"], "hexadecimal"),
        (vec!["reserve", URL, "-G", "-S", "0x"], "hexadecimal"),
        (vec!["reserve", URL, "-k", "--isid", "1234567890abc"], "ISID"),
    ] {
        let message = refused(2, &arguments);
        assert!(message.contains(part), "{arguments:?}: {part}: {message}");
    }
}

/// Every place that takes a URL, and some that take none: the last of the arguments is one that cannot be.
#[test]
fn a_url_that_cannot_be_is_shown_without_its_secrets() {
    const RIGHT: &str = "iscsi://127.0.0.1:1/iqn.x:a/0";
    let places: [&[&str]; 24] = [
        &["login-trace"],
        &["info"],
        &["read"],
        &["write", "--pattern", "zeros"],
        &["verify", "--pattern", "zeros"],
        &["erase", "--yes"],
        &["checksum"],
        &["copy", "a", "--destination-path"],
        &["copy", "a", "--source-path"],
        &["copy", "a"],
        &["reserve", "-k"],
        &["attach", "--nbd", "127.0.0.1:1"],
        &["detach", "a"],
        &["detach"],
        &["bench"],
        &["advise"],
        &["discover"],
        &["info", RIGHT, "--path"],
        &["attach", RIGHT, "--nbd", "127.0.0.1:1", "--path"],
        &["info", RIGHT],
        &["read", RIGHT, "--depth"],
        &["serve"],
        &["help"],
        &[],
    ];
    for url in [
        "iscsi://alice%S3cret@h/iqn.x:a/x",
        "iscsi://alice%S3cret/iqn.x:a/0",
        "iscsi://alice:a@h/iqn.x:a/0?target_user=t&target_password=S3cret&color=red",
        "iscsi://alice%a@h/iqn.x:a/0?password=S3cret",
        "iscsi:/alice%S3cret@h/iqn.x:a/0",
    ] {
        for place in places {
            let said = run(&[place, &[url]].concat());
            assert!(!matches!(said.status, Some(0) | None), "{place:?}: {said:?}");
            assert!(!said.err.contains("S3c") && said.out.is_empty(), "{place:?}: {said:?}");
        }
    }
    let message = refused(2, &["info", "iscsi://alice%S3cret@h/iqn.x:a/x"]);
    assert!(message.contains("invalid value 'iscsi://alice%***@h/iqn.x:a/x' for '<URL>'"), "{message}");
}

#[test]
fn ranges_that_the_disk_does_not_have() {
    let served = Served::start(&["mem:1M,block=4096"], &[]);
    let url = served.url(0);
    for (range, part) in [
        (
            vec!["--offset", "512"],
            "--offset 512 is no multiple of the disk's blocks of 4096 bytes; the next are 0 and 4096",
        ),
        (vec!["--length", "5000"], "--length 5000 is no multiple"),
        (vec!["--offset", "2M"], "ends behind the disk, which has 256 blocks of 4096 bytes (1048576 bytes)"),
        (vec!["--offset", "255b", "--length", "2b"], "ends behind the disk"),
        (vec!["--length", "18446744073709551615b"], "ends behind the disk"),
    ] {
        let message = refused(2, &[&["checksum", url.as_str()], range.as_slice()].concat());
        assert!(message.contains(part), "{range:?}: {message}");
    }
}

#[test]
fn names_of_ports_that_are_none() {
    let served = Served::start(&["mem:1M"], &[]);
    let url = served.url(0);
    let message = refused(2, &["reserve", &url, "-G", "-S", "1", "-X", "iqn.x:other"]);
    assert!(message.contains("TRANSPORTID"), "{message}");
    let two = ["-X", "iqn.x:a,i,0x000000000001", "-X", "iqn.x:b,i,0x000000000001"];
    let moved = ["reserve", url.as_str(), "-M", "-K", "1", "-S", "2", "-Q", "1"];
    assert!(refused(2, &[&moved[..], &two].concat()).contains("takes one --transport-id"));
}
