//! Which traffic class a message is of.
//!
//! Contract: pure. The class follows from the kind of a message and from how its sender is
//! connected; the class that its frame claims is not asked. Whoever connects may say that he is
//! anybody, so only what comes over a connection that this daemon has made to its monitor is of
//! class I: from a client nothing is, whatever it marks it as.

use messenger::TrafficClass;
use protocol::Kind;

/// How the sender of a message is connected to a storage daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sender {
    /// The monitor, on a connection that this daemon has made to it.
    Monitor,
    /// Anybody who has connected to this daemon.
    Anyone,
}

/// The class of a message to a storage daemon; `None`: it does not take this kind from there.
pub(crate) fn class_of(kind: Kind, from: Sender) -> Option<TrafficClass> {
    let (sender, class) = match kind {
        // Maps, and questions about dead sessions, for which others wait.
        Kind::MapUpdate | Kind::Resolve | Kind::MonitorReply => {
            (Sender::Monitor, TrafficClass::Control)
        }
        // Clients' I/O, and what they need for it.
        Kind::Attach
        | Kind::Write
        | Kind::Mark
        | Kind::Read
        | Kind::Stat
        | Kind::Extents
        | Kind::Objects
        | Kind::Space
        | Kind::Reserve => (Sender::Anyone, TrafficClass::Client),
        // Operators wait for these as clients do, and clients can send them.
        Kind::OsdStatus | Kind::Telemetry | Kind::History | Kind::Admin | Kind::Scrub => {
            (Sender::Anyone, TrafficClass::Client)
        }
        // Lists, pieces and sums for other shards, for rebuilding and for scrubs.
        Kind::Recovery => (Sender::Anyone, TrafficClass::Background),
        // Not to a storage daemon: to others, or as a reply, which belongs to its call.
        Kind::Ack
        | Kind::ReadReply
        | Kind::StatReply
        | Kind::ExtentsReply
        | Kind::ObjectsReply
        | Kind::SpaceReply
        | Kind::RecoveryReply
        | Kind::Monitor
        | Kind::ResolveReply
        | Kind::Namespace
        | Kind::NamespaceReply
        | Kind::Recall
        | Kind::NamesRecall
        | Kind::OsdStatusReply
        | Kind::TelemetryReply
        | Kind::AdminReply
        | Kind::ClientTelemetry
        | Kind::HistoryReply
        | Kind::ClientHistory
        | Kind::ClientAdmin
        | Kind::ScrubReply
        | Kind::MonitorHello
        | Kind::MonitorHelloReply
        | Kind::Consensus => return None,
    };
    (sender == from).then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds() -> impl Iterator<Item = Kind> {
        (0..=u16::MAX).filter_map(Kind::from_u16)
    }

    #[test]
    fn nobody_who_connects_sends_anything_of_class_one() {
        for kind in kinds() {
            let class = class_of(kind, Sender::Anyone);
            assert_ne!(class, Some(TrafficClass::Control), "{kind:?}");
        }
        assert_eq!(class_of(Kind::MapUpdate, Sender::Anyone), None, "only the monitor has maps");
    }

    #[test]
    fn the_monitor_sends_nothing_else() {
        let told = kinds().filter_map(|kind| class_of(kind, Sender::Monitor));
        assert!(told.into_iter().all(|class| class == TrafficClass::Control));
        assert_eq!(class_of(Kind::Write, Sender::Monitor), None);
    }

    #[test]
    fn what_no_client_waits_for_is_of_class_three() {
        let of = |class| kinds().filter(move |kind| class_of(*kind, Sender::Anyone) == Some(class));
        assert_eq!(of(TrafficClass::Background).collect::<Vec<_>>(), [Kind::Recovery]);
        assert!(of(TrafficClass::Client).any(|kind| kind == Kind::Mark), "fsync is a client's");
    }
}
