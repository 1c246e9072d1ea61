//! `lunette copy`: a disk or an image file to a disk or an image file.
//!
//! The source is looked at for what holds nothing; what is there is read and written, many commands at a time on both
//! sides, each side on a thread of its own. What holds nothing is made to read as zeros at the destination, unless that is
//! a new file, which does so by itself. Everything is stable before the copy counts as done, and before the record says so.

mod compare;
mod disk_end;
mod endpoint;
mod file_end;
mod identity;
mod job;
mod pieces;
mod record;
mod space;
mod sparse;

use std::path::Path;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use self::compare::compare;
use self::endpoint::{Endpoint, open_destination, open_source};
use self::job::{Job, Progress};
use self::pieces::Pieces;
use self::record::Record;
use super::options::{CopyOptions, End};
use super::report::tell;
use super::transfer::Transferred;
use crate::banner::size;
use crate::failure::Failure;
use crate::output;

#[derive(Debug, Serialize)]
struct Copied {
    size_bytes: u64,
    /// What held nothing and was not transferred.
    empty_bytes: u64,
    /// Where an earlier run had come to.
    resumed_at_bytes: u64,
    verified: bool,
    #[serde(flatten)]
    transferred: Transferred,
}

/// Sessions of one identifier with one target would end each other, the further ones of `--multipath` too.
fn check_identifiers(source: &End, destination: &End) -> Result<(), Failure> {
    match (source, destination) {
        (End::Disk(one), End::Disk(other))
            if one.target == other.target && one.isid.and(other.isid).is_some() =>
        {
            Err(Failure::usage("both ends are of one target, and both have an isid")
                .with_help("leave it out of one of the URLs: each of its sessions then has one of its own"))
        }
        _ => Ok(()),
    }
}

/// Copies.
pub(crate) fn run(options: &CopyOptions) -> Result<(), Failure> {
    options.resume.as_deref().map_or(Ok(()), |record| check_record(record, options))?;
    let mut record = options.resume.as_deref().map(Record::open).transpose()?;
    check_identifiers(&options.source, &options.destination)?;
    let resumed = record.as_ref().and_then(Record::done).is_some();
    let mut source = open_source(&options.source, &options.access.of_source(), options.depth.into())?;
    let bytes = source.size_bytes();
    check_files(&options.source, &options.destination)?;
    if record.is_some() {
        // Nothing is made for nothing.
        source.identity()?;
    }
    let mut destination = open_destination(&options.destination, bytes, resumed, options)?;
    check_sizes(&*source, &*destination, options)?;
    let begin = match &mut record {
        Some(record) => {
            let identities = [source.identity()?, destination.identity()?];
            record.begin(identities, source.changed_at(), bytes)?
        }
        None => 0,
    };
    let bar = progress(options, bytes);
    bar.set_position(begin);
    let start = Instant::now();
    let pieces = Pieces::new(&*source, &*destination, !options.no_sparse)?;
    let stable = Progress { at_bytes: begin, ..Progress::default() };
    let mut job = Job { pieces, record: record.as_mut(), bar: &bar, stable };
    job.run(&mut *source, &mut *destination, bytes)?;
    let Progress { empty_bytes, moved_bytes, .. } = job.stable;
    // The record stays: it is what tells the next run that the source is not what it was.
    source.check_unchanged()?;
    if options.verify {
        bar.set_message("comparing");
        let compared = compare(&mut *source, &mut *destination, pieces, &bar);
        if compared.is_err() {
            // What differs is copied again by the next run.
            record.as_mut().map_or(Ok(()), |record| record.note(0))?;
        }
        // It may differ for that.
        source.check_unchanged()?;
        compared?;
    }
    bar.finish_and_clear();
    if let Some(record) = record {
        record.remove()?;
    }
    source.close()?;
    destination.close()?;
    let copied = Copied {
        size_bytes: bytes,
        empty_bytes,
        resumed_at_bytes: begin,
        verified: options.verify,
        transferred: Transferred::since(start, moved_bytes),
    };
    tell(options.json, &copied, text)
}

fn text(copied: &Copied) -> String {
    let mut text = format!("copied {}", copied.transferred.text());
    if copied.empty_bytes > 0 {
        text.push_str(&format!(", {} held nothing", size(copied.empty_bytes)));
    }
    if copied.resumed_at_bytes > 0 {
        text.push_str(&format!(", going on after {}", size(copied.resumed_at_bytes)));
    }
    text.push_str(if copied.verified {
        "; both were read again and are equal\n"
    } else {
        "; all of it is stable\n"
    });
    text
}

fn progress(options: &CopyOptions, bytes: u64) -> ProgressBar {
    let target = if options.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(bytes), target);
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message("copying");
    bar
}

fn check_sizes(
    source: &dyn Endpoint,
    destination: &dyn Endpoint,
    options: &CopyOptions,
) -> Result<(), Failure> {
    let (from, to) = (source.size_bytes(), destination.size_bytes());
    if to < from {
        return Err(Failure::usage(format!(
            "the source has {}, and the destination only {}",
            size(from),
            size(to)
        )));
    }
    let block = u64::from(destination.block_bytes());
    if !from.is_multiple_of(block) {
        return Err(Failure::usage(format!(
            "the source has {from} bytes, which is no multiple of the destination's blocks of {block} bytes"
        )));
    }
    if let (End::Disk(source), End::Disk(destination)) = (&options.source, &options.destination)
        && source.target == destination.target
        && source.lun == destination.lun
        && source.portal == destination.portal
    {
        return Err(Failure::usage("source and destination are the same disk"));
    }
    if let (Some(source), Some(destination)) = (source.unit(), destination.unit())
        && source.shares_unique_name(&destination)
    {
        return Err(Failure::usage(format!("source and destination are the same disk, {source}")));
    }
    Ok(())
}

/// Refuses ends that are one file, by whatever names, or a loop device and its file: what is to be read would be written over, or
/// emptied before.
fn check_files(source: &End, destination: &End) -> Result<(), Failure> {
    let (End::File(source), End::File(destination)) = (source, destination) else { return Ok(()) };
    if output::is_same_file(source, destination) {
        return Err(Failure::usage("source and destination are the same file"));
    }
    for (file, device) in [(source, destination), (destination, source)] {
        if output::is_below(file, device) {
            return Err(Failure::usage(format!(
                "source and destination have the same data: {} is the file of {}, a loop device",
                file.display(),
                device.display()
            )));
        }
    }
    Ok(())
}

/// Refuses a record whose file, or the one that is to take its place, is an end of the copy.
fn check_record(record: &Path, options: &CopyOptions) -> Result<(), Failure> {
    let ends = [("the source", &options.source), ("the destination", &options.destination)];
    let files = ends.into_iter().filter_map(|(what, end)| match end {
        End::File(path) => Some((what, path.as_path())),
        End::Disk(_) => None,
    });
    let files: Vec<output::Input<'_>> = files.collect();
    [record, &record::replacement(record)].into_iter().try_for_each(|path| output::refuse(path, &files))
}
