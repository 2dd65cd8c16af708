//! What a job carries: a JSON value, or bytes with their media type.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::names::{TextForm, text_type};
use super::payload::PayloadError;
use super::{Invalid, Payload};

/// What is carried in a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A JSON value.
    Json(Payload),
    /// Bytes.
    Binary(Binary),
}

/// Bytes that JSON has no form for, and what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// The bytes.
    pub bytes: Bytes,
    /// What they are.
    pub media_type: MediaType,
}

/// The rule for a [`MediaType`], in the words of an error response.
pub const MEDIA_TYPE_RULE: &str =
    "a media type such as application/octet-stream or text/csv; charset=utf-8, up to 255 characters";

/// The longest media type, in bytes.
pub const MEDIA_TYPE_MAX: usize = 255;

/// What a media type may be made of, for the OpenAPI document.
const MEDIA_TYPE_FORM: TextForm = TextForm {
    max_length: MEDIA_TYPE_MAX,
    pattern: Some(
        r#"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *; *[A-Za-z0-9!#$&^_.+-]+=([A-Za-z0-9!#$&^_.+-]+|"[ !#-\[\]-~]*"))*$"#,
    ),
};

text_type! {
    /// The media type of a binary payload. It is kept and delivered as it is.
    MediaType, is_media_type, MEDIA_TYPE_RULE, MEDIA_TYPE_FORM
}

impl Default for MediaType {
    /// Bytes of which nothing is known.
    fn default() -> Self {
        Self("application/octet-stream".into())
    }
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
}

/// `type/subtype`, then any parameters: `; name=value`, the value a token or a quoted text without escapes.
fn is_media_type(text: &str) -> bool {
    if text.len() > MEDIA_TYPE_MAX {
        return false;
    }
    let Some((kind, rest)) = text.split_once('/') else { return false };
    let end = rest.find([' ', ';']).unwrap_or(rest.len());
    let (subtype, mut rest) = rest.split_at(end);
    if !is_token(kind) || !is_token(subtype) {
        return false;
    }
    while !rest.is_empty() {
        let Some(parameter) = rest.trim_start_matches(' ').strip_prefix(';') else { return false };
        let Some((name, value)) = parameter.trim_start_matches(' ').split_once('=') else { return false };
        if !is_token(name) {
            return false;
        }
        rest = match value.strip_prefix('"') {
            Some(quoted) => {
                let Some((text, rest)) = quoted.split_once('"') else { return false };
                if !text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'\\') {
                    return false;
                }
                rest
            }
            None => {
                let (value, rest) = value.split_at(value.find([' ', ';']).unwrap_or(value.len()));
                if !is_token(value) {
                    return false;
                }
                rest
            }
        };
    }
    true
}

/// Bytes as requests and responses have them: base64 of the standard alphabet, with padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base64(pub Bytes);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&base64::display::Base64Display::new(&self.0, &STANDARD))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        match STANDARD.decode(text.as_bytes()) {
            Ok(bytes) => Ok(Self(bytes.into())),
            Err(_) => Err(serde::de::Error::custom(
                "must be base64 of the standard alphabet (A-Z a-z 0-9 + /), with padding and without line breaks",
            )),
        }
    }
}

impl utoipa::PartialSchema for Base64 {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{ObjectBuilder, Type};
        let text = "Bytes as base64 of the standard alphabet, with padding and without line breaks (RFC 4648, section 4).";
        let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(text));
        // Of the largest payload that can be configured; the server's own limit is smaller by default, and counts bytes.
        let schema = schema.content_encoding("base64").max_length(Some((8_usize << 20).div_ceil(3) * 4));
        schema.into()
    }
}

impl utoipa::ToSchema for Base64 {}

impl Content {
    /// Returns the JSON value `null`.
    pub fn null() -> Self {
        Self::Json(Payload::null())
    }

    /// Returns the same with canonical JSON; see [`Payload::canonical`].
    pub fn canonical(self) -> Result<Self, PayloadError> {
        match self {
            Self::Json(payload) => payload.canonical().map(Self::Json),
            Self::Binary(_) => Ok(self),
        }
    }

    /// Returns what the three fields stand for that requests, responses and stored rules have. Bytes count where the JSON value is
    /// `null`, which is what it is where it is absent.
    pub fn of(payload: Payload, base64: Option<Base64>, media_type: Option<MediaType>) -> Self {
        match base64 {
            Some(Base64(bytes)) if payload.is_null() => {
                Self::Binary(Binary { bytes, media_type: media_type.unwrap_or_default() })
            }
            _ => Self::Json(payload),
        }
    }

    /// Refuses fields that say different things. Pointers are relative to the object that has the fields.
    pub fn check_fields(
        payload: &Payload,
        base64: Option<&Base64>,
        media_type: Option<&MediaType>,
    ) -> Result<(), Invalid> {
        match (base64, media_type) {
            (Some(_), _) if !payload.is_null() => {
                Err(Invalid::new("/payload_base64", "cannot be combined with payload"))
            }
            (None, Some(_)) => Err(Invalid::new("/payload_type", "needs a payload_base64 beside it")),
            _ => Ok(()),
        }
    }

    /// Returns the three fields: see [`of`](Self::of).
    pub fn into_fields(self) -> (Payload, Option<Base64>, Option<MediaType>) {
        match self {
            Self::Json(payload) => (payload, None, None),
            Self::Binary(Binary { bytes, media_type }) => {
                (Payload::null(), Some(Base64(bytes)), Some(media_type))
            }
        }
    }

    /// Returns the JSON value, if it is one.
    pub fn json(&self) -> Option<&Payload> {
        match self {
            Self::Json(payload) => Some(payload),
            Self::Binary(_) => None,
        }
    }

    /// Returns how long it is: a JSON value by its text, bytes by their number, however they travel.
    pub fn size(&self) -> usize {
        match self {
            Self::Json(payload) => payload.as_str().len(),
            Self::Binary(binary) => binary.bytes.len(),
        }
    }

    /// Returns about how many bytes it is in a response.
    pub fn weight(&self) -> usize {
        match self {
            Self::Json(payload) => payload.as_str().len(),
            Self::Binary(binary) => binary.bytes.len().div_ceil(3) * 4 + binary.media_type.as_str().len(),
        }
    }

    /// Returns the field that holds it in requests.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Json(_) => "/payload",
            Self::Binary(_) => "/payload_base64",
        }
    }

    /// Returns a SHA-256 that equals have in common, and nothing else. No JSON text begins with NUL.
    pub fn digest(&self) -> [u8; 32] {
        match self {
            Self::Json(payload) => payload.digest(),
            Self::Binary(Binary { bytes, media_type }) => {
                let sum = Sha256::new().chain_update(b"\0").chain_update(media_type.as_str());
                sum.chain_update(b"\0").chain_update(bytes).finalize().into()
            }
        }
    }
}

impl From<Payload> for Content {
    fn from(payload: Payload) -> Self {
        Self::Json(payload)
    }
}

impl From<Binary> for Content {
    fn from(binary: Binary) -> Self {
        Self::Binary(binary)
    }
}

impl PartialEq<Payload> for Content {
    fn eq(&self, other: &Payload) -> bool {
        self.json() == Some(other)
    }
}

/// The fields of one job, for comparing two stores.
impl Serialize for Content {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields {
            payload: Payload,
            #[serde(skip_serializing_if = "Option::is_none")]
            payload_base64: Option<Base64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            payload_type: Option<MediaType>,
        }
        let (payload, payload_base64, payload_type) = self.clone().into_fields();
        Fields { payload, payload_base64, payload_type }.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(bytes: &'static [u8], media_type: &str) -> Content {
        Binary { bytes: Bytes::from_static(bytes), media_type: media_type.parse().unwrap() }.into()
    }

    #[test]
    fn media_types() {
        for valid in [
            "application/octet-stream",
            "text/csv; charset=utf-8",
            "application/x-protobuf;messageType=\"a.B c\" ; v=1",
            "image/svg+xml",
            "a/b",
        ] {
            assert_eq!(valid.parse::<MediaType>().map(|valid| valid.to_string()), Ok(valid.to_owned()));
        }
        let long = format!("a/{}", "b".repeat(MEDIA_TYPE_MAX - 2));
        assert!(long.parse::<MediaType>().is_ok() && format!("{long}b").parse::<MediaType>().is_err());
        for invalid in [
            "",
            "/",
            "a",
            "a/",
            "/b",
            "a/b/c",
            "a b/c",
            "a/b ",
            " a/b",
            "a/b;",
            "a/b; c",
            "a/b; c=",
            "a/b; =d",
            "a/b; c=\"d",
            "a/b; c=\"d\"e",
            "a/b c=d",
            "a/ä",
            "a/b; c=\"\\\"\"",
            "a/b\n",
            "a/b; c=\"\u{7f}\"",
        ] {
            assert!(invalid.parse::<MediaType>().is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn base64_has_one_form() {
        let read = |text: &str| serde_json::from_value::<Base64>(text.into());
        for (text, bytes) in [("", &b""[..]), ("AA==", b"\0"), ("+/8=", b"\xfb\xff"), ("AAEC", b"\0\x01\x02")]
        {
            let parsed = read(text).unwrap();
            assert_eq!(parsed.0, bytes);
            assert_eq!(serde_json::to_value(&parsed).unwrap(), text);
        }
        for invalid in ["A", "AA", "AA=", "-_8=", "AAEC\n", "AB==", "AA==AA==", "====", "AAE C", "ä==="] {
            assert!(read(invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn equals_have_one_digest() {
        let json = |text| Content::Json(Payload::parse(text).unwrap());
        let all = [
            json("null"),
            json("\"AAEC\""),
            binary(b"", "a/b"),
            binary(b"\0\x01\x02", "a/b"),
            binary(b"\0\x01\x02", "a/c"),
            binary(b"c\0\x01\x02", "a/b"),
        ];
        for (n, one) in all.iter().enumerate() {
            for (m, other) in all.iter().enumerate() {
                assert_eq!(one == other, n == m);
                assert_eq!(one.digest() == other.digest(), n == m);
            }
            let (payload, bytes, media_type) = one.clone().into_fields();
            assert_eq!(Content::of(payload, bytes, media_type), *one);
        }
        assert_eq!(all[3].size(), 3);
    }
}
