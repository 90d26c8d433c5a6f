// SPDX-License-Identifier: GPL-2.0

//! Rules of nftables that drop packets, from the output of `nft -j list ruleset`.
//!
//! Only a drop that is certain counts. Some conditions depend on more than the protocol and the port
//! (on an interface or an address, for example), and their result is unknown here. Such a rule may
//! apply to a packet or may not, and both ways are followed. A chain drops the packet if all ways end
//! in a drop.

#![forbid(unsafe_code)]
#![warn(missing_docs, rust_2018_idioms, unreachable_pub)]

use std::collections::HashMap;
use std::mem;
use std::ops::BitOrAssign;

use serde_json::Value;

/// Chains that jump to each other deeper than that are not followed; the kernel has the same limit.
const DEEPEST: usize = 16;

/// A packet that would be the first one of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// `udp` or `tcp`.
    pub protocol: &'static str,
    /// Its destination.
    pub port: u16,
}

/// A chain that drops a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drops {
    /// The family of its table: `ip`, `ip6` or `inet`.
    pub family: String,
    /// Its table.
    pub table: String,
    /// The chain in which packets begin.
    pub chain: String,
    /// `input` or `output`.
    pub hook: String,
    /// The program that has made the chain, if it is one that we know.
    pub manager: Option<Manager>,
}

/// A program that makes rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manager {
    /// firewalld.
    Firewalld,
    /// ufw, by way of iptables.
    Ufw,
}

/// The chains that drop a packet.
pub fn drops(rules: &Value, packet: Packet) -> Vec<Drops> {
    let all = Ruleset::new(rules);
    let mut found = Vec::new();
    for chain in all.chains() {
        let text = |name: &str| chain.get(name).and_then(Value::as_str).unwrap_or_default();
        let (family, hook) = (text("family"), text("hook"));
        if !matches!(family, "ip" | "ip6" | "inet") || !matches!(hook, "input" | "output") {
            continue;
        }
        let place = (family, text("table"), text("name"));
        let mut walk = Walk {
            all: &all,
            packet,
            known: HashMap::new(),
        };
        let mut ends = walk.chain(place, true, 0);
        if ends.leave {
            ends |= match text("policy") {
                "drop" => Ends::DROP,
                _ => Ends::ACCEPT,
            };
        }
        if ends.drop && !ends.accept {
            found.push(Drops {
                family: family.to_owned(),
                table: place.1.to_owned(),
                chain: place.2.to_owned(),
                hook: hook.to_owned(),
                manager: all.manager(place),
            });
        }
    }
    found
}

/// Family, table and name of a chain.
type Place<'a> = (&'a str, &'a str, &'a str);

struct Ruleset<'a> {
    objects: &'a [Value],
    rules: HashMap<Place<'a>, Vec<&'a [Value]>>,
}

impl<'a> Ruleset<'a> {
    fn new(rules: &'a Value) -> Self {
        let objects = rules.get("nftables").and_then(Value::as_array);
        let objects = objects.map_or(&[][..], Vec::as_slice);
        let mut of_chains: HashMap<Place<'a>, Vec<&'a [Value]>> = HashMap::new();
        for rule in objects.iter().filter_map(|object| object.get("rule")) {
            let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
            let place = (text("family"), text("table"), text("chain"));
            let parts = rule.get("expr").and_then(Value::as_array);
            of_chains
                .entry(place)
                .or_default()
                .push(parts.map_or(&[][..], Vec::as_slice));
        }
        Self {
            objects,
            rules: of_chains,
        }
    }

    fn chains(&self) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter_map(|object| object.get("chain"))
    }

    /// The program that has made a chain in which packets begin.
    fn manager(&self, place: Place<'_>) -> Option<Manager> {
        if place.1 == "firewalld" {
            return Some(Manager::Firewalld);
        }
        let rules = self.rules.get(&place)?;
        let mut parts = rules.iter().copied().flatten();
        let is_ufw = parts.any(|part| {
            let target = part.pointer("/jump/target").and_then(Value::as_str);
            target.is_some_and(|target| target.starts_with("ufw-") || target.starts_with("ufw6-"))
        });
        is_ufw.then_some(Manager::Ufw)
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Holds {
    No,
    Maybe,
    Yes,
}

impl From<bool> for Holds {
    fn from(holds: bool) -> Self {
        if holds {
            Self::Yes
        } else {
            Self::No
        }
    }
}

/// How a chain or a rule may end for a packet: all that is possible.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Ends {
    accept: bool,
    drop: bool,
    /// The end of the chain.
    leave: bool,
    /// The next rule.
    next: bool,
}

impl Ends {
    const NONE: Self = Self {
        accept: false,
        drop: false,
        leave: false,
        next: false,
    };
    const ACCEPT: Self = Self {
        accept: true,
        ..Self::NONE
    };
    const DROP: Self = Self {
        drop: true,
        ..Self::NONE
    };
    const LEAVE: Self = Self {
        leave: true,
        ..Self::NONE
    };
    const NEXT: Self = Self {
        next: true,
        ..Self::NONE
    };
    /// Of a chain that is not followed.
    const UNKNOWN: Self = Self {
        accept: true,
        drop: true,
        leave: true,
        next: false,
    };
}

impl BitOrAssign for Ends {
    fn bitor_assign(&mut self, other: Self) {
        self.accept |= other.accept;
        self.drop |= other.drop;
        self.leave |= other.leave;
        self.next |= other.next;
    }
}

struct Walk<'a> {
    all: &'a Ruleset<'a>,
    packet: Packet,
    /// Chains that were followed already, to which all packets come or not.
    known: HashMap<(Place<'a>, bool), Ends>,
}

impl<'a> Walk<'a> {
    /// How a chain may end. `all_come`: every packet of the hook comes to it, so far as conditions
    /// of rules before it have a say.
    fn chain(&mut self, place: Place<'a>, all_come: bool, depth: usize) -> Ends {
        if depth > DEEPEST {
            return Ends::UNKNOWN;
        }
        if let Some(known) = self.known.get(&(place, all_come)) {
            return *known;
        }
        // Of a circle, which the kernel refuses.
        self.known.insert((place, all_come), Ends::UNKNOWN);
        let all = self.all;
        let mut ends = Ends::NEXT;
        for rule in all.rules.get(&place).map_or(&[][..], Vec::as_slice) {
            let all_come = all_come && ends == Ends::NEXT;
            ends.next = false;
            ends |= self.rule(rule, place, all_come, depth);
            if !ends.next {
                break;
            }
        }
        ends.leave |= ends.next;
        ends.next = false;
        self.known.insert((place, all_come), ends);
        ends
    }

    fn rule(&mut self, rule: &'a [Value], place: Place<'a>, all_come: bool, depth: usize) -> Ends {
        if all_come && is_for_answers(rule) {
            return Ends::NEXT;
        }
        let mut ends = Ends::NONE;
        let mut certain = Holds::Yes;
        for part in rule {
            let Some((name, value)) = part.as_object().and_then(|part| part.iter().next()) else {
                return Ends::UNKNOWN;
            };
            let verdict = match name.as_str() {
                "match" => {
                    certain = certain.min(self.holds(value));
                    None
                }
                "counter" | "log" | "mangle" | "notrack" | "comment" => None,
                "vmap" => {
                    let sure = all_come && certain == Holds::Yes;
                    Some(self.verdict_map(value, place, sure, depth))
                }
                "accept" | "drop" | "reject" | "return" | "jump" | "goto" => {
                    let sure = all_come && certain == Holds::Yes;
                    Some(self.verdict(name, value, place, sure, depth))
                }
                "xt" => match of_xt(value, self.packet) {
                    Xt::Condition(holds) => {
                        certain = certain.min(holds);
                        None
                    }
                    Xt::Nothing => None,
                    Xt::End(end) => Some(end),
                },
                // Some of these end the rule if the packet is one too many.
                "limit" | "quota" | "ct count" | "set" | "map" | "meter" => {
                    certain = certain.min(Holds::Maybe);
                    None
                }
                // Another program decides, or it is not known what it does.
                _ => {
                    ends.accept |= certain != Holds::No;
                    certain = certain.min(Holds::Maybe);
                    None
                }
            };
            if certain == Holds::No {
                break;
            }
            if let Some(verdict) = verdict {
                ends |= verdict;
                ends.next |= certain != Holds::Yes;
                return ends;
            }
        }
        ends.next = true;
        ends
    }

    fn verdict(
        &mut self,
        name: &str,
        value: &'a Value,
        place: Place<'a>,
        all_come: bool,
        depth: usize,
    ) -> Ends {
        let target = value.get("target").and_then(Value::as_str);
        match (name, target) {
            ("accept", _) => Ends::ACCEPT,
            ("drop" | "reject", _) => Ends::DROP,
            ("return", _) => Ends::LEAVE,
            ("continue", _) => Ends::NEXT,
            ("goto", Some(target)) => self.chain((place.0, place.1, target), all_come, depth + 1),
            ("jump", Some(target)) => {
                let mut ends = self.chain((place.0, place.1, target), all_come, depth + 1);
                ends.next = mem::take(&mut ends.leave);
                ends
            }
            _ => Ends::UNKNOWN,
        }
    }

    fn verdict_map(
        &mut self,
        map: &'a Value,
        place: Place<'a>,
        all_come: bool,
        depth: usize,
    ) -> Ends {
        // A map with a name has its entries elsewhere.
        let entries = map.pointer("/data/set").and_then(Value::as_array);
        let (Some(key), Some(entries)) = (map.get("key"), entries) else {
            return Ends::UNKNOWN;
        };
        let mut ends = Ends::NONE;
        for entry in entries {
            let verdict = entry.get(1).and_then(Value::as_object);
            let verdict = verdict.and_then(|verdict| verdict.iter().next());
            let (Some(what), Some((name, value))) = (entry.get(0), verdict) else {
                return Ends::UNKNOWN;
            };
            let holds = match what.as_str() {
                Some("*") => Holds::Maybe,
                _ => self.equals(key, what),
            };
            if holds == Holds::No {
                continue;
            }
            let sure = all_come && holds == Holds::Yes;
            ends |= self.verdict(name, value, place, sure, depth);
            if holds == Holds::Yes {
                return ends;
            }
        }
        ends.next = true;
        ends
    }

    fn holds(&self, condition: &Value) -> Holds {
        let (Some(left), Some(right)) = (condition.get("left"), condition.get("right")) else {
            return Holds::Maybe;
        };
        let equals = self.equals(left, right);
        match condition.get("op").and_then(Value::as_str) {
            Some("==" | "in") => equals,
            Some("!=") => match equals {
                Holds::No if self.is_other_protocol(left) => Holds::No,
                Holds::No => Holds::Yes,
                Holds::Maybe => Holds::Maybe,
                Holds::Yes => Holds::No,
            },
            _ => Holds::Maybe,
        }
    }

    /// Whether a condition is about a protocol that the packet does not have.
    fn is_other_protocol(&self, left: &Value) -> bool {
        let of = left.pointer("/payload/protocol").and_then(Value::as_str);
        of.is_some_and(|of| {
            const OTHERS: [&str; 8] = [
                "udp", "tcp", "udplite", "sctp", "dccp", "icmp", "icmpv6", "igmp",
            ];
            OTHERS.contains(&of) && of != self.packet.protocol
        })
    }

    fn equals(&self, left: &Value, right: &Value) -> Holds {
        if self.is_other_protocol(left) {
            return Holds::No;
        }
        let text = |pointer: &str| left.pointer(pointer).and_then(Value::as_str);
        let number = match self.packet.protocol {
            "udp" => 17,
            _ => 6,
        };
        match (text("/payload/protocol"), text("/payload/field")) {
            (Some("udp" | "tcp" | "th"), Some("dport")) => {
                return has_number(right, u64::from(self.packet.port))
            }
            (Some("ip"), Some("protocol")) | (Some("ip6"), Some("nexthdr")) => {
                return has(right, &|name| name == self.packet.protocol, number)
            }
            _ => {}
        }
        match text("/meta/key") {
            Some("l4proto") => return has(right, &|name| name == self.packet.protocol, number),
            // Packets of RDMA between machines do not pass it.
            Some("iifname" | "oifname" | "iif" | "oif") if is_loopback(right) => return Holds::No,
            _ => {}
        }
        if text("/ct/key") == Some("state") {
            // RoCE's packets of both directions are connections that are never answered.
            return has(
                right,
                &|state| matches!(state, "new" | "untracked"),
                u64::MAX,
            );
        }
        if text("/ct/key") == Some("status") {
            // The first packet of a connection to an address of this machine has none of them.
            return has(right, &|_| false, u64::MAX);
        }
        Holds::Maybe
    }
}

/// The effect of a part of a rule that iptables has made and that `nft` knows by its name only.
enum Xt {
    /// The rest of the rule depends on it.
    Condition(Holds),
    /// The rule goes on.
    Nothing,
    /// The rule ends.
    End(Ends),
}

fn of_xt(value: &Value, packet: Packet) -> Xt {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    match (text("type"), text("name")) {
        // They ask for a header that the packet does not have.
        (
            "match",
            "rt" | "frag" | "hbh" | "dst" | "ah" | "esp" | "icmp" | "icmp6" | "dccp" | "sctp",
        ) => Xt::Condition(Holds::No),
        ("match", name @ ("tcp" | "udp")) if name != packet.protocol => Xt::Condition(Holds::No),
        ("match", _) => Xt::Condition(Holds::Maybe),
        ("target", "REJECT" | "DROP") => Xt::End(Ends::DROP),
        (
            "target" | "watcher",
            "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "SET" | "TRACE" | "AUDIT" | "SECMARK"
            | "CONNSECMARK" | "CLASSIFY" | "DSCP" | "TOS" | "TCPMSS",
        ) => Xt::Nothing,
        _ => {
            let mut ends = Ends::UNKNOWN;
            ends.next = true;
            Xt::End(ends)
        }
    }
}

/// Whether a rule accepts by nothing but the state of a connection, which `nft` does not show where
/// iptables has made the rule. If all packets come to such a rule, it accepts answers only: nothing
/// would be left for the rules after it otherwise.
fn is_for_answers(rule: &[Value]) -> bool {
    let of_state = |part: &Value| {
        let text = |pointer: &str| part.pointer(pointer).and_then(Value::as_str);
        text("/xt/type") == Some("match") && matches!(text("/xt/name"), Some("conntrack" | "state"))
    };
    let mut parts = rule.iter().filter(|part| part.get("counter").is_none());
    let (first, second, rest) = (parts.next(), parts.next(), parts.next());
    first.is_some_and(of_state)
        && second.is_some_and(|part| part.get("accept").is_some())
        && rest.is_none()
}

fn is_loopback(right: &Value) -> bool {
    right.as_str() == Some("lo")
}

/// Whether a number is one of those that are named.
fn has_number(right: &Value, number: u64) -> Holds {
    has(right, &|_| false, number)
}

/// Whether one of the values that are named is it, by its name or its number.
fn has(right: &Value, is_it: &dyn Fn(&str) -> bool, number: u64) -> Holds {
    match right {
        Value::Number(value) => (value.as_u64() == Some(number)).into(),
        // A set with a name: its elements are elsewhere.
        Value::String(name) if name.starts_with('@') => Holds::Maybe,
        Value::String(name) => is_it(name).into(),
        Value::Array(values) => any(values, is_it, number),
        Value::Object(object) => match (object.get("set"), object.get("range")) {
            (Some(Value::Array(values)), _) => any(values, is_it, number),
            (_, Some(Value::Array(ends))) => match (
                ends.first().and_then(Value::as_u64),
                ends.get(1).and_then(Value::as_u64),
            ) {
                (Some(first), Some(last)) => (first..=last).contains(&number).into(),
                _ => Holds::Maybe,
            },
            _ => match object.get("elem").and_then(|elem| elem.get("val")) {
                Some(value) => has(value, is_it, number),
                None => Holds::Maybe,
            },
        },
        _ => Holds::Maybe,
    }
}

fn any(values: &[Value], is_it: &dyn Fn(&str) -> bool, number: u64) -> Holds {
    let all = values.iter().map(|value| has(value, is_it, number));
    all.max().unwrap_or(Holds::No)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ROCE: Packet = Packet {
        protocol: "udp",
        port: 4791,
    };

    fn ports(protocol: &str, right: Value) -> Value {
        json!({"match": {"op": "==", "left": {"payload": {"protocol": protocol, "field": "dport"}}, "right": right}})
    }

    fn states(right: Value) -> Value {
        json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": right}})
    }

    fn interface(name: &str) -> Value {
        json!({"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": name}})
    }

    fn accept() -> Value {
        json!({"accept": null})
    }

    /// The chain `input` with these rules, and `other` with those.
    fn ruleset(policy: &str, rules: &[&[Value]], other: &[&[Value]]) -> Value {
        let place = |chain: &str, parts: &&[Value]| json!({"rule": {"family": "inet", "table": "filter", "chain": chain, "expr": parts}});
        let mut all = vec![
            json!({"metainfo": {"json_schema_version": 1}}),
            json!({"table": {"family": "inet", "name": "filter"}}),
            json!({"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter",
                             "hook": "input", "prio": 0, "policy": policy}}),
            json!({"chain": {"family": "inet", "table": "filter", "name": "other"}}),
        ];
        all.extend(rules.iter().map(|parts| place("input", parts)));
        all.extend(other.iter().map(|parts| place("other", parts)));
        json!({"nftables": all})
    }

    fn is_dropped(policy: &str, rules: &[&[Value]]) -> bool {
        is_dropped_with(policy, rules, &[])
    }

    fn is_dropped_with(policy: &str, rules: &[&[Value]], other: &[&[Value]]) -> bool {
        !drops(&ruleset(policy, rules, other), ROCE).is_empty()
    }

    #[test]
    fn the_usual_firewall_of_a_host_drops_it() {
        let usual: &[&[Value]] = &[
            &[states(json!(["established", "related"])), accept()],
            &[interface("lo"), accept()],
            &[ports("tcp", json!(22)), json!({"counter": {}}), accept()],
        ];
        assert!(is_dropped("drop", usual));
        assert!(!is_dropped("accept", usual));
        let found = drops(&ruleset("drop", usual, &[]), ROCE);
        assert_eq!(
            (found[0].table.as_str(), found[0].hook.as_str()),
            ("filter", "input")
        );
        for port in [
            json!(4791),
            json!({"set": [53, 4791]}),
            json!({"set": [53, {"range": [4000, 5000]}]}),
            json!({"range": [4000, 5000]}),
        ] {
            let mut with = usual.to_vec();
            let rule = [ports("udp", port.clone()), accept()];
            with.push(&rule);
            assert!(!is_dropped("drop", &with), "{port}");
        }
    }

    #[test]
    fn a_rule_drops_it() {
        for rule in [
            &[ports("udp", json!(4791)), json!({"drop": null})][..],
            &[
                ports("th", json!({"range": [1, 65535]})),
                json!({"reject": {"type": "icmp"}}),
            ],
            &[json!({"drop": null})],
            &[
                states(json!("new")),
                json!({"log": null}),
                json!({"drop": null}),
            ],
            &[
                json!({"match": {"op": "!=", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}}),
                json!({"drop": null}),
            ],
            &[
                json!({"match": {"op": "!=", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 53}}),
                json!({"drop": null}),
            ],
        ] {
            assert!(is_dropped("accept", &[rule]), "{rule:?}");
            // Not if it was accepted before.
            assert!(!is_dropped("accept", &[&[accept()], rule]), "{rule:?}");
        }
    }

    #[test]
    fn what_is_not_certain_drops_nothing() {
        for rule in [
            &[interface("eth0"), json!({"drop": null})][..],
            &[ports("tcp", json!(4791)), json!({"drop": null})],
            &[ports("udp", json!("@ports")), json!({"drop": null})],
            &[
                json!({"match": {"op": "!=", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}),
                json!({"drop": null}),
            ],
            &[json!({"limit": {"rate": 1}}), json!({"drop": null})],
        ] {
            assert!(!is_dropped("accept", &[rule]), "{rule:?}");
        }
        for rule in [
            &[interface("eth0"), accept()][..],
            &[ports("udp", json!("@ports")), accept()],
            &[
                json!({"xt": {"type": "match", "name": "multiport"}}),
                accept(),
            ],
            &[json!({"xt": {"type": "target", "name": "ACCEPT"}})],
            &[json!({"queue": {"num": 0}})],
        ] {
            assert!(!is_dropped("drop", &[rule]), "{rule:?}");
        }
    }

    #[test]
    fn jumps_and_maps_are_followed() {
        let jump = json!({"jump": {"target": "other"}});
        let open: &[&[Value]] = &[&[ports("udp", json!(4791)), accept()]];
        assert!(!is_dropped_with(
            "drop",
            &[std::slice::from_ref(&jump)],
            open
        ));
        assert!(is_dropped_with("drop", &[std::slice::from_ref(&jump)], &[]));
        assert!(is_dropped_with(
            "accept",
            &[std::slice::from_ref(&jump)],
            &[&[json!({"drop": null})]]
        ));
        // Rules after a jump count, and rules after a goto do not.
        let goto = json!({"goto": {"target": "other"}});
        assert!(!is_dropped_with("drop", &[&[jump], &[accept()]], &[]));
        assert!(is_dropped_with("drop", &[&[goto], &[accept()]], &[]));
        let map =
            |key: Value, entries: Value| json!({"vmap": {"key": key, "data": {"set": entries}}});
        let states = map(
            json!({"ct": {"key": "state"}}),
            json!([["established", {"accept": null}], ["invalid", {"drop": null}]]),
        );
        assert!(is_dropped("drop", &[std::slice::from_ref(&states)]));
        assert!(!is_dropped("accept", &[&[states]]));
        let ports = map(
            json!({"payload": {"protocol": "udp", "field": "dport"}}),
            json!([[53, {"drop": null}], [4791, {"accept": null}]]),
        );
        assert!(!is_dropped("drop", &[&[ports]]));
        let named = json!({"vmap": {"key": {"meta": {"key": "iifname"}}, "data": "@zones"}});
        assert!(!is_dropped("drop", &[&[named]]));
        // In a circle, which the kernel refuses.
        let round = json!({"jump": {"target": "other"}});
        assert!(!is_dropped_with(
            "drop",
            &[std::slice::from_ref(&round)],
            &[std::slice::from_ref(&round)]
        ));
    }

    fn read(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    /// A ruleset with another rule, the first one of its chain.
    fn with(ruleset: &Value, family: &str, table: &str, chain: &str, parts: Value) -> Value {
        let mut all = ruleset["nftables"].as_array().unwrap().clone();
        let rule = json!({"rule": {"family": family, "table": table, "chain": chain, "handle": 999, "expr": parts}});
        let is_rule = |object: &Value| object.get("rule").is_some();
        all.insert(all.iter().position(is_rule).unwrap(), rule);
        json!({"nftables": all})
    }

    #[test]
    fn the_rules_of_firewalld_are_followed() {
        let rules = read(include_str!("../tests/firewalld.json"));
        let found = drops(&rules, ROCE);
        let chains: Vec<_> = found.iter().map(|drops| drops.chain.as_str()).collect();
        assert_eq!(chains, ["filter_INPUT"]);
        assert_eq!(found[0].manager, Some(Manager::Firewalld));
        let ssh = Packet {
            protocol: "tcp",
            port: 22,
        };
        assert_eq!(drops(&rules, ssh), []);
        let udp = || ports("udp", json!(4791));
        for (chain, parts) in [
            // --add-port
            ("filter_IN_public_allow", json!([udp(), accept()])),
            // A rich rule with a source.
            (
                "filter_IN_public_allow",
                json!([{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": {"prefix": {"addr": "10.0.1.0", "len": 24}}}}, udp(), accept()]),
            ),
            // An interface in the zone `trusted`.
            (
                "filter_INPUT_POLICIES",
                json!([interface("eth1"), {"jump": {"target": "filter_IN_trusted"}}]),
            ),
            (
                "filter_INPUT_POLICIES",
                json!([interface("eth1"), accept()]),
            ),
        ] {
            let open = with(&rules, "inet", "firewalld", chain, parts);
            assert_eq!(drops(&open, ROCE), [], "{chain}");
        }
    }

    #[test]
    fn the_rules_of_ufw_are_followed() {
        let rules = read(include_str!("../tests/ufw.json"));
        let found = drops(&rules, ROCE);
        let chains: Vec<_> = found
            .iter()
            .map(|drops| (drops.family.as_str(), drops.chain.as_str(), drops.manager))
            .collect();
        let ufw = Some(Manager::Ufw);
        assert_eq!(chains, [("ip", "INPUT", ufw), ("ip6", "INPUT", ufw)]);
        let udp = || ports("udp", json!(4791));
        let xt = |name: &str| json!({"xt": {"type": "match", "name": name}});
        let counter = || json!({"counter": {"packets": 0, "bytes": 0}});
        for (chain, parts) in [
            // allow 4791/udp
            ("ufw-user-input", json!([udp(), counter(), accept()])),
            // allow from 10.0.1.0/24
            (
                "ufw-user-input",
                json!([{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": {"prefix": {"addr": "10.0.1.0", "len": 24}}}}, counter(), accept()]),
            ),
            // Rules of before.rules whose condition is not shown.
            (
                "ufw-before-input",
                json!([xt("multiport"), counter(), accept()]),
            ),
            (
                "ufw-before-input",
                json!([interface("eth1"), xt("conntrack"), counter(), accept()]),
            ),
            // One that is met by what another one has left.
            (
                "ufw-user-input",
                json!([xt("conntrack"), counter(), accept()]),
            ),
        ] {
            let open = with(&rules, "ip", "filter", chain, parts);
            let found = drops(&open, ROCE);
            assert!(found.iter().all(|drops| drops.family == "ip6"), "{chain}");
        }
        // An unknown target may accept it, and one that logs does not.
        for (name, is_dropped) in [("NFQUEUE", false), ("LOG", true), ("REJECT", true)] {
            let parts = json!([{"xt": {"type": "target", "name": name}}]);
            let other = with(&rules, "ip", "filter", "ufw-user-input", parts);
            let found = drops(&other, ROCE);
            assert_eq!(found.iter().any(|drops| drops.family == "ip"), is_dropped);
        }
    }

    #[test]
    fn all_that_may_become_of_a_packet_counts() {
        let jump = [interface("eth0"), json!({"jump": {"target": "other"}})];
        let goto = [interface("eth0"), json!({"goto": {"target": "other"}})];
        let leave = [interface("eth1"), json!({"return": null})];
        let drop: &[Value] = &[json!({"drop": null})];
        // Whatever interface it comes from, it is dropped.
        for rules in [&[&jump[..], drop], &[&goto[..], drop]] {
            assert!(is_dropped_with("accept", rules, &[drop]));
        }
        // It may leave the chain before.
        assert!(!is_dropped_with("accept", &[&goto, drop], &[&leave, drop]));
        assert!(is_dropped_with("accept", &[&jump, drop], &[&leave, drop]));
        assert!(is_dropped_with("drop", &[&goto, drop], &[&leave, drop]));
        // The first packet of a connection is no answer, and nobody has redirected it.
        for key in ["state", "status"] {
            for right in [json!("established"), json!(["related", "dnat"])] {
                let rule = [
                    json!({"match": {"op": "in", "left": {"ct": {"key": key}}, "right": right}}),
                    accept(),
                ];
                assert!(is_dropped("drop", &[&rule]), "{rule:?}");
            }
        }
        // A statement that we do not know may be the end of it.
        assert!(!is_dropped("drop", &[&[json!({"tproxy": {"port": 1}})]]));
    }

    #[test]
    fn nonsense_is_no_finding() {
        for text in [
            "{}",
            "[]",
            "3",
            r#"{"nftables": [{"chain": 3}, {"rule": {"expr": [3]}}]}"#,
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(drops(&value, ROCE), []);
        }
    }
}
