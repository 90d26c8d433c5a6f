// SPDX-License-Identifier: GPL-2.0

//! `apply`.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ibnbd_host::advice::Task;
use ibnbd_host::config::plan::{self, Of, Step, Wish};
use ibnbd_host::config::{self, Config};
use ibnbd_host::disk_name::DiskName;
use ibnbd_host::family::{Family, Side};
use ibnbd_host::mapping::Mapping;
use ibnbd_host::{configfs, find, folder, mapping, Machine};
use ibtrs_proto::Errno;

use super::args::Files;
use super::{change, configured, export, host, map, modules, paths, unmap, Done};
use crate::act;
use crate::context::Context;
use crate::fail::{Failure, CONFIGURATION, NOT_FOUND, REFUSED};
use crate::notify;

pub(crate) const HELP: &str = "\
It shows a line for each step: + is made, ~ changed, - taken away (with --prune only), ! cannot be
done while something is in use. client.toml, server.toml and conf.d/*.toml are read as one. Disks
with auto = false stay as they are; `--disk` maps one of them, as the unit ibnbd@.service does.

With --until-done systemd is told that the service has started after the first attempt, whatever
became of it, and `systemctl status` shows what is missing. Files that are wrong at first end it.

Examples:
  ibnbd apply --dry-run                       only shows the difference
  ibnbd apply
  ibnbd apply --side server --prune
  ibnbd apply --disk web1/disk1               only the disk1 of the session web1";

#[derive(Args, Debug)]
pub(crate) struct Apply {
    /// Only shows the difference
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also takes away what the files do not name: disks that nobody uses, paths, exports, ports
    #[arg(long)]
    pub(crate) prune: bool,
    /// Goes on until all of it is done, with pauses of up to 30 s; for services
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) until_done: bool,
    /// Only what the files say about the client, or about the server
    #[arg(long, value_enum)]
    pub(crate) side: Option<OneSide>,
    /// Only that disk with its session and paths, whether it says auto = false or not
    #[arg(long, value_name = "SESSION/DEVICE", conflicts_with_all = ["prune", "side"])]
    pub(crate) disk: Option<DiskName>,
    /// Refuses files that need names: of servers, or of this machine for a session without a name
    #[arg(long)]
    pub(crate) no_names: bool,
    #[command(flatten)]
    pub(crate) files: Files,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OneSide {
    /// Sessions and their disks
    Client,
    /// Exports, hosts and ports
    Server,
}

impl From<OneSide> for Side {
    fn from(side: OneSide) -> Self {
        match side {
            OneSide::Client => Self::Client,
            OneSide::Server => Self::Server,
        }
    }
}

/// The files of a folder as one configuration, or all that is wrong with them.
pub(super) fn read(context: &Context, folder: &str) -> Result<Config, Failure> {
    let files = config::files(&context.root, folder)
        .map_err(|(file, error)| Failure::system(file, &error))?;
    config::read(&files).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let why = format!(
            "{} of them are wrong, and nothing was changed\n{}",
            lines.len(),
            lines.join("\n")
        );
        Failure::new(
            CONFIGURATION,
            format!("configuration in {folder}: lines"),
            why,
        )
    })
}

/// The files, which must have the disk that is asked for.
fn wanted(context: &Context, words: &Apply) -> Result<Config, Failure> {
    let folder = &words.files.config;
    // Without the usual folder there is nothing to do; another one is a slip.
    if folder != config::FOLDER && !context.root.is_folder(folder) {
        let what = format!("configuration in {folder}");
        return Err(
            Failure::new(CONFIGURATION, what, "there is no such folder").todo("correct --config")
        );
    }
    let config = read(context, folder)?;
    if words.no_names {
        need_no_names(folder, &config)?;
    }
    let Some(wanted) = &words.disk else {
        return Ok(config);
    };
    let known = plan::disks(&context.root, &config);
    let known: Vec<DiskName> = known.into_iter().map(|(name, _)| name).collect();
    match known.contains(wanted) {
        true => Ok(config),
        false => Err(unknown(folder, wanted, &known)),
    }
}

fn need_no_names(folder: &str, config: &Config) -> Result<(), Failure> {
    let needs = config::needs_names(config);
    if needs.is_empty() {
        return Ok(());
    }
    let why = format!(
        "names of machines are needed, and nothing was changed\n{}",
        needs.join("\n")
    );
    let failure = Failure::new(CONFIGURATION, format!("configuration in {folder}"), why);
    Err(failure.todo("give each session a name, and servers by their addresses"))
}

fn unknown(folder: &str, wanted: &DiskName, known: &[DiskName]) -> Failure {
    let why = format!("the files in {folder} have no such disk");
    let failure = Failure::new(NOT_FOUND, format!("disk {wanted}"), why);
    // Those of the session, if it has any.
    let is_near = |name: &DiskName| name.session == wanted.session;
    let has_near = known.iter().any(is_near);
    let near = known.iter().filter(|name| !has_near || is_near(name));
    let names: Vec<String> = near.map(ToString::to_string).collect();
    match names.is_empty() {
        true => failure.todo(format!("write it into {folder}/client.toml")),
        false => failure.todo(format!("take one of: {}", names.join(" "))),
    }
}

pub(super) fn apply(context: &Context, words: &Apply) -> Done {
    let config = wanted(context, words)?;
    if words.until_done {
        return until_done(context, words, config);
    }
    match Attempts::new(context, config).next(context, words)? {
        0 => Ok(0),
        failed => Err(undone(failed)),
    }
}

fn undone(failed: usize) -> Failure {
    Failure::new(
        REFUSED,
        "apply",
        format!("{failed} steps could not be done"),
    )
}

/// The longest pause between attempts; they begin with `STEP` and get longer by it.
const LONGEST: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_secs(5);

/// Goes on until the machine is as the files say. The service has started after the first
/// attempt. The files are read each time; only at first is it the end if they are wrong.
fn until_done(context: &Context, words: &Apply, config: Config) -> Done {
    let mut attempts = Attempts::new(context, config);
    let mut result = attempts.next(context, words);
    let mut pause = Duration::ZERO;
    loop {
        let failure = match result {
            Ok(0) => {
                notify::ready("all of it is done");
                return Ok(0);
            }
            Ok(failed) => undone(failed),
            Err(failure) => failure,
        };
        failure.print();
        pause = LONGEST.min(pause + STEP);
        let why = failure.why.lines().next().unwrap_or_default();
        let next = format!("tried again after {} s", pause.as_secs());
        note!("{next}");
        notify::ready(&format!("{why}; {next}"));
        thread::sleep(pause);
        result = wanted(context, words).and_then(|config| {
            let now = Attempts::new(context, config);
            if !attempts.are_for(&now) {
                attempts = now;
            }
            attempts.next(context, words)
        });
    }
}

/// Attempts to do what the same files say.
struct Attempts {
    config: Config,
    /// The names of its sessions, which may contain that of the machine.
    names: Vec<String>,
    /// The steps that failed in the last attempt; none before the first one.
    ///
    /// Later ones change nothing else: what was as the files say, and is not any more, was changed
    /// by the operator, who must not have to stop the service for that.
    left: Option<HashSet<String>>,
}

impl Attempts {
    fn new(context: &Context, config: Config) -> Self {
        let sessions = config.sessions.iter();
        let names = sessions.map(|session| plan::name(&context.root, session));
        Self {
            names: names.collect(),
            config,
            left: None,
        }
    }

    /// Whether they go on with what others are to begin. With other names, all steps are others.
    fn are_for(&self, other: &Self) -> bool {
        self.config == other.config && self.names == other.names
    }

    /// Shows the steps and does them, unless that is all that was asked for; returns how many
    /// failed.
    fn next(&mut self, context: &Context, words: &Apply) -> Result<usize, Failure> {
        let wish = Wish {
            resolve: &mapping::resolve,
            prune: words.prune,
            side: words.side.map(Into::into),
            disk: words.disk.as_ref(),
        };
        let plan = |machine: &Machine| {
            let mut steps = plan::steps(&context.root, machine, &self.config, &wish);
            steps.retain(|step| match &self.left {
                Some(left) => left.contains(&step.what()),
                None => true,
            });
            steps
        };
        let machine = context.machine();
        context.warn(&machine.notes);
        let steps = plan(&machine);
        let mut text = String::new();
        for step in &steps {
            text += &format!("{step}\n");
        }
        let mut impossible = impossible_of(&steps);
        if words.dry_run {
            return context.print(&text).map(|()| impossible.len());
        }
        context.announce(&text);
        let had_exports = configfs::has_exports(&context.root);
        let mut left: HashSet<String> = impossible.iter().map(|(what, _)| what.clone()).collect();
        let first = steps.into_iter().filter(Step::is_first);
        let mut failed = carry_out(context, first, &mut left);
        // Now that disks and sessions are there: their paths and settings, and what turns out to be
        // impossible only now.
        let mut rest = plan(&context.machine());
        rest.retain(|step| !step.is_first());
        for (what, line) in impossible_of(&rest) {
            if impossible.insert((what, line.clone())) {
                context.announce(&format!("{line}\n"));
            }
        }
        failed += carry_out(context, rest.into_iter(), &mut left);
        failed += impossible.len();
        configured::warn_of_no_export(context, had_exports);
        self.left = Some(left);
        Ok(failed)
    }
}

/// The steps that are impossible: their objects and their lines.
fn impossible_of(steps: &[Step]) -> HashSet<(String, String)> {
    let found = steps.iter().filter(|s| matches!(s, Step::Cannot { .. }));
    found.map(|step| (step.what(), step.to_string())).collect()
}

/// Carries out all steps in order, even after failures; returns how many failed. `left` gets
/// what was not changed.
fn carry_out(
    context: &Context,
    steps: impl Iterator<Item = Step>,
    left: &mut HashSet<String>,
) -> usize {
    let mut failed = 0;
    let mut back = Vec::new();
    let mut failures = Failures::default();
    for step in steps {
        // All ports have had their turn.
        if !matches!(step, Step::Configure { of: Of::Port, .. }) {
            go_back(context, &mut back);
        }
        let what = step.what();
        let before = step.back();
        let result = failures.allow(&step);
        let done = result
            .and_then(|()| one(context, step.clone()))
            .unwrap_or_else(|failure| {
                failure.print();
                failed += 1;
                back.extend(before);
                failures.note(step);
                false
            });
        if !done {
            left.insert(what);
        }
    }
    go_back(context, &mut back);
    failed
}

/// What failed, without which later steps would do harm.
#[derive(Default)]
struct Failures {
    /// Sessions that did not get a path.
    sessions: HashSet<String>,
    /// Whether a device file stands for another device.
    wrong_device: bool,
}

impl Failures {
    fn note(&mut self, step: Step) {
        match step {
            Step::AddPath { session, .. } => drop(self.sessions.insert(session)),
            Step::Unexport { early: true, .. } => self.wrong_device = true,
            _ => {}
        }
    }

    fn allow(&self, step: &Step) -> Result<(), Failure> {
        let (what, why) = match step {
            Step::RemovePath { session, .. } if self.sessions.contains(session) => (
                format!("cannot remove the {}", step.what()),
                "a path that the files have could not be added, and the session may need this one",
            ),
            Step::Load { module, .. } if self.wrong_device && *module == plan::SERVER => (
                format!("cannot load {module}"),
                "clients would find another device",
            ),
            _ => return Ok(()),
        };
        Err(Failure::new(REFUSED, what, why))
    }
}

/// Takes back what was done for the sake of steps that failed.
fn go_back(context: &Context, steps: &mut Vec<Step>) {
    for step in steps.drain(..) {
        let line = step.to_string();
        match one(context, step) {
            Ok(_) => note!("{line}"),
            Err(failure) => failure.print(),
        }
    }
}

/// Does a step, and returns whether there was something to do it to.
fn one(context: &Context, step: Step) -> Result<bool, Failure> {
    match step {
        // Of a disk or a session that could not be made; that was said.
        Step::Set { folder, .. } if !context.root.exists(&folder) || folder.is_empty() => {
            return Ok(false);
        }
        // It was shown, and counted.
        Step::Cannot { .. } => return Ok(false),
        Step::Load { module, parameters } => modules::load(context, module, &parameters),
        Step::Export {
            directory,
            name,
            device,
            ..
        } => export::export(context, &directory, &device, &name),
        Step::Unexport {
            directory, name, ..
        } => folder::remove(&context.root, &directory, &name)
            .map_err(|error| Failure::system(format!("cannot remove {directory}/{name}"), &error)),
        Step::Configure {
            of, line, changes, ..
        } => {
            let (task, need): (_, fn(&Context) -> _) = match of {
                Of::Export => (Task::Export, configured::need),
                Of::Host => (Task::Host, configured::need),
                Of::Port => (Task::Port, configured::need_ports),
            };
            need(context)?;
            act::changes(context, task, &format!("apply \"{line}\""), &changes)
        }
        Step::RemoveHost { name, changes, .. } => {
            configured::need(context)?;
            let what = format!("remove host {name}");
            host::remove_with_keys(context, &[&name], || {
                act::changes(context, Task::Host, &what, &changes)
            })
        }
        Step::RemoveKeys { host } => host::complete(context, &host),
        Step::Open(wanted) => open(context, &wanted),
        Step::Close { session } => act::write(
            context,
            Task::Map,
            &format!("close session {session}"),
            &control("close_session"),
            &session,
        ),
        Step::Map(wanted) => {
            let line = wanted
                .line()
                .map_err(|why| Failure::usage(format!("map {}", wanted.device), why))?;
            map::map_unless_others_do(context, &wanted, &line)
        }
        Step::Unmap { disk } => {
            let machine = context.machine();
            unmap::unmap_disk(context, map::disk(context, &machine, &disk)?, false)
        }
        Step::AddPath {
            session,
            path,
            standby,
            ..
        } => {
            let machine = context.machine();
            paths::add_line(context, paths::session(&machine, &session)?, &path)?;
            match standby {
                true => paths::set_standby_of_line(context, &session, &path),
                false => Ok(()),
            }
        }
        Step::RemovePath { session, path } => {
            let machine = context.machine();
            let session = paths::session(&machine, &session)?;
            let path = find::path_of(session, &context.root, &path)
                .map_err(|why| Failure::unclear("path", &path, &why))?;
            paths::remove(context, path)
        }
        Step::Set {
            name,
            folder,
            key,
            value,
            ..
        } => change::write(context, &name, &folder, &key, &value),
    }?;
    Ok(true)
}

fn control(file: &str) -> String {
    format!("{}/{file}", Family::Ibnbd.control(Side::Client))
}

/// Opens a session without a disk. Somebody else may have done so at the same moment.
fn open(context: &Context, wanted: &Mapping) -> Result<(), Failure> {
    let name = &wanted.session;
    let what = format!("open session {name}");
    let file = control("open_session");
    match act::write(context, Task::Map, &what, &file, &wanted.open_line()) {
        Err(failure) if failure.errno == Some(Errno::EEXIST.get()) => {
            let machine = context.machine();
            let there = machine.our(Side::Client, name);
            match there.is_some_and(|session| session.kept_open != Some(false)) {
                true => Ok(()),
                false => Err(failure),
            }
        }
        result => result,
    }
}
