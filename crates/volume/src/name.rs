//! Names of volumes.

use crate::VolumeError;
use std::fmt;
use std::str::FromStr;

/// Longest name, in bytes: a file's name has 255, and an NBD export's 4096.
pub const NAME_BYTES_MAX: usize = 200;

/// The name of a volume: 1 to [`NAME_BYTES_MAX`] bytes of UTF-8 without `/` and control characters,
/// and neither a dot nor a dash first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeName(String);

impl VolumeName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As the namespace has it.
    pub(crate) fn stored(&self) -> Vec<u8> {
        self.0.clone().into_bytes()
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for VolumeName {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        let complaint = if text.is_empty() {
            Some("it is empty")
        } else if text.len() > NAME_BYTES_MAX {
            Some("it has more than 200 bytes")
        } else if text.starts_with(['.', '-']) {
            Some("it begins with a dot or a dash")
        } else if text.contains('/') || text.chars().any(char::is_control) {
            Some("it has a slash or a control character")
        } else {
            None
        };
        match complaint {
            Some(why) => Err(VolumeError::BadName(text.to_owned(), why)),
            None => Ok(VolumeName(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_a_file_and_an_export_can_have() {
        for good in ["vm1", "a", "Käse 7", "x.y-z", &"x".repeat(NAME_BYTES_MAX)] {
            assert_eq!(good.parse::<VolumeName>().expect("good").as_str(), good);
        }
        for bad in
            ["", ".", "..", ".x", "-x", "a/b", "a\nb", "a\0", &"x".repeat(NAME_BYTES_MAX + 1)]
        {
            assert!(bad.parse::<VolumeName>().is_err(), "{bad:?}");
        }
    }
}
