//! What becomes of a thread that reads a [mapping](super::Mapping) where nothing can be read: it goes on, and is told.
//!
//! The kernel says with SIGBUS that a page cannot be brought, because its disk fails or somebody has cut the file. The handler
//! puts a page of zeroes in its place, and a mark on the whole mapping, whose reader looks for it before he believes what he has
//! read. Signals that are about something else go to whoever handled them before.

#![allow(unsafe_code)]

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{LazyLock, Once};

use libc::{c_int, c_void, siginfo_t};

use crate::store::residency::page_bytes;

/// A mapping as the handler finds it, who can neither wait for locks nor allocate. Never freed, nor used again: a few bytes for each volume
/// that was ever opened.
#[derive(Debug)]
pub(super) struct Place {
    start: usize,
    /// Bytes; zero once nobody reads it any more.
    length: AtomicUsize,
    is_broken: AtomicBool,
    /// Does not change once others can see this.
    next: AtomicPtr<Place>,
}

static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

static PAGE_BYTES: LazyLock<usize> = LazyLock::new(page_bytes);

/// What handled the signal before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

impl Place {
    /// From now on it is the mapping of so many bytes from `start` on that is marked.
    pub(super) fn take(start: usize, length: usize) -> &'static Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(handle);
        let place: &'static Self = Box::leak(Box::new(Self {
            start,
            length: AtomicUsize::new(length),
            is_broken: AtomicBool::new(false),
            next: AtomicPtr::default(),
        }));
        let link = |first| {
            place.next.store(first, Ordering::Relaxed);
            Some(ptr::from_ref(place).cast_mut())
        };
        // It never says `None`.
        let _ = PLACES.fetch_update(Ordering::AcqRel, Ordering::Acquire, link);
        place
    }

    /// Nobody reads the mapping any more.
    pub(super) fn leave(&self) {
        self.length.store(0, Ordering::Relaxed);
    }

    /// Whether a page of the mapping could not be brought: zeroes may be in its place.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    fn has(&self, address: usize) -> bool {
        let length = self.length.load(Ordering::Relaxed);
        address.checked_sub(self.start).is_some_and(|offset| offset < length)
    }
}

fn places() -> impl Iterator<Item = &'static Place> {
    let at = |place: &AtomicPtr<Place>| {
        // SAFETY: places are leaked before they are linked, so each pointer is null or good for ever.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    };
    std::iter::successors(at(&PLACES), move |place| at(&place.next))
}

fn handle() {
    LazyLock::force(&PAGE_BYTES);
    // SAFETY: a structure of numbers and of a set of signals, for which zeroes are good.
    let mut before: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the call writes one `sigaction`, which outlives it.
    unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) };
    BEFORE.store(Box::leak(Box::new(before)), Ordering::Release);
    install();
}

fn install() {
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let handler: Handler = on_bus_error;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the call reads one `sigaction`, whose handler takes what SA_SIGINFO says and does nothing that a handler must not.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
}

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel hands over a `siginfo_t`. One that it made itself, for a fault, has an address.
    let (is_fault, address) = unsafe { ((*info).si_code > 0, (*info).si_addr() as usize) };
    let place = if is_fault { places().find(|place| place.has(address)) } else { None };
    if let Some(place) = place {
        // Before the page can be read: who sees its zeroes sees the mark, too.
        place.is_broken.store(true, Ordering::SeqCst);
        if put_zeroes(address - address % *PAGE_BYTES) {
            return;
        }
    }
    pass_on(signal, info, context, is_fault);
}

fn put_zeroes(page: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let bytes = *PAGE_BYTES;
    // SAFETY: errno is this thread's own. The page is one of a mapping that is only ever read, by those who look for the mark afterwards.
    unsafe {
        let errno = *libc::__errno_location();
        let put = libc::mmap(page as *mut c_void, bytes, libc::PROT_READ, flags, -1, 0);
        *libc::__errno_location() = errno;
        put != libc::MAP_FAILED
    }
}

/// Lets those handle it who did before.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void, is_fault: bool) {
    // SAFETY: set before the handler was, and leaked.
    let Some(before) = (unsafe { BEFORE.load(Ordering::Acquire).as_ref() }) else { return };
    match before.sa_sigaction {
        // A fault cannot be ignored.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: gives the signal its first meaning again. What was a fault comes again as soon as this returns; any other
            // is sent again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            // SAFETY: it is neither of the two numbers above, so it is a function, of what the flag says.
            unsafe {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    mem::transmute::<usize, Handler>(handler)(signal, info, context);
                } else {
                    mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
                }
            }
            if !is_fault {
                // The one that Rust comes with takes itself away, and waits for the fault to come again, which this is not.
                install();
            }
        }
    }
}
