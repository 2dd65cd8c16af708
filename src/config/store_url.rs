//! Where the jobs are: the URL of a store.

use std::path::PathBuf;

use mongodb::error::ErrorKind;

use super::secret;

/// The URL of a store.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A MongoDB deployment and a database in it.
    Mongo(String),
    /// An SQLite file; `None`: in memory, lost when the process ends.
    Sqlite(Option<PathBuf>),
}

/// Omits the credentials.
impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(None) => f.write_str("sqlite::memory:"),
            Self::Sqlite(Some(path)) => write!(f, "sqlite:{}", path.display()),
            Self::Mongo(url) => f.write_str(&secret::mask(url)),
        }
    }
}

impl std::str::FromStr for StoreUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        match url.strip_prefix("sqlite:") {
            Some("") => return Err("must name a file: sqlite:PATH, or sqlite::memory:".to_owned()),
            Some(":memory:") => return Ok(Self::Sqlite(None)),
            // In other programs two slashes stand before a host, and three before a relative path, or an absolute one.
            Some(path) if path.starts_with("//") => {
                let path = path.trim_start_matches('/');
                return Err(format!(
                    "must be sqlite:{path} (in the working directory) or sqlite:/{path}, without two slashes"
                ));
            }
            Some(path) => return Ok(Self::Sqlite(Some(path.into()))),
            None => {}
        }
        let rest = url.strip_prefix("mongodb://").or_else(|| url.strip_prefix("mongodb+srv://"));
        let Some(rest) = rest else {
            return Err("must be sqlite:PATH, sqlite::memory:, mongodb://… or mongodb+srv://…".to_owned());
        };
        let after_hosts = rest.split_once('/').map_or("", |(_, after)| after);
        let database = after_hosts.split('?').next().unwrap_or_default();
        if database.is_empty() {
            return Err("must name a database behind the host: mongodb://HOST/DATABASE".to_owned());
        }
        // The driver's errors quote parts of the URL, which may be the password.
        mongodb::options::ConnectionString::parse(url).map_err(|error| wrong_url(url, &error))?;
        Ok(Self::Mongo(url.to_owned()))
    }
}

/// Returns what is wrong with a URL of MongoDB, without quoting any of it but its scheme and options.
fn wrong_url(url: &str, error: &mongodb::error::Error) -> String {
    let lowercase = url.to_lowercase(); // as the driver quotes the names of options
    let quotes = |word: &str| word.len() > 2 && lowercase.contains(&word.to_lowercase());
    let text = match &*error.kind {
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        _ => error.to_string(),
    };
    let words = text.split_inclusive([' ', ':', ',', '"', '\'', '`', '@', '/']);
    let said: String = words
        .map(|word| {
            let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
            if quotes(bare) && !is_option(url, bare) { word.replace(bare, "***") } else { word.to_owned() }
        })
        .collect();
    format!("is not a MongoDB URL: {said}")
}

/// Returns whether a word is one of the names that may be quoted of a URL: of an option, unless what seems to be options may be a part
/// of a password.
fn is_option(url: &str, word: &str) -> bool {
    let options = url.split_once('?').map_or("", |(_, options)| options);
    let mut names =
        options.split(['&', ';']).map(|option| option.split_once('=').map_or(option, |(name, _)| name));
    let is_named = !options.contains('@') && names.any(|name| name.eq_ignore_ascii_case(word));
    is_named
        || matches!(
            word,
            "mongodb" | "srv" | "host" | "port" | "database" | "replicaSet" | "directConnection" | "tls"
        )
}
