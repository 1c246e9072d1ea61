//! Work on files: one by one over iSCSI, NFS and SMB, as a mail server does it, as a file server does it.
//!
//! One piece of work gives several figures. It is done once a turn, and kept for the cells that have the other ones.

mod each;
mod mail;
mod web;
mod whole;

use std::cell::{Cell, OnceCell, RefCell};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use each::SIZES_KIB;

use super::model::{self, Driven};
use super::seen::{Observer, Seen};
use super::{Design, Duty, Keys, Place, Run};
use crate::study::Further;
use crate::study::files::{self, Attached, Mounted, ShareKind, watched};
use crate::study::image::Image;
use crate::study::memory::MemoryBound;
use crate::study::service::Service;
use crate::study::setting;
use crate::study::site::{Site, TARGET};
use crate::{LabError, Negotiated};

/// Longer than anything here takes; what has not ended then waits for something that is gone.
const PATIENCE: Duration = Duration::from_secs(3600);

/// What is done, and what of it is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FilesProbe {
    pub(crate) job: Job,
    pub(crate) figure: Figure,
}

/// Work on files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Files of several sizes, each opened, read or written, and closed, without caches.
    Each(Scheme),
    /// One file of so many MiB, read and written, on an attached disk or without a network.
    Whole { is_attached: bool, mib: u32 },
    /// PostMark, from cold caches.
    Mail(Design),
    /// Files of 2 MiB, read in random order past the caches of this side, after all have been read.
    Web { design: Design, files: u32 },
}

/// How files are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// A file system on a local disk, without a network.
    Direct,
    /// A file system of this side on an attached disk; where it is synchronous, it does nothing later than it says so.
    Iscsi { is_synchronous: bool },
    /// A file system of the other side.
    Share(ShareKind),
}

/// What is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figure {
    /// How long a file takes: the mean, or the standard deviation, in milliseconds.
    Each { writes: bool, size_kib: u32, is_deviation: bool },
    /// Transactions per second.
    Transactions,
    /// What was read, in 10^6 bytes per second.
    Read,
    /// What was written, in 10^6 bytes per second.
    Written,
    /// The share of what was read that the target did not have to read from its disk, in percent.
    Hits,
}

/// What a job gave.
#[derive(Debug, Clone, Default)]
struct Outcome {
    told: Vec<Told>,
    /// The share of the image that the page cache had at the beginning, of what was to be cold.
    cached: Option<f64>,
    /// What the session agreed on that the disk was attached by.
    negotiated: Option<Negotiated>,
}

/// A figure, and what was seen of this machine while it was measured.
#[derive(Debug, Clone)]
struct Told {
    figure: Figure,
    measured: f64,
    seen: Seen,
    further: Vec<Further>,
}

/// Figures that were measured together.
fn together((figures, seen): (Vec<(Figure, f64)>, Seen)) -> Vec<Told> {
    let told = |(figure, measured)| Told { figure, measured, seen: seen.clone(), further: Vec::new() };
    figures.into_iter().map(told).collect()
}

/// What cells of one link share that work on files.
#[derive(Debug, Default)]
pub(in crate::study::probe) struct Kept {
    image: OnceCell<(Image, Cell<Files>)>,
    /// Of which job, in which turn: its seed.
    done: RefCell<Vec<(Job, u64, Outcome)>>,
}

impl Kept {
    /// The same without the image, which somebody may still write to.
    pub(in crate::study::probe) fn without_image(self) -> Self {
        Self { image: OnceCell::new(), ..self }
    }
}

/// Whose files an image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    /// Nobody's that are of use to others.
    Used,
    /// A file server's, which only reads them.
    Web,
}

impl FilesProbe {
    pub(crate) const fn unit(&self) -> &'static str {
        match self.figure {
            Figure::Each { .. } => "ms",
            Figure::Transactions => "1/s",
            Figure::Hits => "%",
            Figure::Read | Figure::Written => "MB/s",
        }
    }

    /// What this machine lacks for it.
    pub(crate) fn lacks(&self) -> Option<String> {
        match self.job {
            Job::Each(Scheme::Direct) | Job::Whole { is_attached: false, .. } => files::lacks(false, &[]),
            Job::Each(Scheme::Share(kind)) => files::lacks(false, kind.programs()),
            Job::Mail(_) => files::lacks(true, &mail::PROGRAMS),
            Job::Each(Scheme::Iscsi { .. }) | Job::Whole { .. } | Job::Web { .. } => files::lacks(true, &[]),
        }
    }

    /// Whether a target of ours has the disk.
    pub(crate) const fn has_target(&self) -> bool {
        match self.job {
            Job::Each(Scheme::Iscsi { .. }) | Job::Mail(_) | Job::Web { .. } => true,
            Job::Whole { is_attached, .. } => is_attached,
            Job::Each(Scheme::Direct | Scheme::Share(_)) => false,
        }
    }

    /// Programs that take part, by the names that results have.
    pub(crate) const fn programs(&self) -> &'static [&'static str] {
        match self.job {
            Job::Each(Scheme::Share(ShareKind::Smb)) => &["e2fsprogs", "samba", "smbclient"],
            Job::Each(Scheme::Share(ShareKind::Nfs)) => &["e2fsprogs", "nfs-ganesha", "rpcbind"],
            Job::Mail(_) => &["e2fsprogs", "postmark"],
            _ => &["e2fsprogs"],
        }
    }

    /// What is measured in another way because this machine lacks something.
    pub(crate) fn caveat(&self, is_quick: bool) -> Option<&'static str> {
        let is_unbound = matches!(self.job, Job::Web { .. }) && !is_quick && !MemoryBound::is_possible();
        is_unbound.then_some(
            "This machine lets nobody bound the memory of a target by a control group: its page cache is as large as it gets.",
        )
    }
}

/// Does it, unless it was done in this turn, and tells the figure.
pub(super) fn run(place: Place<'_>, probe: &FilesProbe, duty: Duty) -> Result<Run, LabError> {
    let known =
        |kept: &(Job, u64, Outcome)| (kept.0 == probe.job && kept.1 == duty.seed).then(|| kept.2.clone());
    let found = place.kept.files.done.borrow().iter().find_map(known);
    let done = match found {
        Some(done) => done,
        None => {
            let done = match probe.job {
                Job::Each(scheme) => each::run(place, scheme, duty),
                Job::Whole { is_attached, mib } => whole::run(place, is_attached, mib),
                Job::Mail(design) => mail::run(place, design, duty),
                Job::Web { design, files } => web::run(place, design, files, duty),
            }?;
            place.kept.files.done.borrow_mut().push((probe.job, duty.seed, done.clone()));
            done
        }
    };
    let Some(told) = done.told.into_iter().find(|told| told.figure == probe.figure) else {
        return Err(LabError::Plan("a cell asks for what its work does not tell".to_owned()));
    };
    let model = match (probe.job, probe.figure, place.over) {
        (
            Job::Web { .. } | Job::Whole { .. },
            figure @ (Figure::Read | Figure::Written),
            Some((site, link)),
        ) => {
            let congestion_control = site.congestion_control()?;
            let driven = Driven { link, congestion_control: &congestion_control };
            let shape = if figure == Figure::Read { &link.down } else { &link.up };
            let window_bytes = setting::tcp_buffer(place.set).map(|bytes| bytes as u64);
            model::plain(&model::path(driven, shape, link.round_trip(), window_bytes))
        }
        _ => None,
    };
    let Seen { shares, processor, busy, keeping, lost_before, lasted, disk } = told.seen;
    let further = told.further.into_iter().chain(disk).collect();
    let (cached, negotiated) = (done.cached, done.negotiated);
    let run = Run::of(told.measured, model);
    Ok(Run { shares, processor, busy, keeping, lost_before, lasted, cached, further, negotiated, ..run })
}

/// The image that all jobs of a link have in turn, with a new file system that `fill` has put these files into, out of all
/// caches; and the share of it that the page cache still has. Where it has the files of another job that nobody has changed, they
/// stay.
fn prepared<'a>(
    place: Place<'a>,
    length_bytes: u64,
    files: Files,
    fill: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(&'a Image, Option<f64>), LabError> {
    let (image, present) = match place.kept.files.image.get() {
        Some(kept) => kept,
        None => {
            let made = match files {
                // Where they write, the disk below has room for them already.
                Files::Used => Image::make(place.scratch, length_bytes),
                Files::Web => Image::hollow(place.scratch, length_bytes),
            }?;
            place.kept.files.image.get_or_init(|| (made, Cell::new(Files::Used)))
        }
    };
    if files == Files::Used || present.get() != files {
        files::make(image.path())?;
        let mounted = Mounted::new(image.path(), beside(image, "prepared"), false)?;
        fill(mounted.root()).map_err(LabError::system("files for a study"))?;
        mounted.unmount()?;
        present.set(files);
    }
    let cached = image.cool()?;
    Ok((image, cached))
}

/// A place in the directory of the image, with which it goes.
fn beside(image: &Image, name: &str) -> PathBuf {
    image.path().with_file_name(name)
}

/// How a disk is attached, and the file system on it mounted.
#[derive(Debug, Clone, Copy)]
struct Way<'a> {
    /// What the target's configuration says of the disk.
    lines: &'a str,
    /// What the session is to agree on where nothing else is set.
    keys: Keys,
    /// Whether `lunette attach` reads ahead and answers early.
    caches: bool,
    /// Whether the file system does nothing later than it says so.
    is_synchronous: bool,
    /// The most memory that the target has, in bytes, where this machine can see to it.
    memory_bytes: Option<u64>,
}

/// Does something with the file system on an image while that is the disk of a target, over the link of a site. Tells what the session has
/// agreed on, too. Who does it looks himself while he measures: mounts and flushes are no part of that.
fn over_iscsi<T: Send>(
    place: Place<'_>,
    site: &Site,
    image: &Image,
    way: Way<'_>,
    work: impl FnOnce(&Mounted, &Service) -> Result<T, LabError> + Send,
) -> Result<(T, Option<Negotiated>), LabError> {
    let target = Service::target(TARGET, &image.path().to_string_lossy(), way.lines) + way.keys.limits();
    // It ends behind the target that is in it.
    let bound = way.memory_bytes.and_then(MemoryBound::make);
    let service = Service::start(site, place.binary, &target, &[])?;
    if let Some(bound) = &bound {
        service.bind(bound).map_err(LabError::system("a bound of the target's memory"))?;
    }
    let query = way.keys.query(place.set);
    let mut attached = Attached::start(site, place.binary, &beside(image, "attached"), &query, way.caches)?;
    let (disk, negotiated) = (attached.file().to_owned(), attached.negotiated().cloned());
    let use_it = || {
        let mounted = Mounted::new(&disk, beside(image, "root"), way.is_synchronous)?;
        let done = work(&mounted, &service)?;
        mounted.unmount()?;
        Ok::<T, LabError>(done)
    };
    let done = watched(PATIENCE, use_it, || attached.kill())??;
    attached.end()?;
    Ok((done, negotiated))
}

/// The site; jobs over iSCSI have one.
fn site_of<'a>(place: Place<'a>) -> Result<&'a Site, LabError> {
    place
        .over
        .map(|over| over.0)
        .ok_or_else(|| LabError::Plan("without a network there is no target".to_owned()))
}

/// A new file with so much in it, in no hurry.
fn fill_file(path: &Path, length_bytes: usize) -> io::Result<()> {
    fs::write(path, vec![FILLING; length_bytes])
}

/// What files are full of: nothing that anybody could leave out.
const FILLING: u8 = 0x5a;
