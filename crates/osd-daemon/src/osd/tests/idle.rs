//! Connections of a mount that lives and does nothing.

use super::data::{bytes_of, connect, file, read, write};
use super::*;

#[test]
fn an_idle_client_has_no_connections_and_goes_on_when_it_wants_to() {
    let cluster = TestCluster::start_tuned(2, Mapping::CoreAffine, |config| {
        config.ms_idle_timeout = Some(Duration::from_millis(150));
    });
    let client = connect(&cluster);
    let of_osd = |osd| cluster.osd(osd).listener().map_or(0, messenger::Listener::sessions);
    let sessions = || (0..3).map(of_osd).sum::<usize>();
    let files: Vec<_> = (0..4).map(|number| file(&cluster, number)).collect();
    for version in 1..=3 {
        for (number, file) in (0..).zip(&files) {
            write(&client, *file, bytes_of(number, version), number % 2 == 0);
        }
        wait_until("nothing is connected to the osds", || sessions() == 0);
        for (number, file) in (0..).zip(&files) {
            assert_eq!(read(&client, *file), bytes_of(number, version));
        }
        wait_until("not after reads either", || sessions() == 0);
    }
    client.close().expect("closed");
}
