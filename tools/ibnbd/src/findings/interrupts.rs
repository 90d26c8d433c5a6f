// SPDX-License-Identifier: GPL-2.0

//! Interrupts of RDMA devices that all come to one CPU.

use std::collections::BTreeSet;

use super::{Finding, Severity};
use crate::root::Root;
use crate::value;

/// Fewer interrupts say nothing about which of them are in use.
const ENOUGH: u64 = 1_000;

pub(super) fn all(root: &Root) -> Vec<Finding> {
    let class = "/sys/class/infiniband";
    let devices = root.list_if_any(class).unwrap_or_default();
    let folder = |device: &str| format!("{class}/{device}/device/msi_irqs");
    let own: Vec<_> = devices
        .iter()
        .map(|device| {
            (
                device,
                root.list_if_any(&folder(device)).unwrap_or_default(),
            )
        })
        .filter(|(_, numbers)| numbers.len() > 1)
        .collect();
    if own.is_empty() || has_one_cpu(root) {
        return Vec::new();
    }
    let text = root.read("/proc/interrupts").unwrap_or_default();
    let in_use = used(&text);
    own.into_iter()
        .filter_map(|(device, numbers)| of_device(root, device, &numbers, &in_use))
        .collect()
}

/// Whether there is nothing to spread over.
fn has_one_cpu(root: &Root) -> bool {
    let online = root.read("/sys/devices/system/cpu/online").ok();
    online.and_then(|text| value::word(&text)).as_deref() == Some("0")
}

/// The numbers of interrupts that have come often.
fn used(text: &str) -> BTreeSet<&str> {
    let cpus = text.lines().next().unwrap_or_default();
    let cpus = cpus.split_whitespace().count();
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let (number, counts) = line.split_once(':')?;
            let counts = counts.split_whitespace().take(cpus);
            let all = counts.filter_map(|count| count.parse::<u64>().ok());
            let sum = all.fold(0, u64::saturating_add);
            (sum >= ENOUGH).then_some(number.trim())
        })
        .collect()
}

fn of_device(
    root: &Root,
    device: &str,
    numbers: &[String],
    in_use: &BTreeSet<&str>,
) -> Option<Finding> {
    let used = numbers
        .iter()
        .filter(|number| in_use.contains(number.as_str()));
    let used: Vec<&str> = used.map(String::as_str).collect();
    let targets: Option<BTreeSet<String>> = used.iter().map(|irq| target(root, irq)).collect();
    let targets = targets?;
    let only = targets.first().filter(|_| targets.len() == 1)?;
    // One that may come to several CPUs is spread by the kernel.
    if used.len() < 2 || !only.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let what = format!(
        "all {} active interrupts of {device} go to CPU {only}",
        used.len()
    );
    let first = used.first()?;
    let by_hand = format!(
        "for each of {}: echo CPU > /proc/irq/{first}/smp_affinity_list",
        used.join(" ")
    );
    // It moves interrupts again that somebody else has moved.
    let remedy = if is_running(root, "irqbalance") {
        let banned: Vec<String> = used.iter().map(|irq| format!("--banirq={irq}")).collect();
        format!(
            "irqbalance is running and leaves them there: check IRQBALANCE_BANNED_CPULIST and IRQBALANCE_ARGS in its settings; or have it ignore them, as it undoes what is set by hand: add {} to IRQBALANCE_ARGS, systemctl restart irqbalance, then {by_hand}",
            banned.join(" ")
        )
    } else {
        format!("irqbalance is not running: systemctl enable --now irqbalance; or without it, {by_hand}")
    };
    Some(Finding::new(Severity::Warning, what, remedy))
}

/// The CPUs that an interrupt comes to.
fn target(root: &Root, number: &str) -> Option<String> {
    let word = |file: &str| value::word(&root.read(&format!("/proc/irq/{number}/{file}")).ok()?);
    word("effective_affinity_list").or_else(|| word("smp_affinity_list"))
}

fn is_running(root: &Root, program: &str) -> bool {
    let processes = root.list_if_any("/proc").unwrap_or_default();
    let numbers = processes
        .iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.into_iter().any(|number| {
        let name = root.read(&format!("/proc/{number}/comm")).ok();
        name.and_then(|name| value::word(&name)).as_deref() == Some(program)
    })
}
