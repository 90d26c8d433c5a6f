#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""rust-project-deps.py KERNELS OURS: adds our crates, with their dependencies, to the
rust-project.json that the kernel's build makes."""

import json
import sys
from pathlib import Path

from crates import TOP, crates as crates_of_ours


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    project = json.loads(source.read_text())
    crates = project["crates"]
    index = {crate["display_name"]: number for number, crate in enumerate(crates)}
    kernel = crates[index["kernel"]]
    for name, folder, uses in crates_of_ours():
        index[name] = len(crates)
        deps = ["core", "kernel", "pin_init", *uses]
        crates.append({
            "display_name": name,
            "root_module": str(TOP / folder / "lib.rs"),
            "is_workspace_member": True,
            "is_proc_macro": False,
            "edition": "2021",
            "deps": [{"crate": index[dep], "name": dep} for dep in deps],
            "cfg": [*kernel["cfg"], "MODULE"],
            "env": {"RUST_MODFILE": name, "IBTRS_OBJ": str(source.resolve().parent)},
        })
    target.write_text(json.dumps(project, indent=4))
    print(f"{target}: {len(crates_of_ours())} crates of ours among {len(crates)}")


if __name__ == "__main__":
    main()
