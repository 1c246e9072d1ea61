//! The initiator's commands of the binary against foreign targets, tgtd and istgt: what works with Lunette's own target must
//! not do so because both are of one mind.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_tests::istgt::Istgt;
use lunette_tests::lunette::binary;
use lunette_tests::need_programs;
use lunette_tests::process::{Finished, run};
use lunette_tests::tgtd::Tgtd;
use serde_json::Value;

/// Far more than any of the commands takes.
const LIMIT: Duration = Duration::from_secs(120);
const SIZE_BYTES: u64 = 16 << 20;

fn lunette(arguments: &[&str]) -> Result<Finished> {
    Ok(run(Command::new(binary()).args(arguments), LIMIT)?)
}

/// Runs a command that must end well, and gives its output.
fn good(arguments: &[&str]) -> Result<String> {
    let finished = lunette(arguments)?;
    ensure!(finished.success(), "{arguments:?}: {}: {}", finished.ending(), finished.output);
    Ok(finished.output)
}

/// The line of JSON that a command tells.
fn json(arguments: &[&str]) -> Result<Value> {
    let output = good(&[arguments, &["--json"]].concat())?;
    serde_json::from_str(output.trim()).with_context(|| format!("{arguments:?}: {output}"))
}

/// A file of 16 MiB, for a target to serve.
fn image(directory: &Path) -> Result<std::path::PathBuf> {
    let path = directory.join("disk.img");
    File::create(&path)?.set_len(SIZE_BYTES)?;
    Ok(path)
}

/// Everything that does not depend on what a target can do beyond the standard's minimum.
fn use_disk(url: &str, directory: &Path) -> Result<()> {
    let info = json(&["info", url])?;
    assert_eq!((&info["kind"], &info["size_bytes"]), (&"disk".into(), &SIZE_BYTES.into()), "{info}");
    assert!(info["names"].as_array().is_some_and(|names| !names.is_empty()), "{info}");

    good(&["write", url, "--pattern", "random:5"])?;
    good(&["verify", url, "--pattern", "random:5", "--depth", "32"])?;
    good(&["write", url, "--pattern", "hex:00ff", "--offset", "20000b", "--length", "1b", "--fua"])?;
    let differs = lunette(&["verify", url, "--pattern", "random:5"])?;
    assert_eq!(differs.ending(), "exit status 6", "{}", differs.output);
    assert!(differs.output.contains("differs first in block 20000, byte 0"), "{}", differs.output);

    let file = directory.join("copy.img");
    let file = file.to_str().context("a path in UTF-8")?;
    let copied = json(&["copy", url, file, "--verify"])?;
    assert_eq!(copied["verified"], true, "{copied}");
    let sum = good(&["checksum", url, "--algorithm", "crc32c"])?;
    let backing = fs::read(directory.join("disk.img"))?;
    assert!(fs::read(file)? == backing, "the copy is what the target has");

    good(&["erase", url, "--yes", "--offset", "4M", "--length", "8M"])?;
    good(&["verify", url, "--pattern", "zeros", "--offset", "4M", "--length", "8M"])?;
    let back = json(&["copy", file, url, "--verify"])?;
    assert_eq!(back["size_bytes"], SIZE_BYTES, "{back}");
    assert_eq!(good(&["checksum", url, "--algorithm", "crc32c"])?, sum);

    let beyond = lunette(&["read", url, "--offset", "32M"])?;
    assert_eq!(beyond.ending(), "exit status 2", "{}", beyond.output);
    let missing =
        lunette(&["info", &url.replace(":lunette", ":nothing").replace("lunette:", "lunette:no-")])?;
    assert_eq!(missing.ending(), "exit status 3", "{}", missing.output);
    let trace = good(&["login-trace", url])?;
    assert!(trace.contains("logged in") && trace.contains("MaxBurstLength"), "{trace}");
    Ok(())
}

/// A reservation, by our name, keeps others out and lets us in again. Not of tgtd, which forgets with the session who has
/// registered.
fn reserve(url: &str) -> Result<()> {
    good(&["reserve", url, "--register-ignore", "--param-sark", "abc"])?;
    good(&["reserve", url, "--reserve", "--param-rk", "abc", "--prout-type", "1"])?;
    assert_eq!(json(&["reserve", url, "--read-keys"])?["keys"], serde_json::json!(["0xabc"]));
    let held = json(&["reserve", url, "--read-reservation"])?;
    assert_eq!(held["reservation"]["type"], "write exclusive", "{held}");
    let other = format!("{url}?initiator_name=iqn.2026-11.io.example:other");
    let refused = lunette(&["write", &other, "--pattern", "ones", "--length", "1b"])?;
    assert_eq!(refused.ending(), "exit status 5", "{}", refused.output);
    assert!(refused.output.contains("RESERVATION CONFLICT"), "{}", refused.output);
    good(&["reserve", url, "--clear", "--param-rk", "abc"])?;
    good(&["write", &other, "--pattern", "ones", "--length", "1b"])?;
    Ok(())
}

fn with_tgtd(keys: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut tgtd = Tgtd::start(&directory.path().join("log"))?;
    tgtd.allow_digests()?;
    let url = tgtd.add_file(&image(directory.path())?)?;
    let found = json(&["discover", &tgtd.portal().to_string()])?;
    let units = found["targets"][0]["units"].as_array().context("units")?;
    let sizes: Vec<_> = units.iter().map(|unit| unit["size_bytes"].as_u64()).collect();
    assert_eq!(sizes, [None, Some(SIZE_BYTES)], "its controller, and the disk: {found}");
    use_disk(&format!("{url}{keys}"), directory.path())
}

#[test]
fn tgtd_without_digests() {
    need_programs!("tgtd", "tgtadm");
    with_tgtd("").expect("the commands work with tgtd");
}

#[test]
fn tgtd_with_digests() {
    need_programs!("tgtd", "tgtadm");
    with_tgtd("?header_digest=crc32c&data_digest=crc32c").expect("the commands work with tgtd");
}

fn with_istgt(keys: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let istgt = Istgt::start(directory.path(), &image(directory.path())?)?;
    use_disk(&format!("{}{keys}", istgt.url()), directory.path())?;
    reserve(&istgt.url())
}

#[test]
fn istgt_without_digests() {
    need_programs!("istgt");
    with_istgt("").expect("the commands work with istgt");
}

#[test]
fn istgt_with_digests() {
    need_programs!("istgt");
    with_istgt("?header_digest=crc32c&data_digest=crc32c").expect("the commands work with istgt");
}
