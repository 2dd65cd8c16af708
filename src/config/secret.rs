//! Keeps passwords out of what is printed: of a URL, all that may be credentials, also where it is malformed.

/// What stands where something is masked.
const MASK: &str = "***";
/// A shorter text may be the password in one place and anything in others.
const PASSWORD_MIN: usize = 4;

/// Returns a text in which the credentials of every URL are masked: from `://`, or where that is missing the beginning of
/// the word, up to the last `@` of the text between two quotes, or of the line. A password that is found so is masked
/// wherever it stands.
pub fn mask(text: &str) -> String {
    let masked = text.split_inclusive('\n').map(|line| match credentials(line) {
        None => line.to_owned(),
        Some((before, _, behind)) => format!("{before}{MASK}{behind}"),
    });
    let mut passwords: Vec<&str> = text.lines().filter_map(credentials).flat_map(passwords).collect();
    passwords.sort_by_key(|password| std::cmp::Reverse(password.len())); // one may begin with another
    passwords.into_iter().fold(masked.collect(), |masked: String, password| masked.replace(password, MASK))
}

/// Returns what may be the passwords of these credentials. The scheme's own name is none: to mask it where it stands before the
/// credentials would show what the password is.
fn passwords<'t>((_, credentials, _): (&'t str, &'t str, &'t str)) -> impl Iterator<Item = &'t str> {
    let of_users = credentials.split('@').flat_map(|user| [user.split_once(':'), user.rsplit_once(':')]);
    let passwords = of_users.flatten().map(|(_, password)| password);
    passwords.filter(|password| password.len() >= PASSWORD_MIN && *password != "mongodb")
}

/// Returns what may be credentials in a line, and what is before and behind them.
fn credentials(line: &str) -> Option<(&str, &str, &str)> {
    let (before, behind) = line.split_at_checked(line.rfind('@')?)?;
    // A password may have any character, so that the mask begins as early as a URL can: at the first scheme, or at the
    // first word that has a colon.
    let scheme = before.find("://").map(|found| found + 3).filter(|start| !before[..*start].contains('@'));
    let word = || {
        let head = &before[..before.find(':').unwrap_or(before.len())];
        head.rfind([' ', '\'', '"', '`', '=']).map_or(0, |found| found + 1)
    };
    let (before, credentials) = before.split_at_checked(scheme.unwrap_or_else(word))?;
    Some((before, credentials, behind))
}

/// The shortest admin key, in characters.
const ADMIN_KEY_MIN: usize = 32;

/// Returns what is wrong with an admin key, without quoting any of it.
pub fn admin_key_fault(key: &str) -> Option<&'static str> {
    if key.len() < ADMIN_KEY_MIN {
        return Some("must be 32 or more characters, such as the output of `openssl rand -hex 32`");
    }
    let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    (!is_visible).then_some("must be of visible ASCII characters, without spaces")
}

/// Returns whether a word of the command line, or a value, may have credentials.
pub fn is_suspect(text: &str) -> bool {
    text.contains('@') || text.contains("mongodb")
}

/// Returns a text in which each of these words stands for itself no more, if it may have credentials.
pub fn mask_words<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> String {
    let mut text = text.to_owned();
    for word in words {
        let value = word.split_once('=').filter(|_| word.starts_with("--")).map_or(word, |(_, value)| value);
        if is_suspect(value) && !value.is_empty() {
            text = text.replace(value, MASK);
            // As it is quoted where it has quotes or controls in it.
            text = text.replace(&value.escape_debug().to_string(), MASK);
        }
    }
    mask(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_masked_wherever_they_stand() {
        for text in [
            "mongodb://ada:canary@host/db",
            "the URL 'mongodb://ada:canary@host/db' is wrong",
            "mongodb:/ada:canary@host",
            "ada:canary@host/db",
            "store = 'mongodb://ada:can ary@host canary@host/db'",
            "mongodb://canary@[::1/db",
            "1 | store = \"mongodb://ada:canary\\\"canary@host",
            "mongodb://ada:canary@host/db?appName=canary",
            "mongodb://ada:canary@host: bad host 'canary'\n1 | canary",
            "mongodb:/ada:canary@host: bad host 'canary'",
            "mongodb://\nada:canary@host/db?replicaSet=mongodb://ada:canary@host/db",
            "mongodb://\nada:canary@host/db?replicaSet=mongodb://ada canary@host/db",
            "from mongodb://ada:canary@host to mongodb://bob:canary2@host: 'canary2'",
        ] {
            let masked = mask(text);
            assert!(!masked.contains("canary") && masked.contains("***@"), "{text}: {masked}");
        }
        assert_eq!(mask("no URL: here\nnor here"), "no URL: here\nnor here");
        assert_eq!(mask("mongodb://mongodb:mongodb@host"), "mongodb://***@host");
        let words = ["--from=mongodb:canary", "serve"];
        assert_eq!(mask_words("bad 'mongodb:canary' in serve", words.into_iter()), "bad '***' in serve");
    }
}
