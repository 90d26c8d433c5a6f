# SPDX-License-Identifier: GPL-2.0
"""The outcome of a run: steps and figures, and the document that can be sent."""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

SCHEMA = 1
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# What names a machine, a card or a disk, or is secret; each by what is left of it.
SECRETS = ((re.compile(r"\b[0-9a-f]{64}\b"), "[key]"),
           (re.compile(r"\bibtrs-(key|token)-\S+"), "[key]"),
           # As udev, sysfs, NVMe and SCSI write them: wwn-0x..., eui..., naa..., 3600..., nvme.VENDOR-SERIAL-MODEL-..., t10....
           (re.compile(r"\b(wwn-|naa\.|eui\.|nvme\.)?0x[0-9a-f]{16,32}\b", re.I), "[serial]"),
           (re.compile(r"\b(wwn|naa|eui|scsi|uuid)[-._:=]+[0-9a-f]{16,33}(?![0-9a-z])", re.I), "[serial]"),
           (re.compile(r"\bnvme\.[0-9a-f]{4}-[0-9a-f-]+(?![0-9a-z])", re.I), "[serial]"),
           (re.compile(r"\bt10\..+", re.I), "[serial]"),
           (re.compile(r"\b[0-9a-f]{32,33}\b", re.I), "[serial]"),
           (re.compile(r"/dev/disk/by-\S+"), "[disk]"),
           (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I), "[uuid]"),
           (re.compile(r"\b[0-9a-f]{4}(:[0-9a-f]{4}){3}\b", re.I), "[guid]"))
ADDRESSES = ((re.compile(r"\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I), "[mac]"),
             (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b"), "[address]"),
             (re.compile(r"(?<![\w:])(?=[0-9a-f]*:[0-9a-f:]*:)(?=[0-9a-f:]*[0-9a-f])[0-9a-f:]{4,39}(?![\w:])", re.I),
              "[address]"))


@dataclass
class Step:
    part: str
    name: str
    status: str
    seconds: float
    # Why it failed or was left out, or what is worth knowing.
    said: str = ""
    values: dict = field(default_factory=dict)


@dataclass
class Outcome:
    """One run. In JSON the same names."""

    began: str = ""
    version: str = ""
    seconds: float = 0
    short: bool = False
    # By side, and for each link by side: what the report says of them.
    machines: dict = field(default_factory=dict)
    links: dict = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    # Figures by measurement and by target.
    bench: dict = field(default_factory=dict)
    # The path of the disk that was named is nobody's business; that there was one is.
    named_disk: bool = False
    interrupted: bool = False

    def of(self, status: str) -> list[Step]:
        return [step for step in self.steps if step.status == status]

    @property
    def passed(self) -> bool:
        return bool(self.of(PASSED)) and not self.of(FAILED) and not self.interrupted

    def document(self) -> dict:
        return {"schema": SCHEMA, "passed": self.passed, **asdict(self)}


@dataclass(frozen=True)
class Scrub:
    """Takes names and addresses out of texts; with `keep_names` only secrets and serial numbers."""

    # What to put in the place of names that are known.
    names: dict[str, str]
    keep_names: bool = False

    def text(self, text: str) -> str:
        for pattern, word in SECRETS:
            text = pattern.sub(word, text)
        if self.keep_names:
            return text
        for name in sorted(filter(None, self.names), key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", self.names[name], text)
        for pattern, word in ADDRESSES:
            text = pattern.sub(word, text)
        return text

    def all(self, value):
        """The same for each text in lists and dictionaries."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.all(one) for one in value]
        if isinstance(value, dict):
            return {self.text(name): self.all(one) for name, one in value.items()}
        return value


def load(document: dict) -> Outcome:
    """The outcome in a document. Raises ValueError for another kind."""
    if document.get("schema") != SCHEMA:
        raise ValueError("this is no document of `make qualify` that this version can read")
    values = {name: value for name, value in document.items() if name not in ("schema", "passed")}
    values["steps"] = [Step(**step) for step in values["steps"]]
    return Outcome(**values)


def save(outcome: Outcome, scrub: Scrub, path: Path) -> dict:
    """Writes the document, and returns it."""
    document = scrub.all(outcome.document())
    # Versions of firmware look like addresses.
    facts = replace(scrub, keep_names=True)
    document |= {name: facts.all(getattr(outcome, name)) for name in ("began", "version", "machines", "links")}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return document
