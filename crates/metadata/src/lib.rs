//! The namespace: inodes, directories, extended attributes and leases over an ordered transactional key-value store.
