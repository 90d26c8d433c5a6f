#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""rust-project-deps.py KERNELS OURS: adds our crates to the rust-project.json
that the kernel's build makes, with what each uses."""

import json
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent

# As in Kbuild: root, and the crates of ours that it uses.
CRATES = {
    "ibtrs_bindings": ("rust/bindings/lib.rs", []),
    "kx": ("rust/kx/lib.rs", ["ibtrs_bindings"]),
    "rdma": ("rust/rdma/lib.rs", ["ibtrs_bindings", "kx"]),
    "ibtrs_proto": ("rust/proto/ibtrs/lib.rs", []),
    "ibnbd_proto": ("rust/proto/ibnbd/lib.rs", ["ibtrs_proto"]),
    "ibtrs_core": ("rust/ibtrs-core/lib.rs", ["kx", "rdma", "ibtrs_proto"]),
    "ibtrs_client": ("ibtrs-client/lib.rs", ["kx", "rdma", "ibtrs_proto", "ibtrs_core"]),
    "ibtrs_server": ("ibtrs-server/lib.rs", ["kx", "rdma", "ibtrs_proto", "ibtrs_core"]),
    "ibnbd_client": ("ibnbd/client/lib.rs",
                     ["kx", "ibtrs_proto", "ibnbd_proto", "ibtrs_core", "ibtrs_client"]),
    "ibnbd_server": ("ibnbd/server/lib.rs",
                     ["kx", "ibtrs_proto", "ibnbd_proto", "ibtrs_core", "ibtrs_server"]),
}


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    project = json.loads(source.read_text())
    crates = project["crates"]
    index = {crate["display_name"]: number for number, crate in enumerate(crates)}
    kernel = crates[index["kernel"]]
    for name, (root, uses) in CRATES.items():
        index[name] = len(crates)
        deps = ["core", "kernel", "pin_init", *uses]
        crates.append({
            "display_name": name,
            "root_module": str(TOP / root),
            "is_workspace_member": True,
            "is_proc_macro": False,
            "edition": "2021",
            "deps": [{"crate": index[dep], "name": dep} for dep in deps],
            "cfg": [*kernel["cfg"], "MODULE"],
            "env": {"RUST_MODFILE": name, "IBTRS_OBJ": str(source.resolve().parent)},
        })
    target.write_text(json.dumps(project, indent=4))
    print(f"{target}: {len(CRATES)} crates of ours among {len(crates)}")


if __name__ == "__main__":
    main()
