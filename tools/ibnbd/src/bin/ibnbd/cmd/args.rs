// SPDX-License-Identifier: GPL-2.0

//! Arguments that several commands have.

use clap::Args;
use ibnbd_host::mapping;
use ibnbd_host::prefix::Prefix;
use ibtrs_proto::auth::{KeyError, KeyId};

/// The files of the configuration.
#[derive(Args, Debug)]
pub(crate) struct Files {
    /// The folder of the files
    #[arg(long, default_value = ibnbd_host::config::FOLDER, value_name = "FOLDER")]
    pub(crate) config: String,
}

/// A server, and the session with it.
#[derive(Args, Debug)]
pub(crate) struct Server {
    /// Names or addresses of one server: each makes a path. Left out, servers that this machine has
    /// joined
    #[arg(value_name = "SERVER[,SERVER...]", value_parser = servers)]
    servers: Option<Servers>,
    /// Name of the session
    #[arg(short, long)]
    pub(crate) session: Option<String>,
    /// A path, from an address here to one of the server
    #[arg(short, long = "path", value_name = "SRC,DST")]
    pub(crate) paths: Vec<String>,
    /// The server's port
    #[arg(long, default_value_t = 1234, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// The key of a new session, if not that called default
    #[arg(long, value_name = "ID", value_parser = key_id)]
    pub(crate) key_id: Option<KeyId>,
}

#[derive(Args, Debug)]
pub(crate) struct SetOf {
    /// Its name
    pub(crate) name: String,
    /// Settings
    #[arg(required = true, value_name = "SETTING=VALUE")]
    pub(crate) settings: Vec<String>,
}

/// What is wrong with a server that is written together with something of it, as other programs
/// take it: `SERVER:EXPORT`.
pub(crate) fn more_than_server(text: &str) -> Option<String> {
    let (server, rest) = mapping::split_server(text)?;
    let is_port = !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    Some(match is_port {
        true => format!("a server has no port here: {server} ... --port {rest}"),
        false => format!("the export is an argument of its own: ibnbd map {server} {rest}"),
    })
}

/// A list in one argument, which may be left out before another one.
#[derive(Clone, Debug)]
struct Servers(Vec<String>);

fn servers(text: &str) -> Result<Servers, String> {
    let server = |text: &str| more_than_server(text).map_or_else(|| Ok(text.to_owned()), Err);
    text.split(',')
        .map(server)
        .collect::<Result<_, _>>()
        .map(Servers)
}

impl Server {
    /// Names or addresses of the server.
    pub(crate) fn servers(&self) -> &[String] {
        self.servers.as_ref().map_or(&[], |servers| &servers.0)
    }
}

pub(crate) fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::parse(text).map_err(|why| format!("it {why}"))
}

pub(crate) fn key_id(text: &str) -> Result<KeyId, &'static str> {
    KeyId::new(text.as_bytes()).ok_or(KeyError::Id.as_str())
}
