//! Payloads and other JSON of the command line: sent as they were typed.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;

use super::failure::Failure;
use super::shown::shown;

/// How a payload is meant.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "The payload")]
pub struct Form {
    /// It is a text, and is pushed as a JSON string
    #[arg(long, group = "form")]
    text: bool,
    /// It is bytes, as they are: mostly with @FILE or -
    #[arg(long, group = "form")]
    bytes: bool,
    /// It is bytes, written as base64
    #[arg(long, group = "form")]
    base64: bool,
    /// The media type of bytes
    #[arg(long = "type", value_name = "TYPE")]
    media: Option<String>,
}

/// The fields of a request that say a payload, as JSON: `"payload": …`.
#[derive(Debug, PartialEq, Eq)]
pub struct Fields(pub String);

impl Form {
    /// Returns the fields of a payload: of an argument, of a file (`@FILE`) or of standard input (`-`).
    pub fn fields(&self, argument: Option<&str>) -> Result<Fields, Failure> {
        let is_binary = self.bytes || self.base64;
        if self.media.is_some() && !is_binary {
            return Err(Failure::Usage("--type goes with --bytes or --base64".to_owned()));
        }
        let Some(argument) = argument else {
            if is_binary || self.text {
                return Err(Failure::Usage("there is no payload: say it, or @FILE, or -".to_owned()));
            }
            return Ok(Fields("\"payload\":null".to_owned()));
        };
        let bytes = content(argument)?;
        if !is_binary {
            return Ok(Fields(format!("\"payload\":{}", json(bytes, self.text, "the payload")?)));
        }
        let base64 =
            if self.bytes { STANDARD.encode(&bytes) } else { as_text(bytes)?.split_whitespace().collect() };
        STANDARD.decode(&base64).map_err(|_| {
            Failure::Usage("the payload is no base64 of the standard alphabet, with padding".to_owned())
        })?;
        let media = match &self.media {
            Some(media) => format!(",\"payload_type\":{}", quoted(media)),
            None => String::new(),
        };
        Ok(Fields(format!("\"payload_base64\":\"{base64}\"{media}")))
    }
}

/// Returns JSON of an argument, of a file (`@FILE`) or of standard input (`-`), as it is written.
pub fn value(argument: &str, what: &str) -> Result<String, Failure> {
    json(content(argument)?, false, what)
}

/// Returns the JSON that a text stands for: itself if it is JSON, else it as a string.
pub fn value_or_text(text: &str) -> String {
    if serde_json::from_str::<IgnoredAny>(text).is_ok() { text.to_owned() } else { quoted(text) }
}

/// Returns a text as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn content(argument: &str) -> Result<Vec<u8>, Failure> {
    if argument == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    let Some(file) = argument.strip_prefix('@') else { return Ok(argument.as_bytes().to_vec()) };
    std::fs::read(file).map_err(|error| Failure::Usage(format!("{} cannot be read: {error}", shown(file))))
}

fn as_text(bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes)
        .map_err(|_| Failure::Usage("this is no UTF-8; --bytes sends any bytes".to_owned()))
}

fn json(bytes: Vec<u8>, is_text: bool, what: &str) -> Result<String, Failure> {
    let text = as_text(bytes)?;
    if is_text {
        return Ok(quoted(&text));
    }
    match serde_json::from_str::<IgnoredAny>(&text) {
        Ok(_) => Ok(text.trim().to_owned()),
        Err(error) => Err(Failure::Usage(format!(
            "{what} is no JSON ({}); a text needs quotes, or --text where there is that",
            shown(&error.to_string())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_sent_as_it_was_typed() {
        let form = Form::default();
        for typed in
            ["1.10", "12345678901234567890123", r#"{"b": 1, "a" : [ ] , "b": 2}"#, "null", "\"a\\u0041\""]
        {
            assert_eq!(form.fields(Some(typed)).unwrap().0, format!("\"payload\":{typed}"));
        }
        assert_eq!(form.fields(None).unwrap().0, "\"payload\":null");
        for wrong in ["hello", "{", "1 2", "", "{\"a\":1}}"] {
            assert!(matches!(form.fields(Some(wrong)), Err(Failure::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn texts_and_bytes_are_asked_for() {
        let text = Form { text: true, ..Form::default() };
        assert_eq!(text.fields(Some("a\"\u{1b}")).unwrap().0, r#""payload":"a\"\u001b""#);
        let bytes = Form { bytes: true, media: Some("image/png".to_owned()), ..Form::default() };
        assert_eq!(
            bytes.fields(Some("ab")).unwrap().0,
            r#""payload_base64":"YWI=","payload_type":"image/png""#
        );
        let base64 = Form { base64: true, ..Form::default() };
        assert_eq!(base64.fields(Some("YW\nI=")).unwrap().0, r#""payload_base64":"YWI=""#);
        assert!(base64.fields(Some("YWI")).is_err());
        assert!(Form { media: Some("a/b".to_owned()), ..Form::default() }.fields(Some("1")).is_err());
    }
}
