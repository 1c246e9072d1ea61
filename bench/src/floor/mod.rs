//! `lunette-bench floor`: a bare loop without a protocol core. It reads all that came, handles each PDU where it lies,
//! and answers with one write; it checks what memory safety asks for and nothing else.
//!
//! It is the yardstick for the target, which does much more and is held to cost hardly more. It is no target: it obeys
//! whoever connects.

mod connection;
mod control;
mod login;
mod scsi;
mod store;
mod transfer;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunette_tcp::Acceptance;

use crate::wait::{Wait, Waiter};
use connection::Connection;
use store::{Place, Store};

/// What `floor` is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// A file, or mem:SIZE
    store: Place,
    /// Where to listen; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    portal: SocketAddr,
    /// Answer reads with sendfile: no data enters this process
    #[arg(long)]
    sendfile: bool,
    /// How to wait for commands
    #[arg(long, value_enum, default_value_t = Wait::Block)]
    wait: Wait,
}

/// The key of the listening socket; connections count from 0.
const LISTENER: u64 = u64::MAX;

/// Serves until it is killed.
///
/// # Errors
/// It cannot listen, or the store cannot be opened.
pub(crate) fn run(options: &Options) -> Result<()> {
    crate::limits::raise_open_files();
    let mut store = Store::open(&options.store)?;
    ensure!(!options.sendfile || matches!(store, Store::File(..)), "sendfile sends files");
    let listener = TcpListener::bind(options.portal).with_context(|| options.portal.to_string())?;
    listener.set_nonblocking(true)?;
    let acceptance = Acceptance::prepare(&listener);
    let mut waiter = Waiter::new(options.wait)?;
    waiter.add(&listener, LISTENER)?;
    println!("{}", serde_json::json!({ "portal": listener.local_addr()?.to_string() }));

    let mut connections: Vec<Option<Connection>> = Vec::new();
    loop {
        for index in 0..waiter.wait()? {
            match waiter.ready(index) {
                Some(LISTENER) => {
                    accept((&listener, &acceptance), &waiter, &mut connections, options.sendfile)?;
                }
                Some(key) => {
                    let Some(slot) = connections.get_mut(usize::try_from(key)?) else { continue };
                    serve(slot, key, &waiter, &mut store)?;
                }
                None => {}
            }
        }
    }
}

fn accept(
    (listener, acceptance): (&TcpListener, &Acceptance),
    waiter: &Waiter,
    connections: &mut Vec<Option<Connection>>,
    sendfile: bool,
) -> Result<()> {
    let socket = match listener.accept() {
        Ok((socket, _)) => socket,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {
            return Ok(());
        }
        Err(error) => return Err(error).context("accepting a connection"),
    };
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    acceptance.settle(&socket);
    let free = connections.iter().position(Option::is_none).unwrap_or(connections.len());
    waiter.add(&socket, free as u64)?;
    if free == connections.len() {
        connections.push(None);
    }
    connections[free] = Some(Connection::new(socket, sendfile));
    Ok(())
}

/// One turn of a connection, which may be its last.
fn serve(slot: &mut Option<Connection>, key: u64, waiter: &Waiter, store: &mut Store) -> Result<()> {
    let Some(connection) = slot else { return Ok(()) };
    let was_blocked = connection.is_blocked();
    match connection.turn(store) {
        Ok(true) => {
            let is_blocked = connection.is_blocked();
            if is_blocked != was_blocked {
                waiter.watch(connection.socket(), key, !is_blocked, is_blocked)?;
            }
        }
        Ok(false) => *slot = None,
        Err(error) => {
            eprintln!("connection {key}: {error:#}");
            *slot = None;
        }
    }
    Ok(())
}
