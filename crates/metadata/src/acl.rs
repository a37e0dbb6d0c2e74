//! POSIX access control lists: what the extended attribute of one says, and how it goes together
//! with a file's mode.
//!
//! Contract: pure, and nothing is believed of bytes before all of them were checked. The rules are
//! those of POSIX 1003.1e draft 17 as Linux has them, so that its kernel, which decides who may
//! access what, finds what it expects: the owner's, the mask's (without one the owning group's) and
//! the others' permissions are the mode's nine bits at any time.
//!
//! # Format
//!
//! The value of `system.posix_acl_access` and `system.posix_acl_default`. Numbers are
//! little-endian.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | version: 2 |
//! | 4 + 8 i | 2 | tag of entry i |
//! | 6 + 8 i | 2 | its permissions: 4 read, 2 write, 1 execute |
//! | 8 + 8 i | 4 | whose: user or group of a named entry, otherwise 0xffffffff |
//!
//! | tag | entry | how many |
//! |---|---|---|
//! | 0x01 | `USER_OBJ`: the owner | 1 |
//! | 0x02 | `USER`: a named user | any |
//! | 0x04 | `GROUP_OBJ`: the owning group | 1 |
//! | 0x08 | `GROUP`: a named group | any |
//! | 0x10 | `MASK`: the most that all but the owner and others get | at most 1; 1 if an entry is named |
//! | 0x20 | `OTHER` | 1 |
//!
//! Entries stand in the order of their tags.

use protocol::namespace::{ACL_ACCESS, ACL_DEFAULT};

/// Bytes of an ACL's attribute at most: what Linux reads, a page of 4 KiB. That is 511 entries.
pub const ACL_BYTES_MAX: usize = 4096;

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// Of entries that name nobody.
const NO_ID: u32 = u32::MAX;
/// Read, write and execute.
const PERMISSIONS: u32 = 0o7;
/// The bits of a mode that an ACL says as well.
const ACCESS_BITS: u32 = 0o777;

/// The two ACLs that a file may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclKind {
    /// Who may access it.
    Access,
    /// What files made in the directory inherit.
    Default,
}

impl AclKind {
    /// The ACL that an extended attribute is; `None` of any other attribute.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        match name {
            ACL_ACCESS => Some(Self::Access),
            ACL_DEFAULT => Some(Self::Default),
            _ => None,
        }
    }

    /// The name of its extended attribute.
    pub const fn name(self) -> &'static [u8] {
        match self {
            Self::Access => ACL_ACCESS,
            Self::Default => ACL_DEFAULT,
        }
    }
}

/// Why bytes are no ACL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AclError {
    /// More than [`ACL_BYTES_MAX`].
    #[error("an ACL of more than {ACL_BYTES_MAX} bytes")]
    TooLong,
    /// Not of the format, or entries that make no sense together.
    #[error("not an ACL")]
    Malformed,
}

/// Whom an entry is for. Their order is that of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// A user, by its id.
    User(u32),
    /// The owning group.
    GroupObj,
    /// A group, by its id.
    Group(u32),
    /// The most that users and groups get, but for the owner.
    Mask,
    /// All others.
    Other,
}

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Whom it is for.
    pub tag: Tag,
    /// What they may: 4 read, 2 write, 1 execute.
    pub permissions: u32,
}

/// A well-formed list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// The list of these entries.
    ///
    /// # Errors
    /// If they are too many, or not as the module says.
    pub fn new(entries: Vec<Entry>) -> Result<Self, AclError> {
        if HEADER_BYTES + entries.len().saturating_mul(ENTRY_BYTES) > ACL_BYTES_MAX {
            return Err(AclError::TooLong);
        }
        check(&entries)?;
        Ok(Self { entries })
    }

    /// Reads the value of an attribute.
    ///
    /// # Errors
    /// If it is too long, or not as the module says.
    pub fn decode(value: &[u8]) -> Result<Self, AclError> {
        if value.len() > ACL_BYTES_MAX {
            return Err(AclError::TooLong);
        }
        let (version, rest) =
            value.split_first_chunk::<HEADER_BYTES>().ok_or(AclError::Malformed)?;
        let (entries, rest) = rest.as_chunks::<ENTRY_BYTES>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return Err(AclError::Malformed);
        }
        Self::new(entries.iter().map(Entry::decode).collect::<Result<_, _>>()?)
    }

    /// The value of its attribute.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER_BYTES + self.entries.len() * ENTRY_BYTES);
        value.extend_from_slice(&VERSION.to_le_bytes());
        self.entries.iter().for_each(|entry| entry.encode(&mut value));
        value
    }

    /// Its entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The nine bits that the mode of its file has.
    pub fn access_bits(&self) -> u32 {
        let bits = |entry: &Entry| {
            shift_of(entry.tag, self.has_mask()).map(|shift| entry.permissions << shift)
        };
        self.entries.iter().filter_map(bits).fold(0, |all, bits| all | bits)
    }

    /// Does it say no more than these nine bits? Such a list need not be kept.
    pub fn is_mode_alone(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| matches!(entry.tag, Tag::UserObj | Tag::GroupObj | Tag::Other))
    }

    /// What chmod makes of it: the entries that are the mode's become so.
    pub fn set_mode(&mut self, mode: u32) {
        self.change(|_, bits| bits, mode);
    }

    /// What a file made with this mode in a directory with this default ACL gets: its mode, and its
    /// access ACL if that says more. The umask has no part in it.
    pub fn inherited(&self, mode: u32) -> (u32, Option<Self>) {
        let mut access = self.clone();
        access.change(|permissions, bits| permissions & bits, mode);
        let mode = mode & !ACCESS_BITS | access.access_bits();
        (mode, (!access.is_mode_alone()).then_some(access))
    }

    /// Changes the permissions of each entry that stands for bits of a mode: from what they are,
    /// and those bits.
    fn change(&mut self, to: impl Fn(u32, u32) -> u32, mode: u32) {
        let has_mask = self.has_mask();
        for entry in &mut self.entries {
            if let Some(shift) = shift_of(entry.tag, has_mask) {
                entry.permissions = to(entry.permissions, mode >> shift & PERMISSIONS);
            }
        }
    }

    fn has_mask(&self) -> bool {
        self.entries.iter().any(|entry| entry.tag == Tag::Mask)
    }
}

impl Entry {
    fn decode(raw: &[u8; ENTRY_BYTES]) -> Result<Self, AclError> {
        let [t0, t1, p0, p1, id @ ..] = *raw;
        let id = u32::from_le_bytes(id);
        let tag = match u16::from_le_bytes([t0, t1]) {
            0x01 => Tag::UserObj,
            0x02 => Tag::User(id),
            0x04 => Tag::GroupObj,
            0x08 => Tag::Group(id),
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return Err(AclError::Malformed),
        };
        Ok(Self { tag, permissions: u16::from_le_bytes([p0, p1]).into() })
    }

    fn encode(&self, value: &mut Vec<u8>) {
        let (tag, id) = match self.tag {
            Tag::UserObj => (0x01u16, NO_ID),
            Tag::User(id) => (0x02, id),
            Tag::GroupObj => (0x04, NO_ID),
            Tag::Group(id) => (0x08, id),
            Tag::Mask => (0x10, NO_ID),
            Tag::Other => (0x20, NO_ID),
        };
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&((self.permissions & PERMISSIONS) as u16).to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
}

/// How far left the permissions of an entry stand in a mode; `None` if they do not.
fn shift_of(tag: Tag, has_mask: bool) -> Option<u32> {
    match tag {
        Tag::UserObj => Some(6),
        Tag::Mask => Some(3),
        Tag::GroupObj if !has_mask => Some(3),
        Tag::Other => Some(0),
        Tag::User(_) | Tag::GroupObj | Tag::Group(_) => None,
    }
}

/// Are these entries a list? (Linux: `posix_acl_valid`. One may be named twice.)
fn check(entries: &[Entry]) -> Result<(), AclError> {
    let mut next = Tag::UserObj;
    let mut needs_mask = false;
    let mut ended = false;
    for entry in entries {
        next = match (next, entry.tag) {
            _ if ended || entry.permissions > PERMISSIONS => return Err(AclError::Malformed),
            (Tag::UserObj, Tag::UserObj) => Tag::GroupObj,
            (Tag::GroupObj, Tag::User(id)) if id != NO_ID => {
                needs_mask = true;
                next
            }
            (Tag::GroupObj, Tag::GroupObj) => Tag::Mask,
            (Tag::Mask, Tag::Group(id)) if id != NO_ID => {
                needs_mask = true;
                next
            }
            (Tag::Mask, Tag::Mask) => Tag::Other,
            (Tag::Mask, Tag::Other) if needs_mask => return Err(AclError::Malformed),
            (Tag::Mask | Tag::Other, Tag::Other) => {
                ended = true;
                next
            }
            _ => return Err(AclError::Malformed),
        };
    }
    if ended { Ok(()) } else { Err(AclError::Malformed) }
}

#[cfg(test)]
mod tests;
