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
            let wanted = |page: &clap::Command| page_name(page).is_some_and(|known| known == name);
            pages().into_iter().find(wanted).ok_or_else(|| Failure::usage(no_such_page(name)))?
        }
    };
    let mut roff = Vec::new();
    Man::new(page).render(&mut roff).map_err(|error| Failure::new("cannot make the page", &error))?;
    print(&roff)
}

fn no_such_page(name: &str) -> String {
    let pages = pages();
    let known: Vec<&str> = pages.iter().filter_map(page_name).collect();
    format!("there is no page for {name:?}; there are {}", known.join(", "))
}

/// How the page of a subcommand is asked for; `None` for the overview.
fn page_name(page: &clap::Command) -> Option<&str> {
    page.get_display_name()?.strip_prefix("lunette-")
}

/// The command itself and its subcommands, and theirs, but for `help`, which needs no page.
fn pages() -> Vec<clap::Command> {
    fn add(command: &clap::Command, pages: &mut Vec<clap::Command>) {
        pages.push(command.clone());
        for subcommand in command.get_subcommands().filter(|command| command.get_name() != "help") {
            add(subcommand, pages);
        }
    }
    let mut pages = Vec::new();
    add(&definition(), &mut pages);
    pages
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
