// SPDX-License-Identifier: GPL-2.0

//! Reads files, and collects all their errors.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use ibnbd_proto::checksum::DataChecksum;
use ibnbd_proto::identity::IdentityCheck;
use ibtrs_proto::auth::{KeyError, KeyId};
use ibtrs_proto::name::{DevicePath, SessionName};
use ibtrs_proto::settings::Setting;
use toml_edit::{Document, Table};

use super::fields::{Fields, Source};
use super::messages_name;
use super::read_exports::Exports;
use super::read_ports::Ports;
use super::{Config, Disk, Problem, Session, PARAMETERS};
use crate::mapping;
use crate::root::Root;

const POLICIES: [&str; 3] = ["min-inflight", "round-robin", "min-latency"];
const ACCESS: [&str; 3] = ["rw", "ro", "migration"];

/// One text as a configuration.
///
/// # Errors
///
/// All that is wrong with it.
pub fn parse(file: &str, text: &str) -> Result<Config, Vec<Problem>> {
    let mut all = All::default();
    all.add(file, text);
    all.end()
}

/// The contents of all files so far.
#[derive(Default)]
pub(super) struct All {
    config: Config,
    problems: Vec<Problem>,
    sessions: BTreeSet<String>,
    pub(super) exports: Exports,
    ports: Ports,
}

impl All {
    pub(super) fn add(&mut self, file: &str, text: &str) {
        let mut source = Source {
            file,
            text,
            problems: Vec::new(),
        };
        match Document::parse(text) {
            Ok(document) => self.document(&mut source, document.as_table()),
            Err(error) => {
                let what = error.message().replace('\n', "; ");
                source.problem(error.span(), what);
            }
        }
        self.problems.append(&mut source.problems);
    }

    pub(super) fn end(mut self) -> Result<Config, Vec<Problem>> {
        self.exports.end(&self.config, &mut self.problems);
        if self.problems.is_empty() {
            return Ok(self.config);
        }
        self.problems.sort();
        Err(self.problems)
    }

    fn document(&mut self, source: &mut Source<'_>, table: &Table) {
        let mut fields = Fields::of(table);
        for table in fields.tables(source, "session") {
            self.session(source, table);
        }
        for table in fields.tables(source, "export") {
            self.config
                .exports
                .extend(self.exports.export(source, table));
        }
        for table in fields.tables(source, "host") {
            self.config.hosts.extend(self.exports.host(source, table));
        }
        for table in fields.tables(source, "port") {
            self.config.ports.extend(self.ports.port(source, table));
        }
        for module in ["ibnbd_server", "ibtrs_server", "ibtrs_client"] {
            if let Some(item) = fields.item(module) {
                match item.as_table() {
                    Some(table) => self.parameters(source, module, table),
                    None => {
                        source.problem(item.span(), format!("{module}: it begins with [{module}]"))
                    }
                }
            }
        }
        fields.end(source, "a file");
    }

    fn session(&mut self, source: &mut Source<'_>, table: &Table) {
        let mut fields = Fields::of(table);
        let name = fields.text(source, "name");
        if let Some(name) = &name {
            if let Err(error) = SessionName::new(name.value.as_bytes()) {
                source.problem(name.span.clone(), format!("name: {}", error.as_str()));
            } else if !self.sessions.insert(name.value.clone()) {
                source.problem(
                    name.span.clone(),
                    format!("there is a session {:?} already", name.value),
                );
            }
        }
        let servers = ends(source, &mut fields, "servers");
        let paths = ends(source, &mut fields, "paths");
        let standby = standby(source, &mut fields, &servers, &paths);
        let port = fields.number(source, "port", 1..=65535);
        let queues = fields.number(source, "queues", 1..=4096);
        let messages = fields.flag(source, "messages").unwrap_or(false);
        let mut settings = Vec::new();
        if let Some(policy) = fields.one_of(source, "mp_policy", &POLICIES) {
            settings.push(("mp_policy".to_owned(), policy));
        }
        if let Some(attempts) = fields.number(source, "max_reconnect_attempts", -1..=9999) {
            let value = attempts.value.to_string();
            settings.push(("max_reconnect_attempts".to_owned(), value));
        }
        for setting in Setting::ALL {
            if let Some(value) = self::setting(source, &mut fields, &setting) {
                settings.push((setting.name.to_owned(), value));
            }
        }
        if let Some(id) = key_id(source, &mut fields) {
            settings.push(("key_id".to_owned(), id));
        }
        let disks = self::disks(source, &mut fields);
        fields.end(source, "a session");
        if name.is_none() && servers.is_empty() {
            source.problem(table.span(), "a session needs a name, or servers");
        }
        if servers.is_empty() && paths.is_empty() {
            source.problem(table.span(), "a session needs servers or paths");
        }
        if let Some(Err(why)) = name
            .as_ref()
            .filter(|_| messages)
            .map(|n| messages_name(&n.value))
        {
            source.problem(table.span(), why);
        }
        if messages && disks.iter().any(|disk| disk.poll_queues != 0) {
            let what = "messages: a session with poll_queues is for its disk alone";
            source.problem(table.span(), what);
        }
        if disks.len() > 1 && disks.iter().any(|disk| disk.poll_queues != 0) {
            source.problem(
                table.span(),
                "a disk with poll_queues has a session of its own",
            );
        }
        let port = port.and_then(|port| u16::try_from(port.value).ok());
        self.config.sessions.push(Session {
            name: name.map(|n| n.value),
            servers,
            paths,
            standby,
            port,
            queues: queues.and_then(|queues| u32::try_from(queues.value).ok()),
            settings,
            messages,
            disks,
        });
    }

    /// Parameters are texts, numbers or true and false; the module looks at their values when it is
    /// loaded.
    fn parameters(&mut self, source: &mut Source<'_>, module: &str, table: &Table) {
        let known: Vec<_> = PARAMETERS
            .into_iter()
            .filter(|(of, ..)| *of == module)
            .map(|(_, name, _)| name)
            .collect();
        for (name, item) in table.iter() {
            if !known.contains(&name) {
                let at = table.key(name).and_then(toml_edit::Key::span);
                source.problem(
                    at,
                    format!("{module} has no {name:?}; it may have {}", known.join(", ")),
                );
                continue;
            }
            let value = item.as_value().and_then(|value| {
                let text = value.as_str().map(String::from);
                let flag = || {
                    value
                        .as_bool()
                        .map(|yes| if yes { "Y" } else { "N" }.to_owned())
                };
                text.or_else(|| value.as_integer().map(|n| n.to_string()))
                    .or_else(flag)
            });
            match value {
                None => source.problem(
                    item.span(),
                    format!("{name}: a text, a number, true or false is wanted"),
                ),
                Some(value) => self.parameter(source, item.span(), module, name, value),
            }
        }
    }

    fn parameter(
        &mut self,
        source: &mut Source<'_>,
        at: Option<Range<usize>>,
        module: &str,
        name: &str,
        value: String,
    ) {
        // modprobe splits its words at blanks.
        if value.is_empty()
            || value
                .chars()
                .any(|c| c.is_whitespace() || c.is_control() || c == '"')
        {
            source.problem(
                at,
                format!("{name}: it is empty, or has blanks, quotes or control characters"),
            );
            return;
        }
        if self
            .config
            .parameters
            .iter()
            .any(|(m, n, _)| m == module && n == name)
        {
            source.problem(at, format!("{module} has {name} already"));
            return;
        }
        if (module, name) == ("ibnbd_server", "dev_search_path") {
            self.exports.has_directory(source, at);
        }
        self.config
            .parameters
            .push((module.to_owned(), name.to_owned(), value));
    }
}

/// Ends of paths, in the form that they must have; names are looked up later.
fn ends(source: &mut Source<'_>, fields: &mut Fields<'_>, name: &'static str) -> Vec<String> {
    let anywhere =
        |_: &str| -> io::Result<Vec<IpAddr>> { Ok(vec![Ipv4Addr::new(192, 0, 2, 1).into()]) };
    let mut found = Vec::new();
    for text in fields.texts(source, name) {
        // An interface may come later.
        let plain: String = text
            .value
            .split(',')
            .map(|end| match end.split_once('%') {
                Some((address, _)) => format!("{address}%1"),
                None => end.to_owned(),
            })
            .collect::<Vec<_>>()
            .join(",");
        let several = name == "servers" && plain.contains([',', '@']);
        match mapping::path(&Root::default(), &anywhere, &plain) {
            _ if several => source.problem(
                text.span,
                format!("{name}: {:?} is not a single address", text.value),
            ),
            Err(why) if !why.contains("different kinds") => {
                source.problem(text.span, format!("{name}: {why}"))
            }
            _ => found.push(text.value),
        }
    }
    found
}

/// The servers and paths that are on standby.
fn standby(
    source: &mut Source<'_>,
    fields: &mut Fields<'_>,
    servers: &[String],
    paths: &[String],
) -> Option<Vec<String>> {
    let texts = fields.texts_if_any(source, "standby")?;
    let mut found = Vec::new();
    for text in texts {
        if servers.contains(&text.value) || paths.contains(&text.value) {
            found.push(text.value);
        } else {
            let what = format!("standby: {:?} is not one of servers or paths", text.value);
            source.problem(text.span, what);
        }
    }
    Some(found)
}

fn key_id(source: &mut Source<'_>, fields: &mut Fields<'_>) -> Option<String> {
    let found = fields.text(source, "key_id")?;
    if KeyId::new(found.value.as_bytes()).is_none() {
        source.problem(found.span, format!("key_id: {}", KeyError::Id.as_str()));
    }
    Some(found.value)
}

/// A setting that the driver would take.
fn setting(source: &mut Source<'_>, fields: &mut Fields<'_>, setting: &Setting) -> Option<String> {
    let least = match (setting.may_be_unlimited, setting.may_be_off) {
        (true, _) => -1,
        (false, true) => 0,
        (false, false) => i64::from(setting.min),
    };
    let found = fields.number(source, setting.name, least..=i64::from(setting.max))?;
    if setting.value(found.value).is_some() {
        return Some(found.value.to_string());
    }
    let what = format!(
        "{}: {} is neither 0 nor {} or more",
        setting.name, found.value, setting.min
    );
    source.problem(found.span, what);
    None
}

fn disks(source: &mut Source<'_>, fields: &mut Fields<'_>) -> Vec<Disk> {
    let mut disks: Vec<Disk> = Vec::new();
    for table in fields.tables(source, "disk") {
        let mut fields = Fields::of(table);
        let device = fields.text(source, "device");
        let access = fields.one_of(source, "access", &ACCESS);
        let exclusive = fields.flag(source, "exclusive").unwrap_or(false);
        let poll_queues = fields
            .number(source, "poll_queues", -1..=4096)
            .map_or(0, |n| n.value);
        let checksums = DataChecksum::ALL.map(|checksum| checksum.as_str());
        let data_checksum = fields.one_of(source, "data_checksum", &checksums);
        let mut settings = Vec::new();
        for (key, range) in [
            ("io_timeout_limit", 0..=1000),
            ("io_timeout_ms", 1..=i64::from(u32::MAX)),
        ] {
            if let Some(found) = fields.number(source, key, range) {
                settings.push((key.to_owned(), found.value.to_string()));
            }
        }
        let checks = IdentityCheck::ALL.map(|check| check.as_str());
        if let Some(check) = fields.one_of(source, "identity", &checks) {
            settings.push(("identity".to_owned(), check));
        }
        let auto = fields.flag(source, "auto").unwrap_or(true);
        fields.end(source, "a disk");
        let Some(device) = device else {
            if !table.contains_key("device") {
                source.problem(table.span(), "a disk needs a device");
            }
            continue;
        };
        if let Err(error) = DevicePath::new(device.value.as_bytes()) {
            source.problem(device.span, format!("device: {}", error.as_str()));
        } else if disks.iter().any(|disk| disk.device == device.value) {
            source.problem(
                device.span,
                format!("the session has {:?} already", device.value),
            );
        }
        disks.push(Disk {
            device: device.value,
            access,
            exclusive,
            poll_queues,
            data_checksum,
            settings,
            manual: !auto,
        });
    }
    disks
}
