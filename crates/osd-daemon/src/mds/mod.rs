//! The role mds.
