"""An environment for Harbor's trials without Docker: each command runs in bubblewrap, with separate folders."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult

OWN = ("app", "logs", "tests", "solution", "harbor", "tmp", "root", "installed-agent")
SYSTEM = ("usr", "bin", "lib", "lib64", "sbin", "etc")


class BwrapEnvironment(BaseEnvironment):
    @staticmethod
    def type() -> str:
        return "bwrap"

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="harbor-bwrap-"))
        for name in (*OWN, "logs/agent", "logs/verifier", "logs/artifacts"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        # The test that looks for leftovers reads the location from this log.
        Path(os.environ["ENVIRONMENT_LOG"]).write_text(str(self._root))

    async def stop(self, delete: bool) -> None:
        # Harbor ignores an error here, such as a timeout on a busy machine.
        try:
            await self.exec("tmux kill-server", timeout_sec=10)
        finally:
            shutil.rmtree(self._root, ignore_errors=True)

    def _inside(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = self._inside(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, target)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._inside(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._inside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._inside(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        binds = [word for name in OWN for word in ("--bind", str(self._root / name), f"/{name}")]
        system = [word for name in SYSTEM for word in ("--ro-bind-try", f"/{name}", f"/{name}")]
        tools = os.environ.get("ENVIRONMENT_TOOLS")
        if tools:
            system += ["--ro-bind", tools, "/tools"]
        # Otherwise a killed command continues to write into the folder that `stop` deletes.
        words = ["bwrap", "--die-with-parent", *system, *binds, "--proc", "/proc", "--dev", "/dev", "--chdir", cwd or "/app"]
        variables = {"PATH": "/tools/node_modules/.bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **(env or {})}
        process = await asyncio.create_subprocess_exec(
            *words, "bash", "-c", command,
            env=variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        except BaseException:
            # The process may have ended on an interrupt of the process group.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0)
