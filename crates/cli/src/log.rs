//! The log: tracing events on the standard error, filtered by `--log`.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// What `--log` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFilter(String);

impl Default for LogFilter {
    /// Logins, logouts and what went wrong.
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice =
            "use off, error, warn, info, debug, trace, or a filter such as info,lunette_target=debug";
        // The filter would take a mistyped level for the name of a module, and then say nothing at all.
        let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
        let is_module =
            |part: &str| part.contains(['=', '[']) || part.contains("::") || part.starts_with("lunette");
        if let Some(part) = text.split(',').find(|part| !is_level(part) && !is_module(part)) {
            return Err(format!("{part:?} is not a level; {advice}"));
        }
        EnvFilter::try_new(text).map_err(|error| format!("{error}; {advice}"))?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Begins to log. Call it once.
pub(crate) fn start(filter: &LogFilter) {
    let colours =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&filter.0))
        .with_writer(io::stderr)
        .with_ansi(colours)
        .with_target(false)
        // It would be told on the standard error, which is what is broken then, and end the process.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_taken() {
        for text in
            ["off", "warn", "INFO", "info,lunette_target=debug", "lunette_target::reactor", "lunette=trace"]
        {
            assert_eq!(text.parse::<LogFilter>().map(|filter| filter.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(LogFilter::default().to_string().parse(), Ok(LogFilter::default()));
    }

    #[test]
    fn mistyped_levels_are_refused() {
        for text in ["", "verbose", "inf", "info,", "lunette_target=loud"] {
            let message = text.parse::<LogFilter>().expect_err(text);
            assert!(message.contains("use off, error, warn, info, debug, trace"), "{message}");
        }
    }
}
