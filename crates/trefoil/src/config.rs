//! `trefoil config show | get | set`: the settings of a running daemon or mount.

use crate::error::OperatorError;
use crate::monitor::call;
use crate::{Cluster, output, telemetry};
use clap::Subcommand;
use protocol::Kind;
use protocol::admin::{AdminReply, AdminRequest, Setting};
use protocol::monitor::MonitorReply;
use serde::Serialize;
use std::fmt::Write;

/// What to do with settings. TARGET is osd.0, osd.1 ..., mds, monitor, or client.N as `trefoil top`
/// names it.
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// All settings of a daemon: values, which of them can change while it runs, what they mean
    Show {
        /// osd.N, mds, monitor or client.N
        target: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// One setting's value
    Get {
        /// osd.N, mds, monitor or client.N
        target: String,
        /// Which
        key: String,
    },
    /// Changes a setting until the daemon stops; to keep it, change the configuration file too
    Set {
        /// osd.N, mds, monitor or client.N
        target: String,
        /// Which
        key: String,
        /// As in the configuration file
        value: String,
    },
}

/// Does it.
///
/// # Errors
/// [`OperatorError::Refused`] for unknown targets and keys, bad values, and settings that only a
/// restart reads.
pub fn run(cluster: &Cluster, command: ConfigCommand) -> Result<(), OperatorError> {
    match command {
        ConfigCommand::Show { target, json } => {
            let settings = settings(ask(cluster, &target, &AdminRequest::ShowConfig)?)?;
            if json { output::line(&to_json(&settings)) } else { output::text(&table(&settings)) }
        }
        ConfigCommand::Get { target, key } => {
            let settings = settings(ask(cluster, &target, &AdminRequest::GetConfig { key })?)?;
            settings.iter().try_for_each(|setting| output::line(&setting.value))
        }
        ConfigCommand::Set { target, key, value } => {
            match ask(cluster, &target, &AdminRequest::SetConfig { key, value })? {
                AdminReply::Changed(Setting { key, value, .. }) => {
                    output::line(&format!("{target}: {key} = {value}, until it stops"))
                }
                AdminReply::NeedsRestart(Setting { key, value, .. }) => {
                    Err(OperatorError::Refused(format!(
                        "{key} needs a restart and is still {value}: set it in the configuration file of {target}, then restart it"
                    )))
                }
                other => Err(unexpected(other)),
            }
        }
    }
}

/// Asks a daemon, which the cluster map finds, or through the monitor a client.
fn ask(
    cluster: &Cluster,
    target: &str,
    request: &AdminRequest,
) -> Result<AdminReply, OperatorError> {
    let all = telemetry::targets(&cluster.status()?, &cluster.monitor);
    let found = telemetry::wanted(all, &[target.to_owned()])?;
    let silent = |reason: String| OperatorError::Silent { name: target.to_owned(), reason };
    let (addr, kind, front) = match found.iter().find_map(telemetry::Target::session) {
        Some(session) => {
            (&*cluster.monitor, Kind::ClientAdmin, protocol::encode(&(session, request)))
        }
        None => {
            let addr = found
                .iter()
                .find_map(telemetry::Target::addr)
                .ok_or_else(|| silent("it is down".into()))?;
            (addr, Kind::Admin, protocol::encode(request))
        }
    };
    let reply = call(addr, kind, front, cluster.timeout).map_err(silent)?;
    if reply.kind == Kind::AdminReply.to_u16() {
        return protocol::decode("admin reply", &reply.front)
            .map_err(|error| silent(error.to_string()));
    }
    match protocol::decode("monitor reply", &reply.front) {
        Ok(MonitorReply::Refused(why)) => Err(silent(why)),
        _ => Err(silent(format!("unexpected answer of kind {:#06x}", reply.kind))),
    }
}

fn settings(reply: AdminReply) -> Result<Vec<Setting>, OperatorError> {
    match reply {
        AdminReply::Settings(settings) => Ok(settings),
        other => Err(unexpected(other)),
    }
}

fn unexpected(reply: AdminReply) -> OperatorError {
    match reply {
        AdminReply::Refused(why) => OperatorError::Refused(why),
        other => OperatorError::Refused(format!("the daemon gave an unexpected answer: {other:?}")),
    }
}

fn table(settings: &[Setting]) -> String {
    let mut text = String::new();
    let width = settings.iter().map(|setting| setting.key.len()).max().unwrap_or(0);
    for Setting { key, value, is_default, is_live, help } in settings {
        let default = if *is_default { " (default)" } else { "" };
        let live = if *is_live { "live" } else { "restart" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{key:width$}  {live:7}  {value}{default}\n{:width$}           {help}",
            ""
        );
    }
    text
}

#[derive(Serialize)]
struct SettingJson<'a> {
    key: &'a str,
    value: &'a str,
    is_default: bool,
    is_live: bool,
    help: &'a str,
}

fn to_json(settings: &[Setting]) -> String {
    let json = |s: &'_ Setting| {
        serde_json::json!(SettingJson {
            key: &s.key,
            value: &s.value,
            is_default: s.is_default,
            is_live: s.is_live,
            help: &s.help,
        })
    };
    serde_json::Value::Array(settings.iter().map(json).collect()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_with_what_can_change() {
        let setting = |key: &str, is_live, is_default| Setting {
            key: key.into(),
            value: "7".into(),
            is_default,
            is_live,
            help: "What it is".into(),
        };
        let settings = [setting("a_key", true, false), setting("another_key", false, true)];
        let text = table(&settings);
        for part in
            ["a_key        live     7\n", "another_key  restart  7 (default)\n", "What it is"]
        {
            assert!(text.contains(part), "{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&to_json(&settings)).unwrap();
        assert_eq!((&json[0]["is_live"], &json[1]["key"]), (&true.into(), &"another_key".into()));
    }
}
