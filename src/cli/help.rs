//! What every help and man page says beside its arguments: exit codes, the environment, files.

use clap::Command;

/// A name, and what it means.
type Entry = (&'static str, &'static str);

const EXIT_CODES: [Entry; 7] = [
    ("0", "done"),
    ("1", "failed"),
    ("2", "usage: the command line, a profile or the configuration is wrong, and nothing was done"),
    ("3", "there is nothing: no such thing, no job to reserve, not over in time"),
    ("4", "refused: the reservation is lost, the state does not allow it, a field is invalid"),
    ("5", "not allowed: the key is missing, wrong, or does not allow this"),
    ("6", "later: the server is not reached, or asks to try again; the outcome may be unknown"),
];
/// How many of them the commands have that ask no server.
const OWN_CODES: usize = 3;

const OF_SERVERS: [Entry; 4] = [
    ("TAILBACK_CONFIG", "the configuration file, without --config"),
    ("TAILBACK_LISTEN", "the address to listen on, without --listen"),
    ("TAILBACK_STORE", "the store, without --store"),
    ("TAILBACK_SECTION__OPTION", "any other option of the configuration, such as TAILBACK_LOG__FILTER"),
];
const OF_CLIENTS: [Entry; 8] = [
    ("TAILBACK_URL", "the server, without --url and --profile"),
    (
        "TAILBACK_KEY",
        "the API key; it is sent only to the server that the environment names, if it names one",
    ),
    ("TAILBACK_PROFILE", "the profile, where neither a flag nor TAILBACK_URL says which server"),
    ("TAILBACK_PROFILES", "another file with profiles"),
    ("TAILBACK_CA", "the file with the authorities to trust instead of the system's"),
    ("SSL_CERT_FILE", "the file with the system's authorities"),
    (
        "TRACEPARENT",
        "the trace that the calls are in, with TRACESTATE; those of `work` are in the traces of their jobs",
    ),
    ("NO_COLOR", "no colours, if it is not empty"),
];
const RESERVATION: Entry = ("TAILBACK_JOB_RESERVATION", "the token, without --reservation");
const OF_JOBS: Entry = (
    "TAILBACK_JOB_ID",
    "given to the command, with _QUEUE, _ATTEMPT, _MAX_ATTEMPTS, _RESERVATION, _HEADERS and others, as far as the job has them",
);

const CONFIGURATION: Entry =
    ("config.toml", "a configuration: `tailback config` prints one with every default");
const PROFILES: Entry = (
    "~/.config/tailback/profiles.toml",
    "profiles: [NAME] with url, key or key_file, and ca; without all else [default] is meant",
);

/// What is said below the arguments of a command.
#[derive(Default)]
pub struct Sections {
    /// Its exit codes.
    pub codes: Vec<Entry>,
    /// The variables that it reads.
    pub environment: Vec<Entry>,
    /// The files that it reads.
    pub files: Vec<Entry>,
}

/// What a command does, as far as its sections depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It asks a server.
    Asks,
    /// It works on a store, or its configuration.
    Serves,
    /// Neither.
    Neither,
}

impl Kind {
    /// Returns the kind of a command by its arguments; one without them does what the command above it does.
    fn of(command: &Command, above: Self) -> Self {
        let has = |name: &str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
        match (has("profile"), has("store")) {
            (true, _) => Self::Asks,
            (_, true) => Self::Serves,
            _ => above,
        }
    }
}

/// Returns what is said of the command of this kind.
fn sections(command: &Command, kind: Kind) -> Sections {
    let is_program = command.get_name() == "tailback";
    let (asks, serves) = (kind == Kind::Asks || is_program, kind == Kind::Serves);
    let mut sections = Sections::default();
    sections.codes.extend(&EXIT_CODES[..if asks { EXIT_CODES.len() } else { OWN_CODES }]);
    if serves {
        sections.environment.extend(OF_SERVERS);
        sections.files.push(CONFIGURATION);
    }
    if asks {
        sections.environment.extend(OF_CLIENTS);
        sections.files.push(PROFILES);
    }
    if command.get_arguments().any(|arg| arg.get_long() == Some("reservation")) {
        sections.environment.push(RESERVATION);
    }
    if command.get_name() == "work" {
        sections.environment.push(OF_JOBS);
    }
    sections
}

/// Returns the whole command line with these sections in every help.
pub fn documented(program: Command) -> Command {
    with_sections(program, Kind::Neither)
}

fn with_sections(command: Command, above: Kind) -> Command {
    let kind = Kind::of(&command, above);
    let text = sections(&command, kind).text();
    // What the program itself does without a command is no default for those below it.
    let below = if command.get_name() == "tailback" { Kind::Neither } else { kind };
    command.after_help(text).mut_subcommands(|own| with_sections(own, below))
}

/// Calls `write` with each command, from the inner ones on, and its sections.
pub fn each<E>(
    command: &Command,
    write: &mut dyn FnMut(&Command, &Sections) -> Result<(), E>,
) -> Result<(), E> {
    each_below(command, Kind::Neither, write)
}

fn each_below<E>(
    command: &Command,
    above: Kind,
    write: &mut dyn FnMut(&Command, &Sections) -> Result<(), E>,
) -> Result<(), E> {
    let kind = Kind::of(command, above);
    let below = if command.get_name() == "tailback" { Kind::Neither } else { kind };
    for own in command.get_subcommands().filter(|own| !own.is_hide_set()) {
        each_below(own, below, write)?;
    }
    write(command, &sections(command, kind))
}

impl Sections {
    fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, &Vec<Entry>)> {
        let all = [
            ("Exit codes:", "\"EXIT STATUS\"", &self.codes),
            ("Environment:", "ENVIRONMENT", &self.environment),
            ("Files:", "FILES", &self.files),
        ];
        all.into_iter().filter(|(.., entries)| !entries.is_empty())
    }

    /// Returns them as a help has them.
    fn text(&self) -> String {
        let section = |(head, _, entries): (&str, &str, &Vec<Entry>)| {
            let widest = entries.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            let line = |(name, meaning): &Entry| format!("  {name:<widest$}  {meaning}");
            format!("{head}\n{}", entries.iter().map(line).collect::<Vec<_>>().join("\n"))
        };
        self.each().map(section).collect::<Vec<_>>().join("\n\n")
    }

    /// Returns them as a man page has them.
    pub fn page(&self) -> String {
        let mut page = String::new();
        for (_, head, entries) in self.each() {
            page.push_str(&format!(".SH {head}\n"));
            for (name, meaning) in entries {
                page.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", escaped(name), escaped(meaning)));
            }
        }
        page
    }
}

/// Returns a line of a man page that is shown as this text.
pub fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
