//! Deserializing JSON objects strictly: serde also accepts a struct as a list of its fields, whose
//! order is not part of the interface.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::edit::Edit;

/// A value that is deserialized from an object only.
struct Object<T>(T);

/// Deserializes the value of the key `edits`.
pub(crate) fn edits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Edit>, D::Error> {
    let objects = Vec::<Object<Edit>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|Object(edit)| edit).collect())
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys(PhantomData))
    }
}

struct Keys<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Keys<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}
