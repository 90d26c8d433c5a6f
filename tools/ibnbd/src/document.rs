// SPDX-License-Identifier: GPL-2.0

//! Output of commands with `--output json` and `yaml`.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::configfs::{Export, Host, Port};
use crate::discovery::{Offered, Portal};
use crate::findings::Finding;
use crate::folder::Exported;
use crate::health::Health;
use crate::history::Change;
use crate::keyring::LoadedKey;
use crate::model::{Disk, Note, Opened, Path, Session};
use crate::topology::{ChannelsNode, DiskNode, ExportNode, PortalNode, SessionNode};
use crate::trace::Traced;
use crate::uevent::Event;

/// The number of this format. Fields may be added without a new one.
pub const FORMAT: u32 = 1;

macro_rules! documents {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The number of the format: 1.
            pub format: u32,
            $($(#[$field_doc])* pub $field: $kind,)*
            /// Files that could not be read.
            #[serde(skip_serializing_if = "Vec::is_empty", default)]
            pub notes: Vec<Note>,
        }
    )*};
}

documents! {
    /// `list`.
    List {
        /// Disks that are mapped here.
        disks: Vec<Disk>,
        /// Devices that clients have open here.
        opened: Vec<Opened>,
    }
    /// `sessions`.
    Sessions {
        /// Those of clients and of servers.
        sessions: Vec<Session>,
    }
    /// `paths`.
    Paths {
        /// Those of all sessions.
        paths: Vec<Path>,
    }
    /// `stats`: disks have `stat`, paths have `stats`.
    Stats {
        /// Disks that were asked for.
        disks: Vec<Disk>,
        /// Paths that were asked for.
        paths: Vec<Path>,
    }
    /// `show`: one of these.
    Show {
        /// A disk.
        disk: Option<Disk>,
        /// A session.
        session: Option<Session>,
        /// A path.
        path: Option<Path>,
        /// A device that a client has open.
        opened: Option<Opened>,
    }
    /// `tree`.
    Tree {
        /// Disks that are mapped here, each with its session and the paths of that.
        disks: Vec<DiskNode>,
        /// Sessions of clients here that have no disk.
        sessions: Vec<SessionNode>,
        /// Addresses on which the server listens; if there are none, all. Each leads to all exports.
        ports: Vec<Port>,
        /// Devices that clients may open, or have open, each with its hosts and their clients.
        exports: Vec<ExportNode>,
        /// Clients of this server that have nothing open, and are no host of an export.
        clients: Vec<SessionNode>,
        /// Message portals of programs.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        portals: Vec<PortalNode>,
        /// Channels between programs of this machine.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        local: Vec<ChannelsNode>,
    }
    /// `clients`.
    Clients {
        /// Sessions of clients that use this server.
        clients: Vec<Client>,
    }
    /// `export list`.
    Exports {
        /// Exports in configfs.
        configfs: Vec<Export>,
        /// The folder that is looked in; none while exports in configfs count.
        directory: Option<String>,
        /// Devices in that folder, which clients may open.
        exports: Vec<Exported>,
    }
    /// `host list`.
    Hosts {
        /// Hosts that exports in configfs may name.
        hosts: Vec<Host>,
    }
    /// `port list`.
    Ports {
        /// Ports in configfs. Without any, the server listens on all addresses.
        ports: Vec<Port>,
    }
    /// `discover`.
    Discovered {
        /// The session that asked.
        session: String,
        /// Exports that it may open.
        exports: Vec<Offered>,
        /// Addresses of the server that it names; none if it listens on all.
        portals: Vec<Portal>,
        /// Whether the server opens devices that it does not list.
        unlisted: bool,
    }
    /// `key list`.
    Keys {
        /// Shared keys that the kernel has.
        keys: Vec<LoadedKey>,
    }
    /// `events`.
    Events {
        /// The last changes of sessions and their paths, the earliest first.
        events: Vec<Change>,
    }
    /// `check`.
    Check {
        /// Faults, the worst first.
        findings: Vec<Finding>,
    }
    /// `status`.
    Status {
        /// How things are.
        health: Health,
    }
}

/// A session of a client that uses this server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// The session's name.
    pub session: String,
    /// The addresses that it comes from.
    pub addresses: Vec<String>,
    /// Its paths.
    pub paths: usize,
    /// Names of the devices that it has open.
    pub devices: Vec<String>,
}

/// Each document by the command that prints it; `watch` prints one for each event,
/// `trace` one for each request. Only the schema is
/// made of it.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "for the schema")]
pub struct Documents {
    list: List,
    show: Show,
    sessions: Sessions,
    tree: Tree,
    paths: Paths,
    stats: Stats,
    clients: Clients,
    #[schemars(rename = "export list")]
    exports: Exports,
    #[schemars(rename = "host list")]
    hosts: Hosts,
    #[schemars(rename = "port list")]
    ports: Ports,
    #[schemars(rename = "key list")]
    keys: Keys,
    #[schemars(rename = "discover")]
    discovered: Discovered,
    check: Check,
    status: Status,
    events: Events,
    watch: Event,
    trace: Traced,
}

/// The schema of all documents, as `Documentation/tool.schema.json` has it.
pub fn schema() -> String {
    let open = RecursiveTransform(open);
    let settings = SchemaSettings::default().with_transform(open);
    let schema = settings
        .into_generator()
        .into_root_schema_for::<Documents>();
    // It is a tree of strings and numbers.
    let text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text + "\n"
}

/// Allows further fields, which a later version may add. This one refuses them when it reads a
/// document.
fn open(schema: &mut Schema) {
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
}
