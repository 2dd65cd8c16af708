//! Which server is meant, and with which key: flags, then a named profile, then the environment, then the default profile.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::Authority;
use serde::Deserialize;

use super::failure::Failure;
use super::out::note;
use super::shown::shown;

/// Where a server is if nothing says it.
const DEFAULT_URL: &str = "http://127.0.0.1:8321";

/// What all commands for people share.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Which server")]
pub struct Options {
    /// The server, such as https://queue.example.org [env: TAILBACK_URL] [default: http://127.0.0.1:8321]
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    access: Access,
    /// Print the bodies of responses as they are, for scripts
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
}

/// The key, and what is trusted.
#[derive(Clone, Default, clap::Args)]
#[command(next_help_heading = "Which server")]
pub struct Access {
    /// The API key. Others on this machine can read it there: prefer TAILBACK_KEY, --key-file or a profile [env: TAILBACK_KEY]
    #[arg(long, global = true, value_name = "KEY", conflicts_with = "key_file")]
    key: Option<String>,
    /// A file with the API key in it
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// A profile of ~/.config/tailback/profiles.toml [env: TAILBACK_PROFILE]
    #[arg(long, global = true, value_name = "NAME")]
    profile: Option<String>,
    /// Trust only the authorities in this file (PEM) instead of the system's [env: TAILBACK_CA]
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// A server, and how to talk to it. Not `Debug`: it has a secret.
pub struct Target {
    /// Whether over TLS.
    pub is_tls: bool,
    /// Its host, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The value of the `host` header.
    pub authority: String,
    /// What stands before every path; no slash at its end.
    pub prefix: String,
    /// The value of the `authorization` header.
    pub authorization: Option<HeaderValue>,
    /// The file with what is trusted instead of the system's authorities.
    pub ca: Option<PathBuf>,
    /// The variables with which a command that is run for a job means the same server; those without a value are removed.
    pub environment: Vec<(&'static str, Option<OsString>)>,
}

impl Target {
    /// Returns its URL, for people.
    pub fn url(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        shown(&format!("{scheme}://{}{}", self.authority, self.prefix))
    }
}

/// A profile, as its file has it. Not `Debug`: it has a secret.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    url: Option<String>,
    key: Option<String>,
    key_file: Option<PathBuf>,
    ca: Option<PathBuf>,
}

impl Options {
    /// Returns the server that is meant.
    pub fn target(&self) -> Result<Target, Failure> {
        self.access.target(self.url.as_deref())
    }
}

impl Access {
    /// Returns the server that is meant, where flags name this URL or none.
    pub fn target(&self, url: Option<&str>) -> Result<Target, Failure> {
        self.resolve(url, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn resolve(
        &self,
        flag: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Target, Failure> {
        let named = match &self.profile {
            Some(name) => Some(profile(name, variable)?),
            None => None,
        };
        // The environment's profile counts after its variables, and `default` need not be there.
        let of_profile = |name: &str| format!("the profile {}", shown(name));
        let (mut url, mut by) = (flag.map(str::to_owned), "--url".to_owned());
        let mut own = named.clone().unwrap_or_default();
        let mut is_of_profile = false;
        if let (None, Some(name)) = (&url, &self.profile) {
            (url, by) = (own.url.clone(), of_profile(name));
            is_of_profile = url.is_some();
        }
        if url.is_none() {
            (url, by) = (variable("TAILBACK_URL"), "TAILBACK_URL".to_owned());
        }
        if url.is_none() && named.is_none() {
            let name = variable("TAILBACK_PROFILE");
            by = of_profile(name.as_deref().unwrap_or("default"));
            own = match name {
                Some(name) => profile(&name, variable)?,
                None => profiles(variable)?.remove("default").unwrap_or_default(),
            };
            url = own.url.clone();
            is_of_profile = true;
        }
        if let Some(name) = &self.profile
            && flag.is_none()
            && own.url.is_none()
        {
            return Err(usage(format!("the profile {} has no url", shown(name))));
        }
        // A profile's key is for the profile's server, and is shown to no other.
        let own = if is_of_profile { own } else { Profile::default() };
        let url = url.as_deref().unwrap_or(DEFAULT_URL);
        let is_elsewhere = self.is_elsewhere(flag, url, variable);
        let key = self.key(&own, is_elsewhere, variable)?;
        // Among variables TAILBACK_KEY and TAILBACK_CA come before what a profile has.
        let is_named = self.profile.is_some();
        let has_other_key = is_named && (own.key.is_some() || own.key_file.is_some());
        let has_other_ca = is_named && own.ca.is_some();
        let ca = self.ca(own.ca, variable);
        let environment = self.environment(flag, is_elsewhere || has_other_key, has_other_ca);
        Ok(Target { environment, ..parse(url, &by, key.as_deref(), ca)? })
    }

    /// Returns whether the environment has a key, and it is for another server: for that which the environment names.
    fn is_elsewhere(&self, flag: Option<&str>, url: &str, variable: &dyn Fn(&str) -> Option<String>) -> bool {
        let is_by_flag = flag.is_some() || self.profile.is_some();
        if !is_by_flag || variable("TAILBACK_KEY").is_none() {
            return false;
        }
        match (variable("TAILBACK_URL"), variable("TAILBACK_PROFILE")) {
            (Some(other), _) => !is_same(&other, url),
            (None, Some(name)) if self.profile.as_ref() == Some(&name) && flag.is_none() => false,
            // Where a profile is not known, neither is its server.
            (None, Some(name)) => !profile(&name, variable)
                .is_ok_and(|other| is_same(other.url.as_deref().unwrap_or(DEFAULT_URL), url)),
            (None, None) => false,
        }
    }

    fn key(
        &self,
        own: &Profile,
        is_elsewhere: bool,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<String>, Failure> {
        if let Some(key) = &self.key {
            return Ok(Some(key.clone()));
        }
        if let Some(file) = &self.key_file {
            return read_key(file).map(Some);
        }
        let of_profile = || match (&own.key, &own.key_file) {
            (Some(key), _) => Ok(Some(key.clone())),
            (None, Some(file)) => read_key(file).map(Some),
            (None, None) => Ok(None),
        };
        // A profile that was named comes before the environment, another one after it.
        if self.profile.is_some()
            && let Some(key) = of_profile()?
        {
            return Ok(Some(key));
        }
        match variable("TAILBACK_KEY") {
            // It is for the server that stands beside it.
            Some(_) if is_elsewhere => {
                note(
                    "TAILBACK_KEY is not sent: it is for the server of TAILBACK_URL or TAILBACK_PROFILE, and this is another one",
                );
                of_profile()
            }
            Some(key) => Ok(Some(key)),
            None => of_profile(),
        }
    }

    /// Returns the file with what is trusted; `own` is that of the profile.
    fn ca(&self, own: Option<PathBuf>, variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let of_environment = variable("TAILBACK_CA").map(PathBuf::from);
        // As with the key: a profile that was named comes before the environment, another one after it.
        let other = match self.profile {
            Some(_) => own.or(of_environment),
            None => of_environment.or(own),
        };
        self.ca.clone().or(other)
    }

    /// Returns what makes a command that this one runs mean the same server, where flags have said which.
    fn environment(
        &self,
        flag: Option<&str>,
        has_other_key: bool,
        has_other_ca: bool,
    ) -> Vec<(&'static str, Option<OsString>)> {
        let mut environment = Vec::new();
        match (flag, &self.profile) {
            (Some(url), _) => environment.push(("TAILBACK_URL", Some(url.into()))),
            (None, Some(profile)) => {
                environment.push(("TAILBACK_PROFILE", Some(profile.into())));
                environment.push(("TAILBACK_URL", None));
            }
            (None, None) => {}
        }
        if has_other_key {
            environment.push(("TAILBACK_KEY", None));
        }
        match &self.ca {
            Some(ca) => environment.push(("TAILBACK_CA", Some(ca.into()))),
            None if has_other_ca => environment.push(("TAILBACK_CA", None)),
            None => {}
        }
        environment
    }
}

/// Returns whether two URLs name the same server. Below different paths of one host there may be different ones.
fn is_same(one: &str, other: &str) -> bool {
    let server = |url: &str| {
        let target = parse(url, "", None, None).ok()?;
        Some((target.is_tls, target.host.to_lowercase(), target.port, target.prefix))
    };
    server(one).is_some_and(|one| server(other) == Some(one))
}

fn usage(text: String) -> Failure {
    Failure::Usage(text)
}

fn read_key(file: &Path) -> Result<String, Failure> {
    let file = match file.strip_prefix("~") {
        Ok(rest) => std::env::home_dir().unwrap_or_default().join(rest),
        Err(_) => file.to_owned(),
    };
    let text = std::fs::read_to_string(&file).map_err(|error| {
        usage(format!("the key in {} cannot be read: {error}", shown(&file.display().to_string())))
    })?;
    match text.trim() {
        "" => Err(usage(format!("the key file {} is empty", shown(&file.display().to_string())))),
        key => Ok(key.to_owned()),
    }
}

/// Returns the file with the profiles, if it is known where that would be.
fn file(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    if let Some(file) = variable("TAILBACK_PROFILES") {
        return Some(file.into());
    }
    let config = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let config = config.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")))?;
    Some(config.join("tailback/profiles.toml"))
}

type Profiles = std::collections::BTreeMap<String, Profile>;

/// Reads all profiles; none where there is no file.
fn profiles(variable: &dyn Fn(&str) -> Option<String>) -> Result<Profiles, Failure> {
    let Some(file) = file(variable) else { return Ok(Profiles::new()) };
    let name = shown(&file.display().to_string());
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Profiles::new()),
        Err(error) => return Err(usage(format!("{name} cannot be read: {error}"))),
    };
    let profiles: Profiles = toml::from_str(&text).map_err(|error: toml::de::Error| {
        // Its own text quotes the line, which may be the one with the key.
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        usage(format!("{name}, line {line}: a profile has url, key or key_file, and ca: [name], url = \"…\""))
    })?;
    if profiles.values().any(|profile| profile.key.is_some()) {
        warn_if_open(&file, &name);
    }
    Ok(profiles)
}

fn warn_if_open(file: &Path, name: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let is_open = std::fs::metadata(file).is_ok_and(|of| of.permissions().mode() & 0o077 != 0);
    if is_open {
        note(&format!("others on this machine can read the keys in {name}: chmod 600 it"));
    }
}

fn profile(name: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Profile, Failure> {
    let mut all = profiles(variable)?;
    all.remove(name).ok_or_else(|| {
        let known: Vec<String> = all.keys().map(|name| shown(name)).collect();
        let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
        let file = file(variable).map_or_else(String::new, |file| shown(&file.display().to_string()));
        usage(format!("no profile is called {}; in {file}: {known}", shown(name)))
    })
}

/// Parses a URL, which was said so, and a key, without quoting what may be a secret.
fn parse(url: &str, by: &str, key: Option<&str>, ca: Option<PathBuf>) -> Result<Target, Failure> {
    let wrong = || {
        let said = shown(url.split(['?', '#']).next().unwrap_or_default());
        usage(format!(
            "the URL must be http://HOST[:PORT] or https://HOST[:PORT], maybe with a path; {by} is {said:?}"
        ))
    };
    if url.contains('@') {
        return Err(usage(format!(
            "the URL must have no user or password: keys belong into TAILBACK_KEY or a profile; {by} has one"
        )));
    }
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong()),
    };
    let authority = uri.authority().ok_or_else(wrong)?;
    if uri.query().is_some() || authority.host().is_empty() {
        return Err(wrong());
    }
    let port = port(authority, is_tls).ok_or_else(wrong)?;
    let authorization = match key {
        None => None,
        Some("") => return Err(usage("the key is empty".to_owned())),
        Some(key) => {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| usage("the key must be of visible ASCII characters".to_owned()))?;
            value.set_sensitive(true);
            Some(value)
        }
    };
    Ok(Target {
        is_tls,
        host: authority.host().trim_matches(['[', ']']).to_owned(),
        port,
        authority: authority.to_string(),
        prefix: uri.path().trim_end_matches('/').to_owned(),
        authorization,
        ca,
        environment: Vec::new(),
    })
}

/// Returns the port: that of the scheme where none is written, and nothing where what is written is none. An [`Authority`] may
/// end with `:99999` or `:832l`, and the key must not go to another port because of that.
fn port(authority: &Authority, is_tls: bool) -> Option<u16> {
    let behind = authority.as_str().rsplit(']').next().unwrap_or_default();
    if behind.contains(':') {
        return authority.port_u16().filter(|port| *port > 0);
    }
    Some(if is_tls { 443 } else { 80 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags.
    type Said<'s> = (Option<&'s str>, Option<&'s str>, Option<&'s str>);

    fn options<'s>(url: Option<&'s str>, key: Option<&'s str>, profile: Option<&'s str>) -> Said<'s> {
        (url, key, profile)
    }

    fn said(
        &(url, key, profile): &Said<'_>,
        variables: &[(&str, &str)],
    ) -> Result<(String, String), Failure> {
        let variable = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        let own = |text: Option<&str>| text.map(str::to_owned);
        let access = Access { key: own(key), profile: own(profile), ..Access::default() };
        let target = access.resolve(url, &variable)?;
        let key = target.authorization.as_ref().map_or("", |value| value.to_str().unwrap());
        Ok((target.url(), key.trim_start_matches("Bearer ").to_owned()))
    }

    #[test]
    fn flags_come_before_profiles_before_the_environment() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("profiles.toml");
        let text = "[default]\nurl = 'http://own:1'\nkey = 'own'\n[prod]\nurl = 'https://prod/base/'\nkey = 'prod'\n[bare]\n[staging]\nurl = 'http://staging'\n";
        std::fs::write(&file, text).unwrap();
        let file = ("TAILBACK_PROFILES", file.to_str().unwrap());
        let environment = [file, ("TAILBACK_URL", "http://env:2"), ("TAILBACK_KEY", "env")];
        let of_profile = [file, ("TAILBACK_PROFILE", "prod"), ("TAILBACK_KEY", "env")];
        let of_no_port = [file, ("TAILBACK_URL", "http://x:99999"), ("TAILBACK_KEY", "env")];
        let of_unknown = [file, ("TAILBACK_PROFILE", "nope"), ("TAILBACK_KEY", "env")];
        for (options, variables, url, key) in [
            (options(None, None, None), &[file][..], "http://own:1", "own"),
            (options(None, None, None), &environment, "http://env:2", "env"),
            (options(None, None, Some("prod")), &environment, "https://prod/base", "prod"),
            (options(None, None, Some("prod")), &[file], "https://prod/base", "prod"),
            (options(None, None, None), &[file, ("TAILBACK_PROFILE", "prod")], "https://prod/base", "prod"),
            (options(Some("http://x"), Some("k"), Some("prod")), &environment, "http://x", "k"),
            // A profile's key is shown to no other server.
            (options(Some("http://x"), None, Some("prod")), &[file], "http://x", ""),
            (options(Some("http://x"), None, None), &[file], "http://x", ""),
            (options(None, None, None), &[], "http://127.0.0.1:8321", ""),
            // Nor is the environment's key, where it says which server it is for.
            (options(Some("http://x"), None, None), &environment, "http://x", ""),
            (options(Some("http://ENV:2/"), None, None), &environment, "http://ENV:2", "env"),
            (options(Some("http://env:2/other"), None, None), &environment, "http://env:2/other", ""),
            // Nor is it sent elsewhere where a profile says so.
            (options(Some("http://x"), None, None), &of_profile, "http://x", ""),
            (options(None, None, Some("staging")), &of_profile, "http://staging", ""),
            (options(None, None, Some("prod")), &of_profile, "https://prod/base", "prod"),
            (options(Some("https://prod/base"), None, None), &of_profile, "https://prod/base", "env"),
            (options(Some("https://prod/"), None, None), &of_profile, "https://prod", ""),
            (options(Some("http://x"), None, None), &of_unknown, "http://x", ""),
            (options(Some("http://x"), None, None), &of_no_port, "http://x", ""),
            (options(Some("http://x"), None, None), &[file, ("TAILBACK_KEY", "env")], "http://x", "env"),
        ] {
            let said = said(&options, variables).unwrap();
            assert_eq!(said, (url.to_owned(), key.to_owned()), "{variables:?}");
        }
        let bare = said(&options(None, None, Some("bare")), &environment).unwrap_err().to_string();
        assert!(bare.contains("bare has no url"), "{bare}");
        let unknown = said(&options(None, None, Some("nope")), &[file]).unwrap_err().to_string();
        assert!(unknown.contains("nope") && unknown.contains("bare, default, prod, staging"), "{unknown}");
    }

    #[test]
    fn mistakes_are_told_without_secrets() {
        for url in [
            "queue:8321",
            "ftp://x",
            "http://",
            "http://x?y",
            "http://ada:canary@x",
            "http://x y",
            "http://queue:99999",
            "http://queue:832l",
            "http://queue:0",
            "http://queue:",
            "https://[::1]:65536",
        ] {
            let error = said(&options(Some(url), None, None), &[]).unwrap_err().to_string();
            assert!(error.contains("the URL must") && !error.contains("canary"), "{error}");
            assert!(error.contains("--url"), "{error}");
        }
        for url in ["https://[::1]:8321", "https://[::1]"] {
            assert_eq!(said(&options(Some(url), None, None), &[]).unwrap().0, url);
        }
        let error = said(&options(None, None, None), &[("TAILBACK_URL", "queue:8321")]).unwrap_err();
        assert!(error.to_string().ends_with("; TAILBACK_URL is \"queue:8321\""), "{error}");
        let error = said(&options(None, Some("canary\n"), None), &[]).unwrap_err().to_string();
        assert!(error.contains("the key must") && !error.contains("canary"), "{error}");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("profiles.toml");
        std::fs::write(&file, "[default]\nurl = 'queue'\n").unwrap();
        let variables = [("TAILBACK_PROFILES", file.to_str().unwrap())];
        let error = said(&options(None, None, None), &variables).unwrap_err();
        assert!(error.to_string().ends_with("; the profile default is \"queue\""), "{error}");
        std::fs::write(&file, "\n").unwrap();
        let error = read_key(&file).unwrap_err().to_string();
        assert!(error.starts_with("the key file ") && error.ends_with(" is empty"), "{error}");
        std::fs::write(&file, "[default]\nkey = 'canary\n").unwrap();
        let error = said(&options(None, None, None), &[("TAILBACK_PROFILES", file.to_str().unwrap())]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains("canary"), "{error}");
    }
}
