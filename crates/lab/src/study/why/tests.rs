//! Reasons, of figures that are made up.

use super::super::probe::Metric;
use super::super::{Further, studies, study};
use super::*;

/// The cell with these values of its parameters.
fn cell(name: &str, wanted: &[&str]) -> Cell {
    let cells = (study(name).expect("a study").cells)(1);
    let is_it = |cell: &Cell| cell.parameters.iter().map(|pair| &*pair.1).eq(wanted.iter().copied());
    cells.into_iter().find(is_it).expect("a cell")
}

fn result(cell: &Cell, measured: f64, limit: &str) -> CellResult {
    CellResult {
        published: cell.published,
        limit: limit.to_owned(),
        ..CellResult::of(Vec::new(), measured, cell.probe.unit())
    }
}

fn reason(name: &str, wanted: &[&str], measured: f64, limit: &str) -> Option<String> {
    let cell = cell(name, wanted);
    why(study(name).expect("a study"), &cell, &result(&cell, measured, limit))
}

/// The same where the model expects just that.
fn reached(name: &str, wanted: &[&str], measured: f64, limit: &str) -> Option<String> {
    let cell = cell(name, wanted);
    let result = CellResult { model: Some(measured), ..result(&cell, measured, limit) };
    why(study(name).expect("a study"), &cell, &result)
}

#[test]
fn the_reason_is_what_the_figures_say() {
    let sweep = |wanted: &[&str], measured| {
        reached("dalgic-sweep", wanted, measured, "link-rate").unwrap_or_default()
    };
    // 4.5 MB/s are 225 KB in 50 ms, and two of these round trips are a command's.
    let text = sweep(&["write-solicited", "64", "32", "50"], 17.3);
    assert!(text.contains("225 KB") && text.contains("6.9 of 32 commands"), "{text}");
    // 17.2 MB/s: 64 KiB in 3.8 ms, of which 2 are the round trip, and 3.4 are on the line.
    let text = sweep(&["read", "64", "1", "2"], 11.5);
    assert!(text.contains("took 3.81 ms there") && text.contains("reads ahead"), "{text}");
    let text = sweep(&["write-unsolicited", "8", "1", "50"], 0.161);
    assert!(text.contains("stands for 0.15 to 0.25 MB/s"), "{text}");
    let text = sweep(&["write-solicited", "1", "1", "0"], 3.4);
    assert!(text.contains("took 0.79 ms there and 0.30 ms here: the paper's hosts took 0.49"), "{text}");
    let text = reached("dalgic-tcp", &["64KB", "I-to-T", "10"], 6.4, "tcp-window").unwrap_or_default();
    assert!(text.contains("44 KB") && text.contains("here 64"), "{text}");
    assert_eq!(reached("dalgic-sweep", &["read", "64", "1", "2"], 17.0, "link-rate"), None, "it is near");
}

/// A figure that a network and memory may well give where a paper has this one: three times as good, but no more than the line carries.
fn better(cell: &Cell, published: f64) -> f64 {
    if cell.probe.unit() == "ms" {
        return published / 3.0;
    }
    let line = link_of(cell).and_then(|link| payload_bytes_per_s(&link)).unwrap_or(f64::INFINITY);
    let full = Commands::of(&cell.probe).map_or(line / 1e6, |commands| {
        let bytes = f64::from(commands.size_bytes);
        match commands.metric {
            Metric::MegabytesPerSecond => line / 1e6,
            Metric::MebibytesPerSecond => line / 1_048_576.0,
            Metric::OperationsPerSecond => line / bytes,
            Metric::MeanMilliseconds => 0.0,
        }
    });
    (published * 3.0).min(full * 0.97)
}

/// All cells with a published figure.
fn published_cells() -> impl Iterator<Item = (&'static Study, Cell, f64)> {
    studies().iter().flat_map(|study| {
        let cells = (study.cells)(1).into_iter();
        cells.filter_map(move |cell| cell.published.map(|published| (study, cell, published)))
    })
}

/// With which words the reason for a better figure may begin.
fn kinds(study: &Study, cell: &Cell) -> &'static [&'static str] {
    match study.name {
        "lu-login" => &["initiator: "],
        "lu-files" if value(cell, "scheme") == Some("iscsi") => &["disks: "],
        "lu-files" if value(cell, "figure") == Some("mean") => &["disks and server: "],
        "lu-files" => &["disks: ", "disks and hosts: ", "disks and server: "],
        "lu-light" | "lu-heavy" | "lu-trace" => &["disks: "],
        "trinkle-baseline" => &["disks: ", "frames: "],
        "trinkle-profiles" => &["disks: ", "hosts: ", "frames: "],
        _ => &["hosts: ", "there ", "the published figure is rounded"],
    }
}

#[test]
fn each_reason_is_of_a_kind_that_the_paper_has_figures_for() {
    let (mut count, mut without) = (0, Vec::new());
    for (study, cell, published) in published_cells() {
        // A page cache is asked about elsewhere.
        if matches!(cell.probe, Probe::Files(FilesProbe { figure: Figure::Hits, .. })) {
            continue;
        }
        let measured = better(&cell, published);
        let told = CellResult { model: Some(measured), ..result(&cell, measured, "link-rate") };
        if told.is_off_published() != Some(true) {
            continue;
        }
        let named = || format!("{} {:?} {measured}", study.name, cell.parameters);
        let Some(why) = why(study, &cell, &told) else {
            without.push(named());
            continue;
        };
        count += 1;
        assert!(kinds(study, &cell).iter().any(|kind| why.starts_with(kind)), "{}: {why}", named());
        assert!(!["NaN", "inf", " 0 KB"].iter().any(|fault| why.contains(fault)), "{}: {why}", named());
    }
    assert!(count > 200, "{count}");
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn a_file_server_is_told_from_disks_by_iscsi_on_the_same_ones() {
    let of = |wanted: &[&str], measured| reason("lu-files", wanted, measured, "protocol").unwrap_or_default();
    let text = of(&["mean", "gige", "read", "nfs", "1"], 0.8);
    assert!(
        text.starts_with("disks and server: 4.36 of the published 9.00 ms are there over iSCSI as well")
            && text.contains("; 4.64 are what the server and its protocol add")
            && text.ends_with("and the limit is protocol"),
        "{text}"
    );
    let text = of(&["mean", "gige", "read", "iscsi", "1"], 0.5);
    assert!(text.starts_with("disks: an access") && !text.contains("server"), "{text}");
    let text = of(&["deviation", "gige", "read", "nfs", "64"], 0.05);
    assert!(text.starts_with("disks: ") && text.contains("1.73 ms for each access"), "{text}");
    let text = of(&["deviation", "gige", "read", "smb", "1"], 0.2);
    assert!(text.starts_with("disks and hosts: ") && text.contains("27.1 ms as well"), "{text}");
    // 50.7 ms, of which turning makes 14 at most.
    let text = of(&["deviation", "gige", "write", "smb", "256"], 0.1);
    assert!(
        text.starts_with("disks and server: ")
            && text.contains("of 34.3 ms; ")
            && text.contains("one of 37.3 ms"),
        "{text}"
    );
    // 4.4 ms, of which turning makes 2.1 at most: but a read of the same disks has 3.1 in another table, and 3.8 with the mean's room.
    let text = of(&["deviation", "gige", "read", "iscsi", "4"], 0.1);
    assert!(
        text.starts_with("disks: in table 3 of the paper one read of this length over iSCSI")
            && text.contains("of 3.10 ms on the same disks, and up to 3.77 ms"),
        "{text}"
    );
    let text = of(&["deviation", "campus", "read", "iscsi", "4"], 0.1);
    assert!(text.contains("of 2.80 ms on the same disks, and up to 3.41 ms"), "{text}");
}

#[test]
fn hosts_are_named_for_work_in_order_only_where_disks_were_faster() {
    let study = study("trinkle-profiles").expect("a study");
    let mut cell = cell("trinkle-profiles", &["physical", "max-throughput", "standard"]);
    cell.link = Some("rate=10G,rtt=0.1ms".to_owned());
    let of = |published| {
        let result = CellResult { published: Some(published), ..result(&cell, 1000.0, "link-rate") };
        why(study, &cell, &result).unwrap_or_default()
    };
    let text = of(200.0);
    assert!(
        text.starts_with("hosts: ") && text.contains("its disks gave 451 MB/s in order, and these were 210"),
        "{text}"
    );
    assert_eq!(of(400.0), "", "as much as the disks gave");
}

#[test]
fn long_frames_are_told_from_the_usual_ones() {
    let of = |frames, measured| {
        reason("trinkle-baseline", &["network", frames, "to-target"], measured, "link-rate")
    };
    let text = of("jumbo", 131.0).unwrap_or_default();
    assert!(text.starts_with("frames: ") && text.contains("carries 118 MB/s"), "{text}");
    assert_eq!(of("standard", 125.0), None);
}

#[test]
fn a_wrong_figure_has_no_reason() {
    let rounds = |why: &Option<String>| why.as_ref().is_some_and(|why| why.contains("is rounded"));
    let mut count = 0;
    for (study, cell, published) in published_cells() {
        let is_time = cell.probe.unit() == "ms";
        let worse = if is_time { published * 100.0 } else { published / 100.0 };
        let told = |measured, limit| {
            let why = why(study, &cell, &result(&cell, measured, limit));
            why.filter(|why| !rounds(&Some(why.clone())))
        };
        // Far too little, and no figure of ours says why.
        for limit in [
            "link-rate",
            "command-window",
            "tcp-window",
            "loss",
            "store",
            "machine",
            "target",
            "unexplained",
            "none",
        ] {
            let is_virtual = matches!(cell.probe, Probe::Virtual(_)) && limit == "machine";
            if !is_virtual {
                assert_eq!(told(worse, limit), None, "{} {:?} {limit}", study.name, cell.parameters);
            }
        }
        // What nobody understands explains nothing, whichever way it is off; and nothing came is no figure.
        for measured in [better(&cell, published), worse, 0.0] {
            assert_eq!(told(measured, "unexplained"), None, "{} {:?}", study.name, cell.parameters);
        }
        let measured = better(&cell, published);
        let model = if is_time { measured * 2.0 } else { measured / 2.0 };
        let beyond = CellResult { model: Some(model), ..result(&cell, measured, "link-rate") };
        assert_eq!(
            why(study, &cell, &beyond),
            None,
            "{} {:?}: more than the model",
            study.name,
            cell.parameters
        );
        count += 1;
    }
    assert!(count > 300, "{count}");
}

#[test]
fn more_than_a_line_carries_was_not_measured() {
    assert_eq!(reached("dalgic-tcp", &["64KB", "I-to-T", "10"], 40.0, "link-rate"), None);
    assert_eq!(
        reached("trinkle-profiles", &["physical", "web-server", "standard"], 900.0, "link-rate"),
        None
    );
}

#[test]
fn without_a_round_trip_nothing_is_told_of_round_trips() {
    let slow = ["64KB", "I-to-T", "0"];
    assert_eq!(reason("dalgic-tcp", &slow, 12.0, "machine"), None);
    let text = reached("dalgic-tcp", &slow, 12.0, "link-rate").unwrap_or_default();
    assert!(text.contains("the line here lets through 12.0 MB/s, which is reached"), "{text}");
    assert_eq!(reason("dalgic-sweep", &["read", "64", "1", "2"], 0.0, "link-rate"), None, "nothing came");
}

#[test]
fn where_this_machine_was_too_slow_the_paper_is_not_asked() {
    let cell = cell("dalgic-tcp", &["64KB", "I-to-T", "0"]);
    let machine = Some("one thread had 97 % of a processor".to_owned());
    let result = CellResult { machine, ..result(&cell, 9.0, "machine") };
    let why = why(study("dalgic-tcp").expect("a study"), &cell, &result);
    assert_eq!(why.as_deref(), Some("this machine was the limit here: one thread had 97 % of a processor"));
}

#[test]
fn disks_are_told_from_networks() {
    let text = reason("lu-light", &["campus-iscsi", "read", "64"], 8.0, "link-rate").unwrap_or_default();
    assert!(
        text.starts_with("disks: 14.4 of the published 24.2 ms")
            && text.contains("9.82 are its network's")
            && text.contains("were slower"),
        "{text}"
    );
    let text = reason("lu-heavy", &["direct", "64", "100"], 4000.0, "store").unwrap_or_default();
    assert!(
        text.starts_with(
            "disks: a command took 161 ms there and 1.05 ms here; there each of 6 disks took 15.1 ms"
        ),
        "{text}"
    );
}

#[test]
fn reasons_of_profiles_follow_from_what_their_commands_took() {
    let of = |profile: &str, frames: &str, measured| {
        reason("trinkle-profiles", &["physical", profile, frames], measured, "link-rate").unwrap_or_default()
    };
    // 436 commands a second, which four disks take 9 ms each for.
    let text = of("web-server", "standard", 60.0);
    assert!(text.starts_with("disks: ") && text.contains("each of 4 disks took 9.16 ms"), "{text}");
    // 36,269 a second are no disks', and no line's either.
    for profile in ["max-iops", "max-write-iops"] {
        let text = of(profile, "standard", 60_000.0);
        assert!(text.starts_with("hosts: ") && text.contains("% of such a line were in use"), "{text}");
    }
    // 112 MiB/s came with frames of the other length.
    let text = of("max-throughput", "jumbo", 112.0);
    assert!(text.contains("with standard frames the same hosts and disks had 112"), "{text}");
}

#[test]
fn what_is_less_here_is_what_was_measured_here() {
    let of = |name: &str, wanted: &[&str], limit, change: &dyn Fn(&mut CellResult)| {
        let mut cell = cell(name, wanted);
        if limit == "target" {
            cell.parameters.push(("target", "tgtd".to_owned()));
        }
        let mut result = result(&cell, cell.published.expect("a figure") * 4.0, limit);
        change(&mut result);
        why(study(name).expect("a study"), &cell, &result)
    };
    let file = ["mean", "campus", "read", "iscsi", "1"];
    let busy = |percent| vec![Further::new(DISK_BUSY, percent, "%")];
    let text = of("lu-files", &file, "store", &|result| result.further = busy(80.0)).unwrap_or_default();
    assert!(text.contains("at work for 80 % of the time"), "{text}");
    assert_eq!(of("lu-files", &file, "store", &|result| result.further = busy(20.0)), None);
    let text = of("lu-files", &file, "protocol", &|_| ()).unwrap_or_default();
    assert!(text.contains("17.4 ms are 8.7 round trips of this link (2.00 ms each)"), "{text}");
    // A round trip that does not show explains nothing.
    assert_eq!(of("lu-files", &["mean", "gige", "read", "iscsi", "1"], "protocol", &|_| ()), None);
    let profile = ["physical", "max-iops", "standard"];
    let slow = &|result: &mut CellResult| (result.measured, result.idle) = (9.0, 0.4);
    let text = of("trinkle-profiles", &profile, "target", slow).unwrap_or_default();
    assert!(text.contains("the target was the limit here") && text.contains("idle for 40 %"), "{text}");
}

#[test]
fn hit_rates_are_what_a_cache_had() {
    let of = |measured| reason("fujita-netserver", &["hit-rate", "1024", "threads"], measured, "cache");
    // 25.4 % of 2 GiB, and of ours 42.
    let text = of(42.0).unwrap_or_default();
    assert!(text.contains("520 MiB of the files were in memory there and 860 MiB here, of 896"), "{text}");
    assert_eq!((of(90.0), of(3.0)), (None, None), "more than fits, and next to nothing");
}

#[test]
fn logins_with_more_round_trips_than_there_are_were_waiting() {
    let total = ["normal", "1", "none", "none", "total"];
    let text = reason("lu-login", &total, 20.0, "round-trips").unwrap_or_default();
    assert!(text.contains("10136 ms would be 5068 round trips"), "{text}");
    let text = reason("lu-login", &total, 20_000.0, "initiator");
    assert_eq!(text, None, "ours would have waited longer");
}
