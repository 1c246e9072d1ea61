//! What was copied is read again at both ends, and compared.

use std::sync::mpsc::sync_channel;
use std::thread;

use indicatif::ProgressBar;

use super::super::transfer::Difference;
use super::endpoint::Endpoint;
use super::pieces::{Piece, Pieces, WAITING_MAX};
use crate::failure::Failure;

/// Reads both and compares them.
pub(super) fn compare(
    source: &mut dyn Endpoint,
    destination: &mut dyn Endpoint,
    pieces: Pieces,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    bar.set_position(0);
    let pieces = pieces.of_everything();
    let bytes = source.size_bytes();
    let (block_bytes, name) = (destination.block_bytes(), destination.name());
    let (sender, receiver) = sync_channel(WAITING_MAX);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let gone = |_| Failure::internal("the comparing side has ended");
            source.read(0..bytes, pieces, &mut |piece| sender.send(piece).map_err(gone))
        });
        let compared = destination.read(0..bytes, pieces, &mut |found| {
            let (offset_bytes, expected, found) = match (receiver.recv(), found) {
                (Ok(Piece::Data { offset_bytes: of, data }), Piece::Data { offset_bytes, data: found })
                    if of == offset_bytes && data.len() == found.len() =>
                {
                    (offset_bytes, data, found)
                }
                // Why is with the reader.
                _ => return Err(Failure::internal("the two sides are not read alike")),
            };
            bar.inc(found.len() as u64);
            match Difference::find(offset_bytes, block_bytes, &expected, &found) {
                Some(difference) => Err(difference.failure(&name, block_bytes)),
                None => Ok(()),
            }
        });
        drop(receiver);
        let read = reader.join().unwrap_or_else(|_| Err(Failure::internal("the reading side failed")));
        match compared {
            Err(failure) if failure.is_internal() => read.and(Err(failure)),
            compared => compared,
        }
    })
}
