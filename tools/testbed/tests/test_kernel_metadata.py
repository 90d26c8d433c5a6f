# SPDX-License-Identifier: GPL-2.0
"""Metadata that does not fit a distribution's kernel is refused before anything is built.

The kernel's source here is a few lines that make the same files as a real one.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[3]
SCRIPTS = TOP / "scripts"
RELEASE = "7.3.4+test-amd64"
VERSION = "7.3.4-1"
RUSTC = "rustc 1.85.1 (test)"
BINDGEN = "bindgen 0.71.1"
SYMBOLS = ["_RNvCs1_6kernel3one", "_RNvCs1_6kernel3two"]
CONFIG = f"""\
CONFIG_BLOCK=y
CONFIG_CC_VERSION_TEXT="sh 1"
CONFIG_INFINIBAND=m
CONFIG_INFINIBAND_ADDR_TRANS=y
CONFIG_CONFIGFS_FS=m
CONFIG_KEYS=y
CONFIG_CRYPTO_LIB_CURVE25519=m
CONFIG_CRYPTO_LIB_SHA256=y
CONFIG_CRC32=y
CONFIG_MODULES=y
CONFIG_MODULE_SIG_KEY="the/distributions.pem"
CONFIG_OPENSSL_SUPPORTS_ML_DSA=y
CONFIG_PREEMPT_COUNT=y
CONFIG_RUST=y
CONFIG_RUSTC_VERSION_TEXT="{RUSTC}"
CONFIG_BINDGEN_VERSION_TEXT="{BINDGEN}"
"""

# Makes the exports that it was given, and writes down that it ran.
MAKEFILE = """\
olddefconfig:
	@sed -i '/OPENSSL_SUPPORTS/d' $(O)/.config
	@cat extra-config >> $(O)/.config
rustavailable:
	@[ ! -e toolchain-fault ] || { cat toolchain-fault >&2; false; }
modules_prepare:
	@echo built >> $(COUNT)
	@mkdir -p $(O)/rust $(O)/include/generated $(O)/include/config
	@cp exports.h $(O)/rust/exports_kernel_generated.h
	@touch $(O)/rust/libkernel.rmeta $(O)/rust/kernel.o
	@ln -sfn $(CURDIR) $(O)/source
"""
SET_CONFIG = """\
#!/bin/sh
sed -i 's/^CONFIG_MODULE_SIG_KEY=.*/CONFIG_MODULE_SIG_KEY=""/' "$2"
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """Headers, a source package and tools, as a distribution installs them."""

    def __init__(self, root):
        self.root = root
        self.headers = root / "headers"
        self.cache = root / "cache"
        self.count = root / "count"
        for folder in ("include/config", "include/generated"):
            (self.headers / folder).mkdir(parents=True)
        self.configure(CONFIG)
        (self.headers / "include/config/kernel.release").write_text(RELEASE + "\n")
        (self.headers / "include/generated/utsrelease.h").write_text(f'#define UTS_RELEASE "{RELEASE}"\n')
        self.kernel_has(SYMBOLS)
        self.tool("rustc", RUSTC)
        self.tool("bindgen", BINDGEN)
        for name in ("flex", "bison", "bc"):
            self.tool(name, name)
        program(self.root / "sysroot/lib/rustlib/src/rust/library/core/src/lib.rs", "")
        self.packages(VERSION, VERSION)
        self.pack(SYMBOLS)

    def configure(self, text):
        (self.headers / ".config").write_text(text)
        (self.headers / "include/config/auto.conf").write_text(text)

    def kernel_has(self, symbols):
        lines = [f"0x00000000\t{name}\tvmlinux\tEXPORT_SYMBOL_GPL\t\n" for name in symbols + ["printk"]]
        (self.headers / "Module.symvers").write_text("".join(lines))

    def tool(self, name, version):
        program(self.root / "bin" / name,
                f"#!/bin/sh\n[ \"$1\" = --print ] && echo {self.root}/sysroot || echo '{version}'\n")

    def packages(self, headers, source, status="installed"):
        program(self.root / "bin/dpkg-query", "#!/bin/sh\n"
                f"case $* in *linux-headers-*) v={headers} ;; *linux-source-7.3) v={source} ;; esac\n"
                f'[ -n "$v" ] && echo "{status} $v"\n')

    def pack(self, symbols, extra_config="", toolchain_fault=""):
        source = self.root / "linux-source-7.3"
        program(source / "scripts/config", SET_CONFIG)
        (source / "Makefile").write_text(MAKEFILE)
        (source / "exports.h").write_text("".join(f"EXPORT_SYMBOL_RUST_GPL({name});\n" for name in symbols))
        program(source / "rust/bindgen_parameters", "")
        (source / "extra-config").write_text(extra_config)
        if toolchain_fault:
            (source / "toolchain-fault").write_text(toolchain_fault)
        for name in ("drivers/net/one.c", "rust/helpers/net/genetlink.c", "fs/two.c", "drivers/base/base.h"):
            program(source / name, "")
        subprocess.run(["tar", "-C", self.root, "-cJf", self.root / "linux-source-7.3.tar.xz", source.name],
                       check=True)

    def env(self, **more):
        return {**os.environ, **more, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "COUNT": str(self.count),
                "IBTRS_METADATA": str(self.cache), "IBTRS_KERNEL_SOURCES": str(self.root)}

    def run(self, *arguments, script="kernel-metadata.sh", cwd=None, **more):
        return subprocess.run([SCRIPTS / script, *arguments], env=self.env(**more), text=True, capture_output=True,
                              check=False, cwd=cwd)

    def builds(self):
        return len(self.count.read_text().splitlines()) if self.count.exists() else 0

    def folder(self):
        return self.cache / RELEASE / "build"

    def refused(self, status=1, **more):
        """The one line of a refusal that leaves nothing behind."""
        result = self.run(self.headers, **more)
        assert result.returncode == status, result.stdout + result.stderr
        assert not self.folder().parent.exists()
        assert self.run("--find", self.headers).stdout.strip() == str(self.headers)
        [line] = result.stderr.splitlines()
        assert line.startswith("error: ")
        return line


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_it_is_made_once(machine):
    for _ in range(2):
        result = machine.run(machine.headers)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[-1] == str(machine.folder())
    assert machine.builds() == 1
    assert machine.run("--find", machine.headers).stdout.strip() == str(machine.folder())
    # Sources that modules are not built with are not kept.
    source = machine.folder().parent / "source"
    assert (source / "rust/helpers/net/genetlink.c").exists() and not (source / "drivers").exists()
    # The version magic is the kernel's, and its own symbols are known to modpost.
    for name in ("include/config/kernel.release", "include/generated/utsrelease.h", "Module.symvers"):
        assert (machine.folder() / name).read_text() == (machine.headers / name).read_text()


def test_headers_that_are_being_configured_will_do(machine):
    # Their package has DKMS build for them then.
    machine.packages(VERSION, VERSION, status="half-configured")
    assert machine.run(machine.headers).returncode == 0


def test_a_package_that_was_removed_is_not_there(machine):
    machine.packages(VERSION, VERSION, status="config-files")
    assert "no package linux-headers" in machine.refused(status=77)


def test_new_headers_of_the_same_release_want_new_metadata(machine):
    assert machine.run(machine.headers).returncode == 0
    machine.configure(CONFIG + "CONFIG_NEW=y\n")
    machine.pack(SYMBOLS)
    assert machine.run("--find", machine.headers).stdout.strip() == str(machine.headers)
    assert machine.run(machine.headers).returncode == 0
    assert machine.builds() == 2


def test_a_new_package_of_the_same_kernel_wants_new_metadata(machine):
    assert machine.run(machine.headers).returncode == 0
    machine.packages("7.3.4-2", "7.3.4-2")
    assert machine.run("--find", machine.headers).stdout.strip() == str(machine.headers)
    assert machine.run(machine.headers).returncode == 0
    assert machine.builds() == 2


def test_nothing_else_in_the_folder_is_touched(machine):
    """Only metadata of kernels that are gone is removed."""
    old = machine.cache / "7.3.0-gone"
    other = machine.cache / "photos"
    for folder in (old, other):
        folder.mkdir(parents=True)
        (folder / "one").touch()
    (old / ".done").touch()
    assert machine.run(machine.headers).returncode == 0
    assert not old.exists() and (other / "one").exists()
    # Nor is what has the name of the kernel.
    shutil.rmtree(machine.folder().parent)
    machine.folder().parent.mkdir()
    (machine.folder().parent / "one").touch()
    result = machine.run(machine.headers)
    assert result.returncode == 77 and "is no metadata" in result.stderr
    assert (machine.folder().parent / "one").exists()


def test_what_was_interrupted_is_made_again(machine):
    """In any step; what says whose folder it is comes first and goes last."""
    folder = machine.folder().parent
    folder.mkdir(parents=True)
    assert machine.run(machine.headers).returncode == 0
    for name in (".done", "config", "version", "symbols"):
        (folder / name).unlink()
    shutil.rmtree(folder / "source")
    assert machine.run(machine.headers).returncode == 0


@pytest.mark.parametrize("removed", ["rm", "find"])
def test_a_removal_may_be_interrupted(machine, removed):
    """What is left is not taken for metadata that is whole, and is made again."""
    folder = machine.folder().parent
    assert machine.run(machine.headers).returncode == 0
    machine.packages("7.3.4-2", "7.3.4-2")
    # At the first file, as a rule, and a little before the end.
    program(machine.root / "bin" / removed, "#!/bin/sh\nexit 1\n")
    assert machine.run(machine.headers).returncode not in (0, 77)
    (machine.root / "bin" / removed).unlink()
    machine.packages(VERSION, VERSION)
    assert (folder / ".ibtrs-metadata").exists()
    assert machine.run(machine.headers).returncode == 0
    assert machine.builds() == (1 if removed == "rm" else 2)


def test_the_running_kernel_is_what_is_built_for():
    """Without a name."""
    said = subprocess.run(["make", "-n", "kernel-metadata"], cwd=SCRIPTS.parent, text=True, capture_output=True,
                          check=True, env={key: value for key, value in os.environ.items()
                                           if key not in ("KDIR", "KERNEL", "MAKEFLAGS", "MFLAGS")}).stdout
    assert said.strip().endswith(f"/lib/modules/{os.uname().release}/build")


@pytest.mark.parametrize("target", ["all", "install", "kernel-metadata", "clean", "deb"])
@pytest.mark.parametrize("name", ["OUT", "KDIR"])
def test_a_path_with_a_blank_is_refused(tmp_path, target, name):
    """make would take it for two."""
    path = tmp_path / "a b"
    path.mkdir()
    done = subprocess.run(["make", target, f"{name}={path}"], cwd=TOP, text=True, capture_output=True, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert f"{name} is '{path}'" in line and "no path with a blank" in line
    assert not list(path.iterdir())


def test_the_kernels_build_gets_all_jobs_and_an_absolute_folder(machine):
    """A relative OUT is one of the caller's, although the kernel's Makefiles run elsewhere; one of the
    environment is not taken."""
    machine.tool("sh", "sh 1")
    assert machine.run(machine.headers).returncode == 0
    (machine.folder() / "Makefile").write_text("modules:\n\t@echo in $(MO) with $(filter --jobserver%,$(MAKEFLAGS))\n")
    out = machine.root / "out"
    env = machine.env(OUT="/nowhere")
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "LLVM", "RUSTC", "BINDGEN"):
        env.pop(name, None)
    done = subprocess.run(["make", "-j3", f"KDIR={machine.headers}", f"OUT={os.path.relpath(out, TOP)}"], cwd=TOP, env=env,
                          text=True, capture_output=True, check=True)
    assert re.search(f"^in {out} with --jobserver", done.stdout, re.M), done.stdout
    assert out.is_dir() and "jobserver unavailable" not in done.stderr
    assert f"MO={TOP}/build " in subprocess.run(
        ["make", "-n", "install", f"KDIR={machine.headers}"], cwd=TOP, env=env, text=True, capture_output=True,
        check=False).stdout


def test_what_the_distribution_ships_is_taken(machine):
    (machine.headers / "rust").mkdir()
    (machine.headers / "rust/libkernel.rmeta").touch()
    result = machine.run(machine.headers)
    assert (result.returncode, result.stdout.strip()) == (0, str(machine.headers))
    assert machine.builds() == 0


def test_a_symbol_changed_by_hand_is_refused(machine):
    machine.kernel_has([SYMBOLS[0], SYMBOLS[1] + "x"])
    line = machine.refused(status=77)
    assert f"1 of 2 symbols are not the kernel's, {SYMBOLS[1]} among them" in line


def test_a_symbol_changed_later_is_refused_and_nothing_is_made_again(machine):
    """Only the kernel's list of symbols changed: metadata that is there is compared with it."""
    assert machine.run(machine.headers).returncode == 0
    machine.kernel_has([SYMBOLS[0]])
    result = machine.run(machine.headers)
    assert result.returncode == 77
    assert f"1 of 2 symbols are not the kernel's, {SYMBOLS[1]} among them" in result.stderr
    assert machine.run("--find", machine.headers).stdout.strip() == str(machine.headers)
    # The list has more than before, and all that is wanted.
    machine.kernel_has([*SYMBOLS, "_RNvCs1_6kernel5three"])
    assert machine.run(machine.headers).returncode == 0
    assert (machine.folder() / "Module.symvers").read_text() == (machine.headers / "Module.symvers").read_text()
    assert machine.builds() == 1


def test_what_was_refused_is_not_built_again(machine):
    """Until something changes that the refusal depends on."""
    machine.kernel_has([SYMBOLS[0], SYMBOLS[1] + "x"])
    first, second = machine.refused(status=77), machine.refused(status=77)
    assert second == f"{first} (found out before; to try it again, remove {machine.cache}/.refused-{RELEASE})"
    assert machine.builds() == 1
    machine.kernel_has([SYMBOLS[0] + "x", SYMBOLS[1] + "x"])
    assert "2 of 2 symbols" in machine.refused(status=77)
    assert machine.builds() == 2
    machine.kernel_has(SYMBOLS)
    assert machine.run(machine.headers).returncode == 0
    assert not list(machine.cache.glob(".refused-*"))


def test_what_a_tool_may_have_caused_is_tried_again(machine):
    machine.pack(SYMBOLS, extra_config="CONFIG_AS_VERSION=24400\n")
    assert machine.refused(status=77) == machine.refused(status=77)
    machine.pack(SYMBOLS)
    assert machine.run(machine.headers).returncode == 0


def test_the_source_of_rust_is_needed(machine):
    shutil.rmtree(machine.root / "sysroot")
    assert machine.refused(status=77) == "error: these are missing: rust-src"
    assert machine.builds() == 0


def test_a_full_disk_is_no_failure_of_the_kernel(machine):
    """DKMS skips a kernel at this status; otherwise the installation of its headers would fail."""
    gone = machine.cache / "7.3.0-gone"
    gone.mkdir(parents=True)
    (gone / ".done").touch()
    line = machine.refused(status=77, IBTRS_METADATA_MIB="99999999")
    # What can be removed is removed before.
    assert not gone.exists()
    assert f"{machine.cache} has " in line and "99999999 are needed" in line
    assert machine.builds() == 0


def test_another_source_is_refused(machine):
    machine.packages(VERSION, "7.3.5-1")
    line = machine.refused(status=77)
    assert "linux-source-7.3 7.3.4-1 is needed" in line and "installed: 7.3.5-1" in line
    machine.packages(VERSION, "")
    assert "installed: none" in machine.refused(status=77)
    assert machine.builds() == 0


@pytest.mark.parametrize("name", ["rustc", "bindgen"])
def test_another_compiler_is_refused(machine, name):
    machine.tool(name, f"{name} 9.9.9")
    line = machine.refused(status=77)
    assert f"{name} has to be the kernel's" in line and f"this is '{name} 9.9.9'" in line
    assert machine.builds() == 0


def test_another_configuration_is_refused(machine):
    machine.pack(SYMBOLS, extra_config="CONFIG_STRANGE=y\n")
    assert "CONFIG_STRANGE=y" in machine.refused(status=77)
    assert machine.builds() == 0


def test_the_kernels_check_of_the_toolchain_is_told(machine):
    """A tool that the kernel does not take, as with a stray LIBCLANG_PATH, turns CONFIG_RUST off."""
    fault = "***\n*** Running 'bindgen' to check the libclang version failed.\n***\n"
    machine.pack(SYMBOLS, extra_config="CONFIG_STRANGE=y\n", toolchain_fault=fault)
    said = machine.refused(status=77)
    assert said.endswith("come out otherwise; the kernel's check of the Rust toolchain says: "
                         "Running 'bindgen' to check the libclang version failed."), said


def test_dkms_ignores_variables_of_the_user(machine):
    shown = f"check-kdir:\n\t@echo libclang=$(LIBCLANG_PATH)= > {machine.root}/shown\n"
    modules = machine.root / "modules"
    modules.mkdir()
    (modules / "Makefile").write_text(shown)
    result = machine.run(machine.headers, script="dkms-pre-build.sh", cwd=modules, LIBCLANG_PATH="/elsewhere")
    assert result.returncode == 0, result.stderr
    assert (machine.root / "shown").read_text() == "libclang==\n"


def test_a_revision_of_the_same_compiler_will_do(machine):
    """Its version is an option of its own."""
    machine.pack(SYMBOLS, extra_config='CONFIG_CC_VERSION_TEXT="sh 1, revision 2"\n')
    assert machine.run(machine.headers).returncode == 0


def before_dkms_builds(machine, makefile: str):
    """What DKMS runs in the folder of the modules, which has that Makefile."""
    modules = machine.root / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "Makefile").write_text(makefile)
    return machine.run(machine.headers, script="dkms-pre-build.sh", cwd=modules)


NOTHING_IS_MISSING = "check-kdir:\n"
COMPILES = f"all:\n\t@echo $(KDIR) > built\n{NOTHING_IS_MISSING}"
DOES_NOT = f"all:\n\t@false\n{NOTHING_IS_MISSING}"


def test_a_newer_kernel_is_tried(machine):
    """It is skipped (77) if the modules do not compile for it, which no longer fails its installation."""
    (machine.headers / "include/config/kernel.release").write_text("7.10.1+test-amd64\n")
    program(machine.headers / "rust/libkernel.rmeta", "")
    assert before_dkms_builds(machine, COMPILES).returncode == 0
    assert (machine.root / "modules/built").read_text() == f"{machine.headers}\n"
    result = before_dkms_builds(machine, DOES_NOT)
    assert result.returncode == 77
    assert result.stderr.splitlines()[-1] == (
        "error: the modules do not compile for kernel 7.10.1+test-amd64: "
        "install a version of ibtrs that was made for kernel 7.10")


def test_a_newer_kernel_whose_metadata_cannot_be_made_is_skipped(machine):
    """What the script knows of the source may have changed; for a known kernel this is an error."""
    (machine.root / "linux-source-7.3.tar.xz").write_text("no archive")
    assert before_dkms_builds(machine, COMPILES).returncode not in (0, 77)
    (machine.headers / "include/config/kernel.release").write_text("7.4.1+test-amd64\n")
    (machine.root / "linux-source-7.3.tar.xz").rename(machine.root / "linux-source-7.4.tar.xz")
    dpkg = machine.root / "bin/dpkg-query"
    dpkg.write_text(dpkg.read_text().replace("linux-source-7.3", "linux-source-7.4"))
    result = before_dkms_builds(machine, COMPILES)
    assert result.returncode == 77
    assert result.stderr.splitlines()[-1] == (
        "error: the Rust metadata cannot be made for kernel 7.4.1+test-amd64: "
        "install a version of ibtrs that was made for kernel 7.4")


def test_for_a_known_kernel_only_the_metadata_is_made(machine):
    """A build that fails is an error there, and DKMS reports it."""
    assert before_dkms_builds(machine, DOES_NOT).returncode == 0
    assert machine.folder().exists()
    shutil.rmtree(machine.cache)
    machine.packages(VERSION, "")
    assert before_dkms_builds(machine, COMPILES).returncode == 77


def test_a_kernel_without_its_compiler_is_skipped(machine):
    """Also if its headers have the metadata, so that this does not ask for any tool."""
    program(machine.headers / "rust/libkernel.rmeta", "")
    config = machine.headers / ".config"
    missing = "check-kdir:\n\t@echo missing $(LLVM) $(KDIR) >&2; false\n"
    result = before_dkms_builds(machine, missing)
    assert result.returncode == 77
    assert f"missing {machine.headers}\n" in result.stderr
    config.write_text(config.read_text() + "CONFIG_CC_IS_CLANG=y\n")
    assert f"missing 1 {machine.headers}\n" in before_dkms_builds(machine, missing).stderr


def test_a_source_without_rust_symbols_is_refused(machine):
    machine.pack([])
    assert "no Rust symbols" in machine.refused()


def test_a_kernel_without_rust_is_refused(machine):
    machine.configure(CONFIG.replace("CONFIG_RUST=y", "# CONFIG_RUST is not set"))
    assert "without Rust" in machine.refused()


def test_check_kdir_wants_what_bindings_are_made_with(machine):
    """Some distributions ship the metadata alone."""
    (machine.headers / "rust").mkdir()
    (machine.headers / "rust/libkernel.rmeta").touch()
    machine.tool("sh", "sh 1")
    result = machine.run(machine.headers, script="check-kdir.sh")
    [line] = [line for line in result.stderr.splitlines() if line.startswith("missing: ")]
    assert result.returncode == 1 and "rust/bindgen_parameters" in line
    (machine.headers / "rust/bindgen_parameters").touch()
    assert machine.run(machine.headers, script="check-kdir.sh").returncode == 0


def test_check_kdir_wants_what_makes_versions_of_symbols(machine):
    machine.configure(CONFIG + "CONFIG_MODVERSIONS=y\n")
    machine.tool("sh", "sh 1")
    assert machine.run(machine.headers).returncode == 0
    result = machine.run(machine.headers, machine.folder(), script="check-kdir.sh")
    [line] = [line for line in result.stderr.splitlines() if line.startswith("missing: ")]
    assert result.returncode == 1 and "gendwarfksyms" in line
    program(machine.folder() / "scripts/gendwarfksyms/gendwarfksyms", "")
    assert machine.run(machine.headers, machine.folder(), script="check-kdir.sh").returncode == 0


def test_check_kdir_names_the_command_and_then_is_content(machine):
    machine.tool("sh", "sh 1")
    first = machine.run(machine.headers, script="check-kdir.sh")
    assert first.returncode == 1
    assert [line for line in first.stderr.splitlines() if line.startswith("missing: ")] == [
        f"missing: the Rust metadata of kernel {RELEASE}: make it with "
        f"'make kernel-metadata KDIR={machine.headers}' (as root)"]
    assert machine.run(machine.headers).returncode == 0
    second = machine.run(machine.headers, machine.folder(), script="check-kdir.sh")
    assert (second.returncode, second.stderr) == (0, "")


def test_check_kdir_names_the_packages_that_are_missing(machine):
    """Those that are installed are not named; there is no such line where nothing is missing."""
    def tries(**installed):
        cases = " ".join(f"{name.replace('_', '-')}) echo installed ;;" for name in installed)
        program(machine.root / "bin/dpkg-query", f'#!/bin/sh\nfor name; do :; done\ncase $name in {cases} esac\n')
        said = machine.run(machine.headers, script="check-kdir.sh").stderr
        return [line for line in said.splitlines() if line.startswith("try: ")]

    machine.tool("sh", "sh 1")
    metadata = "linux-source-7.3 flex bison bc libelf-dev libssl-dev pahole xz-utils"
    assert tries() == [f"try: apt install {metadata}"]
    assert tries(flex=1, libelf_dev=1) == [
        "try: apt install linux-source-7.3 bison bc libssl-dev pahole xz-utils"]
    for name in ("rustc", "bindgen"):
        program(machine.root / "bin" / name, "#!/bin/sh\nexit 127\n")
    machine.configure(CONFIG.replace("sh 1", "x86_64-linux-gnu-gcc-99 (Debian) 99.1"))
    assert tries() == [f"try: apt install rustc rust-src bindgen {metadata} gcc-99"]
    machine.packages(VERSION, VERSION)
    for name, version in (("rustc", RUSTC), ("bindgen", BINDGEN)):
        machine.tool(name, version)
    machine.configure(CONFIG)
    assert machine.run(machine.headers).returncode == 0
    assert machine.run(machine.headers, machine.folder(), script="check-kdir.sh").stderr == ""


def test_check_kdir_lets_modules_be_compiled_for_a_kernel_that_is_only_prepared(machine):
    (machine.headers / "Module.symvers").unlink()
    result = machine.run("--kernel-only", machine.headers, script="check-kdir.sh")
    assert result.returncode == 1
    assert result.stderr == f"missing: {machine.headers}/Module.symvers: build the kernel there first\n"
    result = machine.run("--kernel-only", machine.headers, script="check-kdir.sh", KBUILD_MODPOST_WARN="1")
    assert (result.returncode, result.stderr) == (0, "")


def test_check_kdir_notes_what_authentication_lacks(machine):
    """The modules do without, so this keeps nobody from building them."""
    machine.configure(CONFIG.replace("CONFIG_CRYPTO_LIB_CURVE25519=m\n", ""))
    result = machine.run("--kernel-only", machine.headers, script="check-kdir.sh")
    [line] = result.stderr.splitlines()
    assert result.returncode == 0
    assert line.startswith("note: ") and "CONFIG_CRYPTO_LIB_CURVE25519" in line


@pytest.mark.parametrize("release,option,why", [
    ("6.12.107+test", "", "kernel 7.3 or later"),
    (RELEASE, "CONFIG_RUST=y\n", "CONFIG_RUST"),
    (RELEASE, "CONFIG_INFINIBAND=m\n", "CONFIG_INFINIBAND"),
])
def test_check_kdir_says_why_a_kernel_does_not_serve(machine, release, option, why):
    machine.configure(CONFIG.replace(option, "") if option else CONFIG)
    (machine.headers / "include/config/kernel.release").write_text(release + "\n")
    result = machine.run("--kernel-only", machine.headers, script="check-kdir.sh")
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("missing: ") and why in line


def test_what_a_kernel_must_have_is_the_same_everywhere(machine):
    """DKMS skips a kernel that lacks something, by its own list; building for it would fail."""
    demanded = set()
    for line in CONFIG.splitlines():
        machine.configure(CONFIG.replace(line + "\n", ""))
        if machine.run("--kernel-only", machine.headers, script="check-kdir.sh").returncode != 0:
            demanded.add(line.partition("=")[0])
    machine.configure(CONFIG)
    assert machine.run("--kernel-only", machine.headers, script="check-kdir.sh").returncode == 0
    [listed] = re.findall('^BUILD_EXCLUSIVE_CONFIG="(.*)"$', (TOP / "tools/debian/dkms.conf").read_text(), re.M)
    assert sorted(listed.split()) == sorted(demanded)
    page = (TOP / "Documentation/installation.md").read_text()
    table = page.partition("| requirement | reason |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `CONFIG_")]
    written = {option for options, reason in rows if not reason.startswith(" wanted") for option in options.split()}
    assert {option.strip("`,") for option in written} == demanded


def test_a_preemptible_kernel_must_wait_for_preempted_tasks(machine):
    def run(more: str):
        machine.configure(CONFIG + more)
        return machine.run("--kernel-only", machine.headers, script="check-kdir.sh")

    refused = run("CONFIG_PREEMPTION=y\n")
    assert refused.returncode != 0 and "CONFIG_TASKS_RCU" in refused.stderr
    assert run("CONFIG_PREEMPTION=y\nCONFIG_TASKS_RCU=y\n").returncode == 0


def test_each_symbol_gets_a_version(tmp_path):
    """Also one that gendwarfksyms knows nothing of; and another one when the objects change."""
    program(tmp_path / "gendwarfksyms", "#!/bin/sh\n"
            "while read -r name; do case $name in known*) version=12345678 ;; *) version=00000000\n"
            'echo "warning: symbol_print_versions: no information for symbol $name" >&2 ;; esac\n'
            'echo "#SYMVER $name 0x$version"; done; echo "warning: strange" >&2; exit "${FAILS:-0}"\n')
    objects = [tmp_path / "one.o", tmp_path / "two.o"]

    def versions(**env):
        done = subprocess.run([SCRIPTS / "symbol-versions.sh", tmp_path / "gendwarfksyms", *objects], text=True,
                              input="known1\nunknown1\nknown2\n", capture_output=True, check=False,
                              env={**os.environ, **env})
        return done.returncode, re.findall(r"^#SYMVER (\w+) 0x([0-9a-f]{8})$", done.stdout, re.M), done.stderr

    found = []
    for text in ("a", "b"):
        for file in objects:
            file.write_text(text)
        status, listed, said = versions()
        assert (status, said) == (0, "warning: strange\n")
        assert [name for name, _ in listed] == ["known1", "unknown1", "known2"]
        assert listed[0][1] == listed[2][1] == "12345678"
        found.append(listed[1][1])
    assert len({"00000000", *found}) == 3
    status, listed, said = versions(FAILS="3")
    assert status == 1 and listed == [] and "no information" in said
