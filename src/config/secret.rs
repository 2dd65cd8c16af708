//! Keeps passwords out of what is printed: of a URL, all that may be credentials, also where it is malformed.

/// Returns a text in which the credentials of every URL are masked: from `://`, or where that is missing the beginning of
/// the word, up to the last `@` of the text between two quotes, or of the line.
pub fn mask(text: &str) -> String {
    text.split_inclusive('\n').map(mask_line).collect()
}

fn mask_line(line: &str) -> String {
    let Some(at) = line.rfind('@') else { return line.to_owned() };
    let before = line.get(..at).unwrap_or_default();
    // A password may have any character, so that the mask begins as early as a URL can: at the first scheme, or at the
    // first word that has a colon.
    let scheme = before.find("://").map(|found| found + 3);
    let word = || {
        let colon = before.find(':').unwrap_or(at);
        before
            .get(..colon)
            .and_then(|head| head.rfind([' ', '\'', '"', '`', '=']))
            .map_or(0, |found| found + 1)
    };
    let start = scheme.unwrap_or_else(word);
    format!("{}***{}", line.get(..start).unwrap_or_default(), line.get(at..).unwrap_or_default())
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
            text = text.replace(value, "***");
            // As it is quoted where it has quotes or controls in it.
            text = text.replace(&value.escape_debug().to_string(), "***");
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
        ] {
            let masked = mask(text);
            assert!(!masked.contains("canary") && masked.contains("***@"), "{text}: {masked}");
        }
        assert_eq!(mask("no URL: here\nnor here"), "no URL: here\nnor here");
        let words = ["--from=mongodb:canary", "serve"];
        assert_eq!(mask_words("bad 'mongodb:canary' in serve", words.into_iter()), "bad '***' in serve");
    }
}
