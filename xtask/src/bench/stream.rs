//! `lunette-bench stream`: what large reads cost a server at least, by `sendfile` over TCP alone.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lunette_tests::process::run;
use lunette_tests::server::Server;
use serde::Deserialize;

use super::targets::{READY_LIMIT, processor_time};
use super::{Stand, TOOL_LIMIT};

/// A server that answers each request with 512 KiB of a file; ended when dropped.
#[derive(Debug)]
pub(crate) struct Stream {
    server: Server,
    portal: String,
}

/// What one run gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streamed {
    pub(crate) bytes_per_s: f64,
    /// The server's processor time for each 512 KiB, in microseconds.
    pub(crate) processor_us: Option<f64>,
}

impl Stream {
    /// # Errors
    /// It does not start.
    pub(crate) fn start(stand: &Stand<'_>, file: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Ready {
            portal: String,
        }
        let mut command = Command::new(stand.generator().program());
        command.args(["stream", "serve"]).arg(file);
        let server = Server::start(&mut command, &stand.path("stream.log"), READY_LIMIT)?;
        let ready: Ready = serde_json::from_str(server.first_line()).context("the stream's first line")?;
        Ok(Self { server, portal: ready.portal })
    }

    /// One measurement with so many requests in flight.
    ///
    /// # Errors
    /// The server ended.
    pub(crate) fn read(&self, stand: &Stand<'_>, depth: u32, seconds: f64) -> Result<Streamed> {
        #[derive(Deserialize)]
        struct Told {
            operations: u64,
            bytes_per_s: f64,
        }
        let mut command = Command::new(stand.generator().program());
        command.args(["stream", "read", &self.portal, "--depth", &depth.to_string()]);
        command.args(["--seconds", &seconds.to_string()]);
        let before = processor_time(self.server.pid());
        let finished = run(&mut command, TOOL_LIMIT)?;
        let spent_ns =
            processor_time(self.server.pid()).zip(before).map(|(after, before)| after.since(&before));
        ensure!(
            finished.success(),
            "lunette-bench stream: {}: {}",
            finished.ending(),
            finished.output.trim()
        );
        let Told { operations, bytes_per_s } =
            serde_json::from_str(finished.output.trim()).context("what lunette-bench stream says")?;
        let processor_us = spent_ns.map(|spent| spent as f64 / 1e3 / operations.max(1) as f64);
        Ok(Streamed { bytes_per_s, processor_us })
    }
}
