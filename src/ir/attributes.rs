//! The attributes of an operation: a few names with values, sorted by name.
//!
//! Nearly every operation has one or two attributes. A node of a `BTreeMap` has room for eleven,
//! which in a program of many operations is most of its memory; a sorted vector has room for what
//! there is.

use std::collections::BTreeMap;

use super::value::Value;

/// Attributes by name; iterated in the order of the names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes {
    entries: Vec<(String, Value)>,
}

impl Attributes {
    /// No attributes.
    pub fn new() -> Self {
        Self::default()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The value of an attribute, if there is one of this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let index = self.find(name).ok()?;
        self.entries.get(index).map(|(_, value)| value)
    }

    /// True if there is an attribute of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Sets an attribute; gives the value that it had. The time is in the number of attributes; many
    /// are better collected in a map first.
    pub fn insert(&mut self, name: String, value: Value) -> Option<Value> {
        match self.find(&name) {
            Ok(index) => Some(std::mem::replace(&mut self.entries[index].1, value)),
            Err(index) => {
                // A vector that grows begins with four.
                self.entries.reserve_exact(1);
                self.entries.insert(index, (name, value));
                None
            }
        }
    }

    /// Removes an attribute; gives its value.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let index = self.find(name).ok()?;
        Some(self.entries.remove(index).1)
    }

    /// The names and values in the order of the names.
    pub fn iter(&self) -> Entries<'_> {
        self.entries.iter().map(|(name, value)| (name, value))
    }

    /// The names and values, the values to be changed, in the order of the names.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&String, &mut Value)> {
        let entries = self.entries.iter_mut();
        entries.map(|(name, value)| (&*name, value))
    }

    /// The names in order.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.entries.iter().map(|(name, _)| name)
    }

    /// Where the name stands, or where it would.
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.entries
            .binary_search_by(|(entry, _)| entry.as_str().cmp(name))
    }
}

type Entries<'a> = std::iter::Map<
    std::slice::Iter<'a, (String, Value)>,
    fn(&'a (String, Value)) -> (&'a String, &'a Value),
>;

impl<'a> IntoIterator for &'a Attributes {
    type Item = (&'a String, &'a Value);
    type IntoIter = Entries<'a>;

    fn into_iter(self) -> Entries<'a> {
        self.iter()
    }
}

impl From<BTreeMap<String, Value>> for Attributes {
    fn from(map: BTreeMap<String, Value>) -> Self {
        let entries = map.into_iter().collect();
        Self { entries }
    }
}

impl From<Attributes> for BTreeMap<String, Value> {
    fn from(attributes: Attributes) -> Self {
        attributes.entries.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_do_what_a_sorted_map_does() {
        let mut attributes = Attributes::new();
        let mut map = BTreeMap::new();
        for (number, name) in ["val", "name", "mode", "val", "axis", "name"]
            .iter()
            .enumerate()
        {
            let value = Value::int32(number as i32);
            assert_eq!(
                attributes.insert((*name).to_owned(), value.clone()),
                map.insert((*name).to_owned(), value)
            );
            assert!(attributes.iter().eq(&map));
        }
        assert_eq!(attributes, map.clone().into());
        assert_eq!(attributes.remove("mode"), map.remove("mode"));
        assert_eq!(attributes.remove("mode"), None);
        assert!(attributes.keys().eq(map.keys()));
        assert_eq!(attributes.get("axis"), map.get("axis"));
        assert_eq!(attributes.len(), map.len());
        assert!(!attributes.contains_key("mode") && attributes.contains_key("axis"));
    }
}
