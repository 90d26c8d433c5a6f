// SPDX-License-Identifier: GPL-2.0

//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ibmsg::wire::{is_name, MAX_MESSAGE};
use ibmsg::{Channel, Tuning};

const EXAMPLES: &str = "\
Examples:
  ibmsg listen kv --echo                 answers whatever programs send to the portal kv
  ibmsg serve kv /usr/bin/my-service     starts that for each channel
  ibmsg send local kv hello              sends a message, and waits until the other kernel has it
  ibmsg call local kv question           prints the answer
  ibmsg publish news --subscribers 2     publishes the lines of its standard input
  ibmsg subscribe storage1 news          prints them, on another machine
  ibmsg portals                          portals of this machine, and their programs
  ibmsg channels --portal kv             channels of that portal, and their programs
  ibmsg show storage1/12 2041:7          all that is known about two channels
  ibmsg rules apply --dry-run            what the rules in /etc/ibtrs/messages.toml would change

Exit status: 0 done, 1 refused or not delivered, 2 wrong usage, 3 no such session or portal,
4 the module is not loaded, 5 no rights, 6 the time is over.";

/// Passes messages between programs, over multipath RDMA.
#[derive(Parser, Debug)]
#[command(name = "ibmsg", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    /// Prints JSON, a document a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Binds a portal, accepts channels, and prints the messages that arrive, a line each
    Listen(Listen),
    /// Binds a portal, and starts a program for each channel, which is its standard input and output
    Serve(Serve),
    /// Sends messages to a portal, and waits until the other kernel has them
    Send(Send),
    /// Sends a request to a portal, and prints the answer
    Call(Call),
    /// Binds a portal, and publishes messages there under a tag
    Publish(Publish),
    /// Subscribes to what is published at a portal, and prints the entries, a line each
    Subscribe(Subscribe),
    /// Lists the portals of this machine: offers that wait, channels that were refused, rules, and programs
    Portals,
    /// Lists the channels of this machine, and their programs
    Channels(crate::portals::Channels),
    /// Prints all that is known about channels and portals, a line for each field
    Show(crate::portals::Show),
    /// Prints what channels carry, in each interval, how long calls take, and what waits: CALL is the mean time
    /// until a reply has arrived, SERVE until the program here has replied to a request, in microseconds. A line for
    /// each portal that has refused channels says why
    Stat(crate::stat::Command),
    /// Shows and sets who may bind portals, open channels over sessions, and use portals from other machines
    Rules(crate::rules::Command),
    /// Prints completions for a shell
    Completions {
        /// Which one
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages of all commands
    Manpages {
        /// Into that folder
        folder: PathBuf,
    },
}

/// How the command waits for messages.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Polls for at most that many microseconds before it sleeps: a shorter delay for more of a processor
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    busy_poll: Option<u32>,
}

impl Waiting {
    /// Has a channel wait like that.
    pub(crate) fn set(self, channel: &Channel) -> ibmsg::Result<()> {
        let Some(us) = self.busy_poll else {
            return Ok(());
        };
        channel.tune(&Tuning {
            busy_poll: Some(Duration::from_micros(us.into())),
            ..Tuning::default()
        })
    }
}

#[derive(Args, Debug)]
pub(crate) struct Listen {
    /// Name of the portal
    #[arg(value_parser = name)]
    pub(crate) portal: String,
    /// Sends every message back, and answers every request with its content; otherwise requests
    /// are answered with EOPNOTSUPP
    #[arg(long)]
    pub(crate) echo: bool,
    /// Ends after N messages and requests
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Name of the portal
    #[arg(value_parser = name)]
    pub(crate) portal: String,
    /// As many programs at a time; the next ones that ask for a channel wait at the portal
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max: u32,
    /// Takes programs of machines that have not proved a key, too
    #[arg(long)]
    pub(crate) unauthenticated: bool,
    /// Program, and its arguments; IBMSG_PORTAL, IBMSG_SESSION and IBMSG_CHANNEL in its environment are the
    /// names of the portal and of the session, and the number of the channel
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Target {
    /// Session; `local` is this machine
    #[arg(value_parser = name)]
    pub(crate) session: String,
    /// Name of the portal
    #[arg(value_parser = name)]
    pub(crate) portal: String,
    /// How long to wait for the portal, and how long a message may take: a number of seconds, or
    /// with ms, s or m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Send {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Messages; without any, the lines of standard input
    #[arg(value_parser = message)]
    pub(crate) messages: Vec<String>,
    /// Prints the outcome of each message
    #[arg(long)]
    pub(crate) receipt: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Call {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The request
    #[arg(value_parser = message)]
    pub(crate) message: String,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// What happens to subscribers that are slow.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum PolicyName {
    /// The publisher waits for them
    Wait,
    /// They lose entries, and are told which
    Drop,
    /// Their subscriptions end
    Close,
}

#[derive(Args, Debug)]
pub(crate) struct Publish {
    /// Name of the portal
    #[arg(value_parser = name)]
    pub(crate) portal: String,
    /// Messages; without any, the lines of standard input
    #[arg(value_parser = message)]
    pub(crate) messages: Vec<String>,
    /// Under this tag
    #[arg(long, default_value_t = 0)]
    pub(crate) tag: u64,
    /// Keeps at most N entries for subscribers that come later, or are slow; 0: the default
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) entries: u32,
    /// Keeps at most N bytes of entries; 0: the default
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) bytes: u64,
    /// What happens to subscribers that are slow
    #[arg(long, value_enum, default_value = "wait")]
    pub(crate) slow: PolicyName,
    /// Waits for N subscribers before the first message
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) subscribers: u32,
    /// Keeps the portal after the last message, for subscribers that come later
    #[arg(long)]
    pub(crate) keep: bool,
    /// How long to wait for subscribers: a number of seconds, or with ms, s or m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Subscribe {
    #[command(flatten)]
    pub(crate) target: Target,
    /// To these tags
    #[arg(long = "tag", value_name = "TAG", default_value = "0")]
    pub(crate) tags: Vec<u64>,
    /// Begins with the next entry that is published, not with the oldest one that there is
    #[arg(long)]
    pub(crate) next: bool,
    /// Ends after N entries
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// When the channel or a subscription ends, subscribes again where it has stopped
    #[arg(long)]
    pub(crate) reconnect: bool,
}

fn name(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(
            "a name has 1 to 64 ASCII letters, digits and -_:@+., and begins with neither - nor ."
                .to_owned(),
        ),
    }
}

fn message(text: &str) -> Result<String, String> {
    match text.len() <= MAX_MESSAGE {
        true => Ok(text.to_owned()),
        false => Err(format!("a message has at most {MAX_MESSAGE} bytes")),
    }
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "a time is a number of seconds, or with ms, s or m, up to a day".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let seconds = number
        * match unit {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" => 60.0,
            _ => return Err(wrong()),
        };
    match seconds > 0.0 && seconds <= 86400.0 {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, ms) in [
            ("2", 2000),
            ("500ms", 500),
            ("1.5s", 1500),
            ("1m", 60_000),
            (".5", 500),
        ] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "", "x", "0", "-1", "1h", "1 s", "1e9", "inf", "nan", "2d", "ms", "86401",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        let parsed = |line: &str| Cli::try_parse_from(line.split(' '));
        for line in [
            "ibmsg listen kv",
            "ibmsg listen kv --echo --count 3 --json",
            "ibmsg listen kv --echo --busy-poll 50",
            "ibmsg serve kv program",
            "ibmsg serve kv --unauthenticated --max 3 program --max x -y",
            "ibmsg send local kv",
            "ibmsg --json send local kv a b --receipt --timeout 2s",
            "ibmsg call storage1 kv x --timeout 10ms",
            "ibmsg call storage1 kv x --busy-poll 1000000",
            "ibmsg publish news",
            "ibmsg publish news a b --tag 3 --entries 5 --bytes 100 --slow drop --subscribers 2 --keep --timeout 1s",
            "ibmsg subscribe s news",
            "ibmsg subscribe s news --tag 1 --tag 2 --next --count 3 --reconnect --timeout 1s --json",
            "ibmsg portals",
            "ibmsg channels",
            "ibmsg channels --portal kv --session s --json",
            "ibmsg show s/3 12:4 kv",
            "ibmsg stat",
            "ibmsg stat --interval 100ms --count 3 --json",
            "ibmsg rules show",
            "ibmsg rules apply",
            "ibmsg rules apply /tmp/x.toml --dry-run",
            "ibmsg completions bash",
            "ibmsg manpages /tmp/x",
        ] {
            assert!(parsed(line).is_ok(), "{line}");
        }
        for line in [
            "ibmsg",
            "ibmsg listen",
            "ibmsg listen a/b",
            "ibmsg listen kv --count x",
            "ibmsg listen kv --busy-poll 0",
            "ibmsg listen kv --busy-poll 1000001",
            "ibmsg serve kv",
            "ibmsg serve kv --max 0 program",
            "ibmsg serve a/b program",
            "ibmsg send local",
            "ibmsg send .x kv",
            "ibmsg send local kv --timeout 0",
            "ibmsg call local kv",
            "ibmsg call local kv a b",
            "ibmsg publish",
            "ibmsg publish a/b",
            "ibmsg publish news --slow no",
            "ibmsg subscribe s",
            "ibmsg subscribe s news --tag x",
            "ibmsg exec",
            "ibmsg show",
            "ibmsg channels kv",
            "ibmsg rules",
            "ibmsg rules apply a b",
            "ibmsg stat --interval 0",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        let long = "x".repeat(MAX_MESSAGE + 1);
        assert!(message(&long).is_err() && message(&long[1..]).is_ok());
    }
}
