"""The loaders of exported rows in docs/load-rows.md, and files for them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from .proxy import REPOSITORY

#: The package that each loader needs, or "", and its code. The first one reads `rows` from a file, the others use them.
LOADERS: list[tuple[str, str]] = re.findall(
    r"^```python load ?(\w*)\n(.*?)^```$", (REPOSITORY / "docs" / "load-rows.md").read_text(), re.S | re.M
)


def write_rows(folder: Path) -> None:
    """Writes files of rows as `llm-proxy rollout` does."""
    row = {
        "task_index": 0,
        "sample_index": 0,
        "instance_id": "a",
        "num_turns": 1,
        "reward_score": 0.5,
        "prompt_ids": [1, 2],
        "response_ids": [3, 4],
        "response_mask": [1, 0],
        "response_logprobs": [-0.25, 0.0],
        "metrics": {"tries": 1},
        "extra_fields": {"line": "main", "truncated": False, "finish_reason": "stop"},
        "sampling_mask": [[3, 9], None],
    }
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    script = f"""
        import {{ writeColumns }} from {json.dumps((REPOSITORY / "src/cli/rollout/rows-columns.ts").as_uri())}
        for (const name of ['rows.parquet', 'rows.arrow']) await writeColumns(name, 'rows.jsonl')
    """
    node = next(iter((REPOSITORY / "node_modules").glob("node-linux-*/bin/node")), "node")
    subprocess.run([node, "--input-type=module", "-e", script], cwd=folder, check=True)
