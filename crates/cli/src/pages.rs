//! Manual pages and shell completions, made from the definition of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::Failure;
use crate::options::{ManOptions, definition};

/// `lunette man`.
pub(crate) fn man(options: &ManOptions) -> Result<(), Failure> {
    let page = match (&options.out, &options.page) {
        (Some(directory), _) => return write_all(directory),
        (None, None) => definition(),
        (None, Some(name)) => {
            definition().find_subcommand(name).cloned().ok_or_else(|| Failure::usage(no_such_page(name)))?
        }
    };
    let mut roff = Vec::new();
    Man::new(page).render(&mut roff).map_err(|error| Failure::new("cannot make the page", &error))?;
    print(&roff)
}

fn no_such_page(name: &str) -> String {
    let known: Vec<String> = pages().iter().skip(1).map(|page| page.get_name().to_owned()).collect();
    format!("there is no page for {name:?}; there are {}", known.join(", "))
}

/// The command itself and its subcommands, but for `help`, which needs no page.
fn pages() -> Vec<clap::Command> {
    let command = definition();
    let subcommands = command.get_subcommands().filter(|command| command.get_name() != "help").cloned();
    std::iter::once(command.clone()).chain(subcommands).collect()
}

fn write_all(directory: &Path) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(format!("cannot write pages to {}", directory.display()), &error);
    fs::create_dir_all(directory).map_err(failed)?;
    for page in pages() {
        Man::new(page).generate_to(directory).map_err(failed)?;
    }
    Ok(())
}

/// `lunette completions`.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "lunette", &mut script);
    print(&script)
}

fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        // `| head` has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| Failure::new("cannot write to the standard output", &error)),
    }
}
