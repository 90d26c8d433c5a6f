// SPDX-License-Identifier: GPL-2.0

//! Reads `[[export]]` and `[[host]]`.

use std::collections::BTreeSet;
use std::ops::Range;

use ibtrs_proto::name::{DevicePath, SessionName};
use toml_edit::Table;

use super::fields::{At, Fields, Source};
use super::{Config, Export, Host, Problem};
use crate::configfs::change::{Limits, Rules};
use crate::configfs::{self, ACCESS, LIMITS};
use crate::folder;
use crate::prefix::{self, Prefix};

/// Keys of an export in configfs.
pub(super) const OF_CONFIGFS: [&str; 6] =
    ["hosts", "any_host", "from", "access", "realtime", "enable"];

/// The contents of all files so far, and problems that count only if something else is in them.
#[derive(Default)]
pub(super) struct Exports {
    names: BTreeSet<(Option<String>, String)>,
    hosts: BTreeSet<String>,
    /// Problems of what belongs to a directory, for files that have an export in configfs.
    of_directory: Vec<Problem>,
    /// Hosts that exports name, and the problem if they are not there.
    named: Vec<(String, Problem)>,
}

impl Exports {
    /// The server's directory is set.
    pub(super) fn has_directory(&mut self, source: &mut Source<'_>, at: Option<Range<usize>>) {
        let what = "dev_search_path: it is off with exports that have hosts, any_host or from: leave it out";
        self.of_directory.push(source.possible(at, what));
    }

    pub(super) fn export(&mut self, source: &mut Source<'_>, table: &Table) -> Option<Export> {
        let mut fields = Fields::of(table);
        let device = fields.text(source, "device");
        let name = fields.text(source, "name");
        let session = fields.text(source, "session");
        let rules = self.rules(source, &mut fields, table);
        fields.end(source, "an export");
        let Some(device) = device else {
            if !table.contains_key("device") {
                source.problem(table.span(), "an export needs a device");
            }
            return None;
        };
        let span = name.as_ref().and_then(|n| n.span.clone());
        let span = span.or_else(|| table.span());
        let last = || folder::last_part(&device.value).to_owned();
        let name = name.map_or_else(last, |name| name.value);
        if !device.value.starts_with('/') {
            source.problem(
                device.span,
                format!("device: {:?} does not begin with /", device.value),
            );
        }
        let own = (session.as_ref().map(|s| s.value.clone()), name.clone());
        if let Err(why) = check(&name, rules.is_some()) {
            source.problem(span, format!("name: {why}"));
        } else if !self.names.insert(own) {
            source.problem(span, format!("there is an export {name:?} already"));
        }
        match (&rules, &session) {
            (Some(_), Some(session)) => source.problem(
                session.span.clone(),
                "session: it belongs to a directory; an export with hosts, any_host or from has none",
            ),
            (Some(_), None) => {}
            (None, _) => {
                let what = "dev_search_path is off, as other exports have hosts, any_host or from: give this one them, too";
                self.of_directory.push(source.possible(table.span(), what));
            }
        }
        Some(Export {
            name,
            device: device.value,
            session: session.map(|s| s.value),
            rules,
        })
    }

    /// The rules of an export in configfs.
    fn rules(
        &mut self,
        source: &mut Source<'_>,
        fields: &mut Fields<'_>,
        table: &Table,
    ) -> Option<Rules> {
        let usual = Rules::default();
        let access = fields.one_of(source, "access", &ACCESS);
        let realtime = fields.flag(source, "realtime");
        let any_host = fields.flag(source, "any_host");
        let from = prefixes(source, fields, "from");
        let enable = fields.flag(source, "enable");
        let mut hosts = Vec::new();
        for At { value, span } in fields.texts(source, "hosts") {
            if hosts.contains(&value) {
                source.problem(span, format!("hosts: {value:?} is there already"));
                continue;
            }
            let what = format!("hosts: there is no [[host]] with the name {value:?}");
            self.named
                .push((value.clone(), source.possible(span, what)));
            hosts.push(value);
        }
        let is_one = OF_CONFIGFS.iter().any(|key| table.contains_key(key));
        is_one.then(|| Rules {
            access: access.unwrap_or(usual.access),
            realtime: realtime.unwrap_or(usual.realtime),
            any_host: any_host.unwrap_or(usual.any_host),
            from,
            hosts,
            enable: enable.unwrap_or(usual.enable),
        })
    }

    pub(super) fn host(&mut self, source: &mut Source<'_>, table: &Table) -> Option<Host> {
        let mut fields = Fields::of(table);
        let name = fields.text(source, "name");
        let addresses = prefixes(source, &mut fields, "addresses");
        let limits = limits(source, &mut fields, addresses);
        fields.end(source, "a host");
        let Some(name) = name else {
            if !table.contains_key("name") {
                source.problem(table.span(), "a host needs a name");
            }
            return None;
        };
        if let Err(error) = SessionName::new(name.value.as_bytes()) {
            source.problem(name.span, format!("name: {}", error.as_str()));
        } else if !self.hosts.insert(name.value.clone()) {
            let what = format!("there is a host {:?} already", name.value);
            source.problem(name.span, what);
        }
        Some(Host {
            name: name.value,
            limits,
        })
    }

    /// Adds the problems that only all files together have.
    pub(super) fn end(&mut self, config: &Config, problems: &mut Vec<Problem>) {
        if config.exports.iter().any(|export| export.rules.is_some()) {
            problems.append(&mut self.of_directory);
        }
        let named = self.named.drain(..);
        problems.extend(
            named
                .filter(|(name, _)| !self.hosts.contains(name))
                .map(|(_, problem)| problem),
        );
    }
}

/// Whether an export can have the name.
fn check(name: &str, is_in_configfs: bool) -> Result<(), String> {
    if is_in_configfs && !configfs::is_name(name) {
        return Err(format!(
            "{name:?} has a /, or is . or .., as the name of an export with hosts, any_host or from cannot"
        ));
    }
    if !folder::is_below(name) {
        return Err(format!("{name:?} is not a place below a folder"));
    }
    let name = DevicePath::new(name.as_bytes());
    name.map(|_| ()).map_err(|error| error.as_str().to_owned())
}

fn limits(source: &mut Source<'_>, fields: &mut Fields<'_>, addresses: Vec<Prefix>) -> Limits {
    let [max_paths, max_connections, max_memory_mib, max_devices, max_iops, max_bandwidth_mib_s] =
        LIMITS.map(|(key, most)| {
            let range = 0..=i64::try_from(most).unwrap_or(i64::MAX);
            let found = fields.number(source, key, range)?;
            let number = found.value.unsigned_abs();
            if let Err(why) = configfs::check_limit(key, number) {
                source.problem(found.span, format!("{key}: {why}"));
            }
            Some(number)
        });
    Limits {
        addresses,
        max_paths: max_paths.unwrap_or(0),
        max_connections: max_connections.unwrap_or(0),
        max_memory_mib: max_memory_mib.unwrap_or(0),
        max_devices: max_devices.unwrap_or(0),
        max_iops: max_iops.unwrap_or(0),
        max_bandwidth_mib_s: max_bandwidth_mib_s.unwrap_or(0),
    }
}

fn prefixes(source: &mut Source<'_>, fields: &mut Fields<'_>, key: &'static str) -> Vec<Prefix> {
    let mut found = Vec::new();
    for At { value, span } in fields.texts(source, key) {
        match Prefix::parse(&value) {
            Err(why) => source.problem(span, format!("{key}: {value:?} {why}")),
            Ok(_) if found.len() == prefix::MOST => {
                source.problem(span, format!("{key}: there are more than {}", prefix::MOST));
                break;
            }
            Ok(prefix) => found.push(prefix),
        }
    }
    found
}
