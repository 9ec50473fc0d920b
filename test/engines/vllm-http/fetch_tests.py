"""
Fetches vLLM's source archive of a version and extracts its HTTP tests.

    python fetch_tests.py VERSION FOLDER

pip builds what it downloads, which takes vLLM's toolchain. Its own finder and session therefore locate and read the
archive, so that pip's configuration (index, proxy, certificates) applies.
"""

import io
import sys
import tarfile

from pip._internal.commands import create_command
from pip._vendor.packaging.specifiers import SpecifierSet

PARTS = ("tests/__init__.py", "tests/entrypoints/")


def fetch_archive(version: str) -> bytes:
    """Returns the archive after a check of its hash. Raises an error where the index has none for the version."""
    command = create_command("download")
    options, _ = command.parse_args(["--no-binary", ":all:"])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        link = finder.find_best_candidate("vllm", SpecifierSet(f"=={version}")).best_candidate.link
        response = session.get(link.url_without_fragment)
        response.raise_for_status()
    link.as_hashes().check_against_chunks([response.content])
    return response.content


def extract_tests(archive: bytes, folder: str) -> None:
    """Extracts PARTS without the archive's first folder."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        for member in source:
            member.name = member.name.partition("/")[2]
            if member.isfile() and member.name.startswith(PARTS):
                source.extract(member, folder, filter="data")


extract_tests(fetch_archive(sys.argv[1]), sys.argv[2])
