//! The messages of Trefoil: ids, hot messages as fixed little-endian layouts, control messages as postcard.
