//! `lunette bench`: what it tells, what it refuses, and how it ends.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunette_workload::content;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::host::{Said, Served, TARGET, good, path, refused, run};

#[test]
fn everything_is_told() {
    let served = Served::start(&["mem:8M"], &[]);
    let url = served.url_with("", 0, "header_digest=crc32c&connections=2");
    let arguments = [
        "bench",
        &url,
        "--profile",
        "sql-16k",
        "--read",
        "100",
        "--count",
        "500",
        "--json",
        "--warm-up",
        "0",
    ];
    let result = good(&arguments).json();
    assert_eq!(result["measured"]["operations"], 500);
    assert_eq!(result["measured"]["bytes"], 500 * 16384);
    assert_eq!(result["measured"]["write"], Value::Null);
    assert!(result["measured"]["stages"]["network_and_target"]["p50"].as_f64() > Some(0.0), "{result}");
    assert_eq!(result["ending"], "complete");
    let workload = &result["workload"];
    assert_eq!((&workload["profile"], &workload["depth"]), (&"sql-16k".into(), &16.into()));
    let agreed = &result["negotiated"];
    assert_eq!((&agreed["header_digest"], &agreed["connections"]), (&true.into(), &2.into()));
    assert_eq!(
        (&result["disk"]["capacity_bytes"], &result["disk"]["block_bytes"]),
        (&(8 << 20).into(), &512.into())
    );
    let model = result["disk"]["model"].as_str();
    assert!(model.is_some_and(|model| model.starts_with("LUNETTE ")), "{result}");
    assert!(result["host"]["cores"].as_u64() > Some(0), "{result}");
}

/// With one identifier each would end the others.
#[test]
fn several_sessions_have_an_identifier_each() {
    let served = Served::start(&["mem:1M"], &[]);
    let url = served.url_with("", 0, "isid=8000000000fe");
    let told = good(&["bench", &url, "--read", "100", "--count", "100", "--workers", "3", "--json"]).json();
    assert_eq!(told["measured"]["session_losses"], 0, "{told}");
}

#[test]
fn a_disk_is_verified_by_several_sessions_at_any_rate() {
    let served = Served::start(&["mem:8M,block=4096"], &[]);
    let url = served.url(0);
    let common = ["bench", &url, "--verify", "--write-destroys-data", "--size", "4K:3,64K:1", "--read", "50"];
    for more in [["--workers", "3"], ["--rate", "3000"], ["--spread", "zipf:1.1"]] {
        let rest = ["--count", "600", "--length", "3M", "--warm-up", "0"];
        let text = good(&[&common[..], &more, &rest].concat()).text();
        assert!(text.contains("600 operations in ") && text.contains("ended      as planned"), "{text}");
    }
}

#[test]
fn a_file_is_measured_and_the_result_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, output) = (directory.path().join("image"), directory.path().join("result.json"));
    fs::write(&image, vec![1; 1 << 20]).expect("written");
    good(&["bench", path(&image), "--count", "100", "--warm-up", "0", "--output", path(&output), "--quiet"]);
    let result: Value = serde_json::from_slice(&fs::read(&output).expect("a file")).expect("JSON");
    assert_eq!((&result["measured"]["operations"], &result["negotiated"]), (&100.into(), &Value::Null));
    assert_eq!(fs::read(&image).expect("the image"), vec![1; 1 << 20], "it was only read");
}

#[test]
fn what_is_written_is_another_one_in_each_block() {
    let directory = tempfile::tempdir().expect("a directory");
    let images = ["served", "local"].map(|name| directory.path().join(name));
    let mut before = vec![0; 1 << 20];
    content::fill(1, 0, 1, &mut before);
    images.iter().for_each(|image| fs::write(image, &before).expect("written"));
    let served = Served::start(&[&format!("{},write=back", path(&images[0]))], &[]);
    for (disk, image) in [served.url(0), path(&images[1]).to_owned()].iter().zip(&images) {
        let load = ["--read", "50", "--random", "0", "--count", "600", "--warm-up", "0", "--json"];
        let told = good(&[&["bench", disk, "--write-destroys-data"][..], &load].concat()).json();
        assert_eq!(told["workload"]["content"], "incompressible");
        let after = fs::read(image).expect("the image");
        let written: Vec<_> = after
            .chunks_exact(512)
            .zip(before.chunks_exact(512))
            .filter_map(|(after, before)| (after != before).then_some(after))
            .collect();
        assert!(written.len() > 1000, "{disk}: {}", written.len());
        let words: HashSet<_> = written.iter().flat_map(|block| block.chunks_exact(8)).collect();
        assert_eq!(words.len(), written.len() * 64, "{disk}: the same is written twice");
        let old: HashSet<_> = before.chunks_exact(512).collect();
        assert!(
            written.iter().all(|block| !old.contains(block)),
            "{disk}: what was read is written elsewhere"
        );
    }
    let content_of = |more: &[&str]| {
        let bench = ["bench", path(&images[1]), "--count", "20", "--warm-up", "0", "--json"];
        good(&[&bench[..], more].concat()).json()["workload"]["content"].clone()
    };
    assert_eq!(content_of(&[]), Value::Null, "nothing is written");
    assert_eq!(content_of(&["--verify", "--write-destroys-data"]), "verifiable");
}

#[test]
fn whether_writes_to_a_file_are_stable_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    fs::write(&image, vec![1; 1 << 20]).expect("written");
    let bench = |more: &[&str]| {
        let common =
            ["bench", path(&image), "--engine", "threads", "--count", "20", "--warm-up", "0", "--read"];
        good(&[&common[..], more].concat())
    };
    let writes = ["0", "--write-destroys-data"];
    for (flags, write) in [(&[][..], "through"), (&["--write-back"], "back")] {
        let told = bench(&[&writes[..], flags, &["--json"]].concat()).json();
        assert_eq!((&told["disk"]["engine"], &told["disk"]["write"]), (&"threads".into(), &write.into()));
        let text = bench(&[&writes[..], flags].concat()).text();
        let row = format!("image (1 MiB), engine threads, write={write}\n");
        assert!(text.contains(&row), "{text}");
    }
    let only_read = bench(&["100", "--json"]).json();
    assert_eq!(
        (&only_read["disk"]["engine"], &only_read["disk"]["write"]),
        (&"threads".into(), &Value::Null)
    );
    let text = bench(&["100"]).text();
    assert!(text.contains("image (1 MiB), engine threads\n"), "{text}");
    let served = Served::start(&["mem:1M"], &[]);
    assert_eq!(
        good(&["bench", &served.url(0), "--count", "20", "--json"]).json()["disk"]["write"],
        Value::Null
    );
    let said = refused(2, &["bench", &served.url(0), "--write-back"]);
    assert!(said.contains("--write-back is for a file"), "{said}");
}

#[test]
fn a_result_that_cannot_be_kept_is_refused_before_and_told_after() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, nowhere) = (directory.path().join("image"), directory.path().join("nowhere/result"));
    fs::write(&image, vec![1; 1 << 20]).expect("written");
    let bench = ["bench", path(&image), "--count", "100", "--warm-up", "0", "--quiet"];
    let verify = ["--verify", "--write-destroys-data", "--output"];
    for output in [nowhere.as_path(), directory.path()] {
        let said = refused(1, &[&bench[..], &verify, &[path(output)]].concat());
        assert!(said.contains(&format!("cannot write {}", output.display())), "{said}");
    }
    assert_eq!(fs::read(&image).expect("the image"), vec![1; 1 << 20], "it was not measured");
    // Which is always full.
    let said = run(&[&bench[..], &["--json", "--output", "/dev/full"]].concat());
    assert_eq!((said.status, &said.json()["measured"]["operations"]), (Some(1), &100.into()), "{said:?}");
    assert!(said.err.contains("cannot write /dev/full"), "{said:?}");
}

#[test]
fn a_proxy_to_nobody_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report.json");
    let lunette = env!("CARGO_BIN_EXE_lunette");
    let discover = format!("{lunette} discover $LUNETTE_PROXY; {lunette} discover $LUNETTE_PROXY");
    let proxy = ["wan", "proxy", "--link", "delay=1ms", "--to", "127.0.0.1:1", "--report", path(&report)];
    let said = run(&[&proxy[..], &["--", "sh", "-c", &discover]].concat());
    let told = "lunette: 127.0.0.1:1 cannot be reached, and connections to the proxy are closed: ";
    assert_eq!(said.err.matches(told).count(), 1, "{said:?}");
    let report: Value = serde_json::from_slice(&fs::read(&report).expect("a file")).expect("JSON");
    let count = report["unreached"].as_u64().expect("a number");
    assert!(count >= 2 && said.err.contains(&format!("{count} connections were closed, for ")), "{said:?}");
    let lossy = refused(125, &["wan", "proxy", "--link", "loss=1%", "--to", "127.0.0.1:1"]);
    assert!(lossy.contains("there is no proxy: the link: a proxy has only delay"), "{lossy}");
}

#[test]
fn a_result_never_takes_the_place_of_what_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    let (image, alias, trace) = (file("image"), file("alias"), file("trace"));
    fs::write(&image, vec![1; 1 << 20]).expect("written");
    fs::write(&trace, "0 R 0 512\n").expect("written");
    symlink(&image, &alias).expect("a link");
    let bench = ["bench", path(&image), "--count", "1", "--quiet", "--trace", path(&trace), "--output"];
    for (output, what) in [(&image, "the disk"), (&alias, "the disk"), (&trace, "--trace")] {
        let said = refused(2, &[&bench[..], &[path(output)]].concat());
        assert!(said.contains(&format!("{} is the same file as {what} ", output.display())), "{said}");
    }
    assert_eq!(fs::read(&image).expect("the image"), vec![1; 1 << 20]);
    assert_eq!(fs::read_to_string(&trace).expect("the trace"), "0 R 0 512\n");
    let served = Served::start(&["mem:8M"], &[]);
    let times = ["--target-times", path(&trace), "--output", path(&trace)];
    let said = refused(2, &[&["bench", &served.url(0), "--count", "1"][..], &times].concat());
    assert!(said.contains("is the same file as --target-times "), "{said}");
}

/// Nothing is answered in the time that is measured, and no latency would tell of that.
#[test]
fn a_stall_at_the_end_is_told() {
    let served = Served::start(&["mem:1M"], &[]);
    let lunette = env!("CARGO_BIN_EXE_lunette");
    let bench = |more: &str| {
        let bench = format!("exec {lunette} bench iscsi://$LUNETTE_PROXY/{TARGET}/0 --warm-up 0 {more}");
        let proxy = ["wan", "proxy", "--link", "delay=200ms", "--to", served.portal(), "--"];
        let said = run(&[&proxy[..], &["sh", "-c", &bench]].concat());
        assert_eq!(said.status, Some(1), "{said:?}");
        assert!(said.err.contains("nothing was measured: no operation counted in the 0.2 s"), "{said:?}");
        said
    };
    // Half of a round trip, and far more than a busy machine takes to begin.
    let text = bench("--time 0.2").text();
    assert!(
        text.contains("16 operations under way at the end, which do not count: the longest took "),
        "{text}"
    );
    let result = bench("--time 0.2 --interval 0.08 --depth 2 --json").json();
    assert!(result["ending"]["nothing_measured"].is_string(), "{result}");
    let measured = &result["measured"];
    assert_eq!(
        (&measured["operations"], &measured["under_way_at_end"]),
        (&0.into(), &2.into()),
        "{measured}"
    );
    assert!(measured["under_way_longest_us"].as_f64() >= Some(400_000.0), "{measured}");
    let steps = measured["series"]["steps"].as_array().expect("steps");
    assert!(steps.len() == 3 && steps.iter().all(|step| step[0] == 0), "{measured}");
}

/// Who comes to a disk that is too slow for all waits, and is not left out for it.
#[test]
fn percentiles_of_an_open_loop_are_of_all_that_was_to_begin() {
    let served = Served::start(&["mem:1M"], &[]);
    let lunette = env!("CARGO_BIN_EXE_lunette");
    let bench = |more: &str| {
        let load = "--warm-up 0 --depth 1 --rate 200 --arrivals even --time 1";
        let bench = format!("exec {lunette} bench iscsi://$LUNETTE_PROXY/{TARGET}/0 {load} {more}");
        good(&["wan", "proxy", "--link", "delay=50ms", "--to", served.portal(), "--", "sh", "-c", &bench])
    };
    let told = bench("--json").json();
    let (measured, read) = (&told["measured"], &told["measured"]["read"]);
    let count = |of: &Value| of.as_u64().unwrap_or_default();
    assert_eq!(measured["unserved"], read["given_up"], "{told}");
    // A round trip each, and a second more than the time for them.
    assert!(count(&read["given_up"]) >= 180, "{told}");
    assert_eq!(count(&read["operations"]) + count(&read["given_up"]), 200, "{told}");
    let at_least = read["at_least"].as_array().expect("names");
    assert!(at_least.contains(&"p50".into()) && at_least.contains(&"mean".into()), "{told}");
    assert!(read["p50"].as_f64() >= Some(1e6), "each had waited for a second at least: {told}");
    let text = bench("").text();
    assert!(text.contains(" were given up, and take longer (>=)") && text.contains("  >= "), "{text}");
}

#[test]
fn a_trace_that_ends_in_the_warm_up_is_no_measurement() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("result.json");
    let served = Served::start(&["mem:8M"], &[]);
    let (url, warm_up) = (served.url(0), ["--warm-up", "3600", "--write-destroys-data"]);
    let replay = ["bench", &url, "--trace", "lu-du", "--pace", "none", "--output", path(&output)];
    let said = run(&[&replay[..], &warm_up].concat());
    assert_eq!(said.status, Some(1), "{said:?}");
    let why = "nothing was measured: the trace was over before the warm-up of 3600 s";
    assert!(said.err.contains(why) && said.text().contains("measured   nothing\n"), "{said:?}");
    let result: Value = serde_json::from_slice(&fs::read(&output).expect("a file")).expect("JSON");
    assert!(result["ending"]["nothing_measured"].is_string(), "{result}");
}

#[test]
fn what_would_destroy_data_or_cannot_be_is_refused() {
    let served = Served::start(&["mem:8M", "mem:8M,ro"], &[]);
    let (url, read_only) = (served.url(0), served.url(1));
    for writes in [&["--profile", "workstation"][..], &["--read", "99"], &["--verify"]] {
        let said = refused(2, &[&["bench", &url][..], writes].concat());
        assert!(said.contains("--write-destroys-data does it"), "{said}");
    }
    let said = refused(5, &["bench", &read_only, "--verify", "--write-destroys-data"]);
    assert!(said.contains("is read-only for this initiator"), "{said}");
    let said = refused(2, &["bench", &url, "--size", "1000"]);
    assert!(said.contains("no whole blocks of 512 bytes"), "{said}");
    let said = refused(2, &["bench", &url, "--size", "4K", "--length", "2K"]);
    assert!(said.contains("has no room"), "{said}");
    for many in [["--depth", "4096"], ["--workers", "64"]] {
        let bench = ["bench", &url, "--size", "2M", "--warm-up", "0", "--count", "1"];
        let said = refused(2, &[&bench[..], &many].concat());
        assert!(
            said.contains("more than 1 GiB of memory: give a lesser size, --depth or --workers"),
            "{said}"
        );
    }
    let said = refused(2, &["bench", &url, "--engine", "uring"]);
    assert!(said.contains("--engine is for a file"), "{said}");
    for flag in ["--timeout", "--recovery", "--connections"] {
        let said = refused(2, &["bench", "/nonexistent/image", flag, "1"]);
        assert!(said.contains("a file has no "), "{flag}: {said}");
    }
    let said = refused(1, &["bench", "/nonexistent/image"]);
    assert!(said.contains("no disk to measure"), "{said}");
}

#[test]
fn traces_are_replayed_or_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("trace");
    fs::write(&trace, "# ours\n0 R 100 100\n2000 R 16777216 4096\n2500 R 512 1024\n").expect("written");
    let served = Served::start(&["mem:8M"], &[]);
    let url = served.url(0);
    let said = good(&["bench", &url, "--trace", path(&trace), "--json"]);
    let result = said.json();
    // The first is widened to its block.
    assert_eq!((&result["measured"]["operations"], &result["measured"]["bytes"]), (&3.into(), &5632.into()));
    assert_eq!((&result["workload"]["pace"], &result["ending"]), (&"1x".into(), &"complete".into()));
    assert!(said.err.contains("1 of 3 operations lie behind the range"), "{said:?}");
    let all = ["--pace", "none", "--depth", "32", "--write-destroys-data", "--json"];
    let result = good(&[&["bench", &url, "--trace", "lu-du"][..], &all].concat()).json();
    assert_eq!(result["measured"]["operations"], 8626);
    assert!(refused(2, &["bench", &url, "--trace", "lu-du"]).contains("--write-destroys-data does it"));
    fs::write(&trace, "0 R 100 100\n0 R 100\n").expect("written");
    assert!(refused(2, &["bench", &url, "--trace", path(&trace)]).contains("line 2 is no operation"));
    fs::write(&trace, vec![b'x'; 100_000]).expect("written");
    assert!(refused(2, &["bench", &url, "--trace", path(&trace)]).contains("line 1 is no operation"));
}

#[test]
fn a_trace_of_several_devices_is_replayed_by_device() {
    let directory = tempfile::tempdir().expect("a directory");
    let (trace, disk) = (directory.path().join("trace"), directory.path().join("disk"));
    let line = |at: u32, disk: u32| format!("{at},usr,{disk},Read,{},512,9\n", at * 512);
    fs::write(&trace, [line(10, 0), line(20, 1), line(30, 0)].concat()).expect("written");
    fs::write(&disk, vec![0; 1 << 20]).expect("written");
    let replay = ["bench", path(&disk), "--trace", path(&trace), "--json"];
    let of = |name| [&replay[..], &["--trace-device", name]].concat();
    let said = refused(2, &replay);
    assert!(said.contains("line 2 is of the device") && said.contains("usr_0"), "{said}");
    assert!(said.contains("--trace-device NAME"), "{said}");
    let result = good(&of("usr_0")).json();
    assert_eq!(result["measured"]["operations"], 2);
    let name = result["workload"]["trace"].as_str();
    assert!(name.is_some_and(|name| name.ends_with("trace, device usr_0")), "{result}");
    let said = refused(2, &of("usr_2"));
    assert!(said.contains("usr_0") && said.contains("usr_1"), "{said}");
    let made = ["bench", path(&disk), "--trace", "lu-du", "--trace-device", "usr_0"];
    assert!(refused(2, &made).contains("lu-du has no devices"));
    assert!(refused(2, &["bench", path(&disk), "--trace-device", "usr_0"]).contains("--trace <TRACE>"));
}

#[test]
fn a_target_records_what_is_replayed() {
    let directory = tempfile::tempdir().expect("a directory");
    let traces = directory.path().join("traces");
    let served = Served::start(&["mem:8M", "mem:1M"], &["--trace-directory", path(&traces), "--task-times"]);
    let load = ["--size", "4K", "--read", "70", "--count", "700", "--warm-up", "0", "--write-destroys-data"];
    let result = good(&[&["bench", &served.url(0), "--json"][..], &load].concat()).json();
    let writes = result["measured"]["write"]["operations"].as_u64().expect("writes");
    served.terminate();
    let mut files: Vec<_> =
        fs::read_dir(&traces).expect("it is there").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let ends = [".0.times", ".0.trace", ".1.times", ".1.trace", "logins"];
    assert_eq!(files.len(), ends.len(), "{files:?}");
    assert!(files.iter().zip(ends).all(|(file, end)| path(file).ends_with(end)), "{files:?}");
    for untouched in &files[2..4] {
        assert_eq!(fs::read_to_string(untouched).expect("text"), "", "nobody has touched it");
    }
    files.remove(0);
    let text = fs::read_to_string(&files[0]).expect("text");
    assert_eq!(text.lines().count(), 700);
    assert_eq!(text.lines().filter(|line| line.contains(" W ")).count() as u64, writes);

    let served = Served::start(&["mem:8M"], &[]);
    let all = ["--pace", "none", "--write-destroys-data", "--json"];
    let result = good(&[&["bench", &served.url(0), "--trace", path(&files[0])][..], &all].concat()).json();
    let measured = &result["measured"];
    assert_eq!((&measured["operations"], &measured["bytes"]), (&700.into(), &(700 * 4096).into()));
    assert_eq!(measured["write"]["operations"].as_u64(), Some(writes));
}

#[test]
fn the_target_tells_its_part_of_each_latency() {
    let directory = tempfile::tempdir().expect("a directory");
    let served = Served::start(&["mem:8M"], &["--trace-directory", path(directory.path()), "--task-times"]);
    let times = fs::read_dir(directory.path()).expect("it is there").find_map(|entry| {
        let file = entry.expect("a file").path();
        path(&file).ends_with(".times").then_some(file)
    });
    let times = times.expect("there is one");
    let load = ["--read", "50", "--depth", "8", "--count", "500", "--warm-up", "0", "--write-destroys-data"];
    // Short ones are answered at once, long ones become tasks, and those of 512 KiB need R2Ts.
    for (size, asks) in [("4K", false), ("64K", false), ("512K", true)] {
        let bench = ["bench", &served.url(0), "--target-times", path(&times), "--size", size, "--json"];
        let operations = |result: &Value| {
            result["measured"]["stages"]["told_apart"]["operations"].as_u64().expect("a number")
        };
        let runs = (0..3).map(|_| good(&[&bench[..], &load].concat()).json());
        // Another time this side may be busier with what came before.
        let result = runs.max_by_key(operations).expect("runs");
        let operations = operations(&result);
        let stages = &result["measured"]["stages"];
        let told = &stages["told_apart"];
        // Where an answer comes while this side is busy, it seems to have come before the target had it ready.
        assert!((250..=500).contains(&operations) && told["of"] == 500, "{size}: {stages}");
        assert_eq!(stages["not_told_apart"].as_array().map(Vec::len), Some(0), "{stages}");
        let mean = |part: &str| told[part]["mean"].as_f64().expect(part);
        let parts = ["command_window", "network", "r2t_wait", "target_queue", "store", "reply"].map(mean);
        let sum: f64 = parts.iter().sum();
        assert!((sum / mean("whole") - 1.0).abs() < 1e-6, "{sum}: {told}");
        assert!(mean("target_queue") > 0.0, "{told}");
        assert_eq!(mean("r2t_wait") > 0.0, asks, "{told}");
    }
    let said = good(&[&["bench", &served.url(0), "--target-times", path(&times)][..], &load].concat());
    let text = String::from_utf8(said.out).expect("text");
    for part in ["R2T wait", "target queue", "store", " of 500 operations, with the target's times"] {
        assert!(text.contains(part), "{text}");
    }
    let nowhere = path(directory.path()).to_owned() + "/nothing";
    let refusal = refused(1, &["bench", &served.url(0), "--target-times", &nowhere]);
    assert!(
        refusal.contains("the target's times of its tasks") && refusal.contains("--task-times"),
        "{refusal}"
    );
    assert!(refused(2, &["bench", path(&times), "--target-times", path(&times)]).contains("has no target"));
}

#[test]
fn who_wants_only_the_trace_has_only_the_trace() {
    let directory = tempfile::tempdir().expect("a directory");
    // What an earlier start has left is of no use.
    let old = directory.path().join("old.times");
    fs::write(&old, "").expect("a file");
    let served = Served::start(&["mem:8M"], &["--trace-directory", path(directory.path())]);
    let times = path(&old).to_owned();
    let load = ["--read", "50", "--count", "200", "--warm-up", "0", "--write-destroys-data"];
    let said = good(&[&["bench", &served.url(0), "--target-times", &times, "--json"][..], &load].concat());
    assert!(said.json()["measured"]["stages"]["told_apart"].is_null(), "{said:?}");
    assert!(
        said.err.contains("tells of none of these operations") && said.err.contains("--task-times"),
        "{said:?}"
    );
    served.terminate();
    let files =
        fs::read_dir(directory.path()).expect("it is there").map(|entry| entry.expect("a file").path());
    let mut new: Vec<_> = files.filter(|file| *file != old).collect();
    let trace = new.pop().expect("a trace");
    assert!(new.is_empty() && path(&trace).ends_with(".0.trace"), "{trace:?} and {new:?}");
    assert_eq!(fs::read_to_string(&trace).expect("text").lines().count(), 200);
    assert!(refused(2, &["serve", "--lun", "mem:8M", "--task-times"]).contains("--trace-directory"));
}

#[test]
fn nobody_is_told_to_read_back_what_was_only_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut served = Served::start(&["mem:8M"], &["--trace-directory", path(directory.path())]);
    let url = served.url(0);
    let bench = long_bench(&[], &[&url, "--recovery", "1"]);
    let begun = Instant::now();
    let is_read = || {
        let files = fs::read_dir(directory.path()).expect("it is there").filter_map(Result::ok);
        files.filter_map(|file| file.metadata().ok()).any(|file| file.len() > 0)
    };
    while !is_read() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is read");
        thread::sleep(Duration::from_millis(10));
    }
    served.kill();
    let said: Said = bench.wait_with_output().expect("it ends").into();
    assert_eq!(said.status, Some(3), "{said:?}");
    assert!(said.err.contains("a read of 4096 bytes at byte "), "{said:?}");
    assert!(!said.err.contains("read back what it wrote"), "{said:?}");
}

/// The signals of a process that a line of its status has, as a mask.
fn mask(pid: u32, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|told| told.strip_prefix(line));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn has(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// A long measurement, when it catches SIGTERM, which it does last. `before` begins the command.
fn long_bench(before: &[&str], more: &[&str]) -> Child {
    let lunette = env!("CARGO_BIN_EXE_lunette");
    let words = [before, &[lunette, "bench"], more, &["--time", "3600", "--warm-up", "0"]].concat();
    let bench = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    while !has(mask(bench.id(), "SigCgt:"), Signal::TERM) {
        thread::yield_now();
    }
    bench
}

fn send(bench: &Child, signal: Signal) {
    kill_process(Pid::from_raw(bench.id() as i32).expect("a process"), signal).expect("it is there");
}

#[test]
fn an_interrupt_keeps_what_was_measured() {
    let served = Served::start(&["mem:8M"], &[]);
    let bench = long_bench(&[], &[&served.url(0), "--json"]);
    send(&bench, Signal::INT);
    let said: Said = bench.wait_with_output().expect("it ends").into();
    assert_eq!((said.status, &said.json()["ending"]), (Some(0), &"interrupted".into()), "{said:?}");
}

#[test]
fn a_closed_terminal_keeps_what_was_measured() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("result.json");
    let served = Served::start(&["mem:8M"], &[]);
    let more = [&served.url(0), "--output", path(&output)];
    // The shell sends it, and the kernel.
    let bench = long_bench(&[], &more);
    send(&bench, Signal::HUP);
    send(&bench, Signal::HUP);
    let said: Said = bench.wait_with_output().expect("it ends").into();
    let result: Value = serde_json::from_slice(&fs::read(&output).expect("a file")).expect("JSON");
    assert_eq!((said.status, &result["ending"]), (Some(0), &"interrupted".into()), "{said:?}");
    let bench = long_bench(&["nohup"], &more);
    let caught = mask(bench.id(), "SigCgt:");
    assert!(has(mask(bench.id(), "SigIgn:"), Signal::HUP) && !has(caught, Signal::HUP));
    send(&bench, Signal::TERM);
    assert_eq!(bench.wait_with_output().expect("it ends").status.code(), Some(0));
}
