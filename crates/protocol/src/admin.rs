//! What an operator asks of one daemon, whichever role it has.

use serde::{Deserialize, Serialize};

/// A question or an order of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// All settings. Answered by [`AdminReply::Settings`].
    ShowConfig,
    /// One setting. Answered by [`AdminReply::Settings`] with one entry.
    GetConfig {
        /// Which.
        key: String,
    },
    /// Changes a setting until the daemon stops. Answered by [`AdminReply::Changed`] or
    /// [`AdminReply::NeedsRestart`].
    SetConfig {
        /// Which.
        key: String,
        /// As in the configuration file, quotes may be left out.
        value: String,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminReply {
    /// What is set.
    Settings(Vec<Setting>),
    /// Done: it counts from now on, and until the daemon stops.
    Changed(Setting),
    /// The value is a good one, but only a start reads it: nothing was changed.
    NeedsRestart(Setting),
    /// No, and why.
    Refused(String),
}

/// A setting of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name.
    pub key: String,
    /// What it is now; a word or a phrase if it is the default.
    pub value: String,
    /// Nobody has set it.
    pub is_default: bool,
    /// Can it change while this daemon runs?
    pub is_live: bool,
    /// What it means, with unit and default.
    pub help: String,
}
