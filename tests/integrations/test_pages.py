"""The pages on serving stacks: their code runs as it is printed, and prints what its comments say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fresh_python import ROOT, run
from integration_support import STANDIN

FRAMEWORK = {"sglang": "torch", "vllm": "torch", "sglang-jax": "jax", "tpu-inference": "jax"}

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", FRAMEWORK)
def test_the_code_of_the_page_prints_what_its_comments_say(page: str, tmp_path: Path) -> None:
    pytest.importorskip(FRAMEWORK[page])
    code = "\n".join(FENCE.findall((ROOT / "docs" / f"{page}.md").read_text()))
    script = tmp_path / "page.py"
    script.write_text(code)
    promised = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert promised
    assert run(str(script), path=STANDIN).splitlines() == promised


@pytest.mark.parametrize("page", FRAMEWORK)
def test_the_files_and_pages_that_the_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    assert "performance.md" in links
    for link in links:
        assert (ROOT / "docs" / link).is_file(), link
    for example in re.findall(r"examples/\w+\.py", text):
        assert (ROOT / example).is_file(), example
