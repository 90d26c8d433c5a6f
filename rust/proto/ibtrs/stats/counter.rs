// SPDX-License-Identifier: GPL-2.0

//! Counters with a file of their own, which holds one number.
//!
//! Each is declared once, by a line of [`client_path_counters`](crate::client_path_counters),
//! [`server_path_counters`](crate::server_path_counters) or
//! [`message_refusal_counters`](crate::message_refusal_counters). The rest follows from that line: the index of the
//! counter and its file in the driver; in the command `ibnbd` a field of the JSON documents and their schema, a column
//! of `ibnbd stats` and a metric; and, with `make generated`, the rows of the documentation and of the scenario that
//! reads all files.

use core::ffi::CStr;

/// What the number of a counter is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// A number of things, which the help names.
    Count,
}

/// The declaration of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    /// Name of the file, below `stats/` for a path, and of the field in JSON documents.
    pub file: &'static CStr,
    /// The unit of its number.
    pub unit: Unit,
    /// The first version that has it.
    pub since: &'static str,
    /// A sentence without the period at its end.
    pub help: &'static str,
}

impl Counter {
    /// The name of the file. Names are ASCII.
    pub const fn name(&self) -> &'static str {
        match self.file.to_str() {
            Ok(name) => name,
            Err(_) => "",
        }
    }
}

/// Calls a macro with the counters of a path of the client, a line for each:
/// `NAME = file, unit, version, help;`.
#[macro_export]
macro_rules! client_path_counters {
    ($then:ident) => {
        $then! {
            WINDOW_FULL = c"window_full", Count, "0.1.0",
                "Requests that found the window of their connection full";
        }
    };
}

/// The same for a path of the server.
#[macro_export]
macro_rules! server_path_counters {
    ($then:ident) => {
        $then! {
            BUFFER_WAITS = c"buffer_waits", Count, "0.1.0",
                "Requests that waited for a buffer for their data";
            FETCHED_BYTES = c"fetched_bytes", Bytes, "0.1.0",
                "Bytes of writes that the server read from the client's memory";
        }
    };
}

/// The same for channels between programs that were refused, by the reason: at a portal, over a session, or to a host.
/// What follows the name of the macro is passed on before the lines.
#[macro_export]
macro_rules! message_refusal_counters {
    ($then:ident $($more:tt)*) => {
        $then! {
            $($more)*
            RULE = c"refused_rule", Count, "0.1.0",
                "Channels that a rule of the operator does not allow, or that a client without a key has asked for";
            LIMIT = c"refused_limit", Count, "0.1.0",
                "Channels that a limit of the portal, its user, its session or its host does not allow";
            BACKLOG = c"refused_backlog", Count, "0.1.0",
                "Channels refused because too many offers waited at the portal";
            UNBOUND = c"refused_unbound", Count, "0.1.0",
                "Channels refused because no program had bound the portal, or it was closed before it answered";
            MEMORY = c"refused_memory", Count, "0.1.0",
                "Channels refused for want of memory, by total_mib, or because the session has as many as there may be";
            PROGRAM = c"refused_program", Count, "0.1.0",
                "Channels refused by the program or module that has bound the portal";
        }
    };
}

macro_rules! declare {
    ($($name:ident = $file:literal, $unit:ident, $since:literal, $help:literal;)+) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index {
            $($name,)+
        }

        $(
            #[doc = concat!($help, ".")]
            pub const $name: usize = Index::$name as usize;
        )+

        /// The counters, each at its index.
        pub const ALL: &[Counter] = &[$(Counter {
            file: $file,
            unit: Unit::$unit,
            since: $since,
            help: $help,
        },)+];
    };
}

/// Counters of a path of the client.
pub mod client_path {
    use super::{
        Counter,
        Unit, //
    };

    client_path_counters!(declare);
}

/// Counters of a path of the server.
pub mod server_path {
    use super::{
        Counter,
        Unit, //
    };

    server_path_counters!(declare);
}

/// Channels between programs that were refused, by the reason.
pub mod message_refusals {
    use super::{
        Counter,
        Unit, //
    };

    message_refusal_counters!(declare);
}
