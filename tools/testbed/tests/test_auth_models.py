# SPDX-License-Identifier: GPL-2.0
"""Proofs of the authentication: protocol.md, the code and the models for Verifpal have the same labels, keys and covered
parts, in the same order, so that a model that passes is one of this protocol."""

import re
import shutil
import subprocess

import pytest

from testbed.paths import TOP

PAGE = (TOP / "Documentation/protocol.md").read_text()
CODE = "".join((TOP / f"rust/proto/ibtrs/auth/{name}.rs").read_text() for name in ("proof", "exchange"))
MODELS = sorted((TOP / "Documentation").glob("protocol-auth*.vp"))

# The page's names of the parts of a proof, and the values of the models that stand for each.
VALUES = {
    "request": "suites epoch", "answer": "suite nonce_a", "bytes 0 to 359": "name nonce_c share_c",
    "AUTH1": "name nonce_c share_c proof_c", "bytes 0 to 71": "nonce_s share_s", "bytes 0 to 71 of AUTH2": "nonce_s share_s",
    "its request, zeroes in place of the proof": "cid epoch", "its request": "cid epoch proof_j",
    "bytes 0 to 43 of the answer": "answer", "agreed": "agreed"}
# The names of the parts in the code, for each label.
CODE_PARTS = {
    "client": {"self.request()": "request", "&self.acceptance": "answer", "body": "bytes 0 to 359"},
    "server": {"self.request()": "request", "&self.acceptance": "answer", "auth1": "AUTH1", "body": "bytes 0 to 71"},
    "path key": {"self.request()": "request", "&self.acceptance": "answer", "auth1": "AUTH1",
                 "body": "bytes 0 to 71 of AUTH2"},
    "join": {"said(&bare)": "its request, zeroes in place of the proof"},
    "accept": {"said(request)": "its request", "bare": "bytes 0 to 43 of the answer"},
    "secret": {"agreed.as_bytes()": "agreed"}}
# Not a proof, and never sent.
LOCAL = {"identify"}


def on_the_page() -> dict[str, tuple[str, list[str]]]:
    """The key and the parts of each MAC, by its label."""
    found = {}
    for key, label, parts in re.findall(r'HMAC\(([a-z ]+), "ibtrs-1 (.{8})"([^\n]*?)\)(?: \||\n)', PAGE):
        found[label.rstrip()] = key, [part.strip() for part in re.split(r"\\?\|", parts)[1:]]
    return found


def test_the_page_has_all_labels_of_the_code():
    labels = {label.rstrip() for label in re.findall(r'b"ibtrs-1 (.{8})"', CODE)}
    assert labels == set(on_the_page()) | LOCAL == set(CODE_PARTS) | LOCAL


def test_the_code_proves_what_the_page_says():
    names = {name: label.rstrip() for name, label in re.findall(r'const (\w+): .*?= b"ibtrs-1 (.{8})";', CODE)}
    shared = re.search(r"let parts = \[label, (.*?)\];", CODE)[1]
    proofs = {}
    for name, parts in re.findall(r"\[([A-Z_]+), (.*?)\]", CODE):
        proofs[names[name]] = parts
    for name in re.findall(r"over\(([A-Z_]+)\)", CODE):
        proofs[names[name]] = shared
    # A label that is used in another way is ignored.
    assert set(proofs) == set(CODE_PARTS)
    for label, (_, parts) in on_the_page().items():
        assert [CODE_PARTS[label][part] for part in proofs[label].split(", ")] == parts, label


class Model:
    """The MACs of a model."""

    def __init__(self, text: str):
        self.text = re.sub(r"//.*", "", text)
        self.defined = dict(re.findall(r"^\t(\w+) = (.*)$", self.text, re.MULTILINE))

    def parts(self, text: str) -> list[str]:
        """The values that a list of expressions stands for."""
        found = []
        for part in text.split(", "):
            defined = self.defined.get(part, "")
            inner = re.fullmatch(r"CONCAT\((.*)\)", defined)
            found += self.parts(inner[1]) if inner else [part]
        return found

    def macs(self) -> list[tuple[str, str, list[str]]]:
        """Key, label and values of each MAC, wherever it is made or compared."""
        text = re.sub(r"DH_KEX\((?:share_c, x_s|share_s, x_c)\)", "agreed", self.text)
        found = []
        for key, label, parts in re.findall(r"MAC\((\w+), CONCAT\(l_(\w+), ([^()]*)\)\)", text):
            # Those of the client end with _c, those of the server with _s.
            found.append((key.removesuffix("_c").removesuffix("_s"), {"path": "path key"}.get(label, label),
                          self.parts(parts)))
        assert len(found) == text.count("MAC("), "a MAC of another form"
        return found


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.stem)
def test_the_models_prove_what_the_page_says(model):
    has_shares = "x25519" in model.stem
    page = on_the_page()
    seen = set()
    for key, label, values in Model(model.read_text()).macs():
        wanted_key, parts = page[label]
        expected = [value for part in parts for value in VALUES[part].split()
                    if has_shares or not value.startswith("share")]
        assert (label, values) == (label, expected)
        # In suite 1 the secret is the key.
        assert key == {"secret": "secret" if has_shares else "key", "path key": "path"}.get(wanted_key, wanted_key), label
        seen.add(label)
    assert {"client", "server", "path key"} <= seen and has_shares == ("secret" in seen)


def test_all_proofs_are_in_a_model():
    labels = {label for model in MODELS for _, label, _ in Model(model.read_text()).macs()}
    assert labels == set(on_the_page()) and len(MODELS) == 4


@pytest.mark.skipif(shutil.which("verifpal") is None, reason="verifpal is not installed")
def test_verifpal_finds_no_attack():
    for model in MODELS:
        done = subprocess.run(["verifpal", "verify", model], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=600)
        queries = re.search(r"queries\[(.*?)\]", model.read_text(), re.DOTALL)[1].split("\n\t")[1:]
        assert done.returncode == 0 and f"All {len(queries)} queries pass" in done.stdout, done.stdout
