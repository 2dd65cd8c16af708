//! The effective configuration as text, for operators.

use figment::Figment;
use figment::value::Value;

use super::{Config, raw, secret};

/// Options whose value is never shown.
const SECRETS: [&str; 2] = ["auth.admin_key", "trace.headers"];

/// Returns the configuration in the order of the documented file.
pub fn effective(figment: &Figment, config: &Config) -> String {
    let mut within = String::new();
    let mut lines = Vec::new();
    for key in raw::documented() {
        let (section, name) = key.rsplit_once('.').unwrap_or(("", &key));
        if section != within {
            lines.extend([String::new(), format!("[{section}]")]);
            within = section.to_owned();
        }
        lines.push(option(figment, config, &key, name));
    }
    lines.join("\n")
}

fn option(figment: &Figment, config: &Config, key: &str, name: &str) -> String {
    let value = figment.find_value(key).map(|value| text(key, &value)).unwrap_or_default();
    let source = figment.find_metadata(key).map(|metadata| raw::source(metadata, key)).unwrap_or_default();
    let comment = match (key, source.trim_matches([' ', '(', ')'])) {
        ("limits.memory_bytes", "") if value == "0" => format!("{} on this machine", config.memory),
        (_, source) => source.to_owned(),
    };
    let comment = if comment.is_empty() { comment } else { format!("  # {comment}") };
    format!("{name} = {value}{comment}")
}

/// Returns a value as TOML: scalars and lists are written as in JSON.
fn text(key: &str, value: &Value) -> String {
    if let Some(set) = value.as_array().filter(|_| SECRETS.contains(&key)) {
        return json(&vec!["***"; set.len()]);
    }
    match value.as_str() {
        Some(set) if SECRETS.contains(&key) && !set.is_empty() => "\"***\"".to_owned(),
        // Each value by itself: a password that stands elsewhere as a word would be revealed by what is missing there.
        Some(set) if secret::is_suspect(set) && !set.starts_with("sqlite:") => quoted(&secret::mask(set)),
        Some(set) => quoted(set),
        None => {
            let text = json(value);
            if secret::is_suspect(&text) { secret::mask(&text) } else { text }
        }
    }
}

fn quoted(text: &str) -> String {
    json(&text)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default().replace('\u{7f}', "\\u007f")
}
