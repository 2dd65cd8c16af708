//! What is generated from the arguments: completions for shells, and man pages.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap_complete::Shell;

use super::help::{Sections, each, escaped};

/// The commands that generate files.
#[derive(Debug, Subcommand)]
pub enum Generate {
    /// Print the completions for a shell: source <(tailback completions bash)
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the man pages, one for each command.
    Man {
        /// The folder, which is made if it is not there
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

impl Generate {
    /// Generates it for the whole command line.
    ///
    /// # Errors
    ///
    /// What cannot be written.
    pub fn run(self, mut command: clap::Command) -> std::io::Result<()> {
        match self {
            Self::Completions { shell } => {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut command, "tailback", &mut text);
                match std::io::stdout().lock().write_all(&text) {
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
                    written => written,
                }
            }
            Self::Man { out } => {
                std::fs::create_dir_all(&out)?;
                let mut command = command.disable_help_subcommand(true);
                command.build();
                each(&command, &mut |command, sections| page(command, sections, &out))
            }
        }
    }
}

/// Writes the page of a command.
fn page(command: &clap::Command, sections: &Sections, out: &Path) -> std::io::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    synopsis(&mut command.clone(), &mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    text.extend(sections.page().into_bytes());
    if command.get_version().is_some() {
        page.render_version_section(&mut text)?;
    }
    std::fs::write(out.join(page.get_filename()), text)
}

/// Writes how a command is called, as its help says it: clap_mangen knows of no `--`, and of no argument that may be repeated.
fn synopsis(command: &mut clap::Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    let usage = command.render_usage().to_string();
    writeln!(text, ".SH SYNOPSIS")?;
    for (n, line) in usage.trim_start_matches("Usage:").lines().enumerate() {
        if n > 0 {
            writeln!(text, ".br")?;
        }
        writeln!(text, "{}", escaped(line.trim()))?;
    }
    Ok(())
}
