"""The patch set: series, patch files, overlay map and hash lock.

The form of each is described in patches/README.md. Reading is strict: what
does not follow the form is an error that says which file and what to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tomllib

from .console import fail

AREAS = ("build", "c10", "cuda", "aten", "torch")
FIELDS = ("Why", "Why-a-patch", "Upstream", "Tested-by")
SENDER = "Remat developers <remat@example.invalid>"

_SUBJECT = re.compile(r"(?P<area>\w+): (?P<what>\S.*)")
_FIELD = re.compile(r"(?P<name>[A-Z][\w-]*): ?(?P<text>.*)")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class Patch:
    """One patch: a subject and body in mail form, and a git diff."""

    subject: str
    body: str
    diff: str

    @classmethod
    def parse(cls, text: str, name: str) -> Patch:
        head, found, diff = text.partition("\ndiff --git ")
        if not found:
            fail(f"{name}: holds no diff")
        lines = head.splitlines()
        if not lines or lines[0] != f"From: {SENDER}":
            fail(f"{name}: line 1 must be `From: {SENDER}`")
        if len(lines) < 2 or not lines[1].startswith("Subject: [PATCH] "):
            fail(f"{name}: line 2 must start with `Subject: [PATCH] `")
        subject = lines[1].removeprefix("Subject: [PATCH] ")
        return cls(subject, "\n".join(lines[2:]).strip(), "diff --git " + diff)

    def format(self) -> str:
        return (
            f"From: {SENDER}\nSubject: [PATCH] {self.subject}\n\n"
            f"{self.body.strip()}\n\n{self.diff}"
        )

    @property
    def path(self) -> str:
        """Where the subject says that this patch is kept, below patches/."""
        match = _SUBJECT.fullmatch(self.subject)
        if not match or match["area"] not in AREAS:
            fail(
                f"subject {self.subject!r} must be `area: what`, "
                f"with an area of {' '.join(AREAS)}"
            )
        slug = re.sub(r"[^a-z0-9]+", "-", match["what"].lower()).strip("-")
        return f"{match['area']}/{slug}.patch"

    @cached_property
    def fields(self) -> dict[str, str]:
        """The header fields of the body, continuation lines joined."""
        fields: dict[str, str] = {}
        name = None
        for line in self.body.splitlines():
            if match := _FIELD.fullmatch(line):
                name = match["name"]
                fields[name] = match["text"].strip()
            elif name and line.strip():
                fields[name] += " " + line.strip()
        return fields

    @cached_property
    def files(self) -> list[str]:
        return re.findall(r"^diff --git a/(\S+) b/\S+$", self.diff, re.M)

    @cached_property
    def added(self) -> list[str]:
        return re.findall(r"^\+(?!\+\+ )(.*)$", self.diff, re.M)

    @cached_property
    def removed(self) -> list[str]:
        return re.findall(r"^-(?!-- )(.*)$", self.diff, re.M)

    def hunk_at(self, file: str, line: int) -> int:
        """Which hunk of ``file``, counted from 1, starts at old ``line``."""
        sections = re.split(r"^diff --git ", self.diff, flags=re.M)
        section = next((s for s in sections if s.startswith(f"a/{file} ")), "")
        starts = [int(start) for start in _HUNK.findall(section)]
        return starts.index(line) + 1 if line in starts else 0


@dataclass(frozen=True)
class PatchSet:
    """The folder ``patches/``."""

    folder: Path

    @cached_property
    def series(self) -> list[str]:
        """Patch paths in the order in which they apply, lowest layer first."""
        lines = self._read("series").splitlines()
        names = [line.strip() for line in lines if line.strip()]
        for name in names:
            if names.count(name) > 1:
                fail(f"patches/series names {name} twice")
            if not (self.folder / name).is_file():
                fail(f"patches/series names {name}, which does not exist")
        for file in sorted(self.folder.rglob("*.patch")):
            name = file.relative_to(self.folder).as_posix()
            if name not in names:
                fail(f"patches/{name} is not in patches/series")
        return names

    @cached_property
    def patches(self) -> list[Patch]:
        patches = []
        for name in self.series:
            patch = Patch.parse(self._read(name), f"patches/{name}")
            if patch.path != name:
                fail(
                    f"patches/{name}: its subject belongs in patches/{patch.path}; "
                    "rename the file or change the subject"
                )
            patches.append(patch)
        return patches

    @property
    def touched(self) -> list[str]:
        """Upstream files that the series edits, sorted."""
        return sorted({file for patch in self.patches for file in patch.files})

    @cached_property
    def overlay(self) -> dict[str, str]:
        """Our folder -> upstream folder."""
        try:
            return dict(tomllib.loads(self._read("overlay.toml"))["overlay"])
        except (tomllib.TOMLDecodeError, KeyError) as error:
            fail(f"patches/overlay.toml: {error}")

    @cached_property
    def lock(self) -> dict[str, str]:
        """Path -> SHA-256 of each pristine upstream file that a patch edits."""
        lock = {}
        for line in self._read("touched.lock").splitlines():
            digest, _, path = line.partition("  ")
            if not re.fullmatch(r"[0-9a-f]{64}", digest) or not path:
                fail(f"patches/touched.lock: damaged line {line!r}")
            lock[path] = digest
        return lock

    def write(self, patches: list[Patch], lock: dict[str, str]) -> None:
        """Make the folder hold exactly these patches; unchanged files stay."""
        texts = {patch.path: patch.format() for patch in patches}
        if len(texts) != len(patches):
            fail("two commits have the same subject; each patch needs its own")
        texts["series"] = _series_text([patch.path for patch in patches])
        texts["touched.lock"] = "".join(
            f"{digest}  {path}\n" for path, digest in sorted(lock.items())
        )
        for file in self.folder.rglob("*.patch"):
            if file.relative_to(self.folder).as_posix() not in texts:
                file.unlink()
        for name, text in texts.items():
            file = self.folder / name
            if not file.is_file() or file.read_text() != text:
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            fail(f"patches/{name} is missing")
        except UnicodeDecodeError:
            fail(f"patches/{name} is not UTF-8")


def _series_text(names: list[str]) -> str:
    """One name a line, a blank line between areas."""
    lines: list[str] = []
    for name in names:
        if lines and lines[-1].split("/")[0] != name.split("/")[0]:
            lines.append("")
        lines.append(name)
    return "\n".join(lines) + "\n" if lines else ""
