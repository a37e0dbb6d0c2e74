//! Object I/O without a mount: a whole cluster in this process, a client of it, and objects that
//! are put, listed, read and removed.
//!
//! `cargo run -p osd-daemon --example objects`

use client::{Client, ClientConfig, blob};
use osd_daemon::config::{Config, Settings};
use osd_daemon::roles;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    // Port 0 takes a free one: several of these run side by side.
    let mut settings = Settings { data_dir: Some(dir.path().to_owned()), ..Settings::default() };
    for key in ["monitor_addr", "mds_listen", "osd_listen"] {
        settings = settings.or(Settings::from_words(key, "127.0.0.1:0")?);
    }
    // Returns when three OSDs, the monitor and the metadata service answer.
    let cluster = roles::start(&Config::new(settings)?, None, &Arc::new(AtomicBool::new(false)))?;
    let monitor =
        cluster.addresses().find(|(role, _)| role == "monitor").map(|(_, addr)| addr.to_string());
    let monitor = monitor.ok_or("the cluster has a monitor")?;
    println!("a cluster in {} with its monitor at {monitor}", dir.path().display());

    // One session: it is renewed while the client lives, and fenced if its process dies.
    let client = Client::connect(ClientConfig::new(&monitor, "example"))?;
    let (pool, info) =
        client.map()?.pool_named("data").map(|(id, pool)| (id, pool.clone())).ok_or("no pool")?;
    println!(
        "pool {:?} keeps {} data and {} parity shards",
        info.name,
        info.profile.k(),
        info.profile.m()
    );

    // A put replaces what was there, whole: readers see the old or the new.
    let content = vec![b'x'; 3 << 20];
    let stored = blob::put(&client, pool, b"reports/2026", &mut &content[..], &mut |_| {})?;
    println!("put {stored} bytes");
    for found in blob::list(&client, pool, b"reports/")? {
        println!("found {:?} of {} bytes", String::from_utf8_lossy(&found.name), found.size);
    }
    let mut read = Vec::new();
    blob::get(&client, pool, b"reports/2026", &mut read, &mut |_, _| {})?;
    assert!(read == content, "what was put is what is got");
    println!("got {} bytes, the same", read.len());
    blob::remove(&client, pool, b"reports/2026")?;

    client.close()?;
    cluster.stop();
    Ok(())
}
