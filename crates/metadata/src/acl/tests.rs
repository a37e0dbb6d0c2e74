//! Lists by example, and properties of any list.

use super::*;
use proptest::prelude::*;

fn entry(tag: Tag, permissions: u32) -> Entry {
    Entry { tag, permissions }
}

fn acl(entries: &[(Tag, u32)]) -> Result<Acl, AclError> {
    Acl::new(entries.iter().map(|(tag, permissions)| entry(*tag, *permissions)).collect())
}

/// `u::rwx,u:7:rw-,g::r-x,m::r-x,o::---`
fn named() -> Acl {
    acl(&[
        (Tag::UserObj, 7),
        (Tag::User(7), 6),
        (Tag::GroupObj, 5),
        (Tag::Mask, 5),
        (Tag::Other, 0),
    ])
    .expect("well-formed")
}

/// `u::rwx,g::r-x,o::--x`
fn minimal() -> Acl {
    acl(&[(Tag::UserObj, 7), (Tag::GroupObj, 5), (Tag::Other, 1)]).expect("well-formed")
}

fn permissions(acl: &Acl) -> Vec<u32> {
    acl.entries().iter().map(|entry| entry.permissions).collect()
}

#[test]
fn the_format_is_linuxs() {
    // As `getfattr -e hex -n system.posix_acl_access` shows `u::rwx,u:7:rw-,g::r-x,m::r-x,o::---`
    // of a file of ext4.
    let value = [
        &[2, 0, 0, 0][..],
        &[1, 0, 7, 0, 255, 255, 255, 255],
        &[2, 0, 6, 0, 7, 0, 0, 0],
        &[4, 0, 5, 0, 255, 255, 255, 255],
        &[16, 0, 5, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    assert_eq!(named().encode(), value);
    assert_eq!(Acl::decode(&value), Ok(named()));
}

#[test]
fn what_is_not_of_the_format_is_refused() {
    let good = named().encode();
    for cut in 0..good.len() {
        assert_eq!(Acl::decode(&good[..cut]), Err(AclError::Malformed), "{cut} bytes");
    }
    for (at, byte) in [(0, 1), (3, 1), (4, 3), (5, 1), (6, 8), (7, 1)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(Acl::decode(&bad), Err(AclError::Malformed), "byte {at} is {byte}");
    }
}

#[test]
fn entries_must_make_sense_together() {
    use Tag::{Group, GroupObj, Mask, Other, User, UserObj};
    let ok: [&[Tag]; 4] = [
        &[UserObj, GroupObj, Other],
        &[UserObj, GroupObj, Mask, Other],
        &[UserObj, User(9), User(3), User(3), GroupObj, Group(2), Group(1), Mask, Other],
        &[UserObj, GroupObj, Group(0), Mask, Other],
    ];
    let bad: [&[Tag]; 14] = [
        &[],
        &[UserObj],
        &[UserObj, GroupObj],
        &[UserObj, Other],
        &[GroupObj, Other],
        &[GroupObj, UserObj, Other],
        &[UserObj, UserObj, GroupObj, Other],
        &[UserObj, GroupObj, GroupObj, Other],
        &[UserObj, GroupObj, Other, Other],
        &[UserObj, GroupObj, Mask, Mask, Other],
        &[UserObj, GroupObj, Other, Mask],
        &[UserObj, User(1), GroupObj, Other],
        &[UserObj, GroupObj, User(1), Mask, Other],
        &[UserObj, User(u32::MAX), GroupObj, Mask, Other],
    ];
    let make = |tags: &[Tag]| acl(&tags.iter().map(|tag| (*tag, 7)).collect::<Vec<_>>());
    for tags in ok {
        assert!(make(tags).is_ok(), "{tags:?}");
    }
    for tags in bad {
        assert_eq!(make(tags), Err(AclError::Malformed), "{tags:?}");
    }
    assert_eq!(acl(&[(UserObj, 8), (GroupObj, 0), (Other, 0)]), Err(AclError::Malformed));
}

#[test]
fn a_list_has_a_bound() {
    let list = |users: u32| {
        let users = (0..users).map(|id| entry(Tag::User(id), 4));
        let rest = [Tag::GroupObj, Tag::Mask, Tag::Other].map(|tag| entry(tag, 4));
        Acl::new([entry(Tag::UserObj, 4)].into_iter().chain(users).chain(rest).collect())
    };
    let longest = list(507).expect("fits").encode();
    assert!(longest.len() <= ACL_BYTES_MAX && longest.len() + ENTRY_BYTES > ACL_BYTES_MAX);
    assert!(Acl::decode(&longest).is_ok());
    assert_eq!(list(508), Err(AclError::TooLong));
    assert_eq!(Acl::decode(&[2; ACL_BYTES_MAX + 1]), Err(AclError::TooLong));
}

#[test]
fn a_mode_has_the_mask_in_place_of_the_group() {
    assert_eq!((named().access_bits(), named().is_mode_alone()), (0o750, false));
    assert_eq!((minimal().access_bits(), minimal().is_mode_alone()), (0o751, true));
    let masked = acl(&[(Tag::UserObj, 6), (Tag::GroupObj, 7), (Tag::Mask, 4), (Tag::Other, 0)]);
    let masked = masked.expect("well-formed");
    assert_eq!((masked.access_bits(), masked.is_mode_alone()), (0o640, false));
}

#[test]
fn chmod_changes_owner_mask_and_others() {
    let mut acl = named();
    acl.set_mode(0o104_672);
    assert_eq!(permissions(&acl), [6, 6, 5, 7, 2]);
    let mut acl = minimal();
    acl.set_mode(0o024);
    assert_eq!(permissions(&acl), [0, 2, 4]);
}

#[test]
fn a_new_file_gets_what_both_its_mode_and_the_default_allow() {
    let (mode, access) = named().inherited(0o2666);
    assert_eq!(mode, 0o2640);
    assert_eq!(permissions(&access.expect("it names somebody")), [6, 6, 5, 4, 0]);
    assert_eq!(minimal().inherited(0o1773), (0o1751, None));
}

fn any_acl() -> impl Strategy<Value = Acl> {
    let named = || proptest::collection::vec((0..20u32, 0..8u32), 0..6);
    let mask = proptest::option::of(0..8u32);
    (named(), named(), mask, [0..8u32, 0..8u32, 0..8u32]).prop_map(|(users, groups, mask, own)| {
        let [owner, group, other] = own;
        let needs_mask = !users.is_empty() || !groups.is_empty();
        let mask = mask.or(needs_mask.then_some(3));
        let users = users.into_iter().map(|(id, permissions)| entry(Tag::User(id), permissions));
        let groups = groups.into_iter().map(|(id, permissions)| entry(Tag::Group(id), permissions));
        let mut entries = vec![entry(Tag::UserObj, owner)];
        entries.extend(users);
        entries.push(entry(Tag::GroupObj, group));
        entries.extend(groups);
        entries.extend(mask.map(|permissions| entry(Tag::Mask, permissions)));
        entries.push(entry(Tag::Other, other));
        Acl::new(entries).expect("well-formed")
    })
}

proptest! {
    #[test]
    fn a_list_is_read_as_it_was_written(acl in any_acl()) {
        prop_assert_eq!(Acl::decode(&acl.encode()), Ok(acl));
    }

    #[test]
    fn any_bytes_are_a_list_that_is_written_the_same_or_none(value in proptest::collection::vec(0..40u8, 0..40)) {
        if let Ok(acl) = Acl::decode(&value) {
            prop_assert_eq!(acl.encode().len(), value.len());
            prop_assert_eq!(Acl::decode(&acl.encode()), Ok(acl));
        }
    }

    #[test]
    fn after_chmod_the_list_says_the_mode_and_names_whom_it_named(acl in any_acl(), mode in 0..0o10000u32) {
        let mut changed = acl.clone();
        changed.set_mode(mode);
        prop_assert_eq!(changed.access_bits(), mode & 0o777);
        for (before, after) in acl.entries().iter().zip(changed.entries()) {
            prop_assert_eq!(before.tag, after.tag);
            if matches!(before.tag, Tag::User(_) | Tag::Group(_)) {
                prop_assert_eq!(before.permissions, after.permissions);
            }
        }
        prop_assert!(Acl::new(changed.entries().to_vec()).is_ok());
    }

    #[test]
    fn nobody_inherits_more_than_either_allows(acl in any_acl(), mode in 0..0o10000u32) {
        let (got, access) = acl.inherited(mode);
        prop_assert_eq!(got, mode & (!0o777 | acl.access_bits()));
        prop_assert_eq!(access.is_none(), acl.is_mode_alone());
        if let Some(access) = access {
            prop_assert_eq!(access.access_bits(), got & 0o777);
            prop_assert!(Acl::new(access.entries().to_vec()).is_ok());
        }
    }
}
