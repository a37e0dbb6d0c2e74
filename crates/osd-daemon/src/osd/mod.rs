//! The role osd.
