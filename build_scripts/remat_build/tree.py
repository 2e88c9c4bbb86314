"""The prepared tree: upstream, one commit per patch, overlays laid.

    upstream-base (tag)   the pristine files
      + one commit per patch, in the order of the series
      + the overlay folders, ignored by git there

The tree is built in a folder beside its destination and moved there once it is
complete, so a destination that exists is whole.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from .console import BuildError, fail, run, step
from .patchset import Patch, PatchSet
from .project import Project, complete_or_absent, files_under, sha256
from .sources import check_version

BASE = "upstream-base"

# Identity and settings of our own: the user's git configuration must neither
# be needed nor change what comes out.
_GIT_ENV = {
    **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C",
    "GIT_AUTHOR_NAME": "Remat developers",
    "GIT_AUTHOR_EMAIL": "remat@example.invalid",
    "GIT_AUTHOR_DATE": "2025-01-29T00:00:00Z",
    "GIT_COMMITTER_NAME": "Remat developers",
    "GIT_COMMITTER_EMAIL": "remat@example.invalid",
    "GIT_COMMITTER_DATE": "2025-01-29T00:00:00Z",
}


@dataclass(frozen=True)
class Tree:
    """A prepared tree at ``path``."""

    path: Path

    def git(self, *words: str | Path, stdin: str | None = None) -> str:
        return run(["git", *words], cwd=self.path, stdin=stdin, env=_GIT_ENV)

    @property
    def stamp(self) -> dict[str, str]:
        """What the tree was made from; empty if it is not one of ours."""
        try:
            return json.loads((self.path / ".git" / "remat.json").read_text())
        except FileNotFoundError:
            return {}

    def write_stamp(self, source: str, patches_key: str) -> None:
        head = self.git("rev-parse", "HEAD").strip()
        stamp = {"source": source, "patches": patches_key, "head": head}
        (self.path / ".git" / "remat.json").write_text(json.dumps(stamp))

    def unsaved(self) -> str | None:
        """What would be lost with the tree, in words; None if nothing."""
        if self.git("status", "--porcelain").strip():
            return "uncommitted edits"
        if self.git("rev-parse", "HEAD").strip() != self.stamp.get("head"):
            return "commits that are not in patches/"
        return None

    def commits(self) -> list[str]:
        return self.git("rev-list", "--reverse", f"{BASE}..HEAD").split()

    def blobs(self) -> dict[str, str]:
        """Path -> id of the content, of the files of HEAD."""
        rows = self.git("ls-tree", "-r", "-z", "HEAD").split("\0")
        pairs = (row.split("\t", 1) for row in rows if row)
        return {path: about.split()[2] for about, path in pairs}

    def read_patch(self, commit: str) -> Patch:
        subject = self.git("show", "-s", "--format=%s", commit).strip()
        body = self.git("show", "-s", "--format=%b", commit).strip()
        diff = self.git(
            "diff", "--full-index", "--no-color", "--no-ext-diff", "--no-renames",
            "--unified=3", "--src-prefix=a/", "--dst-prefix=b/",
            f"{commit}^", commit,
        )  # fmt: skip
        return Patch(subject, body, diff)

    def base_hash(self, file: str) -> str:
        """SHA-256 of a pristine file; fail if upstream has no such file."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                self.git("archive", f"--output={folder}/a.tar", BASE, file)
            except BuildError:
                fail(
                    f"{file} is not an upstream file; a patch only edits upstream "
                    "files, new files belong in an overlay (patches/overlay.toml)"
                )
            shutil.unpack_archive(f"{folder}/a.tar", folder)
            return sha256(Path(folder, file))


def prepare(
    project: Project,
    destination: Path,
    *,
    source: str,
    fetch: Callable[[Path], None],
    finish: Callable[[Tree], None] | None = None,
    three_way: bool = False,
    discard: bool = False,
) -> Tree:
    """Bring ``destination`` up to date with the patch set and the overlays.

    Args:
        source: says which files ``fetch`` brings; another text, another tree.
        fetch: fills an empty folder with the upstream files.
        finish: adds what else the tree has, above the patches.
        three_way: merge where upstream has moved, instead of failing.
        discard: replace a tree that holds work not written back to patches/.
    """
    patch_set = PatchSet(project.patches)
    key = _patches_key(patch_set)
    tree = Tree(destination)
    if destination.exists():
        if not tree.stamp:
            fail(
                f"{destination} exists and is not a prepared tree; name another --dest"
            )
        unsaved = tree.unsaved()
        fresh = tree.stamp["source"] == source and tree.stamp["patches"] == key
        if fresh and not unsaved and not three_way:
            lay_overlays(project, patch_set, destination)
            return tree
        if unsaved and not discard:
            fail(
                f"{destination} holds {unsaved}; run refresh_patches.py, "
                "or give --discard to lose them"
            )
    with complete_or_absent(destination) as partial:
        fetch(partial)
        check_version(project, partial)
        if not three_way:
            verify_lock(patch_set, partial)
        with step(f"apply {len(patch_set.patches)} patches"):
            known = tree if destination.exists() else None
            commit_series(
                Tree(partial), patch_set, three_way=three_way, old_files=known
            )
        if finish:
            finish(Tree(partial))
        _carry_times(known, Tree(partial), patch_set)
        lay_overlays(project, patch_set, partial)
        Tree(partial).write_stamp(source, key)
    return tree


def lay_overlays(project: Project, patch_set: PatchSet, tree: Path) -> None:
    """Make each overlay folder in the tree equal to ours.

    Copies, not links: upstream's install and packaging steps copy links as
    links, and a prepared tree can be moved or packed. Files that are equal are
    left alone, so that their times do not cause a rebuild.
    """
    for ours, theirs in patch_set.overlay.items():
        origin, target = project.root / ours, tree / theirs
        wanted = {f.relative_to(origin): f for f in files_under(origin)}
        if target.is_dir():
            for file in files_under(target):
                if file.relative_to(target) not in wanted:
                    file.unlink()
        for name, file in wanted.items():
            copy = target / name
            if not copy.is_file() or not filecmp.cmp(file, copy, shallow=False):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def refresh(project: Project, tree: Tree) -> None:
    """Write the commits of ``tree`` back to patches/: the inverse of prepare."""
    if not tree.stamp:
        fail(f"{tree.path} is not a prepared tree; run prepare_tree.py first")
    if tree.git("status", "--porcelain").strip():
        fail(f"{tree.path} holds uncommitted edits; commit them first")
    patches = [tree.read_patch(commit) for commit in tree.commits()]
    for patch in patches:
        if patch.subject.startswith(("fixup!", "squash!")):
            fail(
                f"commit {patch.subject!r} is still to be squashed: "
                "git rebase --autosquash"
            )
    touched = {file for patch in patches for file in patch.files}
    lock = {file: tree.base_hash(file) for file in touched}
    PatchSet(project.patches).write(patches, lock)
    tree.write_stamp(tree.stamp["source"], _patches_key(PatchSet(project.patches)))


def apply_patch(tree: Tree, patch: Patch, *, three_way: bool = False) -> None:
    """Apply to the work tree and the index; fail with patch, file and hunk."""
    done = subprocess.run(
        ["git", "apply", "--index", *(["--3way"] if three_way else [])],
        cwd=tree.path,
        input=patch.diff,
        env=_GIT_ENV,
        text=True,
        capture_output=True,
    )
    if done.returncode == 0:
        return
    if where := re.search(r"patch failed: (\S+):(\d+)", done.stderr):
        file, line = where[1], int(where[2])
        reason = f"{file}, hunk {patch.hunk_at(file, line)} (line {line})"
    elif where := re.search(r"^U (.*)$", done.stderr, re.M):
        reason = f"{where[1]} has conflicts"
    else:
        reason = done.stderr.strip().splitlines()[-1]
    fail(f"patches/{patch.path} does not apply: {reason}")


def verify_lock(patch_set: PatchSet, tree: Path) -> None:
    """Fail unless every file that a patch edits has its pinned hash."""
    lock = patch_set.lock
    for file in patch_set.touched:
        if file not in lock:
            fail(f"patches/touched.lock has no hash of {file}")
        if not (tree / file).is_file():
            fail(f"wrong tree: {file} is missing")
        if sha256(tree / file) != lock[file]:
            fail(
                f"wrong tree: {file} differs from the file that the patches are "
                "for (patches/touched.lock)"
            )


def commit_series(
    tree: Tree,
    patch_set: PatchSet,
    *,
    three_way: bool = False,
    old_files: Tree | None = None,
) -> None:
    """Make the files in ``tree.path`` upstream-base, and add the patches to it.

    Args:
        three_way: merge where a patch does not apply as it stands.
        old_files: a tree of the version that the patches are for; a merge needs
            the files that they were made against.
    """
    tree.git("init", "--quiet", "--initial-branch=remat")
    exclude = [f"/{theirs}/\n" for theirs in patch_set.overlay.values()]
    (tree.path / ".git/info/exclude").write_text("".join(exclude))
    tree.git("add", "--all", "--force")
    tree.git("commit", "--quiet", "--no-verify", f"--message={BASE}")
    tree.git("tag", BASE)
    if three_way and old_files:
        for file in patch_set.touched:
            text = old_files.git("show", f"{BASE}:{file}")
            tree.git("hash-object", "-w", "--stdin", stdin=text)
    for patch in patch_set.patches:
        apply_patch(tree, patch, three_way=three_way)
        message = f"{patch.subject}\n\n{patch.body}\n"
        tree.git(
            "commit", "--quiet", "--no-verify", "--cleanup=verbatim", "--file=-",
            stdin=message,
        )  # fmt: skip


def _carry_times(old: Tree | None, new: Tree, patch_set: PatchSet) -> None:
    """Date each file by when its content came into the tree, so that a build made
    from the old tree compiles again what differs, also where that is older."""
    before = old.blobs() if old else {}
    for name, blob in new.blobs().items():
        path = new.path / name
        if path.is_symlink():
            continue
        if old and before.get(name) == blob and (old.path / name).is_file():
            stat = (old.path / name).stat()
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        else:
            os.utime(path)
    for theirs in patch_set.overlay.values():
        if old and (old.path / theirs).is_dir():
            shutil.copytree(old.path / theirs, new.path / theirs)


def _patches_key(patch_set: PatchSet) -> str:
    """What the commits of a tree depend on, as text."""
    texts = [patch.format() for patch in patch_set.patches]
    texts += sorted(patch_set.overlay.values())
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
