//! Fields of payloads, and headers, that have a value.
//!
//! Fields are found as MongoDB finds them, so that its indexes can serve them: a path goes through objects by their keys and through
//! arrays by an index or into each of their objects, and where it ends at an array, one of its elements may have the value instead.
//! Values are equal as JSON is here (the same keys in the same order), but numbers by what they are: 1, 1.0 and 1e0 are one number,
//! whatever their length.

use crate::job::Payload;
use crate::job::payload::{PayloadError, push_string};
use crate::job::spec::Headers;

/// The longest path, in bytes.
pub const PATH_MAX: usize = 256;
/// The longest value, in bytes.
pub const VALUE_MAX: usize = 1024;
/// The most keys of a path that are numbers.
const NUMBERS_MAX: usize = 4;
/// The rule for a path, in the words of an error response.
pub const FIELD_RULE: &str = "must name a field of payloads by its keys, with dots between them, 256 bytes at most and at most 4 numbers \
                              among them: payload.user.id";

/// That a field of the payload has this value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldIs {
    path: Vec<String>,
    /// The keys as JSON has them.
    tokens: Vec<String>,
    value: Payload,
}

/// That a header has this value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderIs {
    name: String,
    value: Payload,
}

/// Returns what a text stands for: the JSON value that it is, else itself.
fn value_of(text: &str) -> Result<Payload, String> {
    if text.len() > VALUE_MAX {
        return Err(format!("must be at most {VALUE_MAX} bytes long"));
    }
    match Payload::parse(text) {
        Err(PayloadError::Malformed) => Ok(Payload::string(text)),
        value => value.map_err(|error| error.to_string()),
    }
}

impl FieldIs {
    /// Returns that the field at this path has this value, or why there can be no such field.
    pub fn new(path: &str, value: &str) -> Result<Self, String> {
        let is_key = |key: &str| !key.is_empty() && !key.contains('\0');
        if path.len() > PATH_MAX || !path.split('.').all(is_key) {
            return Err(FIELD_RULE.to_owned());
        }
        // Each of them doubles what is looked at: it may be an index of an array, or a key of the objects in it.
        let is_number = |key: &&str| key.bytes().all(|byte| byte.is_ascii_digit());
        if path.split('.').filter(is_number).count() > NUMBERS_MAX {
            return Err(FIELD_RULE.to_owned());
        }
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        let token = |key: &String| {
            let mut token = String::with_capacity(key.len() + 2);
            push_string(&mut token, key);
            token
        };
        Ok(Self { tokens: path.iter().map(token).collect(), path, value: value_of(value)? })
    }

    /// Returns the keys of the path.
    pub fn path(&self) -> &[String] {
        &self.path
    }

    /// Returns the key as JSON has it that every payload with this field has in it, if there is one: an index of an array is not there.
    pub fn token(&self) -> Option<&str> {
        let is_index = |token: &&String| token[1..token.len() - 1].bytes().all(|byte| byte.is_ascii_digit());
        self.tokens.iter().rev().find(|token| !is_index(token)).map(String::as_str)
    }

    /// Returns the value.
    pub fn value(&self) -> &Payload {
        &self.value
    }

    /// Whether the field of this payload has the value.
    pub fn is_in(&self, payload: &Payload) -> bool {
        self.found(payload.as_str(), 0)
    }

    /// Whether this value has the rest of the path, and the value there.
    fn found(&self, json: &str, at: usize) -> bool {
        let wanted = self.value.as_str();
        let (Some(key), Some(token)) = (self.path.get(at), self.tokens.get(at)) else {
            return equal(json, wanted) || elements(json).any(|element| equal(element, wanted));
        };
        if json.starts_with('{') {
            let mut parts = parts(json);
            while let (Some(name), Some(member)) = (parts.next(), parts.next()) {
                if name == token {
                    return self.found(member, at + 1);
                }
            }
            return false;
        }
        let index = key.parse::<usize>().ok().filter(|index| index.to_string() == *key);
        let is_at_index = index
            .and_then(|index| elements(json).nth(index))
            .is_some_and(|element| self.found(element, at + 1));
        is_at_index || elements(json).any(|element| element.starts_with('{') && self.found(element, at))
    }
}

impl HeaderIs {
    /// Returns that the header of this name has this value, or why that cannot be asked.
    pub fn new(name: &str, value: &str) -> Result<Self, String> {
        if name.is_empty() || name.len() > PATH_MAX {
            return Err(format!("must name a header, with {PATH_MAX} bytes at most: headers.trace"));
        }
        Ok(Self { name: name.to_owned(), value: value_of(value)? })
    }

    /// Whether these headers have it.
    pub fn is_in(&self, headers: &Headers) -> bool {
        headers.get(&self.name).is_some_and(|value| equal(value.as_str(), self.value.as_str()))
    }
}

/// The elements of an array; none of anything else.
fn elements(json: &str) -> Parts<'_> {
    if json.starts_with('[') { parts(json) } else { Parts { rest: "" } }
}

/// The elements of an array, or each key and then its value of an object.
fn parts(json: &str) -> Parts<'_> {
    Parts { rest: json.get(1..json.len().saturating_sub(1)).unwrap_or_default() }
}

struct Parts<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let end = end_of_value(self.rest.as_bytes());
        let (part, rest) = self.rest.split_at(end);
        self.rest = rest.get(1..).unwrap_or_default(); // behind the comma or the colon
        Some(part)
    }
}

/// Returns where the first value of this canonical JSON ends. Iterative, so that depth costs no stack.
fn end_of_value(json: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at = end_of_string(json, at);
                if depth == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return at + depth,
            b'}' | b']' => depth -= 1,
            b',' | b':' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    json.len()
}

/// Returns the index behind the string that begins here.
fn end_of_string(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

/// Whether two canonical JSON values are equal, numbers by what they are.
fn equal(one: &str, other: &str) -> bool {
    let is_number = |json: &str| json.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let (mut one, mut other) = (one, other);
    loop {
        match (one.as_bytes().first(), other.as_bytes().first()) {
            (None, None) => return true,
            (Some(b'"'), Some(b'"')) => {
                let end = end_of_string(one.as_bytes(), 0);
                if !other.starts_with(&one[..end]) {
                    return false;
                }
                (one, other) = (&one[end..], &other[end..]);
            }
            (Some(_), Some(_)) if is_number(one) && is_number(other) => {
                let (end, other_end) = (end_of_value(one.as_bytes()), end_of_value(other.as_bytes()));
                if !same_number(&one[..end], &other[..other_end]) {
                    return false;
                }
                (one, other) = (&one[end..], &other[other_end..]);
            }
            (Some(a), Some(b)) if a == b && a.is_ascii() => (one, other) = (&one[1..], &other[1..]),
            _ => return false,
        }
    }
}

fn same_number(one: &str, other: &str) -> bool {
    one == other || decimal(one).is_some_and(|one| decimal(other).is_some_and(|other| one == other))
}

/// A number as its sign, its digits without zeros around them, and the power of ten behind the last one. `None` where that power has no
/// place in 64 bits: such numbers are equal by their texts.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - significant.len()).ok()?;
    let significant = significant.trim_start_matches('0');
    if significant.is_empty() {
        return Some((false, String::new(), 0)); // 0, -0, 0.0 and 0e9 are one number
    }
    let behind = i64::try_from(fraction.len()).ok()?;
    let power = exponent.parse::<i64>().ok()?.checked_add(zeros)?.checked_sub(behind)?;
    Some((mantissa.starts_with('-'), significant.to_owned(), power))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_in(path: &str, value: &str, payload: &str) -> bool {
        FieldIs::new(path, value).unwrap().is_in(&Payload::parse(payload).unwrap())
    }

    #[test]
    fn paths_go_as_mongodb_goes() {
        let payload = r#"{"user":{"id":42,"tags":["a",["b"],{"c":1}]},"items":[{"sku":7},{"sku":[8,9]},3],"a.b":1,"0":"z","":5,"$x":6}"#;
        for (path, value) in [
            ("user.id", "42"),
            ("user.tags", "a"),
            ("user.tags", r#"["b"]"#),
            ("user.tags.0", "a"),
            ("user.tags.1", "b"),
            ("user.tags.1.0", "b"),
            ("user.tags.c", "1"),
            ("items.sku", "7"),
            ("items.sku", "9"),
            ("items.1.sku.0", "8"),
            ("items", "3"),
            ("0", "z"),
            ("$x", "6"),
            ("user", r#"{"id":42.0,"tags":["a",["b"],{"c":1e0}]}"#),
        ] {
            assert!(is_in(path, value, payload), "{path}={value}");
        }
        for (path, value) in [
            ("user.id", "\"42\""),
            ("user.id.x", "42"),
            ("user.tags", "b"),
            ("user.tags.00", "a"),
            ("a.b", "1"),
            ("none", "null"),
            ("items.sku", "3"),
            ("user", r#"{"tags":["a",["b"],{"c":1}],"id":42}"#),
        ] {
            assert!(!is_in(path, value, payload), "{path}={value}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a\0", &"x".repeat(257)] {
            assert!(FieldIs::new(bad, "1").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_are_equal_by_what_they_are() {
        let same = [
            ("1", "1.0"),
            ("1", "1e0"),
            ("1", "10E-1"),
            ("1", "0.1e+1"),
            ("-0", "0.00"),
            ("123456789012345678901234567890", "1.2345678901234567890123456789e29"),
            ("9007199254740993", "9007199254740993.0"),
            ("1e99999999999999999999", "1e99999999999999999999"),
        ];
        for (one, other) in same {
            assert!(is_in("n", one, &format!("{{\"n\":{other}}}")), "{one} {other}");
            assert!(is_in("n", other, &format!("{{\"n\":[{one}]}}")), "{one} {other}");
        }
        let different = [
            ("1", "-1"),
            ("9007199254740993", "9007199254740992"),
            ("0.1", "0.10000000000000000001"),
            ("1e99999999999999999999", "1e99999999999999999998"),
            ("12", "1"),
            ("1", "12"),
        ];
        for (one, other) in different {
            assert!(!is_in("n", one, &format!("{{\"n\":{other}}}")), "{one} {other}");
        }
    }

    #[test]
    fn a_text_is_json_or_itself() {
        let value = |text: &str| FieldIs::new("a", text).unwrap().value().as_str().to_owned();
        assert_eq!(value("42"), "42");
        assert_eq!(value("042"), "\"042\"");
        assert_eq!(value("\"42\""), "\"42\"");
        assert_eq!(value("bob"), "\"bob\"");
        assert_eq!(value(""), "\"\"");
        assert_eq!(value("tru"), "\"tru\"");
        assert_eq!(value(" true "), "true");
        assert!(FieldIs::new("a", r#"{"a":1,"a":2}"#).is_err());
        assert!(FieldIs::new("a", &"x".repeat(1025)).is_err());
    }

    #[test]
    fn headers_are_found_by_their_whole_names() {
        let headers = Headers::from([
            ("a.b".to_owned(), Payload::string("x")),
            ("n".to_owned(), Payload::parse("1.0").unwrap()),
        ]);
        let has = |name: &str, value: &str| HeaderIs::new(name, value).unwrap().is_in(&headers);
        assert!(has("a.b", "x") && has("n", "1") && !has("a", "x") && !has("n", "\"1\""));
    }

    #[test]
    fn every_prefix_of_json_ends_somewhere() {
        let text = r#"{"a":[1,{"b\"":"c"}],"d":"e"}"#;
        for end in 0..=text.len() {
            let cut = &text[..end];
            assert!(end_of_value(cut.as_bytes()) <= cut.len());
            parts(cut).take(100).for_each(drop);
        }
    }
}
