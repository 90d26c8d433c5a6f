# SPDX-License-Identifier: GPL-2.0
"""The record of what a run changes on a machine.

The record is on the machine itself: a line for each change, its name and the command that takes it back,
written before the change is made. So a run that was killed can be cleaned up by another one, and a
network that a run has disturbed comes back even if nobody can reach the machine any more."""

import shlex
from dataclasses import dataclass

FOLDER = "/run/ibnbd-qualify"
# The prefix of changes without which the machines do not reach each other: taken back first.
URGENT = "!"
# Seconds after which an urgent change is taken back even if nobody asks for it.
GUARD_S = 120
# In seconds, for each line of the record.
LIMIT_S = 90
# For how long a command that changes something waits for another one, in seconds.
BUSY_S = 200


@dataclass(frozen=True)
class Change:
    """`undo` must be harmless where the change was not made, or was taken back before."""

    name: str
    do: str
    undo: str
    urgent: bool = False
    # Modules that it may load.
    loads: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{URGENT if self.urgent else ''}{self.name}"


def _line(change: Change) -> str:
    if "\n" in change.undo or "\t" in change.key:
        raise ValueError(f"the record has a line for each change: {change.key}")
    return f"{change.key}\t{change.undo}"


def _alone(folder: str) -> str:
    """Waits for another command that changes something: one whose connection was lost, or that was interrupted, goes
    on, and is to be taken back when it has ended. What is begun in the background closes the descriptor."""
    return (f"exec 7> {folder}.lock\nflock -w {BUSY_S} 7 || "
            "{ echo 'another command of a run goes on: clean up with CLEAN=yes when it has ended' >&2; exit 1; }\n")


def begin(folder: str = FOLDER) -> str:
    """Fails if another run uses the machine, or has left something there."""
    return f"mkdir -m 700 {folder} && date +%s%N > {folder}/run && : > {folder}/undo"


def drop(change: Change, folder: str = FOLDER) -> str:
    """Takes a change out of the record."""
    return (f"awk -F '\\t' -v key={shlex.quote(change.key)} '$1 != key' {folder}/undo > {folder}/undo.new && "
            f"mv {folder}/undo.new {folder}/undo")


def loaded(folder: str = FOLDER) -> str:
    """The modules that changes have loaded, one on a line."""
    return f"{folder}/loaded"


def _notes_modules(change: Change, folder: str) -> str:
    """Has the shell note at its end which modules have come with the change, also if the change fails. Those that were
    there before are none of the run's."""
    if not change.loads:
        return ""
    return (f"new=; for m in {' '.join(change.loads)}; do [ -e /sys/module/$m ] || new=\"$new $m\"; done\n"
            f"trap 'for m in $new; do [ ! -e /sys/module/$m ] || echo $m >> {loaded(folder)}; done' EXIT\n")


def make(change: Change, folder: str = FOLDER) -> str:
    """Records a change, then makes it. The guard of an urgent one knows its run, as a later run may make the
    same change."""
    guard = ""
    if change.urgent:
        late = f'sleep {GUARD_S}; [ "$(cat {folder}/run)" = "$run" ] || exit 0; {take_back(change, folder)}'
        guard = (f"run=$(cat {folder}/run); export run\n"
                 f"setsid sh -c {shlex.quote(late)} > /dev/null 2>&1 < /dev/null 7>&- &\n")
    return (f"{_alone(folder)}set -e\n[ -d {folder} ] || {{ echo 'the run was cleaned up' >&2; exit 1; }}\n"
            f"printf '%s\\n' {shlex.quote(_line(change))} >> {folder}/undo\n{_notes_modules(change, folder)}{guard}{change.do}")


def take_back(change: Change, folder: str = FOLDER) -> str:
    """Takes a change back, if it is recorded."""
    return (f"{_alone(folder)}if [ -e {folder}/undo ] && cut -f 1 {folder}/undo | grep -Fqx -e {shlex.quote(change.key)}; then "
            f"sh -c {shlex.quote(change.undo)} < /dev/null && {drop(change, folder)}; fi")


def noted(command: str, folder: str = FOLDER) -> str:
    """A program whose number is kept, so that it can be ended: it does not end with the connection by which
    it was started."""
    return f"{{ {command} & p=$!; echo $p >> {folder}/programs; wait $p; }}"


def end_programs(folder: str = FOLDER) -> str:
    """Ends what fio was noted; numbers may be those of other programs by now."""
    return (f"for p in $(cat {folder}/programs 2> /dev/null); do [ \"$(cat /proc/$p/comm 2> /dev/null)\" != fio ] || "
            "kill -9 $p; done")


def clean(urgent_only: bool = False, folder: str = FOLDER) -> str:
    """Takes back what is recorded, the last change first; prints a line for each that failed, which stays
    recorded. Without a record there is nothing to do. The folder goes with the last line."""
    wanted = f"case $key in {URGENT}*) ;; *) continue ;; esac" if urgent_only else ":"
    return f"""{_alone(folder)}[ -d {folder} ] || exit 0
touch {folder}/undo
{end_programs(folder)}
tab=$(printf '\\t')
tac {folder}/undo > {folder}/order
failed=
while IFS=$tab read -r key line; do
	{wanted}
	if said=$(timeout {LIMIT_S} sh -c "$line" 2>&1 < /dev/null); then
		awk -F '\\t' -v key="$key" '$1 != key' {folder}/undo > {folder}/undo.new && mv {folder}/undo.new {folder}/undo
	else
		failed=1
		printf '%s: %s\\n' "$key" "$(printf '%s' "$said" | tr '\\n' ' ')"
	fi
done < {folder}/order
rm -f {folder}/order
[ -s {folder}/undo ] || rm -rf {folder}
[ -z "$failed" ]"""
