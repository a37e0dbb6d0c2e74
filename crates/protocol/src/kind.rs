//! Message kinds: the number in a frame's header that says how its front segment is read.
//!
//! Contract: numbers are never reused; an unknown kind closes the connection with a counter.

/// Declares the kinds with their numbers, and the way back from a number.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a frame holds. Requests answered by a call's reply carry a correlation id; the
        /// others are one-way.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            /// The kind with this number, if there is one.
            pub const fn from_u16(raw: u16) -> Option<Kind> {
                match raw { $($number => Some(Kind::$name),)* _ => None }
            }

            /// The number on the wire.
            pub const fn to_u16(self) -> u16 {
                self as u16
            }
        }
    };
}

kinds! {
    /// Session to shard, one-way: [`crate::shard::AttachRequest`]; answered by [`Kind::Ack`].
    Attach = 0x10,
    /// Session to shard, one-way: [`crate::shard::WriteRequest`] and the fragment's bytes; answered
    /// by [`Kind::Ack`].
    Write = 0x11,
    /// Session to shard, one-way: [`crate::shard::MarkRequest`]; answered by [`Kind::Ack`] when it
    /// asks to sync.
    Mark = 0x12,
    /// Shard to session, one-way: [`crate::shard::AckMessage`].
    Ack = 0x13,
    /// Session to shard, call: [`crate::shard::ReadRequest`]; answered by [`Kind::ReadReply`].
    Read = 0x14,
    /// Shard to session: [`crate::shard::ReadReply`] and the bytes.
    ReadReply = 0x15,
    /// Session to shard, call: [`crate::shard::ReadRequest`] (length ignored); answered by
    /// [`Kind::StatReply`].
    Stat = 0x16,
    /// Shard to session: [`crate::shard::StatReply`].
    StatReply = 0x17,
    /// Session to shard, call: [`crate::shard::ReadRequest`]; answered by [`Kind::ExtentsReply`].
    Extents = 0x18,
    /// Shard to session: postcard [`crate::shard::ExtentsReply`].
    ExtentsReply = 0x19,
    /// Session to shard, call: [`crate::shard::ReadRequest`], whose object is the first asked for
    /// and whose length, if it is not 0, asks what each takes on the disk; the offset is ignored.
    /// Answered by [`Kind::ObjectsReply`].
    Objects = 0x1a,
    /// Shard to session: postcard [`crate::shard::ObjectsReply`].
    ObjectsReply = 0x1b,
    /// Session to shard, call: [`crate::shard::ReadRequest`] for a range of a fragment whose disk
    /// space is asked for; answered by [`Kind::SpaceReply`].
    Space = 0x1c,
    /// As [`Kind::Space`], and takes the space that is missing.
    Reserve = 0x1d,
    /// Shard to session: [`crate::shard::SpaceReply`].
    SpaceReply = 0x1e,
    /// OSD to OSD, call: postcard [`crate::recovery::RecoveryRequest`].
    Recovery = 0x20,
    /// OSD to OSD: postcard [`crate::recovery::RecoveryReply`] and, for pieces, the bytes.
    RecoveryReply = 0x21,
    /// Anyone to monitor, call: postcard [`crate::monitor::MonitorRequest`].
    Monitor = 0x30,
    /// Monitor to anyone: postcard [`crate::monitor::MonitorReply`].
    MonitorReply = 0x31,
    /// Monitor to a subscriber, one-way: postcard [`crate::monitor::MapUpdate`].
    MapUpdate = 0x32,
    /// Monitor to OSD, call: postcard [`crate::monitor::ResolveRequest`].
    Resolve = 0x33,
    /// OSD to monitor: postcard [`crate::monitor::ResolveReply`].
    ResolveReply = 0x34,
    /// Client to metadata service, call: postcard [`crate::namespace::Request`].
    Namespace = 0x40,
    /// Metadata service to client: postcard [`crate::namespace::Reply`].
    NamespaceReply = 0x41,
    /// Metadata service to client, one-way: postcard [`crate::namespace::Recall`].
    Recall = 0x42,
    /// Metadata service to client, one-way: postcard [`crate::namespace::NamesRecall`].
    NamesRecall = 0x43,
    /// Anyone to an OSD, call: empty front; answered by [`Kind::OsdStatusReply`].
    OsdStatus = 0x50,
    /// OSD to anyone: postcard [`crate::monitor::OsdReport`].
    OsdStatusReply = 0x51,
    /// Anyone to any daemon, and the monitor to a client, call: empty front; answered by
    /// [`Kind::TelemetryReply`].
    Telemetry = 0x52,
    /// Daemon or client to anyone: postcard, a list of `messenger::TelemetryReport`, one per
    /// runtime, the role's main one first.
    TelemetryReply = 0x53,
    /// Operator to any daemon, and the monitor to a client, call: postcard
    /// [`crate::admin::AdminRequest`].
    Admin = 0x54,
    /// Daemon or client to operator: postcard [`crate::admin::AdminReply`].
    AdminReply = 0x55,
    /// Anyone to monitor, call: postcard [`crate::SessionId`]. The monitor asks the client of this
    /// session, and passes its [`Kind::TelemetryReply`] on; a client that does not answer is a
    /// refusal as [`Kind::MonitorReply`].
    ClientTelemetry = 0x56,
    /// As [`Kind::Telemetry`], for the operations that are remembered one by one; answered by
    /// [`Kind::HistoryReply`].
    History = 0x57,
    /// Daemon or client to anyone: postcard `messenger::HistoryReport`.
    HistoryReply = 0x58,
    /// As [`Kind::ClientTelemetry`], for [`Kind::History`].
    ClientHistory = 0x59,
    /// Operator to monitor, call: postcard, a [`crate::SessionId`] and a
    /// [`crate::admin::AdminRequest`]. The monitor puts the request to the client of this session
    /// as [`Kind::Admin`], and passes its [`Kind::AdminReply`] on; otherwise as
    /// [`Kind::ClientTelemetry`].
    ClientAdmin = 0x5c,
    /// Anyone to an OSD, call: postcard [`crate::scrub::ScrubRequest`].
    Scrub = 0x60,
    /// OSD to anyone: postcard [`crate::scrub::ScrubReply`].
    ScrubReply = 0x61,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_and_kind_round_trip() {
        let known = (0..=u16::MAX)
            .filter_map(Kind::from_u16)
            .inspect(|k| assert_eq!(Kind::from_u16(k.to_u16()), Some(*k)));
        assert_eq!(known.count(), 39);
    }
}
