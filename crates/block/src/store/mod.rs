//! Where bytes are kept: the interface that stores and layers share, and the four stores.
//!
//! Calls block. Engines decide on which thread, and the volume has checked ranges and read-only before a call.

pub(crate) mod atomic;
pub(crate) mod device;
pub(crate) mod direct;
pub(crate) mod extent_map;
pub(crate) mod file;
pub(crate) mod gate;
pub(crate) mod kernel;
mod mapped;
pub(crate) mod memory;
mod name;
pub(crate) mod null;
pub(crate) mod protected;
pub(crate) mod residency;
pub(crate) mod sysfs;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use atomic::AtomicWrites;
pub use direct::RawFile;
pub(crate) use mapped::coarse_ms;
pub use name::Astray;

use crate::engine::choice::{self, EngineChoice};
use crate::error::OpenError;
use crate::identity::{self, VolumeIdentity};
use crate::lent::Lent;
use crate::spec::{Provisioning, StoreSpec, VolumeSpec};

/// One [`Store::extents`] call returns at most this many extents, so that a fragmented image cannot make an
/// answer of unbounded size. GET LBA STATUS answers are far smaller.
pub const EXTENTS_MAX: usize = 1024;

/// What a store can do and what it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Space can be given back; an unmapped range reads as zeroes.
    pub unmap: bool,
    /// Zeroes can be written without sending them.
    pub write_zeroes: bool,
    /// [`Store::extents`] tells data from holes; otherwise it calls everything data.
    pub extents: bool,
    /// [`Store::zero`] without `unmap` takes space for all of its range, so that later writes there cannot fail for lack of
    /// it, and [`Store::extents`] tells such space from data.
    pub reserves: bool,
    /// Unmapping less than this, or across its multiples, gives back less space. A power of two.
    pub unmap_granularity_bytes: u32,
    /// The smallest write that needs no read-modify-write below. A power of two.
    pub physical_block_bytes: u32,
    /// Which writes are done whole or not at all, even if power is lost; `None`: none.
    pub atomic_writes: Option<AtomicWrites>,
    /// Whether a spinning disk is below, where it is known.
    pub rotational: Option<bool>,
}

/// How much space a sparse store takes, and could take yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that have space allocated.
    pub used_bytes: u64,
    /// Bytes that its file system has left, for it and for all others.
    pub available_bytes: u64,
}

/// What a run of bytes has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Space that something may have been written to, or it is not known what.
    Data,
    /// Space that nothing was written to; it reads as zeroes.
    Reserved,
    /// No space; it reads as zeroes.
    Hole,
}

/// A run of bytes that all have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// What they have.
    pub allocation: Allocation,
}

/// Something that keeps `size_bytes` bytes. Layers wrap it with the same interface.
///
/// Every range handed in lies within the size that was last told. Calls may come from several threads at once; what overlapping
/// calls leave behind is one or the other for each byte.
pub trait Store: Send + Sync + fmt::Debug {
    /// Bytes kept when it was opened.
    fn size_bytes(&self) -> u64;

    /// Bytes that it could keep now: what it is made of may have been enlarged or cut since. Only what can be served
    /// is counted, in whole blocks of the device where that matters.
    fn present_size_bytes(&self) -> io::Result<u64> {
        Ok(self.size_bytes())
    }

    /// How much space it takes and could take; `None` where that means nothing or is not known.
    fn space(&self) -> io::Result<Option<Space>> {
        Ok(None)
    }

    /// What has become of it where the path that it was opened by surely no longer leads to it. Devices are found by more than a path.
    fn astray(&self) -> Option<Astray> {
        None
    }

    /// What it can do.
    fn features(&self) -> Features;

    /// For people: the kind and the place, for example `file /srv/vm.img`.
    fn describe(&self) -> String;

    /// True while no call can ever wait and nothing written could become more stable than it is. Engines then do
    /// everything on the submitting thread, but for what [`Self::clears_memory`] says, and do not flush.
    fn in_memory(&self) -> bool;

    /// Whether zeroing and unmapping give memory back, which takes the longer the more it is. Who reads and writes beside that waits for
    /// a small part of it.
    fn clears_memory(&self) -> bool {
        false
    }

    /// True while a write is a copy into the page cache, which hardly ever waits for a device.
    fn buffers_writes(&self) -> bool;

    /// Where an engine may read and write by itself instead of calling [`Store::read_at`] and [`Store::write_at`].
    /// `None` where it must not: a layer that has something to do with calls leaves this out.
    fn raw(&self) -> Option<RawFile<'_>> {
        None
    }

    /// True while calls are known to take longer than the store's device explains. Engines then never make one on the
    /// submitting thread in the hope that it is short.
    fn is_slow(&self) -> bool {
        false
    }

    /// Fills `buffer` from `offset`. Anything less is an error.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Fills the front of `buffer` with what can be had without waiting for a device; returns how much that was.
    fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// The file whose page cache has all of the range, if there is one: its pages can be sent without a copy. `None`
    /// where that is not known for certain, and from a layer that wants to see every read.
    fn cached_file(&self, _offset: u64, _length: u64) -> Option<Arc<OwnedFd>> {
        None
    }

    /// True while reads can be [lent](Store::lend) instead of copied. False for a layer that wants to see every read.
    fn lends(&self) -> bool {
        false
    }

    /// The first bytes of the range, as far as they lie together, where they lie. Nobody changes them until what is returned is dropped.
    /// `None` where nothing is lent, and, unless it `waits`, while somebody changes them, or is about to. Who has something that was lent
    /// must not wait for more, nor change anything.
    fn lend(&self, _offset: u64, _length: u64, _waits: bool) -> Option<Lent<'_>> {
        None
    }

    /// A short read or write of the range is about to come: brings what lies in memory of it nearer to the processor. Does nothing else.
    fn expect(&self, _offset: u64, _length: u64) {}

    /// Writes all of `data` at `offset`, not necessarily to stable storage.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset` or nothing of it, not necessarily to stable storage. An error of kind
    /// `Unsupported`, with nothing changed, for what is not within [`Features::atomic_writes`].
    fn write_atomic_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Where what it is made of ends now: somebody may have cut it since its size was last told. `u64::MAX` where nobody can.
    fn end_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    /// Refuses a change that would end behind that, if this is known or can be asked without waiting. What was asked a tenth of a
    /// millisecond ago is known.
    fn check_end(&self, _end: u64) -> io::Result<()> {
        Ok(())
    }

    /// Makes everything stable that was written before the call. After an error nothing is known about it.
    /// The volume never calls this twice at a time, because the kernel reports a lost write only once.
    fn flush(&self) -> io::Result<()>;

    /// Makes the range read as zeroes. With `unmap` space is given back where the store can; without it the range has
    /// space afterwards where [`Features::reserves`] says so.
    fn zero(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()>;

    /// Gives the range's space back; it then reads as zeroes. An error of kind `Unsupported`, with nothing changed,
    /// where [`Features::unmap`] is false, and once a device has turned out not to keep what it promised.
    fn unmap(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Has space allocated for all of the range, and changes none of its bytes. An error of kind `Unsupported`, with
    /// nothing changed, where that means nothing.
    fn reserve(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Asks for the range to be read ahead. A hint: it may do nothing.
    fn prefetch(&self, offset: u64, length: u64) -> io::Result<()>;

    /// What the parts of the range have: in order, without gaps from `offset` on, neighbours of one kind merged.
    /// At most [`EXTENTS_MAX`] entries; the rest of a longer answer is had by asking again from its end.
    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>>;

    /// Lets others have what the store is made of: file locks go. Nothing is read or written afterwards.
    fn release(&self) {}
}

/// Adds a run to a list, merging it into the last entry where it continues it. False once the list is full.
pub(crate) fn push_extent(extents: &mut Vec<Extent>, next: Extent) -> bool {
    if next.length == 0 {
        return true;
    }
    if let Some(last) = extents.last_mut()
        && last.allocation == next.allocation
    {
        last.length += next.length;
        return true;
    }
    if extents.len() == EXTENTS_MAX {
        return false;
    }
    extents.push(next);
    true
}

/// A store, the identity that belongs to it, and the engine that suits the way it was opened.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) identity: VolumeIdentity,
    pub(crate) engine: EngineChoice,
}

/// Opens what the specification names.
pub(crate) fn open(spec: &VolumeSpec) -> Result<Opened, OpenError> {
    let block_length_bytes = spec.block_length_bytes;
    if !block_length_bytes.is_power_of_two() || !(512..=65536).contains(&block_length_bytes) {
        let why = "it must be a power of two from 512 to 65536".to_owned();
        return Err(OpenError::BadBlockLength { block_length_bytes, why });
    }
    if spec.provisioning == Provisioning::Thick
        && matches!(spec.store, StoreSpec::Memory { .. } | StoreSpec::Null { .. })
    {
        return Err(OpenError::NotServable {
            path: spec.name.clone().into(),
            why: "has no space to allocate; provisioning=thick is for files and block devices",
        });
    }
    if spec.provisioning == Provisioning::Thick && spec.protection.is_some() {
        return Err(OpenError::NotServable {
            path: spec.name.clone().into(),
            why: "cannot be thick: the file with its protection information is sparse",
        });
    }
    let configured = match &spec.identity.serial {
        Some(serial) => Some(identity::from_serial(serial)?),
        None => None,
    };
    let opened = match &spec.store {
        StoreSpec::File { path, create_bytes } => {
            if file::is_block_device(path) {
                device::open(path, spec, configured)?
            } else {
                file::open(path, *create_bytes, spec, configured)?
            }
        }
        StoreSpec::BlockDevice { path } => device::open(path, spec, configured)?,
        StoreSpec::Memory { size_bytes } => {
            check_size("memory", *size_bytes, block_length_bytes)?;
            Opened {
                store: protected::for_memory(memory::open(*size_bytes, spec.pages())?, spec)?,
                identity: configured.map_or_else(identity::random, Ok)?,
                engine: choice::in_memory(spec.engine),
            }
        }
        StoreSpec::Null { .. } if spec.protection.is_some() => {
            return Err(OpenError::CannotProtect { what: "null".to_owned() });
        }
        StoreSpec::Null { size_bytes } => {
            check_size("null", *size_bytes, block_length_bytes)?;
            Opened {
                store: Arc::new(null::NullStore::new(*size_bytes)),
                identity: configured.map_or_else(identity::random, Ok)?,
                engine: choice::in_memory(spec.engine),
            }
        }
    };
    Ok(opened)
}

/// The largest size: offsets are signed in the kernel's calls.
pub(crate) const SIZE_BYTES_MAX: u64 = i64::MAX as u64;

/// Refuses sizes that cannot be served in blocks.
pub(crate) fn check_size(what: &str, size_bytes: u64, block_length_bytes: u32) -> Result<(), OpenError> {
    let why = if size_bytes == 0 {
        "there is nothing to serve; give a size, for example size=10G".to_owned()
    } else if !size_bytes.is_multiple_of(u64::from(block_length_bytes)) {
        format!("not a multiple of the block length, {block_length_bytes} bytes")
    } else if size_bytes > SIZE_BYTES_MAX {
        "more than the kernel can address".to_owned()
    } else {
        return Ok(());
    };
    Err(OpenError::BadSize { what: what.to_owned(), size_bytes, why })
}
