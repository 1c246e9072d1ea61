//! `reserve`: persistent reservations, as sg_persist's users know them.

use crate::host::{Served, good, refused};

#[test]
fn a_registration_stays_the_same_initiators_from_call_to_call() {
    let served = Served::start(&["mem:1M"], &[]);
    let url = served.url(0);
    let reserve = |flags: &[&str]| good(&[&["reserve", &url], flags].concat()).text();
    assert_eq!(reserve(&["--read-keys"]), "no keys are registered (generation 0)\n");
    assert_eq!(reserve(&["-r"]), "nothing is reserved (generation 0)\n");
    assert_eq!(reserve(&["-s"]), "nobody is registered (generation 0)\n");
    let message = refused(5, &["reserve", &url, "--reserve", "--param-rk", "abc", "--prout-type", "3"]);
    assert!(message.contains("or this initiator is not registered with that key"), "{message}");
    let done = reserve(&["--register", "--param-sark", "0xabc"]);
    assert_eq!(done, "PERSISTENT RESERVE OUT, REGISTER: done\n");
    reserve(&["-R", "-K", "abc", "-T", "3"]);
    assert_eq!(reserve(&["-k"]), "0xabc (generation 1)\n");
    assert_eq!(reserve(&["-r"]), "exclusive access, key 0xabc (generation 1)\n");
    let full = reserve(&["--read-full-status"]);
    assert!(full.contains(",i,0x800000000001  port 1  holds: exclusive access\n"), "{full}");

    // With its identifier any command is the holder; and over several paths, one path is.
    let with = |isid: &str| served.url_with("", 0, &format!("isid={isid}"));
    refused(5, &["checksum", &with("800000000002")]);
    good(&["checksum", &with("800000000001")]);
    assert_eq!(good(&["reserve", &with("800000000002"), "-k"]).text(), "0xabc (generation 1)\n");

    // Another initiator is kept out, and told why.
    let other = served.url_with("", 0, "initiator_name=iqn.2026-11.io.example:other");
    let message = refused(5, &["read", &other]);
    assert!(message.contains("RESERVATION CONFLICT"), "{message}");
    assert!(message.contains("help: another initiator has reserved the unit: `lunette reserve"), "{message}");
    let conflict = refused(5, &["reserve", &other, "-R", "-K", "1", "-T", "1"]);
    assert!(conflict.contains("PERSISTENT RESERVE OUT, RESERVE: RESERVATION CONFLICT"), "{conflict}");

    // And takes it over.
    good(&["reserve", &other, "-I", "-S", "def"]);
    good(&["reserve", &other, "-P", "-K", "def", "-S", "abc", "-T", "1"]);
    assert_eq!(reserve(&["-r"]), "write exclusive, key 0xdef (generation 3)\n");
    let keys = good(&["reserve", &url, "-k", "--json"]).json();
    assert_eq!(keys["keys"], serde_json::json!(["0xdef"]));
    good(&["reserve", &other, "-L", "-K", "def", "-T", "1"]);
    good(&["reserve", &other, "-C", "-K", "def"]);
    assert_eq!(reserve(&["-k"]), "no keys are registered (generation 4)\n");
}

#[test]
fn a_reservation_is_moved_to_another_port() {
    let served = Served::start(&["mem:1M"], &[]);
    let url = served.url(0);
    good(&["reserve", &url, "-I", "-S", "1"]);
    good(&["reserve", &url, "-R", "-K", "1", "-T", "1"]);
    let to = "iqn.x:other,i,0x800000000001";
    let moved = ["reserve", &url, "-M", "-K", "1", "-S", "2", "-U", "-Q", "1", "-X", to];
    good(&moved);
    let full = good(&["reserve", &url, "-s", "--json"]).json();
    assert_eq!(full["registrants"].as_array().map(Vec::len), Some(1), "{full}");
    assert_eq!(
        (&full["registrants"][0]["initiator"], &full["registrants"][0]["key"]),
        (&to.into(), &"0x2".into())
    );
    let capabilities = good(&["reserve", &url, "-c"]).text();
    assert!(capabilities.contains("exclusive access, all registrants"), "{capabilities}");
}
