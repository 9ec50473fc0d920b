"""Names of rollouts and of their sessions, and where a row's task is."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Leaves room for the random part and the number of the try within what names of files and sessions take.
_LONGEST_PREFIX = 160


def instance_id_of(sample: Mapping[str, Any]) -> str | None:
    """The row's ``instance_id``; ``None`` when it has none."""
    value = sample.get("instance_id")
    return str(value) if isinstance(value, (str, int)) and value != "" else None


def new_trial_id(sample: Mapping[str, Any]) -> str:
    """``instance_id`` and something random. What is not plain in a URL, a file's name and a shell becomes ``_``."""
    name = re.sub(r"[^A-Za-z0-9._~:-]", "_", instance_id_of(sample) or "trial")
    return f"{name[:_LONGEST_PREFIX]}-{secrets.token_hex(8)}"


def session_id_of_try(trial_id: str, number: int) -> str:
    """The session of a try, each of which has its own.

    A call that the agent of an earlier try still makes, from a container or a machine where nobody can stop it, must
    not land in the record of a later one.
    """
    return trial_id if number == 1 else f"{trial_id}~{number}"


def task_path_of(sample: Mapping[str, Any], dataset_dirs: Sequence[str], template: str | None) -> Path | None:
    """The row's task directory.

    ``local_task_path`` if that is a directory, else the first of ``dataset_dirs`` that has one of the row's instance
    id, else what ``template`` says for its ``{instance_id}``, whether it is there or not. Rows are data, and a task's
    directory is sent to whoever runs it: where directories are configured, no row names what lies beside them.
    """
    local = sample.get("local_task_path")
    roots = [Path(root) for root in dataset_dirs]
    if template is not None:
        roots.append(_template_root(template))
    if isinstance(local, str) and local and Path(local).is_dir() and _may_name(roots, Path(local)):
        return Path(local)
    instance_id = instance_id_of(sample)
    if instance_id is None or "\0" in instance_id:
        return None
    for root in map(Path, dataset_dirs):
        candidate = root / instance_id
        if _is_inside(root, candidate) and candidate.is_dir():
            return candidate
    if template is None:
        return None
    path = Path(template.replace("{instance_id}", instance_id))
    return path if _is_inside(_template_root(template), path) else None


def _may_name(roots: Sequence[Path], path: Path) -> bool:
    """Where nothing is configured the rows are trusted with the whole disk."""
    return not roots or any(_is_inside(root, path) for root in roots)


def _template_root(template: str) -> Path:
    """The directory that all paths of the template are in."""
    fixed = template.split("{instance_id}", 1)[0]
    return Path(fixed) if fixed.endswith("/") else Path(fixed).parent


def _is_inside(root: Path, path: Path) -> bool:
    """Links resolved: a row must not name what lies beside its dataset."""
    return root.resolve() in path.resolve().parents
