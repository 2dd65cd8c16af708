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
            Some(path) => {
                return match path_fault(path) {
                    Some(what) => Err(what),
                    None => Ok(Self::Sqlite(Some(path.into()))),
                };
            }
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
        let parsed =
            mongodb::options::ConnectionString::parse(url).map_err(|error| wrong_url(url, &error))?;
        if let Some(what) = parsed.default_database.as_deref().and_then(database_fault) {
            return Err(what);
        }
        Ok(Self::Mongo(url.to_owned()))
    }
}

/// Returns what is wrong with the path of an SQLite file: other programs take options behind it.
fn path_fault(path: &str) -> Option<String> {
    let (plain, options) =
        path.split_once('?').map_or((path, None), |(plain, options)| (plain, Some(options)));
    let plain = plain.strip_prefix("file:").unwrap_or(plain).trim_start_matches("//");
    if path.trim().is_empty() {
        return Some("must name a file: sqlite:PATH, or sqlite::memory:".to_owned());
    }
    if options.is_some() || path.starts_with("file:") {
        let remedy =
            match options.is_some_and(|options| options.contains("mode=memory")) || plain == ":memory:" {
                true => "sqlite::memory:".to_owned(),
                false => format!("sqlite:{plain}"),
            };
        return Some(format!(
            "must be {remedy}: sqlite: takes a path as it is, without file: and without options behind a ?"
        ));
    }
    (path.trim() != path).then(|| format!("must not begin or end with spaces: sqlite:{}", path.trim()))
}

/// Returns why MongoDB has no such database, or not for others: what is sent to it would fail half-way.
fn database_fault(name: &str) -> Option<String> {
    const SYSTEM: [&str; 3] = ["admin", "local", "config"];
    const REFUSED: &str = "/\\. \"$*<>:|?\0";
    if SYSTEM.iter().any(|system| system.eq_ignore_ascii_case(name)) {
        return Some(format!(
            "must name a database of its own, and {name} is one of MongoDB's: mongodb://HOST/DATABASE, with ?authSource={name} where the user is known there"
        ));
    }
    if name.chars().any(|c| REFUSED.contains(c)) {
        return Some("must name a database without any of / \\ . \" $ * < > : | ? and spaces".to_owned());
    }
    (name.len() > 63).then(|| format!("must name a database of up to 63 bytes; the name has {}", name.len()))
}

/// The options of a URL that the driver knows, and its own words for them: quoted, whatever else in the URL is as well.
const QUOTABLE: [&str; 49] = [
    "appname",
    "authmechanism",
    "authsource",
    "authmechanismproperties",
    "compressors",
    "connecttimeoutms",
    "directconnection",
    "heartbeatfrequencyms",
    "journal",
    "loadbalanced",
    "localthresholdms",
    "maxidletimems",
    "maxstalenessseconds",
    "maxpoolsize",
    "minpoolsize",
    "maxconnecting",
    "proxyhost",
    "proxyport",
    "proxyusername",
    "proxypassword",
    "readconcernlevel",
    "readpreference",
    "readpreferencetags",
    "replicaset",
    "retrywrites",
    "retryreads",
    "servermonitoringmode",
    "serverselectiontimeoutms",
    "sockettimeoutms",
    "tlsinsecure",
    "tlsallowinvalidcertificates",
    "tlscafile",
    "tlscertificatekeyfile",
    "uuidrepresentation",
    "waitqueuetimeoutms",
    "wtimeoutms",
    "zlibcompressionlevel",
    "srvservicename",
    "srvmaxhosts",
    "adaptiveretries",
    "maxadaptiveretries",
    "mechanism",
    "string",
    "option",
    "name",
    "mongodb",
    "host",
    "port",
    "database",
];

/// Returns the option that a message of the driver calls unknown although it knows the name: one of those that need a feature of it.
fn without_feature(text: &str) -> Option<&str> {
    let (option, rest) = text.split_once(" is an invalid option")?;
    rest.ends_with(&format!(": {option}")).then_some(option)
}

/// Returns what is wrong with a URL of MongoDB, without quoting any of it but its scheme and options.
fn wrong_url(url: &str, error: &mongodb::error::Error) -> String {
    let lowercase = url.to_lowercase(); // as the driver quotes the names of options
    let quotes = |word: &str| word.len() > 2 && lowercase.contains(&word.to_lowercase());
    let text = match &*error.kind {
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        _ => error.to_string(),
    };
    if let Some(option) = without_feature(&text) {
        return format!(
            "has the option {option}, which this build of Tailback has no support for: leave it out"
        );
    }
    let words = text.split_inclusive([' ', ':', ',', '"', '\'', '`', '@', '/']);
    let said: String = words
        .map(|word| {
            let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
            match quotes(bare) && !is_option(url, bare) {
                true => word.replace(
                    bare,
                    &of_option(url, bare).map_or("***".to_owned(), |option| format!("*** ({option})")),
                ),
                false => word.to_owned(),
            }
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
        || QUOTABLE.iter().any(|known| known.eq_ignore_ascii_case(word))
        || matches!(word, "srv" | "tls" | "ssl")
}

/// Returns the option that has a word as its value, unless what seems to be options may be a part of a password.
fn of_option<'u>(url: &'u str, value: &str) -> Option<&'u str> {
    let options = url.split_once('?').map(|(_, options)| options).filter(|options| !options.contains('@'))?;
    let mut pairs = options.split('&').filter_map(|option| option.split_once('='));
    let (name, _) = pairs.find(|(_, given)| given.eq_ignore_ascii_case(value))?;
    QUOTABLE.iter().any(|known| known.eq_ignore_ascii_case(name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_its_remedy() {
        let long = format!("mongodb://h/{}", "x".repeat(64));
        for (url, says) in [
            ("mongodb://h/admin", "must name a database of its own"),
            ("mongodb://h/local", "must name a database of its own"),
            ("mongodb://h/config?replicaSet=rs0", "must name a database of its own"),
            ("mongodb://h/ga.p", "must name a database without any of"),
            ("mongodb://h/ga%3Fp", "must name a database without any of"),
            (&long, "up to 63 bytes; the name has 64"),
            ("mongodb://h/j?replicaSett=rs0", "similar name exists: replicaset"),
            ("mongodb://h/j?authMechanism=FOO", "invalid mechanism string: *** (authMechanism)"),
            ("mongodb://h/j?compressors=zlib", "has the option compressors, which this build"),
            ("sqlite:x.db?mode=ro", "must be sqlite:x.db: "),
            ("sqlite:file:x.db?mode=memory", "must be sqlite::memory:: "),
            ("sqlite:file:x.db", "must be sqlite:x.db: "),
            ("sqlite: ", "must name a file"),
            ("sqlite: x.db", "must not begin or end with spaces: sqlite:x.db"),
        ] {
            let error = url.parse::<StoreUrl>().unwrap_err();
            assert!(error.contains(says), "{url}: {error}");
        }
        for url in
            ["mongodb://h/jobs", "mongodb://u:p@h/jobs?authSource=admin", "sqlite:x.db", "sqlite:/a b/x.db"]
        {
            assert!(url.parse::<StoreUrl>().is_ok(), "{url}");
        }
    }
}
