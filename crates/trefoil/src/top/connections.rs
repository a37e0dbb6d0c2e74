//! Connections in `trefoil top`, and what another mapping would make of them.

use crate::table::{bytes, columns};
use messenger::{
    AttachmentStats, Change, ConnState, ConnectionStats, Forecast, ListenerStats, Mapping, Move,
    TelemetryReport,
};
use serde::Serialize;
use std::cmp::Reverse;
use std::time::Duration;

/// Connections in the table, the busiest; JSON has all that daemons report.
const ROWS_MAX: usize = 20;
/// Changes in a line about a mapping, those of the busiest connections; JSON has all.
const CHANGES_MAX: usize = 3;

/// A connection in an interval.
#[derive(Debug, Serialize)]
pub struct Row {
    target: String,
    listener: String,
    connection: u64,
    name: String,
    peer: String,
    state: &'static str,
    mapping: &'static str,
    workers: Vec<usize>,
    seconds: f64,
    bytes_in_per_s: f64,
    bytes_out_per_s: f64,
    messages_per_s: f64,
    lock_wait_share: f64,
    contended_share: f64,
    marks_per_s: f64,
    seats: Vec<SeatRow>,
}

/// What one worker did on it.
#[derive(Debug, Serialize)]
struct SeatRow {
    worker: usize,
    seated: bool,
    bytes_per_s: f64,
    messages_per_s: f64,
    lock_wait_share: f64,
    acquisitions_per_s: f64,
    contended_per_s: f64,
    marks_per_s: f64,
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The connections of a daemon, which were counted over the time that the report took.
pub fn rows(report: &TelemetryReport) -> Vec<Row> {
    let of = |listener| row_maker(report, listener);
    report
        .listeners
        .iter()
        .flat_map(|listener| listener.connections.iter().map(of(listener)))
        .collect()
}

fn row_maker<'a>(
    report: &'a TelemetryReport,
    listener: &'a ListenerStats,
) -> impl Fn(&'a ConnectionStats) -> Row + use<'a> {
    let elapsed_ns = report.elapsed_ns;
    let per_second = move |n: u64| share(n, elapsed_ns) * 1e9;
    let seat = move |seat: &AttachmentStats| SeatRow {
        worker: seat.worker,
        seated: seat.seated,
        bytes_per_s: per_second(seat.bytes()),
        messages_per_s: per_second(seat.messages),
        lock_wait_share: share(seat.lock_wait_ns, elapsed_ns),
        acquisitions_per_s: per_second(seat.acquisitions),
        contended_per_s: per_second(seat.contended),
        marks_per_s: per_second(seat.marks),
    };
    move |connection| Row {
        target: report.name.clone(),
        listener: listener.addr.to_string(),
        connection: connection.id,
        name: connection.name.clone(),
        peer: connection.peer.to_string(),
        state: state(connection.state),
        mapping: listener.placement.mapping.name(),
        workers: connection.workers.clone(),
        seconds: elapsed_ns as f64 / 1e9,
        bytes_in_per_s: per_second(connection.sum(|seat| seat.bytes_in)),
        bytes_out_per_s: per_second(connection.sum(|seat| seat.bytes_out)),
        messages_per_s: per_second(connection.sum(|seat| seat.messages)),
        lock_wait_share: share(connection.lock_wait_ns(), elapsed_ns),
        contended_share: share(
            connection.sum(|seat| seat.contended),
            connection.sum(|seat| seat.acquisitions),
        ),
        marks_per_s: per_second(connection.sum(|seat| seat.marks)),
        seats: connection.attachments.iter().map(seat).collect(),
    }
}

fn state(state: ConnState) -> &'static str {
    match state {
        ConnState::Connecting => "connecting",
        ConnState::Up => "up",
        ConnState::Down => "down",
        ConnState::Closed => "closed",
        ConnState::Resting => "resting",
    }
}

/// What a mapping that a listener does not have would change after the interval.
#[derive(Debug, Serialize)]
pub struct Outlook {
    target: String,
    listener: String,
    mapping: &'static str,
    changes: Vec<ChangeRow>,
}

#[derive(Debug, Serialize)]
struct ChangeRow {
    connection: u64,
    change: &'static str,
    worker: usize,
}

/// What the other mappings would change, as far as that can be told, the busiest connections first.
pub fn outlooks(report: &TelemetryReport) -> Vec<Outlook> {
    let elapsed = Duration::from_nanos(report.elapsed_ns);
    let worker_bytes = worker_bytes(report);
    let mut outlooks = Vec::new();
    for listener in report.listeners.iter().filter(|listener| !listener.connections.is_empty()) {
        for mapping in
            Mapping::ALL.into_iter().filter(|mapping| *mapping != listener.placement.mapping)
        {
            let Some(mut moves) = listener.outlook(mapping, worker_bytes.clone(), elapsed) else {
                continue;
            };
            let traffic = |id| {
                listener
                    .connections
                    .iter()
                    .find(|connection| connection.id == id)
                    .map(|c| c.bytes())
            };
            moves.sort_by_key(|step| Reverse(traffic(step.connection)));
            outlooks.push(Outlook {
                target: report.name.clone(),
                listener: listener.addr.to_string(),
                mapping: mapping.name(),
                changes: moves.into_iter().map(change_row).collect(),
            });
        }
    }
    outlooks
}

fn change_row(step: Move) -> ChangeRow {
    let (change, worker) = match step.change {
        Change::Add(worker) => ("add", worker),
        Change::Remove(worker) => ("remove", worker),
        Change::Only(worker) => ("only", worker),
    };
    ChangeRow { connection: step.connection, change, worker: worker.0 }
}

fn words(row: &ChangeRow) -> String {
    let ChangeRow { connection, change, worker } = row;
    match *change {
        "add" => format!("add worker {worker} to connection {connection}"),
        "remove" => format!("take worker {worker} from connection {connection}"),
        _ => format!("move connection {connection} to worker {worker}"),
    }
}

/// The busiest and the idlest worker of a listener's runtime in the interval, as they are or as a
/// mapping would make them.
#[derive(Debug, Serialize)]
pub struct Spread {
    target: String,
    listener: String,
    workers: usize,
    mapping: &'static str,
    present: bool,
    max_bytes_per_s: Option<f64>,
    min_bytes_per_s: Option<f64>,
    /// Why nothing is predicted.
    unknown: Option<&'static str>,
}

/// Of each listener with connections the spread of all mappings, in the order of [`Mapping::ALL`].
pub fn spreads(report: &TelemetryReport) -> Vec<Spread> {
    let worker_bytes = worker_bytes(report);
    let per_second = |n: u64| share(n, report.elapsed_ns) * 1e9;
    let spread = |listener: &ListenerStats, mapping: Mapping| {
        let present = mapping == listener.placement.mapping;
        let forecast = if present {
            Forecast::Bytes(worker_bytes.clone())
        } else {
            listener.forecast(mapping, &worker_bytes, Duration::from_nanos(report.elapsed_ns))
        };
        let (bytes, unknown) = match forecast {
            Forecast::Bytes(bytes) => (bytes, None),
            Forecast::FollowsWhoIsFree => {
                (Vec::new(), Some("bytes per worker follow from who is free"))
            }
            Forecast::Unknown => (Vec::new(), Some("not all connections are known")),
        };
        Spread {
            target: report.name.clone(),
            listener: listener.addr.to_string(),
            workers: worker_bytes.len(),
            mapping: mapping.name(),
            present,
            max_bytes_per_s: bytes.iter().max().copied().map(per_second),
            min_bytes_per_s: bytes.iter().min().copied().map(per_second),
            unknown,
        }
    };
    let listeners = report.listeners.iter().filter(|listener| !listener.connections.is_empty());
    listeners.flat_map(|listener| Mapping::ALL.map(|mapping| spread(listener, mapping))).collect()
}

fn worker_bytes(report: &TelemetryReport) -> Vec<u64> {
    report.workers.iter().map(|worker| worker.bytes_in.saturating_add(worker.bytes_out)).collect()
}

/// Mappings whose spread can be predicted.
const PREDICTED: [Mapping; 3] = [Mapping::RoundRobin, Mapping::TrafficAware, Mapping::CoreAffine];

/// A line per listener with more than one worker to choose from.
pub fn spread_text(spreads: &[Spread]) -> String {
    let listeners: Vec<&[Spread]> = spreads
        .chunk_by(|a, b| (&a.target, &a.listener) == (&b.target, &b.listener))
        .filter(|listener| listener[0].workers > 1)
        .collect();
    if listeners.is_empty() {
        return String::new();
    }
    let cells = listeners.iter().map(|listener| {
        let cell = |wanted: &dyn Fn(&Spread) -> bool| {
            listener.iter().find(|row| wanted(row)).map_or("-".into(), max_min)
        };
        let predicted = PREDICTED.map(|mapping| cell(&|row| row.mapping == mapping.name()));
        let [round_robin, traffic_aware, core_affine] = predicted;
        let now = listener.iter().find(|row| row.present).map_or("", |row| row.mapping);
        let (target, addr) = (listener[0].target.clone(), listener[0].listener.clone());
        [
            target,
            addr,
            now.to_owned(),
            cell(&|row| row.present),
            round_robin,
            traffic_aware,
            core_affine,
        ]
    });
    let [round_robin, traffic_aware, core_affine] = PREDICTED.map(Mapping::name);
    let head = ["target", "listener", "mapping", "now", round_robin, traffic_aware, core_affine];
    "bytes/s of the busiest and the idlest worker, now and as mappings with one worker per connection would have it\n"
        .to_owned()
        + &columns(head, cells)
        + "shared, lcam, handoff: bytes per worker follow from who is free and cannot be predicted\n"
}

/// "6.0 KiB / 0 B".
fn max_min(row: &Spread) -> String {
    match (row.max_bytes_per_s, row.min_bytes_per_s) {
        (Some(max), Some(min)) => format!("{} / {}", bytes(max as u64), bytes(min as u64)),
        _ => "-".to_owned(),
    }
}

/// A table of the busiest connections.
pub fn text(rows: &[Row]) -> String {
    let head = [
        "target",
        "conn",
        "name",
        "peer",
        "mapping",
        "workers",
        "in/s",
        "out/s",
        "messages/s",
        "lock wait",
        "contended",
        "marks/s",
    ];
    let cells = busiest(rows).map(|row| {
        let workers: Vec<String> = row.workers.iter().map(usize::to_string).collect();
        [
            row.target.clone(),
            row.connection.to_string(),
            row.name.clone(),
            row.peer.clone(),
            row.mapping.to_owned(),
            workers.join(","),
            bytes(row.bytes_in_per_s as u64),
            bytes(row.bytes_out_per_s as u64),
            format!("{:.0}", row.messages_per_s),
            format!("{:.1}%", row.lock_wait_share * 100.0),
            format!("{:.1}%", row.contended_share * 100.0),
            format!("{:.1}", row.marks_per_s),
        ]
    });
    columns(head, cells) + &left_out(rows)
}

/// A table of what each worker does on the busiest connections.
pub fn seat_text(rows: &[Row]) -> String {
    let head = [
        "target",
        "conn",
        "worker",
        "serves",
        "bytes/s",
        "messages/s",
        "lock wait",
        "taken/s",
        "found taken/s",
        "marks/s",
    ];
    let cells = busiest(rows).flat_map(|row| row.seats.iter().map(move |seat| (row, seat))).map(
        |(row, seat)| {
            [
                row.target.clone(),
                row.connection.to_string(),
                seat.worker.to_string(),
                if seat.seated { "yes" } else { "no more" }.to_owned(),
                bytes(seat.bytes_per_s as u64),
                format!("{:.0}", seat.messages_per_s),
                format!("{:.1}%", seat.lock_wait_share * 100.0),
                format!("{:.1}", seat.acquisitions_per_s),
                format!("{:.1}", seat.contended_per_s),
                format!("{:.1}", seat.marks_per_s),
            ]
        },
    );
    columns(head, cells) + &left_out(rows)
}

/// The connections in tables, those with the most traffic first.
fn busiest(rows: &[Row]) -> impl Iterator<Item = &Row> {
    let mut busiest: Vec<&Row> = rows.iter().collect();
    busiest.sort_by(|a, b| {
        let traffic = |row: &Row| row.bytes_in_per_s + row.bytes_out_per_s;
        traffic(b).total_cmp(&traffic(a))
    });
    busiest.into_iter().take(ROWS_MAX)
}

/// How many connections are not in tables, if any.
fn left_out(rows: &[Row]) -> String {
    let more = rows.len().checked_sub(ROWS_MAX).filter(|more| *more > 0);
    more.map_or_else(String::new, |more| format!("{more} more with less traffic\n"))
}

/// A line per listener and mapping.
pub fn outlook_text(outlooks: &[Outlook]) -> String {
    let line = |outlook: &Outlook| {
        let mut parts: Vec<String> = outlook.changes.iter().take(CHANGES_MAX).map(words).collect();
        if let Some(more) = outlook.changes.len().checked_sub(CHANGES_MAX).filter(|more| *more > 0)
        {
            parts.push(format!("change {more} more"));
        }
        let parts = if parts.is_empty() { "change nothing".to_owned() } else { parts.join(", ") };
        format!("{} {}: {} would {parts}\n", outlook.target, outlook.listener, outlook.mapping)
    };
    outlooks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use messenger::sync::LockStats;
    use messenger::{PlacementConfig, WorkerStats};

    fn connection(id: u64, bytes_in: u64) -> ConnectionStats {
        let seat = AttachmentStats {
            worker: 0,
            seated: true,
            bytes_in,
            messages: 10,
            ..AttachmentStats::default()
        };
        let other = AttachmentStats {
            worker: 1,
            seated: false,
            lock_wait_ns: 200_000_000,
            marks: 3,
            ..AttachmentStats::default()
        };
        ConnectionStats {
            id,
            peer: ([127, 0, 0, 1], 5).into(),
            name: "client".into(),
            lane: 0,
            state: ConnState::Up,
            workers: vec![0],
            attachments: vec![
                AttachmentStats { acquisitions: 30, ..seat },
                AttachmentStats { acquisitions: 10, contended: 10, ..other },
            ],
            lock: LockStats::default(),
        }
    }

    fn report(connections: Vec<ConnectionStats>) -> TelemetryReport {
        let listener = ListenerStats {
            id: 1,
            addr: ([127, 0, 0, 1], 7400).into(),
            placement: PlacementConfig::new(Mapping::RoundRobin),
            sessions: connections.len() as u64,
            attachments: connections.len() as u64,
            connections,
        };
        TelemetryReport {
            name: "osd.0".into(),
            elapsed_ns: 2_000_000_000,
            workers: vec![
                WorkerStats { bytes_in: 12_288, ..WorkerStats::default() },
                WorkerStats::default(),
            ],
            listeners: vec![listener],
            ..TelemetryReport::default()
        }
    }

    #[test]
    fn the_busiest_come_first_as_rates_and_shares() {
        let text = text(&rows(&report(vec![connection(7, 4096), connection(8, 8192)])));
        let first: Vec<&str> = text.lines().nth(1).expect("two rows").split_whitespace().collect();
        assert_eq!(
            first.join(" "),
            "osd.0 8 client 127.0.0.1:5 round-robin 0 4.0 KiB 0 B 5 10.0% 25.0% 1.5"
        );
        let idle = TelemetryReport { elapsed_ns: 0, ..report(vec![connection(7, 0)]) };
        assert_eq!(rows(&idle)[0].bytes_in_per_s, 0.0, "nothing is divided by zero");
    }

    #[test]
    fn seats_tell_which_worker_waits_and_which_moves_on() {
        let rows = rows(&report(vec![connection(7, 4096), connection(8, 8192)]));
        let text = seat_text(&rows);
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines.len(), 1 + 4, "a line for each connection and worker:\n{text}");
        assert_eq!(lines[1], "osd.0 8 0 yes 4.0 KiB 5 0.0% 15.0 0.0 0.0");
        assert_eq!(lines[2], "osd.0 8 1 no more 0 B 0 10.0% 5.0 5.0 1.5");
        let json = serde_json::to_value(&rows[0].seats[1]).expect("plain values");
        assert_eq!(
            (&json["acquisitions_per_s"], &json["contended_per_s"]),
            (&5.0.into(), &5.0.into())
        );
        assert_eq!(json["marks_per_s"], 1.5);
    }

    #[test]
    fn long_lists_are_cut_in_text_only() {
        let rows = rows(&report((0..30).map(|id| connection(id, id)).collect()));
        let text = text(&rows);
        assert_eq!((rows.len(), text.lines().count()), (30, 1 + ROWS_MAX + 1));
        assert!(text.ends_with("10 more with less traffic\n"), "{text}");
    }

    #[test]
    fn other_mappings_in_words() {
        let outlooks = outlooks(&report((1..=5).map(|id| connection(id, id * 1000)).collect()));
        let text = outlook_text(&outlooks);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "osd.0 127.0.0.1:7400: traffic-aware would move connection 5 to worker 1, move connection 4 to worker 1",
                "osd.0 127.0.0.1:7400: lcam would add worker 1 to connection 5, add worker 1 to connection 4, \
             add worker 1 to connection 3, change 2 more",
            ]
        );
        let none = outlook_text(&outlooks_without_changes());
        assert_eq!(none, "osd.0 127.0.0.1:7400: traffic-aware would change nothing\n");
    }

    #[test]
    fn the_spread_over_workers_is_shown_beside_what_others_would_make_of_it() {
        let report = report(vec![connection(1, 4096), connection(2, 8192)]);
        let spreads = spreads(&report);
        let text = spread_text(&spreads);
        let line: Vec<&str> = text
            .lines()
            .nth(2)
            .expect("one listener")
            .split("  ")
            .filter(|c| !c.is_empty())
            .collect();
        let line: Vec<&str> = line.into_iter().map(str::trim).collect();
        let now = "6.0 KiB / 0 B";
        let spread = "4.0 KiB / 2.0 KiB";
        assert_eq!(
            line,
            ["osd.0", "127.0.0.1:7400", "round-robin", now, now, spread, now],
            "{text}"
        );
        assert!(
            text.ends_with("shared, lcam, handoff: bytes per worker follow from who is free and cannot be predicted\n")
        );
        let json = serde_json::to_value(&spreads).expect("plain values");
        let row = |name: &str| {
            json.as_array().and_then(|rows| rows.iter().find(|row| row["mapping"] == name))
        };
        assert_eq!(row("traffic-aware").map(|row| &row["max_bytes_per_s"]), Some(&4096.0.into()));
        assert_eq!(row("round-robin").map(|row| &row["present"]), Some(&true.into()));
        let handoff = row("handoff").expect("every mapping");
        assert!(
            handoff["max_bytes_per_s"].is_null() && handoff["unknown"].is_string(),
            "{handoff}"
        );
    }

    #[test]
    fn of_connections_with_several_workers_the_spread_with_one_each_is_shown() {
        let mut shared = report(vec![connection(1, 4096), connection(2, 8192)]);
        shared.listeners[0].placement = PlacementConfig::new(Mapping::Handoff);
        shared.listeners[0]
            .connections
            .iter_mut()
            .for_each(|connection| connection.workers = vec![0, 1]);
        let text = spread_text(&spreads(&shared));
        let row = text.lines().nth(2).expect("one listener");
        assert!(
            row.contains("handoff")
                && row.contains("6.0 KiB / 0 B")
                && row.contains("4.0 KiB / 2.0 KiB"),
            "{text}"
        );
        shared.workers.truncate(1);
        assert_eq!(spread_text(&spreads(&shared)), "", "one worker: nothing to choose");
    }

    fn outlooks_without_changes() -> Vec<Outlook> {
        let all = outlooks(&report(vec![connection(1, 0)]));
        all.into_iter().filter(|outlook| outlook.changes.is_empty()).collect()
    }
}
