//! The configuration of a running role: what `trefoil config` shows and changes.
//!
//! Contract: values are checked exactly as those of the file ([`Config::new`]), before anything
//! changes. A role says which keys it can change while it runs; all others need a restart, and
//! nothing is remembered of them. Changes last until the role stops: the file is the operator's.

use crate::config::page::split_default;
use crate::config::{Config, Settings};
use bytes::Bytes;
use messenger::sync::{ContentionMutex, LockTable};
use messenger::{Connection, Message};
use protocol::Kind;
use protocol::admin::{AdminReply, AdminRequest, Setting};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Replaces the process's log filter, or says what is wrong with the new one.
type SetLog = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// The log filter, which all roles of a process share.
pub struct Log {
    // A bare lock: it is the process's, and lock tables are those of roles.
    filter: Mutex<String>,
    set: Box<SetLog>,
}

impl Log {
    /// The filter as it is, and what changes it.
    pub fn new(
        filter: String,
        set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Arc<Log> {
        Arc::new(Log { filter: Mutex::new(filter), set: Box::new(set) })
    }

    /// The filter is replaced whole, so what a panic leaves behind is good.
    fn filter(&self) -> MutexGuard<'_, String> {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("filter", &*self.filter()).finish_non_exhaustive()
    }
}

/// What of a running role can change.
pub(crate) trait LiveRole {
    /// The keys that [`LiveRole::apply`] knows.
    const LIVE_KEYS: &'static [&'static str];

    /// Takes over what one of its keys says now.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    fn apply(&self, key: &str, config: &Config) -> Result<(), String>;
}

/// A role of which nothing can change.
pub(crate) struct Fixed;

impl LiveRole for Fixed {
    const LIVE_KEYS: &'static [&'static str] = &[];

    fn apply(&self, key: &str, _config: &Config) -> Result<(), String> {
        Err(format!("{key} cannot change here"))
    }
}

/// What a role is started with, and shows as its configuration.
#[derive(Clone, Debug, Default)]
pub struct LiveStart {
    /// Its settings.
    pub settings: Settings,
    /// The log filter of its process, if that can change.
    pub log: Option<Arc<Log>>,
}

/// The settings of one role, and of its process the log filter.
#[derive(Debug)]
pub(crate) struct LiveConfig {
    settings: ContentionMutex<Settings>,
    log: Option<Arc<Log>>,
}

impl LiveConfig {
    /// The settings that a role was started with.
    pub(crate) fn new(start: LiveStart, locks: &LockTable) -> Arc<LiveConfig> {
        Arc::new(LiveConfig {
            settings: ContentionMutex::new(locks, "live settings", start.settings),
            log: start.log,
        })
    }

    /// Answers a message of kind [`Kind::Admin`]; anything else gets a refusal, too.
    pub(crate) fn serve<R: LiveRole>(&self, role: &R, connection: &Connection, message: &Message) {
        let reply = match protocol::decode::<AdminRequest>("admin request", &message.front) {
            Ok(request) => self.answer(role, &request),
            Err(error) => AdminReply::Refused(error.to_string()),
        };
        connection.reply(
            message,
            Kind::AdminReply.to_u16(),
            protocol::encode(&reply),
            Bytes::new(),
        );
    }

    fn answer<R: LiveRole>(&self, role: &R, request: &AdminRequest) -> AdminReply {
        let answer = match request {
            AdminRequest::ShowConfig => Ok(AdminReply::Settings(self.all::<R>())),
            AdminRequest::GetConfig { key } => self
                .get::<R>(&Settings::plain_key(key))
                .map(|setting| AdminReply::Settings(vec![setting])),
            AdminRequest::SetConfig { key, value } => {
                self.set(role, &Settings::plain_key(key), value)
            }
        };
        answer.unwrap_or_else(AdminReply::Refused)
    }

    fn all<R: LiveRole>(&self) -> Vec<Setting> {
        let words = self.settings.lock().words();
        let describe = |&(key, help): &(&'static str, &'static str)| {
            let set = match (key, &self.log) {
                ("log", Some(log)) => Some(log.filter().clone()),
                _ => words.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone()),
            };
            let (help, default) = split_default(help);
            Setting {
                key: key.to_owned(),
                is_default: set.is_none(),
                value: set.unwrap_or_else(|| default.to_owned()),
                is_live: self.is_live::<R>(key),
                help: help.to_owned(),
            }
        };
        Settings::HELP.iter().map(describe).collect()
    }

    fn is_live<R: LiveRole>(&self, key: &str) -> bool {
        R::LIVE_KEYS.contains(&key) || key == "log" && self.log.is_some()
    }

    fn get<R: LiveRole>(&self, key: &str) -> Result<Setting, String> {
        Settings::check_key(key)?;
        self.all::<R>()
            .into_iter()
            .find(|setting| setting.key == key)
            .ok_or_else(|| format!("no key `{key}`"))
    }

    fn set<R: LiveRole>(&self, role: &R, key: &str, value: &str) -> Result<AdminReply, String> {
        let new = Settings::from_words(key, value)?;
        let mut settings = self.settings.lock();
        let merged = new.or(settings.clone());
        let config = Config::new(merged.clone()).map_err(|error| error.to_string())?;
        match (key, &self.log) {
            ("log", Some(log)) => {
                let mut filter = log.filter();
                (log.set)(&config.log)?;
                filter.clone_from(&config.log);
            }
            _ if R::LIVE_KEYS.contains(&key) => role.apply(key, &config)?,
            _ => {
                drop(settings);
                return self.get::<R>(key).map(AdminReply::NeedsRestart);
            }
        }
        *settings = merged;
        drop(settings);
        tracing::info!(key, value, "setting changed");
        self.get::<R>(key).map(AdminReply::Changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct Interval(Cell<u64>);

    impl LiveRole for Interval {
        const LIVE_KEYS: &'static [&'static str] = &["journal_sync_interval_ms"];

        fn apply(&self, _key: &str, config: &Config) -> Result<(), String> {
            self.0.set(config.journal_sync_interval_ms);
            Ok(())
        }
    }

    fn live() -> (Arc<LiveConfig>, Interval) {
        let settings = Settings { osd_count: Some(5), ..Settings::default() };
        let log = Log::new("info".into(), |filter| {
            if filter == "bad" { Err("bad filter".into()) } else { Ok(()) }
        });
        let start = LiveStart { settings, log: Some(log) };
        (LiveConfig::new(start, &LockTable::default()), Interval(Cell::new(100)))
    }

    fn set(live: &LiveConfig, role: &Interval, key: &str, value: &str) -> AdminReply {
        live.answer(role, &AdminRequest::SetConfig { key: key.into(), value: value.into() })
    }

    #[test]
    fn what_is_live_changes_and_is_shown() {
        let (live, role) = live();
        let AdminReply::Changed(setting) = set(&live, &role, "journal_sync_interval_ms", "20")
        else {
            panic!("no")
        };
        assert_eq!(
            (setting.value.as_str(), setting.is_default, setting.is_live),
            ("20", false, true)
        );
        assert_eq!(role.0.get(), 20);
        assert!(matches!(set(&live, &role, "log", "debug"), AdminReply::Changed(_)));
        let AdminReply::Settings(all) = live.answer(&role, &AdminRequest::ShowConfig) else {
            panic!("no")
        };
        assert_eq!(all.len(), Settings::KEYS.len());
        let value = |key: &str| {
            all.iter().find(|setting| setting.key == key).map(|s| (s.value.as_str(), s.is_default))
        };
        assert_eq!(value("journal_sync_interval_ms"), Some(("20", false)));
        assert_eq!(value("osd_count"), Some(("5", false)));
        assert_eq!(value("pool_k"), Some(("2", true)));
        assert_eq!(value("log"), Some(("debug", false)));
        assert!(
            all.iter().all(|setting| !setting.help.is_empty() && !setting.value.is_empty()),
            "{all:?}"
        );
    }

    #[test]
    fn what_is_refused_or_needs_a_restart_changes_nothing() {
        let (live, role) = live();
        for (key, value, part) in [
            ("journal_sync_interval_ms", "0", "from 1 to 60000"),
            ("journal_sync_interval_ms", "soon", "u64"),
            ("journal_sync_intervall_ms", "5", "`journal_sync_interval_ms`"),
            ("log", "bad", "bad filter"),
            ("log", "info\nosd_count = 4", "one line"),
            ("osd_count", "2", "at least as many OSDs"),
        ] {
            match set(&live, &role, key, value) {
                AdminReply::Refused(why) => assert!(why.contains(part), "{key} = {value}: {why}"),
                other => panic!("{key} = {value}: {other:?}"),
            }
        }
        let AdminReply::NeedsRestart(setting) = set(&live, &role, "osd_count", "7") else {
            panic!("no")
        };
        assert_eq!((setting.value.as_str(), setting.is_live), ("5", false));
        assert_eq!(role.0.get(), 100);
        let AdminReply::Refused(why) =
            live.answer(&role, &AdminRequest::GetConfig { key: "osd_cuont".into() })
        else {
            panic!("there is no such key")
        };
        assert!(why.contains("`osd_count`"), "{why}");
    }
}
