//! JSON merge patches (RFC 7396): what is absent stays, null removes.

use serde_json::{Map, Value};

use crate::job::{Invalid, Payload};

/// The longest merge patch, in bytes.
const PATCH_MAX: usize = 64 << 10;

/// Returns the changes of a merge patch, whose text has no key twice. As values a large one would take some forty times its size.
pub fn changes(patch: &Payload) -> Result<Map<String, Value>, Invalid> {
    if patch.as_str().len() > PATCH_MAX {
        return Err(Invalid::new("", "must be at most 65536 bytes"));
    }
    serde_json::from_str(patch.as_str()).map_err(|_| Invalid::new("", "must be an object"))
}

/// Applies the changes (section 2).
pub fn apply(target: &mut Value, changes: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else {
        return;
    };
    for (name, change) in changes {
        match change {
            Value::Null => drop(object.shift_remove(name)),
            Value::Object(inner) => {
                apply(object.entry(name.clone()).or_insert(Value::Null), inner);
            }
            value => drop(object.insert(name.clone(), value.clone())),
        }
    }
}
