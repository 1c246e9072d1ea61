//! Page-aligned buffers that a session, an engine and a store hand to one another, and the pool they come from.
//!
//! Not a general allocator: lengths are rounded up to powers of two, because read and write commands mostly are. The limit counts
//! the rounded lengths, so it is what the process really holds, kept buffers included: their memory is mapped for them alone
//! ([`crate::area`]). Of an area in large pages all of it has memory as soon as one buffer of it is used, so the others are kept.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::area::{Pages, Slot};

/// Alignment and granule: the page size of x86-64 and what O_DIRECT and io_uring are content with everywhere.
const PAGE_BYTES: usize = 4096;

/// Larger buffers are given back to the system at once: 2^12 pages are 16 MiB, the largest transfer length that
/// common initiators use.
const KEPT_CLASSES: usize = 13;

#[repr(C, align(4096))]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Page([u8; PAGE_BYTES]);

/// A part of the pool that shares have nothing else of but a first short buffer each: those that hold the rest for long are not to
/// keep others from doing anything at all.
const RESERVED_PART: usize = 16;

/// The longest buffer that comes from there.
const RESERVED_BUFFER_BYTES_MAX: usize = 128 << 10;

/// Hands out [`Buffer`]s and keeps them for the next command.
///
/// Clones share one limit. A user of the pool that must not starve the others takes a [`BufferPool::share`].
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
    account: Option<Arc<Account>>,
}

/// What one share has out, in bytes; only changed with the pool's state locked.
type Account = AtomicUsize;

/// What a share wants of a buffer.
#[derive(Debug, Clone, Copy, Default)]
struct Wish {
    /// Nobody has asked for what it is for.
    is_unasked: bool,
    /// What the buffer takes the place of.
    replaced_bytes: usize,
    /// It is to be of the reserve.
    is_reserved: bool,
}

/// How a buffer is counted.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// It was taken by [`BufferPool::allocate_unasked`].
    is_unasked: bool,
    /// It is of the reserve.
    is_reserved: bool,
}

struct Shared {
    limit_bytes: usize,
    pages: Pages,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_use_bytes: usize,
    /// Of these, what was taken by [`BufferPool::allocate_unasked`].
    unasked_bytes: usize,
    /// Of these, what is of the reserve.
    reserved_bytes: usize,
    /// See [`BufferPool::starvations`].
    starvations: u64,
    kept_bytes: usize,
    /// Those with memory.
    kept: [Vec<Slot>; KEPT_CLASSES],
    /// Those without, which are a place for it.
    empty: Vec<Vec<Slot>>,
}

impl State {
    fn open_in_use_bytes(&self) -> usize {
        self.in_use_bytes - self.reserved_bytes
    }

    /// Takes kept buffers whose memory is to go back to the system, largest first, until at most `bytes` are kept.
    fn trim_to(&mut self, bytes: usize) -> Vec<Slot> {
        let mut dropped = Vec::new();
        for class in self.kept.iter_mut().rev() {
            while self.kept_bytes > bytes {
                let Some(slot) = class.pop() else { break };
                self.kept_bytes -= slot.length();
                dropped.push(slot);
            }
        }
        dropped
    }

    /// Has buffers with memory ready, all of one length.
    fn keep(&mut self, slots: Vec<Slot>) {
        let Some(length) = slots.first().map(Slot::length) else { return };
        self.kept_bytes += length * slots.len();
        self.kept[class_of_pages(length / PAGE_BYTES)].extend(slots);
    }

    /// Has places for memory ready.
    fn add_empty(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            let class = class_of_pages(slot.length() / PAGE_BYTES);
            if self.empty.len() <= class {
                self.empty.resize_with(class + 1, Vec::new);
            }
            self.empty[class].push(slot);
        }
    }
}

fn class_of_pages(pages: usize) -> usize {
    pages.trailing_zeros() as usize
}

/// Bytes that a buffer of `len` bytes takes, and its class. `None` on overflow.
fn class_of(len: usize) -> Option<(usize, usize)> {
    let pages = len.div_ceil(PAGE_BYTES).checked_next_power_of_two()?;
    Some((pages.checked_mul(PAGE_BYTES)?, class_of_pages(pages)))
}

impl Shared {
    /// What only first short buffers are taken of; none in a pool that is hardly longer than those.
    fn reserve_bytes(&self) -> usize {
        let part = self.limit_bytes / RESERVED_PART;
        if part < RESERVED_BUFFER_BYTES_MAX { 0 } else { part & !(PAGE_BYTES - 1) }
    }

    /// Where a share has its first buffer of so many bytes from, if there is room.
    fn place_of_first(&self, state: &State, bytes: usize) -> Option<Counted> {
        if bytes > self.limit_bytes.saturating_sub(state.in_use_bytes) {
            return None;
        }
        let open_bytes = self.limit_bytes - self.reserve_bytes();
        // One that is longer than all the rest could never be had else.
        let is_open = bytes > open_bytes || state.open_in_use_bytes() + bytes <= open_bytes;
        if is_open { Some(Counted::default()) } else { self.place_in_reserve(state, bytes) }
    }

    fn place_in_reserve(&self, state: &State, bytes: usize) -> Option<Counted> {
        let has_room = bytes <= RESERVED_BUFFER_BYTES_MAX
            && state.reserved_bytes + bytes <= self.reserve_bytes()
            && bytes <= self.limit_bytes.saturating_sub(state.in_use_bytes);
        has_room.then_some(Counted { is_reserved: true, ..Counted::default() })
    }

    /// Where a share that has so many bytes already has another buffer from: it leaves as much as it has.
    fn place_of_next(
        &self,
        state: &State,
        bytes: usize,
        has_bytes: usize,
        is_unasked: bool,
    ) -> Option<Counted> {
        let mut left_bytes = self.left_bytes(state).checked_sub(bytes)?;
        if is_unasked {
            left_bytes = left_bytes.min((self.limit_bytes / 2).saturating_sub(state.unasked_bytes + bytes));
        }
        (has_bytes + bytes <= left_bytes).then(Counted::default)
    }

    /// What is left beside the reserve.
    fn left_bytes(&self, state: &State) -> usize {
        (self.limit_bytes - self.reserve_bytes()).saturating_sub(state.open_in_use_bytes())
    }
}

impl BufferPool {
    /// A pool that never holds more than `limit_bytes`, in use and kept together.
    pub fn new(limit_bytes: usize) -> Self {
        Self::with_pages(limit_bytes, Pages::Small)
    }

    /// The same in large pages, where the kernel gives them and there is room for one below the limit.
    pub fn in_large_pages(limit_bytes: usize) -> Self {
        Self::with_pages(limit_bytes, Pages::Large)
    }

    fn with_pages(limit_bytes: usize, pages: Pages) -> Self {
        Self { shared: Arc::new(Shared { limit_bytes, pages, state: Mutex::default() }), account: None }
    }

    /// The same pool for one of several users: it never takes more than it leaves to the others. One user alone gets
    /// half of the pool, two get a third each. Of pools from 2 MiB on a sixteenth is left for users that have nothing: each gets a
    /// buffer of at most 128 KiB there, however many others keep all the rest.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), account: Some(Arc::default()) }
    }

    /// A buffer of `len` bytes whose contents are unspecified: they may be what another session read or wrote.
    /// Whoever sends a buffer anywhere must have overwritten all that it sends.
    ///
    /// `None` when the limit is reached, or when the system has no memory.
    pub fn allocate(&self, len: usize) -> Option<Buffer> {
        self.take(len, Wish::default())
    }

    /// A buffer for what was not asked for. All of these together have half of the pool at most, so that there is
    /// memory for what those must become that have to grow before they are of use ([`Self::allocate_instead`]); of that half no share
    /// takes more than it leaves to the others.
    pub fn allocate_unasked(&self, len: usize) -> Option<Buffer> {
        self.take(len, Wish { is_unasked: true, ..Wish::default() })
    }

    /// A buffer that takes the place of `smaller`, which its holder gives back as soon as it has this one: a share that has
    /// nothing else has its first buffer in this one.
    pub fn allocate_instead(&self, len: usize, smaller: &Buffer) -> Option<Buffer> {
        self.take(len, Wish { replaced_bytes: smaller.taken_bytes(), ..Wish::default() })
    }

    /// A short buffer of the reserve, in the place of `smaller` if there is one, for a share that has nothing else: who waits for memory
    /// in a queue need not wait behind those for whom that is too short.
    pub fn allocate_reserved(&self, len: usize, smaller: Option<&Buffer>) -> Option<Buffer> {
        let replaced_bytes = smaller.map_or(0, Buffer::taken_bytes);
        self.take(len, Wish { replaced_bytes, is_reserved: true, ..Wish::default() })
    }

    fn take(&self, len: usize, wish: Wish) -> Option<Buffer> {
        let Wish { is_unasked, replaced_bytes, is_reserved } = wish;
        let (bytes, class) = class_of(len)?;
        let mut state = self.shared.lock();
        let place = match &self.account {
            None => {
                (bytes <= self.shared.limit_bytes.saturating_sub(state.in_use_bytes)).then(Counted::default)
            }
            Some(account) => {
                let taken = account.load(Ordering::Relaxed);
                // A share's first buffer is granted whatever it leaves, or a small pool would never serve a large command.
                let has_bytes = taken.saturating_sub(replaced_bytes);
                let place = match has_bytes {
                    0 if is_reserved => self.shared.place_in_reserve(&state, bytes),
                    0 => self.shared.place_of_first(&state, bytes),
                    _ if is_reserved => None,
                    _ => self.shared.place_of_next(&state, bytes, has_bytes, is_unasked),
                };
                // Who has much is refused for what he has himself.
                let is_starved = place.is_none()
                    && bytes <= self.shared.limit_bytes
                    && has_bytes <= self.shared.limit_bytes / RESERVED_PART;
                state.starvations += u64::from(is_starved);
                if place.is_some() {
                    account.store(taken + bytes, Ordering::Relaxed);
                }
                place
            }
        };
        let counted = Counted { is_unasked, ..place? };
        state.in_use_bytes += bytes;
        state.unasked_bytes += if is_unasked { bytes } else { 0 };
        state.reserved_bytes += if counted.is_reserved { bytes } else { 0 };
        let slot = match state.kept.get_mut(class).and_then(Vec::pop) {
            Some(slot) => {
                state.kept_bytes -= bytes;
                drop(state);
                Some(slot)
            }
            None => self.shared.take_anew(state, bytes, class),
        };
        if slot.is_none() {
            drop(self.shared.give_back(bytes, counted, self.account.as_deref()));
        }
        Some(Buffer {
            slot: Some(slot?),
            len,
            counted,
            shared: Arc::clone(&self.shared),
            account: self.account.clone(),
        })
    }

    /// Bytes of all buffers that this share has out, each rounded up to its power of two; 0 if it is none.
    pub fn taken_bytes(&self) -> usize {
        self.account.as_ref().map_or(0, |account| account.load(Ordering::Relaxed))
    }

    /// How often a share that had little or nothing was refused a buffer that the pool can have, since that was made.
    pub fn starvations(&self) -> u64 {
        self.shared.lock().starvations
    }

    /// Whether a buffer of `len` bytes can ever be had.
    pub fn is_possible(&self, len: usize) -> bool {
        class_of(len).is_some_and(|(bytes, _)| bytes <= self.shared.limit_bytes)
    }

    /// Whether a share that has nothing yet would get a buffer of `len` bytes now.
    pub fn has_room(&self, len: usize) -> bool {
        let state = self.shared.lock();
        class_of(len).is_some_and(|(bytes, _)| self.shared.place_of_first(&state, bytes).is_some())
    }

    /// Whether [`Self::allocate_unasked`] would grant so many bytes, be they one buffer or several.
    pub fn has_room_unasked(&self, bytes: usize) -> bool {
        let state = self.shared.lock();
        let half_bytes = self.shared.limit_bytes / 2;
        let left_bytes = half_bytes.saturating_sub(state.unasked_bytes).min(self.shared.left_bytes(&state));
        let taken = self.taken_bytes();
        left_bytes.checked_sub(bytes).is_some_and(|left_bytes| taken + bytes <= left_bytes)
    }

    /// Bytes of all buffers that are out, each rounded up to its power of two.
    pub fn in_use_bytes(&self) -> usize {
        self.shared.lock().in_use_bytes
    }

    /// The limit that the pool was made with.
    pub fn limit_bytes(&self) -> usize {
        self.shared.limit_bytes
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("BufferPool")
            .field("limit_bytes", &self.shared.limit_bytes)
            .field("in_use_bytes", &state.in_use_bytes)
            .field("kept_bytes", &state.kept_bytes)
            .finish()
    }
}

impl Shared {
    /// The state is whole between any two statements that could panic, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the use of `bytes`; the state comes back locked.
    fn give_back(&self, bytes: usize, counted: Counted, account: Option<&Account>) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.in_use_bytes -= bytes;
        state.unasked_bytes -= if counted.is_unasked { bytes } else { 0 };
        state.reserved_bytes -= if counted.is_reserved { bytes } else { 0 };
        if let Some(account) = account {
            account.store(account.load(Ordering::Relaxed).saturating_sub(bytes), Ordering::Relaxed);
        }
        state
    }

    fn take_back(&self, mut slot: Slot, counted: Counted, account: Option<&Account>) {
        let bytes = slot.length();
        let class = class_of_pages(bytes / PAGE_BYTES);
        if class >= KEPT_CLASSES {
            slot.empty();
        }
        let mut state = self.give_back(bytes, counted, account);
        if class < KEPT_CLASSES {
            state.kept_bytes += bytes;
            state.kept[class].push(slot);
        } else {
            state.add_empty([slot]);
        }
    }

    /// Slots of new memory; none when the system has none left, not even with the places of other lengths that nobody uses.
    fn map(&self, bytes: usize, pages: Pages) -> Vec<Slot> {
        let without_empty = |_| {
            let empty: Vec<Slot> = self.lock().empty.iter_mut().flat_map(std::mem::take).collect();
            drop(empty);
            Slot::several(bytes, pages)
        };
        Slot::several(bytes, pages).or_else(without_empty).unwrap_or_default()
    }

    /// A slot for memory that counts as in use already, of which none is kept. `None` when the system has none left.
    #[cold]
    fn take_anew(&self, mut state: MutexGuard<'_, State>, bytes: usize, class: usize) -> Option<Slot> {
        let kept_bytes_max = self.limit_bytes - state.in_use_bytes;
        let mut dropped = state.trim_to(kept_bytes_max);
        let empty = state.empty.get_mut(class).and_then(Vec::pop);
        // What is kept already is not given up for the others of an area.
        let others_bytes = self.pages.area_bytes().saturating_sub(bytes);
        let has_room = state.kept_bytes.saturating_add(others_bytes) <= kept_bytes_max;
        let pages = if has_room { self.pages } else { Pages::Small };
        drop(state);
        dropped.iter_mut().for_each(Slot::empty);
        let mut several = if empty.is_none() { self.map(bytes, pages) } else { Vec::new() };
        let mut slot = empty.or_else(|| several.pop());
        slot.iter_mut().for_each(Slot::reuse);
        if !dropped.is_empty() || !several.is_empty() {
            let mut state = self.lock();
            state.add_empty(dropped);
            match pages {
                Pages::Small => state.add_empty(several),
                Pages::Large => self.keep(state, several),
            }
        }
        slot
    }

    /// Keeps what comes with a buffer of an area in large pages, as far as the others have left room meanwhile.
    fn keep(&self, mut state: MutexGuard<'_, State>, slots: Vec<Slot>) {
        state.keep(slots);
        let kept_bytes_max = self.limit_bytes - state.in_use_bytes;
        let mut dropped = state.trim_to(kept_bytes_max);
        drop(state);
        if !dropped.is_empty() {
            dropped.iter_mut().for_each(Slot::empty);
            self.lock().add_empty(dropped);
        }
    }
}

/// Memory aligned to 4096 bytes. On drop it goes back to the pool that it came from.
pub struct Buffer {
    /// There until it is dropped.
    slot: Option<Slot>,
    len: usize,
    counted: Counted,
    shared: Arc<Shared>,
    account: Option<Arc<Account>>,
}

impl Buffer {
    /// Bytes that it takes of its pool: its length, rounded up to a power of two.
    pub fn taken_bytes(&self) -> usize {
        self.slot.as_ref().map_or(0, Slot::length)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.slot.as_ref().map_or(&[], |slot| &slot.bytes()[..self.len])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slot.as_mut().map_or(&mut [], |slot| &mut slot.bytes_mut()[..self.len])
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Contents are a user's data: they have no place in a log.
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.shared.take_back(slot, self.counted, self.account.as_deref());
        }
    }
}

/// Memory aligned like a [`Buffer`] that no pool counts, for a moment's work with a bound of its own.
pub(crate) struct Scratch {
    pages: Box<[Page]>,
    len: usize,
}

impl Scratch {
    /// `len` bytes of zeroes.
    ///
    /// # Errors
    /// When the system has no memory.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let pages = <[Page]>::new_box_zeroed_with_elems(len.div_ceil(PAGE_BYTES))
            .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { pages, len })
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_as_long_as_asked() {
        let pool = BufferPool::new(64 << 20);
        for len in [1, 511, 512, 4096, 4097, 65536, 100_000, 16 << 20] {
            let mut buffer = pool.allocate(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().addr() % 4096, 0);
            buffer.fill(0xa5);
            assert!(buffer.iter().all(|byte| *byte == 0xa5));
        }
        assert_eq!(pool.in_use_bytes(), 0);
    }

    #[test]
    fn the_limit_holds_and_frees_up_again() {
        let pool = BufferPool::new(4 * 4096);
        let first = pool.allocate(3 * 4096).unwrap();
        assert_eq!(pool.in_use_bytes(), 4 * 4096, "rounded up to a power of two");
        assert!(pool.allocate(1).is_none());
        drop(first);
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(pool.allocate(4 * 4096).is_some());
        assert!(pool.allocate(4 * 4096 + 1).is_none());
    }

    #[test]
    fn kept_buffers_count_against_the_limit() {
        let pool = BufferPool::new(8 * 4096);
        let small: Vec<Buffer> = (0..8).map(|_| pool.allocate(4096).unwrap()).collect();
        drop(small);
        assert_eq!(pool.shared.lock().kept_bytes, 8 * 4096);
        let large = pool.allocate(8 * 4096).unwrap();
        assert_eq!(pool.shared.lock().kept_bytes, 0, "kept ones must make room");
        drop(large);
        let state = pool.shared.lock();
        assert_eq!((state.in_use_bytes, state.kept_bytes), (0, 8 * 4096));
    }

    #[test]
    fn memory_of_other_lengths_goes_back_to_the_system() {
        let pool = BufferPool::new(1 << 20);
        let fill = |len: usize| {
            let mut buffers: Vec<Buffer> = std::iter::from_fn(|| pool.allocate(len)).collect();
            buffers.iter_mut().for_each(|buffer| buffer.fill(7));
            buffers
        };
        // Every other one of the short ones stays, so that no place between two would do for a long one.
        let mut short = fill(64 << 10);
        assert_eq!(short.len(), 16);
        let mut places = 0..;
        short.retain(|_| places.next().is_some_and(|place| place % 2 == 0));
        let long = fill(256 << 10);
        assert_eq!((short.len(), long.len()), (8, 2));
        short.extend(long);
        assert_eq!(resident_bytes(&pool, &short), 1 << 20);
    }

    /// What has memory, wherever it is.
    fn resident_bytes(pool: &BufferPool, out: &[Buffer]) -> usize {
        let state = pool.shared.lock();
        let held = out.iter().filter_map(|buffer| buffer.slot.as_ref());
        let all = held.chain(state.kept.iter().flatten()).chain(state.empty.iter().flatten());
        all.filter_map(Slot::resident_bytes).sum()
    }

    #[test]
    fn in_large_pages_the_limit_is_held_to_whatever_lengths_come() {
        let limit_bytes = 16 << 20;
        let pool = BufferPool::in_large_pages(limit_bytes);
        let mut out: Vec<Buffer> = Vec::new();
        let mut random = 1_u64;
        for turn in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (random >> 33) as usize;
            if turn % 5 < 3
                && let Some(mut buffer) = pool.allocate(4096 << (number % 13))
            {
                buffer.fill(7);
                out.push(buffer);
            } else if !out.is_empty() {
                out.swap_remove(number % out.len());
            }
            let counted = {
                let state = pool.shared.lock();
                state.in_use_bytes + state.kept_bytes
            };
            assert!(counted <= limit_bytes, "{counted} in turn {turn}");
            if turn % 50 == 0 {
                let resident = resident_bytes(&pool, &out);
                assert!(resident <= counted, "{resident} of {counted} in turn {turn}");
            }
        }
        drop(out);
        assert!(resident_bytes(&pool, &[]) <= limit_bytes);
        let whole = pool.allocate(limit_bytes).unwrap();
        let state = pool.shared.lock();
        assert_eq!((state.in_use_bytes, state.kept_bytes), (limit_bytes, 0));
        drop(state);
        drop(whole);
    }

    #[test]
    fn in_large_pages_what_comes_with_a_buffer_is_kept_where_there_is_room() {
        let kept_bytes = |pool: &BufferPool| pool.shared.lock().kept_bytes;
        let pool = BufferPool::in_large_pages(4 << 20);
        let first = pool.allocate(64 << 10).unwrap();
        assert_eq!(kept_bytes(&pool), (2 << 20) - (64 << 10));
        assert_eq!(first.as_ptr().addr() % (2 << 20), 0);
        let second = pool.allocate(64 << 10).unwrap();
        assert_eq!(second.as_ptr().addr(), first.as_ptr().addr() + (64 << 10));
        let large = pool.allocate(2 << 20).unwrap();
        assert_eq!(large.as_ptr().addr() % (2 << 20), 0);
        assert_eq!(kept_bytes(&pool), (2 << 20) - (128 << 10), "nothing comes with a whole one");
        // One of those that are kept makes room for a short one, and none for what would come with it.
        let short = pool.allocate(4096).unwrap();
        assert_eq!(kept_bytes(&pool), (2 << 20) - (192 << 10));
        drop((first, second, large, short));
        let small = BufferPool::in_large_pages(1 << 20);
        drop(small.allocate(4096));
        assert_eq!(kept_bytes(&small), 4096);
    }

    #[test]
    fn a_share_takes_no_more_than_it_leaves() {
        let pool = BufferPool::new(12 * 4096);
        let (first, second) = (pool.share(), pool.share());
        let greedy: Vec<Buffer> = std::iter::from_fn(|| first.allocate(4096)).collect();
        assert_eq!(greedy.len(), 6, "half for one user alone");
        let modest: Vec<Buffer> = std::iter::from_fn(|| second.allocate(4096)).collect();
        assert_eq!(modest.len(), 3, "half of what is left");
        drop(greedy);
        assert_eq!(std::iter::from_fn(|| second.allocate(4096)).collect::<Vec<_>>().len(), 3);
        drop(modest);
        assert_eq!(pool.in_use_bytes(), 0, "all of it was given back");
    }

    #[test]
    fn a_share_gets_its_first_buffer_however_large() {
        let pool = BufferPool::new(16 << 20);
        let share = pool.share();
        let whole = share.allocate(16 << 20).unwrap();
        assert!(share.allocate(1).is_none());
        drop(whole);
        assert!(share.allocate(1).is_some());
    }

    #[test]
    fn who_has_nothing_gets_something_whatever_the_others_keep() {
        let pool = BufferPool::new(32 << 20);
        let kept: Vec<(BufferPool, Vec<Buffer>)> = (0..100)
            .map(|_| {
                let share = pool.share();
                let buffers = std::iter::from_fn(|| share.allocate(512 << 10)).collect();
                (share, buffers)
            })
            .collect();
        assert_eq!(pool.in_use_bytes(), 30 << 20, "a sixteenth is left");
        let alone = BufferPool::new(32 << 20).share();
        let half: Vec<Buffer> = std::iter::from_fn(|| alone.allocate(512 << 10)).collect();
        assert_eq!((half.len(), alone.starvations()), (30, 0), "it is refused for what it has itself");
        let starvations = pool.starvations();
        assert!(starvations > 0);
        let late = pool.share();
        assert!(late.allocate(512 << 10).is_none() && !late.has_room(512 << 10));
        assert_eq!(pool.starvations(), starvations + 1);
        for _ in 0..100 {
            let short = late.allocate(RESERVED_BUFFER_BYTES_MAX).expect("there is room");
            assert!(late.allocate(4096).is_none(), "one each");
            drop(short);
        }
        assert_eq!(pool.starvations(), starvations + 1 + 100, "it has hardly anything");
        assert!(late.allocate(64 << 20).is_none());
        assert_eq!(pool.starvations(), starvations + 1 + 100, "nobody can have so much");
        let reserved = late.allocate_reserved(4096, None).expect("there is room");
        assert!(late.allocate_reserved(8192, None).is_none(), "it has one");
        let larger = late.allocate_reserved(8192, Some(&reserved)).expect("in its place");
        assert!(late.allocate_reserved(RESERVED_BUFFER_BYTES_MAX + 1, Some(&larger)).is_none());
        drop((reserved, larger));
        // As many others as there is room for.
        let shares: Vec<BufferPool> = (0..20).map(|_| pool.share()).collect();
        let short: Vec<Buffer> =
            shares.iter().filter_map(|share| share.allocate(RESERVED_BUFFER_BYTES_MAX)).collect();
        assert_eq!((short.len(), pool.in_use_bytes()), (16, 32 << 20));
        drop((kept, short));
        let state = pool.shared.lock();
        assert_eq!((state.in_use_bytes, state.reserved_bytes), (0, 0));
    }

    #[test]
    fn what_was_not_asked_for_has_half_of_the_pool_at_most() {
        let pool = BufferPool::new(16 * 4096);
        let shares: Vec<BufferPool> = (0..4).map(|_| pool.share()).collect();
        let mut unasked = Vec::new();
        for _ in 0..8 {
            unasked.extend(shares.iter().filter_map(|share| share.allocate_unasked(4096)));
        }
        assert_eq!(pool.in_use_bytes(), 6 * 4096, "as much of the half is left as one has");
        assert!(!shares[0].has_room_unasked(4096));
        assert!(shares[0].allocate(4096).is_some(), "the other half is for what was asked for");
        let late = pool.share();
        assert!(late.allocate_unasked(4096).is_some(), "a first buffer is granted");
        unasked.truncate(2);
        assert_eq!(late.taken_bytes(), 0);
        assert!(late.has_room_unasked(3 * 4096) && !late.has_room_unasked(4 * 4096));
        drop(unasked);
        assert_eq!((pool.in_use_bytes(), pool.shared.lock().unasked_bytes), (0, 0));
    }

    #[test]
    fn a_buffer_may_take_the_place_of_a_smaller_one() {
        let pool = BufferPool::new(16 * 4096);
        let share = pool.share();
        let smaller = share.allocate_unasked(4096).unwrap();
        assert!(share.allocate(8 * 4096).is_none(), "both together are more than is left");
        let larger = share.allocate_instead(8 * 4096, &smaller).unwrap();
        drop(smaller);
        assert_eq!((share.taken_bytes(), pool.in_use_bytes()), (8 * 4096, 8 * 4096));
        assert!(pool.has_room(8 * 4096) && !pool.has_room(8 * 4096 + 1));
        drop(larger);
        assert!(pool.is_possible(16 * 4096) && !pool.is_possible(16 * 4096 + 1));
        assert!(!pool.is_possible(usize::MAX));
    }

    #[test]
    fn memory_is_used_again() {
        let pool = BufferPool::new(1 << 20);
        let first = pool.allocate(8192).unwrap();
        let address = first.as_ptr().addr();
        drop(first);
        assert_eq!(pool.allocate(5000).unwrap().as_ptr().addr(), address);
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let pool = BufferPool::new(usize::MAX);
        assert!(pool.allocate(usize::MAX).is_none());
        assert!(pool.allocate(usize::MAX / 2).is_none());
        assert_eq!(pool.in_use_bytes(), 0);
    }

    #[test]
    fn buffers_outlive_the_pool_on_another_thread() {
        let buffer = BufferPool::new(1 << 20).allocate(4096).unwrap();
        let len = std::thread::spawn(move || buffer.len()).join().unwrap();
        assert_eq!(len, 4096);
    }
}
